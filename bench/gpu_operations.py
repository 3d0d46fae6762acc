"""Products, attention and kernels that only move bytes, on one GPU, beside what `costs.compute.kernels` predicts.

No constant of that model was chosen on these rows. Each operation runs by itself, as often as takes two milliseconds,
products from a recorded graph, always with the same inputs: small ones stay in the GPU's cache. Medians and quartiles
over rounds are kept. Without a GPU there is nothing to measure.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import record
import torch
from events import against, replayed, this_gpu, timed
from torch.nn import functional as F

from shardlab.costs.compute import kernels
from shardlab.costs.facts import models
from shardlab.costs.facts.hardware import Chip
from shardlab.files.terminal import no_arguments
from shardlab.ranks import transformer

SQUARES = (1024, 2048, 4096, 8192, 16384)
TOKENS, TENSOR_PARALLEL = (512, 2048, 8192), (1, 2, 4, 8)
SEQUENCES = (1024, 4096, 16384)


def shapes() -> Iterator[tuple[str, int, int, int]]:
    """Squares, and the products of a layer of Llama 3 8B as tp cuts them."""
    yield from (("square", n, n, n) for n in SQUARES)
    spec = models.published("Llama 3 8B").spec
    hidden, keys = spec.hidden_size, spec.kv_size
    for tokens in TOKENS:
        for tp in TENSOR_PARALLEL:
            yield "queries, keys, values", tokens, hidden, (hidden + 2 * keys) // tp
            yield "output", tokens, hidden // tp, hidden
            yield "gate and up", tokens, hidden, 2 * spec.ffn // tp
            yield "down", tokens, spec.ffn // tp, hidden


def products(chip: Chip) -> list[dict[str, Any]]:
    """One row for each shape, in 16 bits."""
    rows = []
    for name, m, k, n in shapes():
        a, b = (torch.randn(size, device="cuda", dtype=torch.bfloat16) for size in ((m, k), (k, n)))
        out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        seconds = replayed(lambda a=a, b=b, out=out: torch.matmul(a, b, out=out))
        row = against(kernels.matmul_seconds(m, k, n, chip), seconds)
        row["TFLOP/s"] = round(2 * m * k * n / row["measured, ms"]["median"] / 1e9, 1)
        rows.append({"product": name, "m": m, "k": k, "n": n, **row})
    return rows


def attentions(chip: Chip) -> list[dict[str, Any]]:
    """Forward and backward of torch's attention, 16,384 tokens with 32 heads of 128 in sequences of several lengths."""
    rows = []
    for length in SEQUENCES:
        count = max(SEQUENCES) // length
        q, k, v = (torch.randn(count, 32, length, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        q, k, v = (each.requires_grad_() for each in (q, k, v))
        out = transformer.causal_attention(q, k, v)
        gradient = torch.randn_like(out)
        passes = {
            "forward": partial(transformer.causal_attention, q, k, v),
            "backward": partial(torch.autograd.grad, out, (q, k, v), gradient, retain_graph=True),
        }
        pairs, rows_of = count * length * (length + 1) / 2, count * length
        both = kernels.flash_seconds(pairs, rows_of, chip, heads=32, head_size=128)
        for (name, run), predicted in zip(passes.items(), both, strict=True):
            row = against(predicted, timed(run))
            work = 4 * count * length**2 / 2 * 32 * 128 * (kernels.FLASH_BACKWARD if name == "backward" else 1)
            share = work / (row["measured, ms"]["median"] / 1e3) / chip.peak_flops
            rows.append({"pass": name, "tokens": length, **row, "share of the peak": round(share, 3)})
    return rows


def moved(chip: Chip) -> list[dict[str, Any]]:
    """Operations that only move bytes, of 2^28 numbers in 16 bits."""
    x, y, out = (torch.randn(2**15, 2**13, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    weight = torch.ones(2**13, device="cuda", dtype=torch.bfloat16)
    operations = {
        "copy": (2, lambda: out.copy_(x)),
        "addition": (3, lambda: torch.add(x, y, out=out)),
        "RMSNorm": (2, lambda: F.rms_norm(x, (2**13,), weight)),
        "SiLU": (2, lambda: F.silu(x)),
    }
    rows = []
    for name, (passes, run) in operations.items():
        nbytes = passes * x.nbytes
        row = against(kernels.moved_seconds(nbytes, chip), timed(run))
        share = nbytes / (row["measured, ms"]["median"] / 1e3) / chip.memory_bandwidth
        rows.append({"operation": name, **row, "share of the memory's rate": round(share, 3)})
    return rows


def main() -> None:
    here = this_gpu()
    if here is None:
        return
    chip, _ = here
    result: dict[str, Any] = {"chip": chip.name}
    for part, measure in (("kernels that move bytes", moved), ("attention", attentions), ("products", products)):
        result[part] = measure(chip)
        print(part, [row["error, %"] for row in result[part]], flush=True)
    print("written to", record.write("gpu_operations", result).name)


if __name__ == "__main__":
    no_arguments(__doc__)
    main()
