"""Layers on tp ranks as a program that `replay` plays on any cluster: FLOPs and collectives.

What `ranks.tensor_parallel` does to a model that is too large to be run here;
`costs.tensor_parallel.layer` is its closed form.
"""

from shardlab.arguments import Count, checked
from shardlab.trace import Event

from ..traces.programs import Writer
from .run import TensorParallelRun, halves


@checked
def program(run: TensorParallelRun, num_layers: Count = 1) -> list[Event]:
    """Write forward and backward of `num_layers` layers for one microbatch, on every rank."""
    writers = [Writer(rank) for rank in range(run.tp)]
    for writer in writers:
        for work, _ in num_layers * halves(run):
            _forward(writer, run, work)
        for work, first in num_layers * halves(run)[::-1]:
            _backward(writer, run, 2 * work, first)
    return [event for writer in writers for event in writer.events]


def _forward(writer: Writer, run: TensorParallelRun, work: float) -> None:
    if run.sequence_parallel:
        _communicate(writer, run, "all_gather")
    writer.compute(work, "forward")
    _communicate(writer, run, _sum(run))


def _backward(writer: Writer, run: TensorParallelRun, work: float, first: float) -> None:
    """Write backward of half a layer; the matrices that read x come last.

    The gradient of x is computed first, then the gradients of those matrices while that of x is
    summed, if the run overlaps them.
    """
    if run.sequence_parallel:
        _communicate(writer, run, "all_gather")
    writer.compute(work - 2 * first, "backward")
    again = [_issue(writer, run, "all_gather")] if run.regather else []
    writer.wait([] if run.overlap else again)
    writer.compute(first, "backward")
    writer.wait(again if run.overlap else [])
    if run.overlap:
        summed = _issue(writer, run, _sum(run))
        writer.compute(first, "backward")
        writer.wait([summed])
    else:
        writer.compute(first, "backward")
        _communicate(writer, run, _sum(run))


def _sum(run: TensorParallelRun) -> str:
    return "reduce_scatter" if run.sequence_parallel else "all_reduce"


def _communicate(writer: Writer, run: TensorParallelRun, op: str) -> None:
    writer.wait([_issue(writer, run, op)])


def _issue(writer: Writer, run: TensorParallelRun, op: str) -> int:
    return writer.collective(op, run.message, range(run.tp))
