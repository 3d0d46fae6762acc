"""Report what went wrong in a run: which rank failed, where, and what the others were doing."""

import linecache
import re
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from .state import Call, Failure, Place, Raised, Whereabouts

Fact = TypeVar("Fact")
MAX_PLACES = 12  # of a stack, at each end
MAX_GROUPS = 5  # groups of ranks at the same line, listed after Ctrl-C
MAX_SOURCE = 60  # characters of such a line of code
PACKAGE = Path(__file__).parents[1]
# Collectives that need the same shape on every rank.
SAME_SHAPE = {"all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter"}
SAME_SHAPE |= {"gather", "barrier"}


@dataclass
class Outcome:
    """What the launcher knows at the end of a run that did not succeed, by rank."""

    failed: dict[int, Failure] = field(default_factory=dict)
    # rank -> exit code, negative for a signal; None: it hung up, and lived until it was ended
    died: dict[int, int | None] = field(default_factory=dict)
    where: dict[int, Whereabouts] = field(default_factory=dict)
    silent: list[int] = field(default_factory=list)  # ranks that did not answer
    verdict: str = ""  # why the launcher stopped waiting, if it did


def report(outcome: Outcome) -> str:
    """Write the report, culprits first: ranks that died, then those that raised, then others."""
    culprits, victims = _culprits_and_victims(outcome)
    lines = []
    for rank, code in sorted(outcome.died.items()):
        lines.append(f"rank {rank} {'hung up' if code is None else 'died'}: {_cause(code)}")
    for ranks, chain in _alike(culprits, _told):
        lines += _raised(ranks, chain)
    if victims:
        lines.append(f"{_ranks(victims)} then lost the connection to a peer.")
    if outcome.verdict:
        lines.append(outcome.verdict)
    lines += mismatch({rank: place.calls for rank, place in outcome.where.items()})
    if outcome.silent:
        lines.append(
            f"{_ranks(outcome.silent)} did not answer: "
            "not started yet, or in a C call that never yields."
        )
    lines += _bystanders(outcome)
    return "\n".join(lines)


def _culprits_and_victims(outcome: Outcome) -> tuple[dict[int, list[Raised]], list[int]]:
    """Tell the failed ranks that ended the run, with what they raised, from those that lost a peer.

    A rank that ...                 is
    died, or raised its own error   a cause
    waited for a rank still there   a cause, if there is no other
    waited for a cause              a victim

    Every failed rank that is no victim is a culprit.
    """
    failed, died = outcome.failed, {*outcome.died}
    awaited = {
        rank: each.awaited or (died if each.in_torch else set()) for rank, each in failed.items()
    }
    causes = died | {rank for rank in failed if not awaited[rank]}
    causes = causes or {rank for rank in failed if awaited[rank] - {*failed}}
    victims = [rank for rank in failed if rank not in causes and awaited[rank] & causes]
    return {rank: each.chain for rank, each in failed.items() if rank not in victims}, victims


def _cause(code: int | None) -> str:
    if code is None:
        return "its connection closed while it ran; has it closed descriptors it had not opened?"
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name if -code in {*signal.Signals} else f"signal {-code}"
    return name + (" (killed from outside, or out of memory)" if name == "SIGKILL" else "")


def _raised(ranks: list[int], chain: list[Raised]) -> list[str]:
    lines = [f"{_ranks(ranks)} raised"]
    for number, each in enumerate(chain):
        if number:
            lines.append("and then")
        text = re.sub('File "([^"]+)"', lambda found: _name(found[1]), each.text)
        lines += [*_stack(each.places), text]
    return lines


def _bystanders(outcome: Outcome) -> list[str]:
    """Say where the ranks were that did not fail."""
    told: dict[int, str] = {}
    for rank, where in outcome.where.items():
        if rank in outcome.failed or rank in outcome.died:
            continue
        raised = f"raised {where.raised}, whose text does not end, and " if where.raised else ""
        waited = "\n".join([f"{raised}waited at", *_stack(where.places)])
        told[rank] = "had finished" if where.finished else waited
    lines = []
    for ranks, text in _alike(told):
        lines.append(f"{_ranks(ranks)} {text}")
        lines += _for_whom({rank: outcome.where[rank].waits_for for rank in ranks}, outcome)
    return lines


def _for_whom(waits_for: Mapping[int, list[int]], outcome: Outcome) -> list[str]:
    """Say with whom ranks at one line communicate, unless all of them do with all ranks."""
    everyone = {*outcome.where, *outcome.failed, *outcome.died, *outcome.silent}
    if all({*ranks} in (set(), everyone) for ranks in waits_for.values()):
        return []
    texts = {
        rank: f"waited {'in the group of' if rank in ranks else 'for'} {_ranks(ranks)}"
        for rank, ranks in waits_for.items()
        if ranks
    }
    return [f"  {_ranks(ranks)} {text}" for ranks, text in _alike(texts)]


