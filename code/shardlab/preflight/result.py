"""What a check found: one line in plain words, with its numbers."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

Facts = Mapping[str, Any]  # of one rank; see `facts.own`
OK, WARN, FAIL = "ok", "warn", "FAIL"
MOST_HOSTS = 4  # that are named in a line


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """A finding of one check; the text holds the number and, unless it is ok, the way out."""

    name: str
    verdict: str  # OK, WARN or FAIL
    text: str
    numbers: dict[str, Any] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """The finding as it is printed."""
        return f"{self.verdict:4}  {self.name}: {self.text}"


def result(name: str, verdict: str, text: str, **numbers: Any) -> CheckResult:
    """Make a finding with its numbers."""
    return CheckResult(name=name, verdict=verdict, text=text, numbers=numbers)


def status(results: Iterable[CheckResult]) -> int:
    """Return the exit status: 1 if any check failed, else 0."""
    return int(any(each.verdict == FAIL for each in results))


def spans(numbers: Iterable[int]) -> str:
    """Write numbers in short: 0, 1, 2, 5 is "0-2, 5"."""
    ordered = sorted(set(numbers))
    gaps = [at for at, (a, b) in enumerate(pairwise(ordered), 1) if b > a + 1]
    pieces = [ordered[a:b] for a, b in pairwise([0, *gaps, len(ordered)])]
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in pieces)


def ranks_text(ranks: Iterable[int]) -> str:
    """Write "rank 3" or "ranks 0-7"."""
    ranks = set(ranks)
    return f"rank{'s' * (len(ranks) != 1)} {spans(ranks)}"


def whom(world: Sequence[Facts], ranks: Iterable[int]) -> str:
    """Name ranks with their hosts: "ranks 8-15 (node b)"."""
    ranks = set(ranks)
    hosts = list(dict.fromkeys(each["host"] for each in world if each["rank"] in ranks))
    more = f" and {len(hosts) - MOST_HOSTS} more" if len(hosts) > MOST_HOSTS else ""
    return f"{ranks_text(ranks)} ({', '.join(hosts[:MOST_HOSTS])}{more})"


def grouped(values: Iterable[tuple[int, Hashable]]) -> list[tuple[Any, list[int]]]:
    """Group ranks by their value; the group of the majority, or of the lowest rank, comes first."""
    found: dict[Any, list[int]] = defaultdict(list)
    for rank, value in values:
        found[value].append(rank)
    return sorted(found.items(), key=lambda item: (-len(item[1]), item[1]))
