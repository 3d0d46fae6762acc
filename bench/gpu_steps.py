"""Steps on one GPU, their time and memory, beside what `costs.step` and `costs.memory` predict.

No constant of the model of time was chosen on these rows. The model is `ranks.transformer`, one operation of torch
after the other but where a row says compiled; passes and update are timed apart. Without a GPU there is nothing to
measure.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import record
import torch
from events import ROUNDS, against, between, model_of, this_gpu
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from shardlab.costs import step
from shardlab.costs.facts import models, recipes
from shardlab.costs.facts.network import Cluster, Node
from shardlab.costs.memory import overhead, timeline
from shardlab.costs.programs import BOOK_COMPILED, BOOK_ON_GPU
from shardlab.costs.training import Training
from shardlab.files.terminal import no_arguments
from shardlab.ranks import transformer
from shardlab.ranks.memory import recompute
from shardlab.ranks.memory.precision import MasterWeights

WARM_UP = 3
# `MasterWeights` beside the recipe's update: gradients to fp32 (6 bytes for each), and divided by the scale (8),
# from where the optimizer reads them in fp32 (2 more), and parameters back (4 more).
PASSES = 6 + 8 + 2 + 4
STEPS = (  # model, sequences, tokens in each, what is recomputed, compiled
    ("GPT-2 small", 8, 1024, "none", False),
    ("Llama 3.2 1B", 1, 2048, "none", False),
    ("Llama 3.2 1B", 4, 2048, "none", False),
    ("Llama 3.2 1B", 4, 2048, "none", True),
    ("Llama 3.2 1B", 4, 2048, "full", False),
    ("Llama 3.2 1B", 1, 8192, "none", False),
    ("Llama 3.2 3B", 2, 2048, "none", False),
    ("Llama 3.2 3B", 4, 4096, "full", False),
)
# Words in kernels' names. Attention comes first: FlashAttention's names have types of CUTLASS in them.
KINDS = {"attention": ("flash", "fmha", "sdpa"), "products": ("gemm", "nvjet", "cutlass", "splitK")}


def steps(node: Node) -> list[dict[str, Any]]:
    """One row for each of STEPS."""
    return [one_step(node, *each) for each in STEPS]


def one_step(node: Node, name: str, batch: int, length: int, again: str, compiled: bool) -> dict[str, Any]:
    """Forward, backward and update of a published model, against `costs.step` and `costs.memory`."""
    spec = models.published(name).spec
    program = replace(BOOK_COMPILED if compiled else BOOK_ON_GPU, update_passes=PASSES)
    training = Training(
        spec=spec, microbatch=batch, sequence=length, recomputation=again, program=program, recipe=recipes.MIXED
    )
    model = model_of(spec)
    optimizer = MasterWeights(torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True))
    if again == "full":
        recompute.wrap(model.blocks)
    if compiled:
        for block in model.blocks:
            block.compile()
    tokens = torch.randint(spec.vocab_size, (batch, length + 1), device="cuda")

    def forward_and_backward() -> None:
        optimizer.backward(transformer.loss(model(tokens[:, :-1]).float(), tokens[:, 1:]))

    for _ in range(WARM_UP):
        forward_and_backward()
        optimizer.step()
    torch.cuda.reset_peak_memory_stats()
    forward_and_backward()
    tensors, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    optimizer.step()
    passes, updates = [], []
    for _ in range(ROUNDS):
        passes.append(between(forward_and_backward))
        updates.append(between(optimizer.step))
    moment = timeline.peak(timeline.through_step(training))
    found = step.step(step.Run(training=training, cluster=Cluster(node=node)))
    update = found.parts["update"]
    label = {"model": name, "sequences": batch, "tokens": length, "recomputed": again, "compiled": compiled}
    held = sum(moment.held.values())
    print(label, flush=True)
    return {
        **label,
        "passes": against(found.seconds - update, passes),
        "update": against(update, updates),
        "kernels, ms": by_kernel(forward_and_backward),
        "parts, ms": {part: round(1e3 * seconds, 3) for part, seconds in found.summary.items() if seconds},
        "memory": {
            "predicted, GB": round(held / 1e9, 3),
            "measured, GB": round(tensors / 1e9, 3),
            "error, %": round(100 * (held / tensors - 1), 1),
            "reserved beyond, %": round(100 * (reserved / tensors - 1), 1),
        },
    }


def by_kernel(run: Callable[[], None]) -> dict[str, float]:
    """Milliseconds of a run by kind of kernel, and those between its first and last in which the GPU has none."""
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        run()
        torch.cuda.synchronize()
    found = dict.fromkeys([*KINDS, "others"], 0.0)
    spans = []
    for event in seen.events():
        if event.device_type != DeviceType.CUDA:
            continue
        kind = next((kind for kind, words in KINDS.items() if any(word in event.name for word in words)), "others")
        found[kind] += event.time_range.elapsed_us() / 1e3
        spans.append(event.time_range)
    taken = (max(span.end for span in spans) - min(span.start for span in spans)) / 1e3
    found["none"] = taken - sum(found.values())
    return {kind: round(milliseconds, 3) for kind, milliseconds in found.items()}


def beside_tensors() -> int:
    """Bytes that a process takes before its first tensor, if no other uses the GPU."""
    torch.cuda.init()
    free, total = torch.cuda.mem_get_info()
    return total - free


def main() -> None:
    here = this_gpu()
    if here is None:
        return
    chip, node = here
    result: dict[str, Any] = {"chip": chip.name, "context, MiB": round(beside_tensors() / overhead.MIB)}
    result["context, predicted, MiB"] = round(overhead.CONTEXT / overhead.MIB)
    result["steps"] = steps(node)
    print("written to", record.write("gpu_steps", result).name)


if __name__ == "__main__":
    no_arguments(__doc__)
    main()
