"""What all tests share: patient examples, functions that ranks need not import, and how tests are dealt to workers."""

from __future__ import annotations

import os
import re
from typing import Any

import cloudpickle
import hypothesis
import pytest

hypothesis.settings.register_profile(
    "patient",
    deadline=None,  # a busy machine is no mistake of the code
    derandomize="CI" in os.environ,  # a commit passes there every time or never; new examples are for desks
)
hypothesis.settings.load_profile("patient")

os.environ["SHARDLAB_FOLDER"] = ""  # a test is no learner: no record is kept, but where it asks for one

# of tests that take longest, and so begin first
LONG_FIXTURES = {"book", "browser", "chapter", "installed", "lab", "site"}


BY_PAGE = "test_pages.py", "test_access.py", "test_chapters.py"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report a deadlock after half a second, not two: where a test is about something else."""
    monkeypatch.setattr("shardlab.launch.watch.TICK", 0.1)


def pytest_configure() -> None:
    """Keep a worker of `pytest -n`, and the ranks that it starts, to its share of the cores.

    A rank sleeps and wakes several times in each collective, and on a virtual machine to wake a thread on another core
    can cost ten times as much.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker and hasattr(os, "sched_setaffinity"):
        cores, workers = sorted(os.sched_getaffinity(0)), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        os.sched_setaffinity(0, cores[int(worker.removeprefix("gw")) % len(cores) :: workers])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Make tests ready for ranks, long ones first. Errors: UsageError where `make test` would leave out a proof."""
    for item in items:
        if {"parity", "counted"} & {mark.name for mark in item.iter_markers()} and item.get_closest_marker("slow"):
            raise pytest.UsageError(f"{item.nodeid} is a proof, which `make test` runs; take away the mark `slow`")
        if isinstance(item, pytest.Function):
            cloudpickle.register_pickle_by_value(item.module)  # ranks need not import it, and pytest with it
    items.sort(key=lambda item: not LONG_FIXTURES & {*getattr(item, "fixturenames", ())})


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """How `pytest -n` deals tests to workers: by pages or chapters where files go through them, else as a whole."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFixtures(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file, _, test = nodeid.partition("::")
            page = re.search(r"\[([\w/]+)", test) if file.endswith(BY_PAGE) else None
            return page[1] if page else file

    config.option.loadscopereorder = False  # it is in order already
    return ByFixtures(config, log)
