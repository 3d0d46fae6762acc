"""What tests of the built book share: the site, served from disk and over http, and a real browser."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = str(ROOT / "tools"), str(ROOT / "book" / "_ext")  # scripts and extensions find each other by their names


def unavailable(reason: str) -> None:
    """Skip, but fail where nothing may be skipped."""
    (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


@pytest.fixture(scope="module")  # a session's browser would keep its event loop running in everybody's tests
def browser() -> Iterator[Any]:
    """The browser of the tools; with SHARDLAB_BROWSER=firefox the one that `playwright install firefox` fetches."""
    try:
        import chromium
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        unavailable("playwright is not installed")
    with contextlib.ExitStack() as until_the_end:
        try:
            if os.environ.get("SHARDLAB_BROWSER") == "firefox":
                started = until_the_end.enter_context(sync_playwright()).firefox.launch()
                until_the_end.callback(started.close)
            else:
                started = until_the_end.enter_context(chromium.started())
        except Error as error:
            unavailable(f"no browser: {error}")
        yield started


@pytest.fixture(scope="session")
def site() -> Path:
    """The folder of the built book: SHARDLAB_SITE, or built here; nothing happens when it is up to date."""
    if "SHARDLAB_SITE" in os.environ:
        return Path(os.environ["SHARDLAB_SITE"]).resolve()
    build = ROOT / "_build"
    build.mkdir(exist_ok=True)
    with (build / ".tested").open("a+") as notes:  # which run of pytest has built it: one of its workers is enough
        fcntl.flock(notes, fcntl.LOCK_EX)
        notes.seek(0)
        this_run = os.environ.get("PYTEST_XDIST_TESTRUNUID", "")
        if not this_run or notes.read() != this_run:
            build_book(ROOT)
            notes.truncate(0)
            notes.write(this_run)
    return build / "html"


def build_book(root: Path) -> str:
    """Build the book of `root` as `make book` does and return the log; a warning is an error."""
    command = [str(Path(sys.executable).with_name("jupyter-book")), "build", str(root), "-W", "--keep-going"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=3600, check=False)
    log = done.stdout + done.stderr
    assert done.returncode == 0, f"the book does not build\n{log[-8000:]}"
    return log


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder and says nothing."""

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of a folder over http, on the loopback interface and a free port."""
    handler = functools.partial(QuietHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="session")
def served(site: Path) -> Iterator[str]:
    """The address of the site over http."""
    with serving(site) as address:
        yield address
