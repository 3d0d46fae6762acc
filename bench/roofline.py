"""The roofline of this machine: products of matrices, additions and copies, timed; on its GPU too where it has one.

Nobody prints the peak of an arbitrary machine, so the roof is measured: the fastest product, and the fastest copy or
addition of tensors that no cache holds. As in the STREAM benchmark (McCalpin 1995, https://www.cs.virginia.edu/stream/)
every read and write counts, and rates are those of the best round: whatever else the machine does only adds time. The
quartiles say how much it added. All operations take turns, round by round.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import record
import torch
from torch import Tensor

from shardlab.costs.compute import roofline
from shardlab.costs.compute.roofline import Work
from shardlab.files.terminal import no_arguments

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SQUARES = {"cpu": (32, 64, 128, 256, 512, 1024, 2048), "cuda": (256, 512, 1024, 2048, 4096, 8192)}
ROWS = {"cpu": (1, 4, 16, 64, 256), "cuda": (1, 16, 64, 256, 1024)}  # of a product that is WIDTH wide
WIDTH = {"cpu": 4096, "cuda": 8192}
NUMBERS = {"cpu": 2**25, "cuda": 2**28}  # far more than any cache holds
STREAMS = ("copy", "add", "multiply and add")
ROUNDS = 15
SHORTEST = 2e-3  # seconds: an operation that is faster is repeated so often that the clock can see it


@dataclass(frozen=True, kw_only=True)
class Case:
    """One operation to time, and what it should take."""

    work: Work
    precision: str
    run: Callable[[], Any]


def cases(device: str) -> list[Case]:
    """Everything that is timed on one device."""
    found = []
    for precision, dtype in DTYPES.items():
        sizes = [(n, n, n) for n in SQUARES[device]] + [(m, WIDTH[device], WIDTH[device]) for m in ROWS[device]]
        found += [product(m, k, n, precision, dtype, device) for m, k, n in sizes]
        found += streams(precision, dtype, device)
    return found


def product(m: int, k: int, n: int, precision: str, dtype: torch.dtype, device: str) -> Case:
    """[m, k] times [k, n]."""
    a, b = torch.randn(m, k, device=device).to(dtype), torch.randn(k, n, device=device).to(dtype)
    out = torch.empty(m, n, dtype=dtype, device=device)
    work = roofline.matmul(m, k, n, element=roofline.ELEMENT[precision])
    return Case(work=work, precision=precision, run=lambda: torch.matmul(a, b, out=out))


def streams(precision: str, dtype: torch.dtype, device: str) -> list[Case]:
    """A copy, an addition, and an activation function, of tensors that no cache holds."""
    numbers, element = NUMBERS[device], roofline.ELEMENT[precision]
    x, y, z, out = (torch.ones(numbers, dtype=dtype, device=device) for _ in range(4))

    def case(name: str, inputs: int, arithmetic: float, run: Callable[[], Tensor]) -> Case:
        work = roofline.elementwise(numbers, inputs=inputs, arithmetic=arithmetic, element=element, name=name)
        return Case(work=work, precision=precision, run=run)

    return [
        case(STREAMS[0], 1, 0, lambda: out.copy_(x)),
        case(STREAMS[1], 2, roofline.ADD, lambda: torch.add(x, y, out=out)),
        case(STREAMS[2], 3, 2, lambda: torch.addcmul(x, y, z, out=out)),
    ]


def seconds(run: Callable[[], Any], device: str) -> float:
    """One operation, averaged over as many as take SHORTEST."""
    repeats = 1
    while True:
        wait(device)
        start = time.perf_counter()
        for _ in range(repeats):
            run()
        wait(device)
        taken = time.perf_counter() - start
        if taken >= SHORTEST:
            return taken / repeats
        repeats *= 2 if taken > SHORTEST / 8 else 8


def wait(device: str) -> None:
    """Until the device has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def measure(device: str) -> dict[str, Any]:
    """All operations of one device, and the roof they make."""
    todo = cases(device)
    taken: list[list[float]] = [[] for _ in todo]
    for turn in range(ROUNDS + 1):  # the first one warms up
        for case, times in zip(todo, taken, strict=True):
            once = seconds(case.run, device)
            times += [once] if turn else []
    rows = [row(case, times) for case, times in zip(todo, taken, strict=True)]
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "bandwidth": max(one["bytes"] / one["seconds"]["best"] for one in rows if one["operation"] in STREAMS),
        "peaks": {name: max(one["rate"] for one in rows if one["precision"] == name) for name in DTYPES},
        "rows": rows,
    }


def row(case: Case, times: list[float]) -> dict[str, Any]:
    """One row of the results."""
    low, median, high = statistics.quantiles(times, n=4, method="inclusive")
    return {
        "operation": case.work.name,
        "precision": case.precision,
        "FLOPs": case.work.flops,
        "bytes": case.work.nbytes,
        "intensity": round(case.work.intensity, 4),
        "seconds": {
            "best": digits(min(times)),
            "quartile 1": digits(low),
            "median": digits(median),
            "quartile 3": digits(high),
        },
        "rate": digits(case.work.flops / min(times)),
    }


def digits(value: float) -> float:
    return float(f"{value:.4g}")


def main() -> None:
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    results = [measure(device) for device in devices]
    for result in results:
        print(f"{result['device']}: {result['bandwidth'] / 1e9:.1f} GB/s, peaks {result['peaks']}")
        for one in result["rows"]:
            print(f"  {one['precision']} {one['operation']}: {one['rate'] / 1e9:.1f} GFLOP/s")
    print("written to", record.write("roofline", {"rounds": ROUNDS, "devices": results}).name)


if __name__ == "__main__":
    no_arguments(__doc__)
    main()
