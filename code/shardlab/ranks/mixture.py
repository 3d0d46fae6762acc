"""A mixture in place of a feed-forward block: a router chooses a few experts for each token.

    x -> router -> scores -> choose -> experts and weights of each token
    x -> each token's experts, weighted and added up; plus the shared ones -> y

`shardlab.model.experts` lists its rules with their sources. What looks at the load, such as the
balance loss, a bias or a capacity, looks at the tokens of all ranks of `Mixture.group` at once.

Shapes: B sequences of S tokens, T = B*S tokens, h = hidden size, f = width of one expert, E
experts, k chosen by each token, A rows that experts of this rank get, N ranks whose load is counted
together.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shardlab import comm
from shardlab.model.experts import Experts
from shardlab.model.spec import TransformerSpec

from . import backward

# x [T, h], chosen [T, k], weights [T, k] -> [T, h]
Compute = Callable[["Mixture", Tensor, Tensor, Tensor], Tensor]
Change = Callable[[Tensor], Tensor]


class GatedMLP(nn.Module):
    """SwiGLU (https://arxiv.org/abs/2002.05202): Llama's feed-forward block, or one expert."""

    def __init__(self, hidden: int, width: int, bias: bool = False):
        super().__init__()
        self.gate = nn.Linear(hidden, width, bias)
        self.up = nn.Linear(hidden, width, bias)
        self.down = nn.Linear(width, hidden, bias)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.silu(self.gate(x)) * self.up(x)                     # [..., f]
        y: Tensor = self.down(inner)                                  # [..., h]
        return y


class Router(nn.Module):
    """One score for each expert, computed in fp32 at least: in bf16 close scores become equal."""

    def __init__(self, hidden: int, num_experts: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_experts, hidden))

    def forward(self, x: Tensor) -> Tensor:  # [..., h] -> [..., E]
        exact = torch.promote_types(x.dtype, torch.float32)
        return F.linear(x.to(exact), self.weight.to(exact))


