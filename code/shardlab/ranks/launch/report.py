"""What went wrong on the ranks, so that a student can act on it: who failed, where, and what the others did."""

import linecache
import signal
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from .state import Call, Failure, Place, Whereabouts

Said = TypeVar("Said")
MAX_PLACES = 12  # of a stack, at each end
MAX_GROUPS = 5  # of ranks, each with its own line, after Ctrl-C
MAX_SOURCE = 60  # letters of such a line of code
PACKAGE = Path(__file__).parents[2]
SAME_SHAPE = {"all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "gather", "barrier"}


@dataclass
class Outcome:
    """What the launcher knows at the end of a run that did not succeed."""

    failed: dict[int, list[Failure]] = field(default_factory=dict)
    died: dict[int, int] = field(default_factory=dict)  # rank -> exit code, negative for a signal
    where: dict[int, Whereabouts] = field(default_factory=dict)
    silent: list[int] = field(default_factory=list)  # ranks that did not say where they are
    verdict: str = ""  # why the launcher stopped waiting, if it did


def report(outcome: Outcome) -> str:
    """The whole story, culprits first."""
    victims = {rank for rank, chain in outcome.failed.items() if "onnection" in chain[-1].text}
    culprits = {rank: chain for rank, chain in outcome.failed.items() if rank not in victims}
    if not culprits and not outcome.died:
        culprits, victims = outcome.failed, set()
    lines = [f"rank {rank} died: {_cause_of_death(code)}" for rank, code in sorted(outcome.died.items())]
    lines += [line for ranks, chain in _alike(culprits) for line in _raised(ranks, chain)]
    if victims:
        lines.append(f"{_ranks(victims)} then lost the connection to a peer.")
    if outcome.verdict:
        lines.append(outcome.verdict)
    lines += mismatch({rank: place.calls for rank, place in outcome.where.items()})
    lines += _bystanders(outcome)
    if outcome.silent:
        lines.append(f"{_ranks(outcome.silent)} did not answer: not started yet, or in a C call that never yields.")
    return "\n".join(lines)


def _cause_of_death(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return name + (" (killed from outside, or out of memory)" if name == "SIGKILL" else "")


def _raised(ranks: list[int], chain: list[Failure]) -> list[str]:
    lines = [f"{_ranks(ranks)} raised"]
    for failure in chain:
        lines += [*_stack(failure.places), failure.text]
    return lines


def _bystanders(outcome: Outcome) -> list[str]:
    """Where the ranks stood that did not fail themselves."""
    stood = {
        rank: "had finished" if where.finished else "waited at\n" + "\n".join(_stack(where.places))
        for rank, where in outcome.where.items()
        if rank not in outcome.failed and rank not in outcome.died
    }
    return [f"{_ranks(ranks)} {text}" for ranks, text in _alike(stood)]


# ---- after Ctrl-C ----------------------------------------------------------------------------------------------------


def interruption(where: Mapping[int, Whereabouts | None]) -> str:
    """A few lines: where each rank was, None if it did not say; ranks at the same line together."""
    told = _alike({rank: _whereabouts(place) for rank, place in where.items()})
    lines = [f"  {_ranks(ranks)}: {text}" for ranks, text in told[:MAX_GROUPS]]
    others = sum(len(ranks) for ranks, _ in told[MAX_GROUPS:])
    if others:
        lines.append(f"  and {others} more ranks elsewhere")
    return "\n".join(["the run has ended, and its ranks with it. They were here:", *lines])


def _whereabouts(where: Whereabouts | None) -> str:
    """What a rank was doing, by the reader's own line; those of this package, further inside, are only named."""
    if where is None:
        return "no answer; not started yet, or in a C call that never yields"
    if where.finished:
        return "finished"
    if not where.places:
        return "starting"
    *_, inside = where.places
    own = [place for place in where.places if not Path(place[0]).is_relative_to(PACKAGE)] or [inside]
    file, line, _ = own[-1]
    source = linecache.getline(file, line).strip()
    source = source if len(source) <= MAX_SOURCE else f"{source[:MAX_SOURCE]} ..."
    further = f" (in {_name(inside[0])}, line {inside[1]})" if inside != own[-1] else ""
    return f"at {_name(file)}, line {line}: {source}{further}"


# ---- collectives that do not match ---------------------------------------------------------------------------------


def mismatch(calls: Mapping[int, list[Call]]) -> list[str]:
    """The first collective in which the ranks of a group disagree, with every rank's line; empty when they agree."""
    table: dict[tuple[str, int], dict[int, Call]] = {}
    for rank, made in calls.items():
        for call in made:
            table.setdefault((call.group, call.number), {})[rank] = call
    for (_, number), by_rank in sorted(table.items(), key=lambda item: item[0][1]):
        if len({_contract(call) for call in by_rank.values()}) > 1:
            lines = [f"The ranks disagree about collective number {number} of their group:"]
            told = {rank: f"{call.op}({call.shapes}){_at(call.place)}" for rank, call in by_rank.items()}
            return lines + [f"  {_ranks(ranks)}: {text}" for ranks, text in _alike(told)]
    return []


def _contract(call: Call) -> tuple[str, str]:
    """What all ranks of a group must agree on; some collectives may move unequal amounts."""
    return call.op, call.shapes if call.op in SAME_SHAPE else ""


# ---- words ---------------------------------------------------------------------------------------------------------


def _alike(items: Mapping[int, Said]) -> list[tuple[list[int], Said]]:
    """Ranks that have the same to say, together, lowest rank first."""
    groups: dict[str, tuple[list[int], Said]] = {}
    for rank, value in sorted(items.items()):
        groups.setdefault(repr(value), ([], value))[0].append(rank)
    return list(groups.values())


def _ranks(ranks: Iterable[int]) -> str:
    listed = sorted(ranks)
    if len(listed) == 1:
        return f"rank {listed[0]}"
    return "ranks " + ", ".join(map(str, listed[:-1])) + f" and {listed[-1]}"


def _stack(places: list[Place]) -> list[str]:
    """Two lines a place; of a deep recursion only the ends."""
    if len(places) > 2 * MAX_PLACES:
        left_out = f"  ... {len(places) - 2 * MAX_PLACES} more ..."
        return [*_stack(places[:MAX_PLACES]), left_out, *_stack(places[-MAX_PLACES:])]
    lines = []
    for file, line, function in places:
        source = linecache.getline(file, line).strip()
        lines += [f"  {_name(file)}, line {line}, in {function}"] + ([f"    {source}"] if source else [])
    return lines


def _at(place: Place | None) -> str:
    if place is None:
        return ""
    source = linecache.getline(place[0], place[1]).strip()
    return f"  in {_name(place[0])}, line {place[1]}" + (f": {source}" if source else "")


def _name(file: str) -> str:
    """A notebook's cell by its number, a module of this package from the package on, any other file by its path."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    cells = getattr(getattr(shell, "compile", None), "_filename_map", {})
    if file in cells:
        return f"Cell In[{cells[file]}]"
    ours = Path(file).is_relative_to(PACKAGE)
    return f'File "{Path(file).relative_to(PACKAGE.parent).as_posix() if ours else file}"'
