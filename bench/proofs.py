"""The claims that the tests prove: how far apart the two sides came, on how many ranks, in how many cases.

A test is marked `parity("chapter", "claim")` where two ways to compute must give the same tensors, `counted(...)` where
a formula must give what was counted. Here those tests run, and pytest and torch are asked what they compared. A mark
costs an ordinary run of the tests nothing.
"""

import ast
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import record
import torch
from _pytest.assertion import util

from shardlab import launch
from shardlab.files.terminal import no_arguments

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("parity", "counted")
MARK = re.compile(rf"pytest\.mark\.({'|'.join(KINDS)})\(")
RANKS = ("world_size", "size", "ranks", "p")  # what parameters of tests call the number of ranks


class Recorder:
    """A plugin of pytest: what marked tests compare, in every way they have of doing so."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}  # by test, without its parameters
        self.row: dict[str, Any] | None = None  # of the test that runs now
        self.ranks: set[int] = set()  # sizes of the launches since somebody looked
        self.of_fixtures: dict[str, set[int]] = {}
        self.failed: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        """A fixture of a module launches its ranks once, for all tests that use it."""
        self.ranks = set()
        result = yield
        self.of_fixtures.setdefault(f"{fixturedef.baseid}::{fixturedef.argname}", set()).update(self.ranks)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Function) -> Iterator[None]:
        (mark,) = [mark for mark in item.iter_markers() if mark.name in KINDS]
        chapter, claim = mark.args
        test = item.nodeid.partition("[")[0]
        new = {"kind": mark.name, "chapter": chapter, "claim": claim, "test": test, "cases": 0, "ranks": set()}
        self.row = self.rows.setdefault(test, {**new, "checks": 0, "numbers": 0, "largest": 0.0})
        self.ranks, util._reprcompare = set(), None  # pytest need not describe how the two sides of a line differ
        try:
            result = yield
        finally:
            row, self.row = self.row, None
        row["cases"] += 1
        row["ranks"] |= self.ranks | self._declared(item)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_assertion_pass(self, expl: str) -> None:
        """`assert a == b` where both sides are, or hold, numbers; `expl` has their values. approx speaks for itself."""
        self.checked()
        try:
            sides = ast.parse(expl.partition("\n")[0], mode="eval").body
            if isinstance(sides, ast.Compare) and len(sides.ops) == 1 and isinstance(sides.ops[0], ast.Eq):
                found = [list(_numbers(_value(side))) for side in (sides.left, sides.comparators[0])]
                self.compare(*(torch.tensor(side, dtype=torch.float64) for side in found), 0.0, 0.0)
        except (SyntaxError, NameError, TypeError, ValueError):  # words, objects, or what follows a plus and minus
            return

    def checked(self) -> None:
        if self.row is not None:
            self.row["checks"] += 1

    def compare(self, ours: torch.Tensor, theirs: torch.Tensor, rtol: float, atol: float) -> None:
        """Two sides that were found to be equal; keeps the largest share of what their test allows."""
        if self.row is None or ours.numel() == 0 or ours.numel() != theirs.numel():
            return
        ours, theirs = (x.detach().cpu().double().flatten() for x in (ours, theirs))
        difference, allowed = (ours - theirs).abs(), atol + rtol * theirs.abs()
        worst = int((difference / allowed.clamp(min=torch.finfo(torch.float64).tiny)).nan_to_num().argmax())
        here = {"difference": float(difference[worst].nan_to_num()), "allowed": float(allowed[worst])}
        row = self.row
        row["numbers"] += ours.numel()
        row["largest"] = max(row["largest"], float(theirs.abs().nan_to_num(posinf=0).max()))
        if "difference" not in row or _share(here) > _share(row):
            row.update(here)

    def _declared(self, item: pytest.Function) -> set[int]:
        """Numbers of ranks that the parameters of a test name, or that its fixtures have launched."""
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        named = {parameters[name] for name in RANKS if isinstance(parameters.get(name), int)}
        fixtures = [self.of_fixtures.get(f"{item.location[0]}::{name}", set()) for name in item.fixturenames]
        return named.union(*fixtures)


def _share(worst: dict[str, float]) -> tuple[float, float]:
    """How much of what is allowed is used up; where nothing is allowed, there is no difference either."""
    used = worst["difference"] / worst["allowed"] if worst["allowed"] else 0.0
    return used, worst["allowed"]


def _value(side: ast.expr) -> Any:
    """What one side of a comparison is: numbers, and sums or products of them."""
    return eval(compile(ast.Expression(side), "a line of a test", "eval"), {"__builtins__": {}})


def _numbers(x: Any) -> Iterator[float]:
    """The numbers in lists, tuples and dictionaries, one after the other."""
    if isinstance(x, int | float):
        yield x
    elif isinstance(x, list | tuple | dict):
        for each in x.values() if isinstance(x, dict) else x:
            yield from _numbers(each)


def _tensors(x: Any) -> Iterator[torch.Tensor]:
    """What assert_close is given: a tensor, a number, a sequence of them, or None for a gradient that is not there."""
    if isinstance(x, list | tuple):
        for each in x:
            yield from _tensors(each)
    elif x is not None:
        yield x if isinstance(x, torch.Tensor) else torch.as_tensor(x, dtype=torch.float64)


def listen(recorder: Recorder, patch: pytest.MonkeyPatch) -> None:
    """Let the recorder hear of every launch and of every comparison of torch that held."""
    close, equal, allclose, launched = torch.testing.assert_close, torch.equal, torch.allclose, launch.Job
    about = type(pytest.approx(1.0)).__eq__

    def assert_close(ours: Any, theirs: Any, *, rtol: float, atol: float, **options: Any) -> None:
        close(ours, theirs, rtol=rtol, atol=atol, **options)
        recorder.checked()
        for mine, its in zip(_tensors(ours), _tensors(theirs), strict=True):
            recorder.compare(mine, its, rtol, atol)

    def compared(check: Callable[..., bool], exact: bool) -> Callable[..., bool]:
        def call(ours: torch.Tensor, theirs: torch.Tensor, rtol: float = 1e-5, atol: float = 1e-8) -> bool:
            held = check(ours, theirs) if exact else check(ours, theirs, rtol=rtol, atol=atol)
            if held:
                recorder.compare(ours, theirs, *((0.0, 0.0) if exact else (rtol, atol)))
            return held

        return call

    def approx(theirs: Any, ours: Any) -> bool:
        held = about(theirs, ours)
        if held and isinstance(ours, int | float):
            both = (torch.tensor([float(x)], dtype=torch.float64) for x in (ours, theirs.expected))
            recorder.compare(*both, 0.0, float(theirs.tolerance))
        return held

    def job(world_size: int, hosted: int = 0, **rest: Any) -> Any:
        recorder.ranks.add(hosted or world_size)  # ranks that are threads share one process
        return launched(world_size=world_size, hosted=hosted, **rest)

    patch.setattr(torch.testing, "assert_close", assert_close)
    patch.setattr(torch, "equal", compared(equal, exact=True))
    patch.setattr(torch, "allclose", compared(allclose, exact=False))
    patch.setattr(type(pytest.approx(1.0)), "__eq__", approx)
    patch.setattr(launch, "Job", job)


def prove(files: list[Path]) -> list[dict[str, Any]]:
    """Run the marked tests of `files`; a row for each, in the order of the book's chapters."""
    recorder = Recorder()
    options = ["-m", " or ".join(KINDS), "-q", "-vv", "--tb=short", "-p", "no:cacheprovider"]
    options += ["-o", "enable_assertion_pass_hook=true"]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "pycache_prefix", folder)  # elsewhere tests lie compiled without that hook
        patch.chdir(ROOT)
        listen(recorder, patch)
        pytest.main([*options, *map(str, files)], plugins=[recorder])
    if recorder.failed:
        raise SystemExit(f"nothing is recorded, for {len(recorder.failed)} tests failed: {recorder.failed}")
    order = [*re.findall(r"file: book/(\w+)", (ROOT / "_toc.yml").read_text())]
    rows = sorted(recorder.rows.values(), key=lambda row: [*order, row["chapter"]].index(row["chapter"]))
    return [{**row, "ranks": sorted(row["ranks"])} for row in rows]


if __name__ == "__main__":
    no_arguments(__doc__)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # parity is a matter of float64; ranks are processes of this machine
    marked = sorted(path for path in (ROOT / "tests").rglob("test_*.py") if MARK.search(path.read_text()))
    print(record.write("proofs", {"proofs": prove(marked)}))
