"""The report as one screen of text."""

from collections.abc import Iterator

from shardlab.costs.units import counted, percent, text

from .report import Collectives, RecordedStep, ranks_text

MOST = 6  # kinds of collectives to print
MOST_NOTES = 3


def lines(report: RecordedStep) -> Iterator[str]:
    """Yield the lines of the report."""
    recording = report.recording
    step = f", {recording.step}" if recording.step else ""
    yield f"{counted(len(recording.ranks), 'rank')} of {recording.world_size}{step}"
    yield f"read from: {recording.dialect}"
    notes = [note for note in (report.clocks, *recording.missing) if note]
    yield from (f"Note: {note}" for note in notes[:MOST_NOTES])
    if more := notes[MOST_NOTES:]:
        yield f"and {counted(len(more), 'note')} more, which --json has"
    yield ""
    yield from _kinds(report)
    yield from _waiting(report)
    for each in report.collectives[:MOST]:
        yield _row(each)
    if report.step:
        parts = report.step.summary.items()
        yield ""
        yield f"predicted step: {text(report.step.seconds, 's')}"
        yield "  " + " · ".join(f"{name} {text(part, 's')}" for name, part in parts if part)
    if report.differences:
        yield ""
        yield "the largest differences, per rank:"
    for place, (_, seconds, seen, page) in enumerate(report.differences, 1):
        yield f"  {place} {text(seconds, 's')}: {seen} (page {page})"


def _kinds(report: RecordedStep) -> Iterator[str]:
    rank, kinds = next(iter(report.kinds.items()))
    if "all" not in kinds:
        yield f"rank {rank}: no kernel and no collective was recorded"
        return
    named = {name: seconds for name, seconds in kinds.items() if name not in ("all", "exposed")}
    yield f"rank {rank}, {text(kinds['all'], 's')}:"
    yield "  " + " · ".join(f"{name} {text(max(0.0, s), 's')}" for name, s in named.items())
    if report.recording.unnamed:
        yield f"  of the kernels' seconds, {percent(report.recording.unnamed)} have no known name"


def _waiting(report: RecordedStep) -> Iterator[str]:
    kernels = sum(each.kernels for each in report.collectives)
    waiting = sum(each.waiting for each in report.collectives)
    calls = sum(each.count for each in report.collectives)
    if not report.late:
        yield f"collectives: {text(kernels, 's')} of kernels; waiting cannot be told from sending"
        yield "  give the files of the other ranks, recorded on one host"
        return
    split = f"of which {text(waiting, 's')} wait for the last rank"
    yield f"collectives of all ranks: {text(kernels, 's')} of kernels, {split}"
    named = [
        f"rank {rank} {text(seconds, 's')} (last in {times} of {calls})"
        for rank, (seconds, times) in report.late.items()
    ]
    yield f"  waited for: {', '.join(named[:4])}"


def _row(each: Collectives) -> str:
    size = text(each.nbytes, "B") if each.nbytes else "of unknown size"
    words = f"  {each.op} x {each.count}, {size}, {ranks_text(each.group)}: "
    predicted = f"predicted {text(each.predicted, 's')}" if each.predicted is not None else ""
    if each.sending is None:
        mean = each.kernels / each.count
        words += f"a kernel of {text(mean, 's')}"
        if each.predicted is None:
            return words
        rest = text(max(0.0, mean - each.predicted), "s")
        return f"{words}; {predicted}, the other {rest} are waiting or a slower link"
    told = [f"sending {text(each.sending, 's')}", predicted]
    told.append(f"busbw {text(each.busbw, 'B/s')}" if each.busbw else "")
    return words + ", ".join(filter(None, told))
