"""Step time of our cut transformer against torch's `parallelize_module` (DTensor): same model, same ranks, in turns.

Torch's plan is that of its tutorial: one entrance for the queries, keys and values, the norms on slices of the
sequence, the loss on cut logits (https://docs.pytorch.org/tutorials/intermediate/TP_tutorial.html).
"""

import copy
from collections.abc import Callable
from typing import Any

import race
import record
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from shardlab import comm
from shardlab.files.terminal import no_arguments
from shardlab.model.spec import TransformerSpec
from shardlab.plain import tensor_parallel as plain_tensor_parallel
from shardlab.ranks import tensor_parallel, transformer

OURS = {
    "ours": {},
    "ours, sequence parallel": {"sequence_parallel": True},
    "ours, sequence parallel, gathered again": {"sequence_parallel": True, "regather": True},
}
AGAINST_TORCH = {
    "ours": "torch",
    "ours, sequence parallel": "torch, sequence parallel",
    "ours, sequence parallel, gathered again": "torch, sequence parallel",
}
PLAIN = {"ours": "plain"}
MODELS = {  # (hidden size, layers, samples, tokens per sample, rounds)
    "small": (64, 2, 8, 32, 30),
    "medium": (128, 4, 8, 32, 14),
    "large": (256, 4, 4, 64, 8),
}


def cut_by_torch(model: transformer.Transformer, group: comm.Group, sequence_parallel: bool) -> nn.Module:
    """The model under `parallelize_module`, in place."""
    between = Shard(1) if sequence_parallel else Replicate()
    enter = {"input_layouts": (between,), "desired_input_layouts": (Replicate(),)}
    plan: dict[str, Any] = {
        "embedding.tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "head": ColwiseParallel(input_layouts=between, output_layouts=Shard(-1), use_local_output=False),
    }
    for number in range(len(model.blocks)):
        for part, readers, last in (("attention", ("q", "k", "v"), "out"), ("mlp", ("gate", "up"), "down")):
            name = f"blocks.{number}.{part}"
            plan |= {name: PrepareModuleInput(**enter), f"{name}.{last}": RowwiseParallel(output_layouts=between)}
            plan |= {f"{name}.{reader}": ColwiseParallel() for reader in readers}
    if sequence_parallel:
        norms = [name for name, module in model.named_modules() if isinstance(module, nn.RMSNorm)]
        plan |= {name: SequenceParallel() for name in norms}
    return parallelize_module(model, DeviceMesh.from_group(group, comm.device(group).type), plan)


def contenders(group: comm.Group, spec: TransformerSpec) -> dict[str, nn.Module]:
    """The same model, cut in every way."""
    torch.manual_seed(0)
    plain = transformer.Transformer(spec)
    models: dict[str, nn.Module] = {
        name: tensor_parallel.parallelize(copy.deepcopy(plain), group, **options) for name, options in OURS.items()
    }
    models["plain"] = copy.deepcopy(plain)
    plain_tensor_parallel.parallelize(models["plain"], group)
    for name in dict.fromkeys(AGAINST_TORCH.values()):
        models[name] = cut_by_torch(copy.deepcopy(plain), group, "sequence" in name)
    return models


def race_models(group: comm.Group, spec: TransformerSpec, samples: int, rounds: int) -> dict[str, list[float]]:
    """Seconds per step of every contender, round by round."""
    tokens = torch.randint(0, spec.vocab_size, (samples, spec.context_length + 1))
    steps: dict[str, Callable[[], None]] = {}
    for name, model in contenders(group, spec).items():
        step = race.training_step(model, torch.optim.SGD(model.parameters(), lr=1e-3), tokens)
        steps[name] = loss_parallel()(step) if name.startswith("torch") else step
    return race.take_turns(group, steps, rounds)


def main() -> None:
    race.unchecked()
    # Llama's style, for torch cuts no table of positions and no tied head
    rows = race.all_rows(race_models, MODELS, AGAINST_TORCH, plain=PLAIN, style="llama")
    result = {"median of ours / torch": race.over_rows(rows), "rows": rows}
    print("medians over all rows, ours / torch:", result["median of ours / torch"])
    print("written to", record.write("tensor_parallel", result).name)


if __name__ == "__main__":
    no_arguments(__doc__)
    main()