# ---- after Ctrl-C ------------------------------------------------------------------------------


def interruption(where: Mapping[int, Whereabouts | None]) -> str:
    """Say in a few lines where each rank was; None if it did not answer."""
    groups = _alike({rank: _whereabouts(place) for rank, place in where.items()})
    lines = [f"  {_ranks(ranks)}: {text}" for ranks, text in groups[:MAX_GROUPS]]
    others = sum(len(ranks) for ranks, _ in groups[MAX_GROUPS:])
    if others:
        lines.append(f"  and {others} more ranks elsewhere")
    return "\n".join(["the run has ended, and its ranks with it. They were here:", *lines])


def _whereabouts(where: Whereabouts | None) -> str:
    """Name the user's own line; of this package's lines further inside, only the innermost."""
    if where is None:
        return "no answer; not started yet, or in a C call that never yields"
    if where.finished:
        return "finished"
    if not where.places:
        return "starting"
    inside = where.places[-1]
    own = [place for place in where.places if not Path(place[0]).is_relative_to(PACKAGE)]
    shown = own[-1] if own else inside
    further = f" (in {_name(inside[0])}, line {inside[1]})" if inside != shown else ""
    return f"at {_line(shown)}{further}"


# ---- collectives that do not match -------------------------------------------------------------


def mismatch(calls: Mapping[int, list[Call]]) -> list[str]:
    """Describe the first collective on which the ranks of a group disagree.

    Returns a line for each rank; nothing when all agree.
    """
    table: dict[tuple[str, int], dict[int, Call]] = {}
    for rank, made in calls.items():
        for call in made:
            table.setdefault((call.group, call.number), {})[rank] = call
    for (_, number), by_rank in sorted(table.items(), key=lambda item: item[0][1]):
        if len({_contract(call) for call in by_rank.values()}) > 1:
            calls_made = {rank: _describe(call) for rank, call in by_rank.items()}
            return [
                f"The ranks disagree about collective number {number} of their group:",
                *(f"  {_ranks(ranks)}: {text}" for ranks, text in _alike(calls_made)),
            ]
    return []


def _contract(call: Call) -> tuple[str, str]:
    """Return what all ranks of a group must agree on; some collectives may move unequal amounts."""
    return call.op, call.shapes if call.op in SAME_SHAPE else ""


def _describe(call: Call) -> str:
    return f"{call.op}({call.shapes})" + (f"  in {_line(call.place)}" if call.place else "")


# ---- words -------------------------------------------------------------------------------------


def _alike(
    items: Mapping[int, Fact], told: Callable[[int, Fact], Any] = lambda _, fact: fact
) -> list[tuple[list[int], Fact]]:
    """Put ranks with facts that are `told` alike together, lowest rank first; keep the longest."""
    groups: dict[str, dict[int, Fact]] = {}
    for rank, fact in sorted(items.items()):
        groups.setdefault(repr(told(rank, fact)), {})[rank] = fact
    return [([*by], max(by.values(), key=lambda fact: len(repr(fact)))) for by in groups.values()]


def _told(rank: int, chain: list[Raised]) -> list[Raised]:
    """Leave out what differs where ranks raised the same: their numbers, and the calls they saw."""
    own = re.compile(rf"\brank {rank}\b|\n  rank \d+: .*, File .*", re.DOTALL)
    return [Raised(each.places, own.sub("rank", each.text)) for each in chain]


def _ranks(ranks: Iterable[int]) -> str:
    listed = sorted(ranks)
    if len(listed) == 1:
        return f"rank {listed[0]}"
    return "ranks " + ", ".join(map(str, listed[:-1])) + f" and {listed[-1]}"


def _stack(places: list[Place]) -> list[str]:
    """Write two lines for each place; of a deep recursion only the ends."""
    if len(places) > 2 * MAX_PLACES:
        left_out = f"  ... {len(places) - 2 * MAX_PLACES} more ..."
        return [*_stack(places[:MAX_PLACES]), left_out, *_stack(places[-MAX_PLACES:])]
    lines = []
    for file, line, function in places:
        lines.append(f"  {_name(file)}, line {line}, in {function}")
        source = linecache.getline(file, line).strip()
        if source:
            lines.append(f"    {source}")
    return lines


def _line(place: Place) -> str:
    """Write a place, and its source, in one line."""
    source = linecache.getline(place[0], place[1]).strip()
    if len(source) > MAX_SOURCE:
        source = f"{source[:MAX_SOURCE]} ..."
    return f"{_name(place[0])}, line {place[1]}" + (f": {source}" if source else "")


def _name(file: str) -> str:
    """Name a notebook's cell by its number, our own modules from the package on, others by path."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    cells = getattr(getattr(shell, "compile", None), "_filename_map", {})
    if file in cells:
        return f"Cell In[{cells[file]}]"
    ours = Path(file).is_relative_to(PACKAGE)
    return f'File "{Path(file).relative_to(PACKAGE.parent).as_posix() if ours else file}"'
