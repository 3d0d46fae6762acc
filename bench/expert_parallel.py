"""Step time of our expert parallelism against torch's parts for it; and how mixtures learn beside a dense model.

torch 2.13 has no expert parallelism of its own: none of the styles of `torch.distributed.tensor.parallel` deals
experts. What it has for one is an all-to-all through which gradients flow and a grouped matrix product. From these
torchtitan builds its ExpertParallel (torchtitan/distributed/expert_parallel.py), and so does `Torch` here: a copy of
the token for every chosen expert, sorted by expert before the first product and back after the last one. Symmetric
memory has an all-to-all for experts, too (all_to_all_vdev_2d); it needs NVSHMEM and so a GPU.

The trainings are without balancing, with the balance loss, and with a bias; as in the Switch paper
(https://arxiv.org/abs/2101.03961) and in DeepSeek-V3 (https://arxiv.org/abs/2412.19437), only much smaller.
"""

import copy
import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import race
import record
import torch
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single
from torch.nn import functional as F

from shardlab import comm
from shardlab.files.terminal import no_arguments
from shardlab.model.experts import Experts
from shardlab.model.spec import TransformerSpec
from shardlab.plain import expert_parallel as plain_expert_parallel
from shardlab.ranks import expert_parallel, text, transformer
from shardlab.ranks.data_parallel import averaging
from shardlab.ranks.expert_parallel import dense_twin, learn
from shardlab.ranks.mixture import Bank, Mixture, mixtures

STEPS, SAMPLES, EVERY = 300, 16, 20  # losses are means over `EVERY` steps
RULES = Experts(num_experts=16, per_token=2, expert_size=64)
SIZES = {"context_length": 64, "hidden_size": 64, "num_layers": 2, "num_heads": 4}
SPEC = TransformerSpec(vocab_size=text.VOCAB_SIZE, **SIZES, style="llama", experts=RULES)
BALANCES: dict[str, dict[str, Any]] = {
    "none": {},
    "loss": {"balance": "loss", "loss_weight": 0.01},
    "bias": {"balance": "bias", "bias_step": 0.01},
}


RACED = Experts(num_experts=8, per_token=2, expert_size=256, num_shared=1)
MODELS = {  # (hidden size, layers, samples of a rank, tokens per sample, rounds)
    "small": (64, 2, 4, 32, 30),
    "medium": (128, 2, 4, 64, 14),
    "large": (256, 2, 4, 128, 8),
}
AGAINST_TORCH = {"ours": "torch", "ours, to torch's loop": "torch, loop"}
PLAIN = {"ours": "plain"}


