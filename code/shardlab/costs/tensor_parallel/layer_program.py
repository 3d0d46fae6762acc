"""Layers on tp ranks as a program that `replay` plays on any cluster: FLOPs and collectives, in order.

What `ranks.tensor_parallel` does to a model too large to be run here; `costs.tensor_parallel.layer` is its closed form.
"""

from shardlab.trace import Event

from ..traces.programs import Writer
from .run import Run, halves


def program(run: Run, num_layers: int = 1) -> list[Event]:
    """Forward and backward of so many layers for one microbatch, on every rank."""
    writers = [Writer(rank) for rank in range(run.tp)]
    for writer in writers:
        for work, _ in num_layers * halves(run):
            _forward(writer, run, work)
        for work, first in num_layers * halves(run)[::-1]:
            _backward(writer, run, 2 * work, first)
    return [event for writer in writers for event in writer.events]


def _forward(writer: Writer, run: Run, work: float) -> None:
    if run.sequence_parallel:
        _say(writer, run, "all_gather")
    writer.compute(work, "forward")
    _say(writer, run, _sum(run))


def _backward(writer: Writer, run: Run, work: float, first: float) -> None:
    """The matrices that read x come last: the gradient of x, then their own, while that of x is summed if it may be."""
    if run.sequence_parallel:
        _say(writer, run, "all_gather")
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
        _say(writer, run, _sum(run))


def _sum(run: Run) -> str:
    return "reduce_scatter" if run.sequence_parallel else "all_reduce"


def _say(writer: Writer, run: Run, op: str) -> None:
    writer.wait([_issue(writer, run, op)])


def _issue(writer: Writer, run: Run, op: str) -> int:
    return writer.collective(op, run.message, range(run.tp))
