"""Decoding: one token for every text of a batch, which reads all weights and all of the cache.

A step does 2 FLOPs for each weight and text, and reads each weight once for the whole batch, so
that memory bounds small batches (Pope et al. 2022, section 2, https://arxiv.org/abs/2211.05102).
Seconds are lower bounds, those of `compute.roofline` plus the messages of tensor parallelism.
Left out: messages of experts, drafts of several tokens (Leviathan et al. 2023,
https://arxiv.org/abs/2211.17192), drawing a token, and what the program does between two steps.
"""

from dataclasses import dataclass

from shardlab.files.arguments import Count, Share, checked
from shardlab.model.spec import TransformerSpec
from shardlab.sharding.layout import ONE_RANK, Layout

from .. import collectives
from ..compute import flops, roofline
from ..facts.hardware import Chip, Link
from ..memory import shards
from . import cache

ROOM = 0.9  # of the memory, for weights and cache


@dataclass(frozen=True, kw_only=True)
@checked
class DecodingRank:
    """A rank of a generator; the tp ranks of a copy share its texts, those of dp have others."""

    spec: TransformerSpec
    chip: Chip
    layout: Layout = ONE_RANK
    element: Count = 2  # bytes of a weight; 1: products are computed in fp8
    cache_element: Count = 2  # bytes of a number in the cache
    link: Link | None = None  # between the ranks of tp; None: their messages are left out

    def __post_init__(self) -> None:
        _ = self.kept  # refuses a layout that does not suit the model

    @property
    def precision(self) -> str:
        """The precision in which matrices are multiplied."""
        return "fp8" if self.element == roofline.ELEMENT["fp8"] else self.chip.precision

    @property
    def weights(self) -> int:
        """Bytes of the weights on the rank."""
        return self.element * sum(shards.parameters(self.spec, self.layout).values())

    @property
    def kept(self) -> int:
        """Bytes of one token in the cache."""
        return cache.token_bytes(self.spec, self.layout, self.cache_element)

    def read(self, batch: Count) -> float:
        """Count the bytes of weights that a step reads: of the embedding only a few rows.

        An expert is read if a token chose it: of E experts E (1 - (1 - k/E)^n), where n tokens
        choose k each, all with the same chance. Texts of all dp ranks that share experts choose.
        """
        parts, experts = shards.parameters(self.spec, self.layout), self.spec.experts
        unread: float = parts["position embedding"]
        if not self.spec.tied:
            unread += parts["token embedding"]
        if experts:
            idle = 1 - experts.per_token / experts.num_experts
            unread += shards.routed(self.spec, self.layout) * idle ** (batch * self.layout.ep)
        return self.element * (sum(parts.values()) - unread)

    def step(self, batch: Count, context: Count) -> roofline.Work:
        """Return the FLOPs and bytes of one step of `batch` texts with `context` tokens each.

        context: tokens in the cache, the new one among them, on average. Latent attention
        multiplies queries by the narrow vector itself (DeepSeek-AI 2024, section 2.1.2).
        """
        one = flops.forward(self.spec, batch=1, sequence=1)
        pair, latent = one.pop("scores"), self.spec.latent
        if latent:
            width = 2 * latent.kv_rank + latent.rotary_size
            pair = 2 * self.spec.num_attention * self.spec.num_heads * width
        work = batch * (sum(one.values()) + context * pair) / self.layout.tp
        nbytes = self.read(batch) + batch * context * self.kept
        return roofline.Work(name="step", flops=work, nbytes=nbytes)

    def seconds(self, batch: Count, context: Count) -> float:
        """Return the least seconds of one step, with an all-reduce for each half of a layer."""
        alone = roofline.seconds(self.step(batch, context), self.chip, self.precision)
        if not self.link or self.layout.tp == 1:
            return alone
        nbytes = batch * self.spec.hidden_size * roofline.ELEMENT["bf16"]
        one = collectives.all_reduce_seconds(nbytes, self.layout.tp, self.link)
        return alone + self.spec.halves * self.spec.num_layers * one

    def reading(self, prompt: Count) -> float:
        """Return the least seconds in which a copy reads a prompt: its FLOPs, no bytes."""
        work = flops.forward(self.spec, batch=1, sequence=prompt, pairs="causal")
        work["head"] //= prompt  # the last token's alone
        return sum(work.values()) / self.layout.tp / self.chip.peak(self.precision)

    def largest_batch(self, context: Count, share: Share = ROOM) -> int:
        """Count the texts whose cache fits beside the weights in that share of the memory."""
        free = share * self.chip.memory - self.weights
        return max(0, int(free // (context * self.kept))) if self.kept else 0

    def tokens_per_second(self, prompt: Count, answer: Count, share: Share = ROOM) -> float:
        """Return the tokens that a GPU writes in a second with the largest batch, at most.

        A text holds prompt + answer/2 tokens on average, and no slot is ever empty. Errors:
        ValueError if no text fits.
        """
        context = prompt + answer // 2
        batch = self.largest_batch(context, share)
        if not batch:
            raise ValueError(
                f"context={context} tokens do not fit beside {self.weights} bytes; use a larger tp, "
                "or ep for a mixture"
            )
        each = self.reading(prompt) + answer * self.seconds(batch, context) / batch
        return answer / each / self.layout.tp