class Torch(nn.Module):
    """This rank's experts of a mixture, and the way to those of other ranks, of torch's parts."""

    def __init__(self, bank: Bank, group: comm.Group, grouped: bool) -> None:
        super().__init__()
        size = len(bank) // group.size()
        first = group.rank() * size
        mine = [bank[str(number)] for number in range(first, first + size)]
        for name in ("gate", "up", "down"):
            weights = torch.stack([getattr(expert, name).weight.detach() for expert in mine])
            self.register_parameter(name, nn.Parameter(weights))  # [n, F, D] or [n, D, F]
        self.group, self.grouped = group, grouped

    def forward(self, mixture: Mixture, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """[T, D], [T, k], [T, k] -> [T, D]."""
        size = self.group.size()
        order = chosen.flatten().argsort(stable=True)  # [T*k]
        counts = chosen.flatten().bincount(minlength=mixture.rules.num_experts)  # [E]
        arriving = all_to_all_single(counts, None, None, self.group).view(size, -1)  # [W, n]
        sends, receives = counts.view(size, -1).sum(1).tolist(), arriving.sum(1).tolist()
        rows = all_to_all_single(x[order // chosen.shape[1]], receives, sends, self.group)
        owners = torch.arange(arriving.shape[1]).repeat(size).repeat_interleave(arriving.flatten())
        by_expert = owners.argsort(stable=True)
        y = self.compute(rows[by_expert], arriving.sum(0))
        back = torch.empty_like(y).index_copy(0, by_expert, y)
        rows = all_to_all_single(back, sends, receives, self.group)
        total = torch.zeros_like(x).index_add(0, order // chosen.shape[1], rows * weights.flatten()[order, None])
        return total if mixture.shared is None else total + mixture.shared(x)

    def compute(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Rows sorted by expert, and how many each has: [M, D], [n] -> [M, D]."""
        if self.grouped:
            ends = counts.cumsum(0).int()
            product = partial(F.grouped_mm, offs=ends)
            gate, up, down = (w.transpose(1, 2) for w in (self.gate, self.up, self.down))
            return product(F.silu(product(rows, gate)) * product(rows, up), down)
        parts = zip(rows.split(counts.tolist()), self.gate, self.up, self.down, strict=True)
        return torch.cat([F.linear(F.silu(F.linear(x, g)) * F.linear(x, u), d) for x, g, u, d in parts])


def with_torch(model: nn.Module, group: comm.Group, *, grouped: bool) -> None:
    """Deal the experts of every mixture to the ranks, with torch's parts."""
    for mixture in mixtures(model):
        mixture.group = group
        mixture.compute = Torch(mixture.experts, group, grouped)
        mixture.experts = Bank()


def contenders(group: comm.Group, spec: TransformerSpec) -> dict[str, tuple[nn.Module, Callable[[], None]]]:
    """The same model in every way, and what averages its gradients."""
    torch.manual_seed(0)
    whole = transformer.Transformer(spec)
    found: dict[str, tuple[nn.Module, Callable[[], None]]] = {}
    deals: Mapping[str, Callable[[nn.Module, comm.Group], None]] = {
        "ours": expert_parallel.parallelize,
        "torch": partial(with_torch, grouped=True),
        "torch, loop": partial(with_torch, grouped=False),
    }
    for name, deal in deals.items():
        model = copy.deepcopy(whole)
        deal(model, group)
        found[name] = model, partial(average, model, group)
    plain = copy.deepcopy(whole)
    experts = plain_expert_parallel.LocalExperts(plain, group, group.size())
    found["plain"] = plain, partial(experts.sum_gradients, plain)
    return found


def average(model: nn.Module, group: comm.Group) -> None:
    """Average what every rank holds; with as many ranks as ep nobody holds the same experts."""
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and ".experts." not in name and ".compute." not in name:
            parameter.grad = averaging.mean(parameter.grad, group)


def race_models(group: comm.Group, spec: TransformerSpec, samples: int, rounds: int) -> dict[str, list[float]]:
    """Seconds per step of every contender, round by round; all begin with the same loss."""
    generator = torch.Generator().manual_seed(group.rank())
    tokens = torch.randint(0, spec.vocab_size, (samples, spec.context_length + 1), generator=generator)
    entered = contenders(group, spec)
    losses = [model(tokens[:, :-1], tokens[:, 1:]).detach() for model, _ in entered.values()]
    for loss in losses:
        torch.testing.assert_close(loss, losses[0], rtol=1e-5, atol=0)
    steps = {}
    for name, (model, averaged) in entered.items():
        steps[name] = race.training_step(model, torch.optim.SGD(model.parameters(), lr=1e-3), tokens, averaged)
    seconds = race.take_turns(group, steps, rounds)
    return seconds | {"ours, to torch's loop": seconds["ours"]}


def means(numbers: list[float]) -> list[float]:
    """The mean of each `EVERY` numbers."""
    return [round(sum(numbers[start : start + EVERY]) / EVERY, 4) for start in range(0, len(numbers), EVERY)]


def trainings() -> dict[str, list[dict[str, Any]]]:
    """Losses and the fullest expert's load by step, and the load of all at the end: a column for each training."""
    corpus = text.read()
    specs = {name: dataclasses.replace(SPEC, experts=dataclasses.replace(RULES, **BALANCES[name])) for name in BALANCES}
    found = {name: learn(spec, corpus, steps=STEPS, samples=SAMPLES) for name, spec in specs.items()}
    dense = learn(dense_twin(SPEC), corpus, steps=STEPS, samples=SAMPLES)
    losses = {name: means(each.losses) for name, each in {"dense": dense, **found}.items()}
    fullest = {name: means(each.fullest()) for name, each in found.items()}
    rows = []
    for layer in range(SPEC.num_layers):
        loads = {name: each.late_load(layer) for name, each in found.items()}
        rows += [
            {"layer": layer, "expert": e, **{name: round(load[e], 4) for name, load in loads.items()}}
            for e in range(RULES.num_experts)
        ]
    return {"nats per token": by_step(losses), "fullest over mean load": by_step(fullest), "share of the load": rows}


def by_step(columns: dict[str, list[float]]) -> list[dict[str, Any]]:
    """A row for every mean, with the number of the step after it."""
    count = len(next(iter(columns.values())))
    return [{"steps": EVERY * (i + 1), **{name: c[i] for name, c in columns.items()}} for i in range(count)]


def main() -> None:
    race.unchecked()
    rows = race.all_rows(race_models, MODELS, AGAINST_TORCH, plain=PLAIN, style="llama", experts=RACED)
    raced = {"median of ours / torch": race.over_rows(rows), "rows": rows}
    model = {**SIZES, "experts": RULES.num_experts, "per token": RULES.per_token, "expert size": RULES.expert_size}
    path = record.write("expert_parallel", {**raced, "model": model, "samples": SAMPLES, **trainings()})
    print("medians over all rows, ours / torch:", raced["median of ours / torch"], "written to", path.name)


if __name__ == "__main__":
    no_arguments(__doc__)
    main()
