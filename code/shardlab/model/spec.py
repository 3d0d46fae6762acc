"""TransformerSpec: the sizes that define a decoder-only transformer, for model and costs."""

from dataclasses import dataclass, field, replace
from functools import cache
from math import isqrt

from shardlab.files.arguments import Count, checked

from .attention import LatentAttention
from .details import DETAILS, Details
from .experts import Experts
from .recurrent import Recurrent

STYLES = ("gpt2", "llama")
POSITIONS = {"gpt2": "learned", "llama": "rotary"}
BIASES = {"gpt2": ("qkv", "out", "ffn"), "llama": ()}  # linear layers that add one


@dataclass(frozen=True, kw_only=True)
@checked
class TransformerSpec:
    """One decoder-only transformer, as plain numbers.

    style "gpt2":  learned positions, LayerNorm with bias, GELU, biases, tied head
                   (Radford et al. 2019)
    style "llama": rotary positions, RMSNorm, SwiGLU, no biases, untied head
                   (Touvron et al. 2023)

    With `experts` a mixture of them stands in place of every feed-forward block, but for those of
    the first `num_dense` layers, the only ones for which `ffn_size` has a meaning.

    The fields after `experts` describe what released models changed. `sharding` and `costs` read
    them together with the others; the reference model of `ranks` builds few of them, and
    `ranks.transformer.check` refuses a spec that has another. All are in one dataclass, because most
    refine a number or a style above, and a spec in two would be cut and counted in halves.
    """

    vocab_size: Count
    context_length: Count
    hidden_size: Count
    num_layers: Count
    num_heads: Count
    num_kv_heads: Count | None = None  # None: one key/value head for each query head
    ffn_size: Count | None = None  # None: 4 * hidden_size
    style: str = "gpt2"
    tied_head: bool | None = None  # None: tied for "gpt2", untied for "llama"
    experts: Experts | None = None  # None: one feed-forward block for all tokens
    head_dim: Count | None = None  # numbers of a head; None: hidden_size / num_heads
    position_style: str | None = None  # one of POSITIONS; None: as in the style
    bias_places: tuple[str, ...] | None = None  # some of BIASES["gpt2"]; None: as in the style
    head_norms: bool = False  # a norm for each head's queries and keys (Dehghani et al. 2023)
    whole_norms: bool = False  # or a norm for all heads' queries, and one for all keys (OLMo 2)
    sinks: bool = False  # one more score for each head, which takes a share of every softmax
    post_norms: bool = False  # a norm on the result of each half of a layer, beside the one before
    num_dense: int = 0  # layers of a mixture, the first ones, with a block that all tokens use
    latent: LatentAttention | None = None  # in place of heads that share keys and values
    output_gate: bool = False  # one more query for each head, which weights attention's output
    recurrent: Recurrent | None = None  # in place of attention, in some layers
    # whether feed-forward blocks have a gate; None: as in the style, and all experts do
    gated: bool | None = None
    # layers that are a feed-forward block alone; no other layer has one; None: every layer has one
    blocks_at: tuple[int, ...] | None = None
    details: Details = field(default=DETAILS, repr=False)  # what changes no size

    def __post_init__(self) -> None:
        if self.style not in STYLES:
            raise ValueError(f"unknown style {self.style!r}; known: {', '.join(STYLES)}")
        if self.head_dim is None and not self.latent and self.hidden_size % self.num_heads:
            raise ValueError(
                f"{self.num_heads} heads do not divide hidden_size={self.hidden_size}; "
                f"use {_nearest_divisor(self.hidden_size, self.num_heads)} heads"
            )
        if self.num_heads % self.kv_heads:
            raise ValueError(
                f"{self.kv_heads} key/value heads do not divide {self.num_heads} heads; "
                f"use {_nearest_divisor(self.num_heads, self.kv_heads)} key/value heads"
            )
        if self.positions not in POSITIONS.values():
            known = ", ".join(POSITIONS.values())
            raise ValueError(f"unknown position_style {self.positions!r}; known: {known}")
        if not set(self.biases) <= set(BIASES["gpt2"]):
            known = ", ".join(BIASES["gpt2"])
            raise ValueError(f"unknown bias_places={self.biases}; use some of {known}")
        turned = self.latent.rotary_size if self.latent else self.head_size
        if self.positions == "rotary" and turned % 2:
            raise ValueError(
                f"rotary positions turn pairs of numbers, but a head has {turned} of them; make "
                + ("rotary_size" if self.latent else "hidden_size / num_heads, or head_dim,")
                + " even"
            )
        if self.positions == "rotary":
            self.details.turned_size(turned)
        self._check_layers()

    def _check_layers(self) -> None:
        """Refuse experts, latent attention and states that do not belong to these layers."""
        if self.experts and bool(self.ffn_size) != bool(self.num_dense):
            raise ValueError(
                f"ffn_size={self.ffn_size} has no meaning in a mixture with num_dense="
                f"{self.num_dense} dense layers, whose experts have expert_size="
                f"{self.experts.expert_size}; leave ffn_size out, or give it with num_dense"
            )
        most = self.num_layers - 1 if self.experts else 0
        if not 0 <= self.num_dense <= most:
            raise ValueError(
                f"num_dense={self.num_dense} of {self.num_layers} layers have no experts in a "
                f"mixture; use 0 to {most}"
            )
        if self.latent and self.latent.num_heads != self.num_heads:
            raise ValueError(
                f"num_heads={self.num_heads} and latent attention with {self.latent.num_heads} "
                "heads; use as many"
            )
        if self.recurrent and self.recurrent.layers[-1] >= self.num_layers:
            raise ValueError(
                f"layer {self.recurrent.layers[-1]} of {self.recurrent.rule} is not among "
                f"num_layers={self.num_layers}; count from 0"
            )
        places = self.blocks_at or ()
        others = self.recurrent.layers if self.recurrent else ()
        if tuple(sorted({*places} & {*range(self.num_layers)} - {*others})) != places:
            raise ValueError(
                f"blocks_at={places} must be a tuple of layers without states, of num_layers="
                f"{self.num_layers}, in rising order and counted from 0"
            )
        if self.blocks_at is not None and (self.post_norms or self.num_dense):
            raise ValueError(
                f"blocks_at={places} are layers with one norm each, and all with experts or none; "
                "leave post_norms and num_dense out"
            )
        if self.experts and not self.num_blocks:
            raise ValueError("blocks_at=() leaves no layer for experts; leave experts out")

    def tokens(self, batch: Count, sequence: Count) -> int:
        """Count the tokens of `batch` sequences of length `sequence`.

        Errors: ValueError for a sequence longer than the context.
        """
        if sequence > self.context_length:
            raise ValueError(
                f"a sequence of {sequence} tokens does not fit "
                f"context_length={self.context_length}; "
                f"use at most {self.context_length}, or a spec with a longer context"
            )
        return batch * sequence

    @property
    def dense(self) -> "TransformerSpec":
        """The same model with a block of `ffn_size` in every layer, as in the first ones."""
        return replace(self, experts=None, num_dense=0)

    @property
    def num_recurrent(self) -> int:
        """The layers that keep a state instead of keys and values."""
        return len(self.recurrent.layers) if self.recurrent else 0

    @property
    def layer_kinds(self) -> "tuple[tuple[float, TransformerSpec], ...]":
        """The kinds of layers of a hybrid: the share of each, and the model with such layers alone.

        Layers with attention come first. The tuple is empty where all layers are of one kind.
        """
        return _kinds(self) if self.recurrent or self.blocks_at else ()

    @property
    def halves(self) -> int:
        """The halves of a layer: 2, or 1 where it is attention, states or a block alone."""
        return 2 if self.blocks_at is None else 1

    @property
    def num_blocks(self) -> int:
        """The layers with a feed-forward block."""
        return self.num_layers if self.blocks_at is None else len(self.blocks_at)

    @property
    def num_attention(self) -> int:
        """The layers with attention."""
        return self.num_layers - self.num_recurrent - len(self.blocks_at or ())

    @property
    def blocks_only(self) -> bool:
        """Whether all layers are feed-forward blocks alone."""
        return self.blocks_at is not None and self.num_blocks == self.num_layers

    @property
    def has_gate(self) -> bool:
        """Whether a feed-forward block has a gate; experts have one in every style."""
        if self.gated is not None:
            return self.gated
        return self.style != "gpt2" or self.experts is not None

    @property
    def states_only(self) -> Recurrent | None:
        """What stands in place of attention in all layers, if anything does."""
        return self.recurrent if self.num_recurrent == self.num_layers else None

    @property
    def kv_heads(self) -> int:
        """Key/value heads: fewer than heads in grouped-query attention (Ainslie et al. 2023)."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def ffn(self) -> int:
        """The width of the feed-forward block's hidden layer."""
        return 4 * self.hidden_size if self.ffn_size is None else self.ffn_size

    @property
    def tied(self) -> bool:
        """Whether the output head is the token embedding, used a second time."""
        return self.style == "gpt2" if self.tied_head is None else self.tied_head

    @property
    def head_size(self) -> int:
        """The width of one head; with latent attention the mean of its query's and its value's."""
        if self.latent:
            return (self.latent.query_size + self.latent.value_size) // 2
        return self.hidden_size // self.num_heads if self.head_dim is None else self.head_dim

    @property
    def attention_size(self) -> int:
        """The width of one token's queries, of all heads: hidden_size unless `head_dim` is set."""
        return self.num_heads * self.head_size

    @property
    def kv_size(self) -> int:
        """The width of one token's keys, and of its values: kv_heads * head_size."""
        return self.kv_heads * self.head_size

    @property
    def positions(self) -> str:
        """How the model knows the order of tokens: "learned" or "rotary"."""
        return POSITIONS[self.style] if self.position_style is None else self.position_style

    @property
    def biases(self) -> tuple[str, ...]:
        """The linear layers that add a bias, some of "qkv", "out" and "ffn".

        In a mixture "ffn" is the router and every expert; without `bias_places` they have none.
        """
        if self.bias_places is not None:
            return self.bias_places
        return tuple(each for each in BIASES[self.style] if each != "ffn" or not self.experts)

    @property
    def query_norms(self) -> bool:
        """Whether queries and keys pass norms."""
        return self.head_norms or self.whole_norms

    @property
    def num_norms(self) -> int:
        """The norms of a layer on the residual stream: 1 for each half, or 2 with `post_norms`."""
        return self.halves * (2 if self.post_norms else 1)


@cache
def _kinds(spec: TransformerSpec) -> tuple[tuple[float, TransformerSpec], ...]:
    every = tuple(range(spec.num_layers))
    mixers = spec if spec.blocks_at is None else replace(spec, blocks_at=(), experts=None)
    found = [(spec.num_attention, replace(mixers, recurrent=None))]
    if spec.recurrent:
        states = replace(spec.recurrent, layers=every)
        found.append((spec.num_recurrent, replace(mixers, recurrent=states)))
    if spec.blocks_at:
        found.append((spec.num_blocks, replace(spec, recurrent=None, blocks_at=every)))
    kinds = tuple((count / spec.num_layers, kind) for count, kind in found if count)
    return kinds if len(kinds) > 1 else ()


def _nearest_divisor(total: int, wanted: int) -> int:
    small = [d for d in range(1, isqrt(total) + 1) if total % d == 0]
    return min((*small, *(total // d for d in small)), key=lambda d: (abs(d - wanted), d))
