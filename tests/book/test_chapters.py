"""Every chapter's cells on ranks that have a second device each: what forgets its device fails here, as on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import jupytext
import pytest
import torch

from shardlab import launch
from shardlab.ranks.checkpoint import background
from shardlab.ranks.data_parallel import sampler
from shardlab.ranks.generation import loop

from ..ranks.second_device import as_on_gpus
from .conftest import ROOT

CHAPTERS = [path for path in sorted((ROOT / "book").glob("*.md")) if "```{code-cell}" in path.read_text()]
FEW, STEPS = 2, 4  # batches of an epoch, steps of learning: a chapter trains longer, but not differently
EVERY = 5  # of the layouts that a chapter goes through, so many-th ones


class AtOnce:
    """In place of a thread, which the second device does not reach: what is submitted runs now."""

    def submit(self, fn: Callable[..., Any], *args: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args))
        return done


def briefly(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn`, in whose process there are few steps, and saves in the background are over at once."""

    def on_rank(*args: Any) -> Any:
        epoch, learn = sampler.epoch, loop.learn
        sampler.epoch = lambda *a, **k: epoch(*a, **k)[:FEW]

        def learns(*a: Any, steps: int, **k: Any) -> loop.LearningRun:
            run = learn(*a, steps=min(steps, STEPS), **k)
            return replace(run, rewards=(run.rewards * steps)[:steps])

        loop.learn = learns  # type: ignore[assignment]
        background.futures.ThreadPoolExecutor = lambda *a, **k: AtOnce()
        return fn(*args)

    return on_rank


@pytest.fixture(autouse=True)
def default_dtype() -> Iterator[None]:
    """A chapter's default dtype ends with the chapter."""
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_cells_run_on_a_second_device(chapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`comm.device` alone says where: what a cell makes, uses or is given is on the ranks' device."""
    run = launch.run

    def run_there(fn: Callable[..., Any], *args: Any, ranks: str = "processes", **options: Any) -> Any:
        there = briefly(fn) if ranks == "threads" else as_on_gpus(briefly(fn))  # threads have the CPU alone
        return run(there, *args, ranks=ranks, **options)

    monkeypatch.setattr(launch, "run", run_there)
    monkeypatch.chdir(chapter.parent)
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in jupytext.read(chapter, fmt="md:myst").cells:
        if cell.cell_type == "code" and "raises-exception" not in cell.metadata.get("tags", []):
            exec(compile(cell.source, chapter.name, "exec"), names)
            if "def layouts_of" in cell.source:
                names["layouts_of"] = lambda size, all_of=names["layouts_of"]: [*all_of(size)][::EVERY]
