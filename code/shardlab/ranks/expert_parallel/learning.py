"""Train a mixture on text in one process, and watch how many tokens choose each expert.

    corpus = text.read()
    learned = learn(spec, corpus, steps=200)
    dense = learn(dense_twin(spec), corpus, steps=200)    # the same FLOPs for a token
    learned.losses[-1], dense.losses[-1], learned.fullest()[-1]
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shardlab.model.spec import TransformerSpec

from .. import text
from ..mixture import mixtures, rebalance
from ..transformer import Transformer, add_balance_loss


@dataclass(frozen=True, kw_only=True)
class Learned:
    """What a training has shown, step by step."""

    losses: list[float]  # nats per token, without balance losses, on the tokens of the step
    loads: Tensor  # [steps, layers, E], the share of tokens' choices that went to each expert

    def fullest(self) -> list[float]:
        """Return how many times the mean load the fullest expert of any layer has, by step."""
        return (self.loads.amax((1, 2)) * self.loads.shape[-1]).tolist()

    def late_load(self, layer: int = 0) -> list[float]:
        """Return each expert's share in a layer, averaged over the last tenth of the steps."""
        late: Tensor = self.loads[-max(1, len(self.loads) // 10) :, layer].mean(0)
        return late.tolist()


def dense_twin(spec: TransformerSpec) -> TransformerSpec:
    """Return the model without a mixture whose tokens take the same FLOPs, but for the router.

    Its feed-forward block is as wide as the experts that one token uses. Errors: ValueError for a
    model without experts, and for GPT-2's style, whose feed-forward block has no gate.
    """
    if spec.experts is None or spec.style != "llama":
        has = "no experts" if spec.experts is None else "blocks without a gate"
        raise ValueError(f"a model of style {spec.style!r} with {has} has no dense twin; use llama")
    used = spec.experts.per_token + spec.experts.num_shared
    return replace(spec, experts=None, ffn_size=used * spec.experts.expert_size)


def learn(
    spec: TransformerSpec,
    corpus: Tensor,
    *,
    steps: int,
    samples: int = 16,
    lr: float = 3e-3,
    seed: int = 0,
) -> Learned:
    """Train a model on a text, with the same samples for the same seed.

    corpus: [bytes], of `text.read`. Sequences are as long as the model's context.
    """
    torch.manual_seed(seed)
    model = Transformer(spec)
    generator = torch.Generator().manual_seed(seed)
    windows = text.num_samples(corpus, spec.context_length)
    adam = torch.optim.AdamW(model.parameters(), lr=lr)
    losses, loads = [], []
    for _ in range(steps):
        indices = torch.randint(windows, (samples,), generator=generator, device="cpu")
        tokens, targets = text.batch(corpus, indices.to(corpus.device), spec.context_length)
        loss = model.loss(model(tokens), targets)
        adam.zero_grad()
        add_balance_loss(model, loss).backward()
        adam.step()
        losses.append(loss.item())
        loads.append([(mixture.load / mixture.load.sum()).tolist() for mixture in mixtures(model)])
        rebalance(model)
    return Learned(losses=losses, loads=torch.tensor(loads, device="cpu"))
