"""What should be alike on all ranks: versions, code, environment variables, and results."""

from collections.abc import Hashable, Iterable, Iterator, Sequence

from .result import FAIL, OK, WARN, CheckResult, Facts, grouped, result, whom


def software(world: Sequence[Facts]) -> Iterator[CheckResult]:
    """Compare versions and the hash of the code; name the ranks that differ from the majority."""
    out = "install the same everywhere"
    for name in world[0]["versions"]:
        values = [(each["rank"], each["versions"][name]) for each in world]
        yield _alike(world, name, values, FAIL, out)
    code = [(each["rank"], _code(each)) for each in world]
    yield _alike(world, "code", code, FAIL, "bring the same files to every machine")


def _code(facts: Facts) -> str:
    if not facts["files"]:
        return "no *.py in this folder; --code PATH names what is started"
    return f"{facts['code']}, the hash of {facts['files']} file{'s' * (facts['files'] != 1)}"


def environment(world: Sequence[Facts]) -> Iterator[CheckResult]:
    """Compare the environment variables that change how ranks communicate or compute."""
    names = sorted({name for each in world for name in each["env"]})
    differ = False
    for name in names:
        values = [(each["rank"], each["env"].get(name, "not set")) for each in world]
        found = _alike(world, name, values, WARN, "export the same on every machine")
        if found.verdict != OK:
            differ = True
            yield found
    if not differ:
        text = f"alike on all ranks: {', '.join(names) or 'none is set'}"
        yield result("environment", OK, text, variables=names)


def results(world: Sequence[Facts], sums: dict[int, str]) -> CheckResult:
    """Compare the checksums of the same step, by rank.

    The step is exact in float64, so that even other processors must give the same bits.
    """
    out = "it computes wrongly: take the machine out and test its memory and device"
    return _alike(world, "checksum", sums.items(), FAIL, out)


def _alike(
    world: Sequence[Facts],
    name: str,
    values: Iterable[tuple[int, Hashable]],
    verdict: str,
    way_out: str,
) -> CheckResult:
    (usual, ranks), *others = grouped(values)
    if not others:
        return result(name, OK, f"{usual}", value=usual)
    texts = "; ".join(f"{value} on {whom(world, owners)}" for value, owners in others)
    numbers = {str(value): owners for value, owners in [(usual, ranks), *others]}
    text = f"{texts}, but {usual} on {len(ranks)} of {len(world)} ranks; {way_out}"
    return result(name, verdict, text, ranks=numbers)
