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
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
SIZES = {"screen": (1280, 900), "phone": (390, 844)}
TIMEOUT = 60_000  # milliseconds; a busy machine takes its time
sys.path[:0] = str(ROOT / "tools"), str(ROOT / "book" / "_ext")  # scripts and extensions find each other by their names


def unavailable(reason: str) -> None:
    """Skip, but fail where nothing may be skipped."""
    (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


@pytest.fixture(scope="package")  # a session's browser would keep its event loop running in everybody's tests
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


@contextlib.contextmanager
def opened(browser: Any, home: str, path: str, size: str = "screen", **options: Any) -> Iterator[Any]:
    """A fresh page; fails on a console error or a request that leaves `home`."""
    width, height = SIZES[size]
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    context.set_default_timeout(TIMEOUT)
    tab, faults = context.new_page(), []
    tab.on("console", lambda message: message.type == "error" and faults.append(message.text))
    tab.on("pageerror", lambda error: faults.append(str(error)))
    tab.on("request", lambda sent: sent.url.startswith((home, "data:", "blob:")) or faults.append(sent.url))
    tab.goto(f"{home}/{path}")
    yield tab
    context.close()
    assert faults == [], f"{home}/{path}: {faults}"


def picture_page(folder: Path, name: str, picture: Any) -> Path:
    """A page that has a picture which the reader moves and nothing else; its words are as wide as those of the book."""
    room, fonts = resources.files("shardlab.explorers"), ROOT / "book" / "_ext" / "fonts"
    styles, scripts = (
        "".join(room.joinpath(f"{each}.{kind}").read_text(encoding="utf-8") for each in files)
        for kind, files in {"css": ("explorer", "moving", name), "js": ("moving", name)}.items()
    )
    face = (fonts / "source-sans-3-latin-wght-normal.woff2").as_uri()
    ground = f"""@font-face {{font-family: F; font-weight: 200 900; src: url("{face}")}}
        body {{font: 17px F}} * {{box-sizing: border-box}}"""
    page = folder / "page.html"
    body = f"<style>{ground}{styles}</style>{picture.html()}<script>{scripts}</script>"
    page.write_text(f"<!doctype html><meta charset='utf-8'><body>{body}</body>", encoding="utf-8")
    return page


def explorers(tab: Any) -> list[Any]:
    """The blocks themselves: a locator would look for its block anew each time, through all of the page."""
    return list(tab.query_selector_all(".explorer"))


def draw_all(tab: Any) -> None:
    """Scroll through the page, so that every figure on it is drawn, and wait for its formulas."""
    for block in explorers(tab):
        block.scroll_into_view_if_needed()
        tab.wait_for_function("block => 'state' in block.dataset", arg=block)
    tab.evaluate("window.shardlabFormulas?.()")
    tab.wait_for_function(STOPS)


STOPS = """() => [...document.querySelectorAll(".pst-scrollable-table-container")].every((each) =>
    (each.tabIndex === 0) === (each.scrollWidth > each.clientWidth || each.scrollHeight > each.clientHeight))"""


def dress(tab: Any, size: str, theme: str) -> None:
    """Give a page a look, which it takes as it does for a reader who turns the phone or dims the system."""
    width, height = SIZES[size]
    tab.set_viewport_size({"width": width, "height": height})
    tab.emulate_media(color_scheme=theme)
    tab.wait_for_function(DRESSED, arg=theme)


# The page has its theme, figures have its width and its ink, and no colour is on its way to another one.
DRESSED = """(theme) => {
    if (document.documentElement.dataset.theme !== theme) return false;
    const ink = getComputedStyle(document.documentElement).getPropertyValue("--pst-color-text-base").trim();
    const fits = ({ layout, clientWidth }) => layout.width === clientWidth && layout.font.color === ink;
    const changing = document.getAnimations().some(({ playState }) => playState === "running");
    return !changing && [...document.querySelectorAll(".explorer-plot")].every(fits);
}"""


class Opening(NamedTuple):
    """A page on a screen, and what of it was on the paper that a reader in the dark had printed as it was opened."""

    tab: Any
    undrawn: list[str]
    inks: set[str]  # of the labels beside an axis or in a legend
    text: str  # the ink of the text
    themes: tuple[str, str]  # on paper, and when it is printed


PRINTED = """() => {
    const ink = (one) => getComputedStyle(one).fill;
    const words = '[class$="tick"] text, [class^="legend"][class$="text"]';
    const labels = [...document.querySelectorAll(".explorer")].flatMap((block) => [...block.querySelectorAll(words)]);
    const undrawn = [...document.querySelectorAll(".explorer:not([data-state])")];
    const { dataset } = document.documentElement, paper = dataset.theme;
    const { color } = getComputedStyle(document.querySelector("article")), inks = labels.map(ink);
    dispatchEvent(new Event("afterprint"));
    return [undrawn.map((block) => block.getAttribute("aria-label")), inks, color, [paper, dataset.theme]];
}"""


@pytest.fixture(scope="package")
def opening(browser: Any, site: Path, page_name: str) -> Iterator[Opening]:
    """A page from disk, opened once for all tests of it on a screen: to open and draw it takes longer than a test."""
    with opened(browser, site.as_uri(), f"{page_name}.html", color_scheme="dark") as tab:
        tab.evaluate("() => { window.print = () => { dispatchEvent(new Event('beforeprint')); window.seen = true; }; }")
        tab.keyboard.press("Control+p")
        tab.wait_for_function("window.seen")
        undrawn, inks, text, themes = tab.evaluate(PRINTED)
        draw_all(tab)
        yield Opening(tab, undrawn, {*inks}, text, tuple(themes))


@pytest.fixture(scope="package")
def screen(opening: Opening) -> Any:
    return opening.tab
