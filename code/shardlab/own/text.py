"""The report as one screen of text."""

from collections.abc import Iterator, Mapping
from typing import Any

from shardlab.costs.units import counted, percent, text

from .report import ranks_text

MOST = 6  # kinds of collectives to print
MOST_NOTES = 3
NOTHING = 1e-9  # seconds: what rounding leaves of equal sums


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the report."""
    step = f", {report['step']}" if report["step"] else ""
    yield f"{counted(len(report['ranks']), 'rank')} of {report['world_size']}{step}"
    yield f"read from: {report['dialect']}"
    yield from (f"Note: {note}" for note in report["missing"][:MOST_NOTES])
    if more := report["missing"][MOST_NOTES:]:
        yield f"and {counted(len(more), 'note')} more, which --json has"
    yield ""
    yield from _kinds(report)
    yield from _waiting(report)
    yield from map(_row, report["collectives"][:MOST])
    if report["predicted"]:
        parts = [(name, part) for name, part in report["predicted"].items() if part]
        yield ""
        yield f"predicted step: {text(sum(report['predicted'].values()), 's')}"
        yield "  " + " · ".join(f"{name} {text(part, 's')}" for name, part in parts)
    if report["differences"]:
        yield ""
        yield "the largest differences, per rank:"
    for place, each in enumerate(report["differences"], 1):
        yield f"  {place} {text(each['seconds'], 's')}: {each['seen']} (chapter: {each['page']})"


def _kinds(report: Mapping[str, Any]) -> Iterator[str]:
    rank, kinds = next(iter(report["kinds"].items()))
    if not kinds:
        yield f"rank {rank}: no kernel and no collective was recorded"
        return
    named = {name: seconds for name, seconds in kinds.items() if name not in ("all", "exposed")}
    yield f"rank {rank}, {text(kinds['all'], 's')}:"
    yield "  " + " · ".join(
        f"{name} {text(s if s > NOTHING else 0.0, 's')}" for name, s in named.items()
    )
    if report["unnamed"]:
        yield f"  of the kernels' seconds, {percent(report['unnamed'])} have no known name"


def _waiting(report: Mapping[str, Any]) -> Iterator[str]:
    kernels = text(sum(each["kernels"] for each in report["collectives"]), "s")
    waiting = text(sum(each["waiting"] for each in report["collectives"]), "s")
    calls = sum(each["count"] for each in report["collectives"])
    if not report["late"]:
        yield f"collectives: {kernels} of kernels, waiting and sending"
        return
    yield f"collectives of all ranks: {kernels} of kernels, of which {waiting} wait for the last rank"
    named = [
        f"rank {rank} {text(each['seconds'], 's')} (last in {each['last']} of {calls})"
        for rank, each in report["late"].items()
    ]
    yield f"  waited for: {', '.join(named[:4])}"


def _row(each: Mapping[str, Any]) -> str:
    size = text(each["nbytes"], "B") if each["nbytes"] else "of unknown size"
    mean = each["kernels"] / each["count"]
    told = [f"a kernel of {text(mean, 's')}" if each["sending"] is None else ""]
    told += [f"sending {text(each['sending'], 's')}" if each["sending"] is not None else ""]
    if each["predicted"] is not None:
        told.append(f"predicted {text(each['predicted'], 's')}")
        if each["sending"] is None:
            rest = text(max(0.0, mean - each["predicted"]), "s")
            told.append(f"the other {rest} are waiting or a slower link")
    told += [f"busbw {text(each['busbw'], 'B/s')}" if each["busbw"] else ""]
    where = f"{each['op']} x {each['count']}, {size}, {ranks_text(each['group'])}"
    return f"  {where}: {', '.join(filter(None, told))}"
