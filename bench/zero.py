"""Step time of our ZeRO against torch's FSDP2 and ZeroRedundancyOptimizer: same model, same ranks, taking turns.

All step with AdamW. `fully_shard` is stage 3; where it keeps parameters whole from forward to backward it talks as
stage 2 does, which here gathers in the step. ZeroRedundancyOptimizer with DDP is stage 1: DDP all-reduces, each rank
steps on some parameters, and broadcasts them.
"""

import copy
import functools
from collections.abc import Callable
from typing import Any

import race
import record
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from shardlab import comm
from shardlab.files.terminal import no_arguments
from shardlab.model.spec import TransformerSpec
from shardlab.plain import zero as plain_zero
from shardlab.ranks import transformer, zero

Contender = tuple[nn.Module, Any]  # a model, and what steps it
RATE = 1e-3


def ours(stage: int) -> Callable[[nn.Module, comm.Group], Contender]:
    """Shard with our stage: layer by layer, or in stage 1, which sends in the step only, all in one buffer."""

    def make(model: nn.Module, group: comm.Group) -> Contender:
        states = zero.shard(
            model,
            group,
            stage=stage,
            layers=[] if stage == 1 else None,  # DDP's buckets, of 25 MB, hold these models whole, too
            optimizer=lambda pieces: torch.optim.AdamW(pieces, lr=RATE),
        )
        return model, states

    return make


def fsdp2(again: bool) -> Callable[[nn.Module, comm.Group], Contender]:
    """Torch's, as its tutorial has it: every layer, then the model. again: gather layers in backward, too."""

    def make(model: Any, group: comm.Group) -> Contender:
        mesh = DeviceMesh.from_group(group, comm.device(group).type)
        for block in model.blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward=again)
        fully_shard(model, mesh=mesh, reshard_after_forward=None if again else False)
        return model, torch.optim.AdamW(model.parameters(), lr=RATE)

    return make


def redundancy(model: nn.Module, group: comm.Group) -> Contender:
    """Torch's stage 1."""
    wrapped = DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.AdamW, process_group=group, parameters_as_bucket_view=True, lr=RATE
    )
    return wrapped, optimizer


CONTENDERS: dict[str, Callable[[Any, comm.Group], Contender]] = {
    "stage 1": ours(1),
    "stage 2": ours(2),
    "stage 3": ours(3),
    "FSDP2": fsdp2(True),
    "FSDP2, gathered once": fsdp2(False),
    "ZeroRedundancyOptimizer": redundancy,
}
AGAINST_TORCH = {"stage 1": "ZeroRedundancyOptimizer", "stage 2": "FSDP2, gathered once", "stage 3": "FSDP2"}
PLAIN = {f"stage {stage}": f"stage {stage}, plain" for stage in (1, 2, 3)}
MODELS = {  # (hidden size, layers, samples per rank, tokens per sample, rounds)
    "small": (64, 2, 8, 32, 30),
    "medium": (128, 4, 8, 32, 14),
    "large": (256, 4, 4, 64, 8),
}


def race_models(group: comm.Group, spec: TransformerSpec, samples: int, rounds: int) -> dict[str, list[float]]:
    """Seconds per step of every contender, round by round."""
    tokens = torch.randint(0, spec.vocab_size, (samples, spec.context_length + 1))
    torch.manual_seed(0)
    plain = transformer.Transformer(spec)
    made = {name: make(copy.deepcopy(plain), group) for name, make in CONTENDERS.items()}
    steps = {name: race.training_step(*each, tokens) for name, each in made.items()}
    for stage, name in enumerate(PLAIN.values(), start=1):
        steps[name] = plain_step(stage, copy.deepcopy(plain), tokens, group)
    return race.take_turns(group, steps, rounds)


def plain_step(stage: int, model: transformer.Transformer, tokens: Tensor, group: comm.Group) -> Callable[[], Any]:
    """The plain file's: one message for each parameter, and nothing is sent while anything computes."""
    layers = [model.embedding, *model.blocks, nn.Sequential(model.norm, model.head)]
    plain = {1: plain_zero.ZeRO1, 2: plain_zero.ZeRO2, 3: plain_zero.ZeRO3}[stage]
    states = plain(layers, group, lambda pieces: torch.optim.AdamW(pieces, lr=RATE))
    return functools.partial(states.step, tokens[:, :-1], tokens[:, 1:], model.loss, 1 / group.size())


def main() -> None:
    race.unchecked()
    rows = race.all_rows(race_models, MODELS, AGAINST_TORCH, plain=PLAIN)
    result = {"median of ours / torch": race.over_rows(rows), "rows": rows}
    print("medians over all rows, ours / torch:", result["median of ours / torch"])
    print("written to", record.write("zero", result).name)


if __name__ == "__main__":
    no_arguments(__doc__)
    main()