class Bank(nn.ModuleDict):
    """Experts by their numbers, which follow each other; a rank may hold only some of them."""

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Add up the experts of each token, weighted: [T, h], [T, k], [T, k] -> [T, h].

        Experts that are not here add nothing. One that no token chose computes on no rows, so that
        its gradient is zero and not missing. They compute one after another: torch 2.13's grouped
        product, `grouped_mm`, knows no float64 and needs all weights in one tensor.
        """
        numbers = [int(number) for number in self]
        per_token = chosen.shape[1]
        order = chosen.flatten().argsort(stable=True)                 # [T*k], pairs by expert
        sizes = torch.bincount(chosen.flatten(), minlength=numbers[-1] + 1).tolist()
        start = sum(sizes[: numbers[0]])
        here = sizes[numbers[0] : numbers[-1] + 1]
        pairs = order[start : start + sum(here)]                      # [A], of experts here
        tokens = pairs // per_token                                   # [A]
        parts = x[tokens].split(here)                                 # [rows, h] of each expert
        y = torch.cat([expert(part) for expert, part in zip(self.values(), parts, strict=True)])
        weighted = y * weights.flatten()[pairs, None].to(y.dtype)     # [A, h]
        return torch.zeros_like(x).index_add(0, tokens, weighted)     # [T, h]


def unchanged(x: Tensor) -> Tensor:
    """Return what is given."""
    return x


@dataclass(frozen=True, kw_only=True)
class Placement:
    """What ranks that share a mixture do to its tensors; one rank alone changes nothing.

    Tensor parallelism sets the first five, context parallelism the last three.
    """

    gather: Change = unchanged  # scores of this rank's slice -> of whole sequences, [B, S, E]
    enter: Change = unchanged  # the input -> what this rank's experts read, [B, S, h]
    keep: Change = unchanged  # choices for whole sequences -> for what the experts read, [B, S, k]
    share: Change = unchanged  # weights, likewise
    leave: Change = unchanged  # what this rank's experts add up to -> the output, [B, S, h]
    line_up: Change = unchanged  # choices of this rank's tokens -> of whole sequences, [B, S, k]
    pick: Change = unchanged  # choices of whole sequences -> of this rank's tokens
    weigh: Change = unchanged  # the balance loss, []; the mean over ranks is the whole one


class Mixture(nn.Module):
    """A router, its experts and the shared ones.

    group    the ranks whose tokens are counted together, in their order; None: this rank alone
    compute  how chosen experts and shared ones compute; a rank that does not hold all replaces it
    load     the tokens of all ranks that chose each expert since the last `rebalance`, [E]
    """

    bias: Tensor | None
    load: Tensor

    def __init__(self, hidden: int, rules: Experts):
        super().__init__()
        self.rules = rules
        self.router = Router(hidden, rules.num_experts)
        numbers = range(rules.num_experts)
        self.experts = Bank({str(n): GatedMLP(hidden, rules.expert_size) for n in numbers})
        self.shared = GatedMLP(hidden, rules.shared_size) if rules.num_shared else None
        biased = rules.balance == "bias"
        self.register_buffer("bias", torch.zeros(rules.num_experts) if biased else None)
        load = torch.zeros(rules.num_experts, dtype=torch.int64)
        self.register_buffer("load", load, persistent=False)
        self.loss: Tensor | None = None  # the balance loss of the last forward, []
        self.group: comm.Group | None = None
        self.compute: Compute = compute
        self.placement = Placement()

    def place(self, **changes: Change) -> None:
        """Set some fields of the placement; those that another method has set stay."""
        self.placement = replace(self.placement, **changes)

    def forward(self, x: Tensor) -> Tensor:  # [B, S, h] -> [B, S, h]
        if x.is_meta:  # a dry run has no scores to choose by
            return torch.empty_like(x)
        at = self.placement
        scores = at.gather(self.router(x))                            # [B, S, E]
        chosen, weights = self.choose(scores)                         # [B, S, k] each
        x = at.enter(x)                                               # [B, S, h]
        routed = x, at.keep(chosen), at.share(weights)
        y = self.compute(self, *(each.flatten(0, 1) for each in routed))
        return at.leave(y.view_as(x))                                 # [B, S, h]

    def choose(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Choose experts for each token: [..., E] -> their numbers and weights, [..., k] each.

        Of experts with the same score the lowest numbers are chosen. Where a token finds no slot
        stands the number E, which no expert has.
        """
        rules = self.rules
        sigmoid = rules.choose == "sigmoid"
        shares = scores.sigmoid() if sigmoid else scores.softmax(-1)  # [..., E]
        ranked = scores if self.bias is None else shares + self.bias  # [..., E]
        order = ranked.detach().argsort(dim=-1, descending=True, stable=True)
        chosen = order[..., : rules.per_token]                        # [..., k]
        weights = shares.gather(-1, chosen)                           # [..., k]
        if rules.choose == "softmax after":
            weights = scores.gather(-1, chosen).softmax(-1)
        if sigmoid:
            weights = weights / weights.sum(-1, keepdim=True)
            shares = shares / shares.sum(-1, keepdim=True)
        line = self.placement.line_up(chosen)                         # [..., k], of whole sequences
        counts = self.count(line)                                     # [W, E]
        self.loss = self.balance_loss(shares.flatten(0, -2), counts.sum(0))
        if rules.capacity is not None:
            chosen = self.placement.pick(self.drop(line, counts))
        return chosen, weights

    def count(self, chosen: Tensor) -> Tensor:
        """Count the tokens of each rank that chose each expert, and note their sum: -> [N, E]."""
        counts = torch.bincount(chosen.flatten(), minlength=self.rules.num_experts)[None]
        if self.group is not None:
            counts = comm.all_gather(counts, self.group)
        if self.training and not backward.is_running():  # recomputing counts nothing again
            self.load += counts.sum(0)
        return counts

    def balance_loss(self, shares: Tensor, load: Tensor) -> Tensor | None:
        """Return the balance loss, [], from shares [T, E] and the load of all ranks, [E].

        It is E times the sum, over experts, of the share of tokens that chose it and the mean share
        that the router gave it. The first is counted on all ranks and has no gradient; the second
        is this rank's own, so that a mean over ranks is the loss of the whole batch. Errors:
        ValueError where the mixture is recomputed.
        """
        if self.rules.balance != "loss" or not self.training:
            return None
        if backward.is_running():
            raise ValueError(
                "a mixture is recomputed, which loses its balance loss; use balance='bias', or "
                "recompute attention only (recompute.wrap_attention)"
            )
        load = load.to(shares.dtype)
        even = load * len(load) / load.sum()                          # [E], 1 if the load is even
        return self.placement.weigh(self.rules.loss_weight * (even * shares.mean(0)).sum())

    def drop(self, chosen: Tensor, counts: Tensor) -> Tensor:
        """Replace the experts without a slot for a token by E: [..., k] -> [..., k].

        Tokens take slots in the order of sequences, and within a sequence in their order; tokens of
        the first rank come before those of the next.
        """
        rank = 0 if self.group is None else self.group.rank()
        flat = chosen.flatten()                                       # [T*k]
        order = flat.argsort(stable=True)
        before = counts[:rank].sum(0)                                 # [E], of earlier ranks
        starts = counts[rank].cumsum(0) - counts[rank]                # [E]
        place = torch.empty_like(flat)
        place[order] = torch.arange(len(flat), device=flat.device)
        place += (before - starts)[flat]                              # in the expert's queue
        slots = self.rules.slots(int(counts.sum()) // self.rules.per_token)
        return flat.masked_fill(place >= slots, self.rules.num_experts).view_as(chosen)


def compute(mixture: Mixture, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """Add up chosen and shared experts on one rank that holds all: [T, h] -> [T, h]."""
    y: Tensor = mixture.experts(x, chosen, weights)
    return y if mixture.shared is None else y + mixture.shared(x)


def mixtures(model: nn.Module) -> Iterator[Mixture]:
    """List the mixtures of a model, or of a part of it."""
    return (module for module in model.modules() if isinstance(module, Mixture))


def biases(spec: TransformerSpec) -> dict[str, tuple[int, ...]]:
    """Name the biases that balance a model, which are saved with it, and give their shapes."""
    if spec.experts is None or spec.experts.balance != "bias":
        return {}
    return {f"blocks.{i}.mlp.bias": (spec.experts.num_experts,) for i in range(spec.num_layers)}


def balance_loss(model: nn.Module) -> Tensor | None:
    """Add up the balance losses of the last forward, [], and forget them; None without any."""
    found = []
    for mixture in mixtures(model):
        if mixture.loss is not None:
            found.append(mixture.loss)
            mixture.loss = None
    return torch.stack(found).sum() if found else None


@torch.no_grad()
def rebalance(model: nn.Module) -> None:
    """Call after every step: raise the bias of experts with little load, and count load anew.

    Source: Wang et al. 2024, algorithm 1 (https://arxiv.org/abs/2408.15664).
    """
    for mixture in mixtures(model):
        if mixture.bias is not None:
            load = mixture.load.double()
            missing = (load.mean() - load).sign().to(mixture.bias)
            mixture.bias += mixture.rules.bias_step * missing
        mixture.load.zero_()
