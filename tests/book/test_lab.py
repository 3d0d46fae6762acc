"""The notebooks alive in JupyterLab, as `make lab` opens them: every page is rendered and saved, chapters are run.

All cells of a third of the chapters run for each commit, another third for the next one; SHARDLAB_LAB=all runs all.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
import pytest
from jupyter_client import BlockingKernelClient

from .conftest import ROOT
from .test_notebooks import BOOK, MYST, PAGES, lab

MINUTE = 60_000  # milliseconds
SLIDER = ".noUi-handle"  # of ipywidgets
SETTINGS = {"@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"}}  # cells out of sight are rendered too
RENDERED = """async () => {
    const panel = jupyterapp.shell.currentWidget;
    await panel.context.ready;
    await panel.sessionContext.ready;
    while (document.querySelector(".jp-Cell.jp-mod-resizedCell, .jp-MarkdownOutput:empty")) {
        await new Promise((wake) => setTimeout(wake, 50));
    }
}"""
WORDS = """() => [...document.querySelectorAll(".jp-MarkdownOutput")].map((cell) => {
    const copy = cell.cloneNode(true);
    copy.querySelectorAll("pre, code, mjx-container").forEach((each) => each.remove());
    return copy.textContent;
}).join("\\n")"""
DIRTY = "() => jupyterapp.shell.currentWidget.context.model.dirty"
RUN_ALL = """(limit) => Promise.race([
    (async () => {
        await jupyterapp.commands.execute("notebook:run-all-cells");  // ends with the first error, if one is on purpose
        const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel;
        await kernel.requestExecute({ code: "", silent: true }).done;  // its turn comes after all cells
    })(),
    new Promise((_, fail) => setTimeout(() => fail(new Error("the cells take too long")), limit)),
])"""
DRAWN = """(cell) => JSON.stringify(
    [...cell.querySelectorAll(".js-plotly-plot")].map(({data, layout}) => [data, layout?.annotations, layout?.shapes])
)"""
SAVE = "() => jupyterapp.commands.execute('docmanager:save')"


class Lab(NamedTuple):
    """A running JupyterLab over a learner's folder."""

    address: str
    token: str
    folder: Path
    runtime: Path
    log: Path

    def open(self, tab: Any, page: str) -> Path:
        """Show the notebook of a page in `tab`, with its kernel started; return its file."""
        tab.set_default_timeout(2 * MINUTE)
        tab.goto(f"{self.address}lab/tree/{BOOK.names[page]}?token={self.token}&reset")
        tab.locator(".jp-NotebookPanel").wait_for()
        tab.evaluate(RENDERED)
        tab.get_by_text("| Idle").wait_for()
        return self.folder / BOOK.names[page]

    def end_kernels(self) -> None:
        """Stop what runs, so that the next notebook has the machine to itself."""
        for kernel in json.loads(self.ask("GET", "api/kernels")):
            self.ask("DELETE", f"api/kernels/{kernel['id']}")

    def ask(self, method: str, path: str) -> bytes:
        headers = {"Authorization": f"token {self.token}"}
        with urllib.request.urlopen(urllib.request.Request(self.address + path, None, headers, method=method)) as reply:
            return bytes(reply.read())


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """JupyterLab over notebooks that tools/lab.py has made: loopback only, a token of its own."""
    place, token = tmp_path_factory.mktemp("lab"), secrets.token_hex(16)
    assert list(lab.update(BOOK, place / "notebooks")) == []
    (place / "config" / "labconfig").mkdir(parents=True)
    (place / "config" / "labconfig" / "default_setting_overrides.json").write_text(json.dumps(SETTINGS))
    places = {"JUPYTER_CONFIG_PATH": str(ROOT / "tools"), "SHARDLAB_STATIC": "", "JUPYTER_PREFER_ENV_PATH": "0"}
    places |= {f"JUPYTER_{kind}_DIR": str(place / kind.lower()) for kind in ("CONFIG", "DATA")}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", "--port=0", "--allow-root"]
    command += [f"--IdentityProvider.token={token}", f"--notebook-dir={place / 'notebooks'}"]
    with (place / "log").open("w+") as log, tempfile.TemporaryDirectory() as runtime:  # sockets need a short path
        server = subprocess.Popen(
            [*command, "--LabApp.expose_app_in_browser=True"],
            env={**os.environ, **places, "JUPYTER_RUNTIME_DIR": runtime},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            where = address(server, Path(runtime), place / "log")
            yield Lab(where, token, place / "notebooks", Path(runtime), place / "log")
        finally:
            server.send_signal(signal.SIGTERM)  # shuts its kernels down too
            server.wait(60)


def address(server: subprocess.Popen[bytes], runtime: Path, log: Path) -> str:
    """Where the server listens, as soon as it says so."""
    for _ in range(600):
        for said in runtime.glob("jpserver-*.json"):
            return str(json.loads(said.read_text())["url"])
        assert server.poll() is None, log.read_text()
        time.sleep(0.1)
    pytest.fail(f"JupyterLab does not start\n{log.read_text()}")


@pytest.fixture(scope="module")
def tab(browser: Any, running: Lab) -> Iterator[Any]:
    tab = browser.new_page(viewport={"width": 1280, "height": 1000})
    yield tab
    tab.close()


@pytest.fixture(autouse=True)
def nothing_of_the_book_changes(running: Lab) -> Iterator[None]:
    """Whatever a learner opens, runs and saves: the book's source stays as it is."""
    before = source()
    yield
    running.end_kernels()
    assert source() == before


def source() -> dict[Path, bytes]:
    files = (path for folder in ("book", "bench") for path in (ROOT / folder).rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in files if "__pycache__" not in path.parts}


@pytest.mark.parametrize("stem", PAGES)
def test_a_page_is_whole_in_jupyterlab_and_saving_it_changes_no_byte(stem: str, tab: Any, running: Lab) -> None:
    path = running.open(tab, PAGES[stem])
    before, when = path.read_bytes(), path.stat().st_mtime_ns
    assert MYST.findall(tab.evaluate(WORDS)) == []
    images = tab.locator(".jp-MarkdownOutput img")
    assert all(images.evaluate_all("images => images.map((image) => image.naturalWidth > 0)"))
    assert images.count() == BOOK.path(PAGES[stem]).read_text().count("```{figure}")
    assert tab.locator(".jp-MarkdownOutput details[open]").count() == 0
    answers = tab.locator(".jp-MarkdownOutput details")
    if answers.count():
        inside = answers.first.locator("p, td").first
        assert not inside.is_visible()
        answers.first.locator("summary").click()
        assert inside.is_visible()
        answers.first.locator("summary").click()
        assert not inside.is_visible()
    assert not tab.evaluate(DIRTY)
    tab.evaluate(SAVE)
    assert path.stat().st_mtime_ns > when
    assert path.read_bytes() == before


def of_this_commit() -> list[str]:
    """The title page, and the third of all other pages with cells whose turn it is."""
    stems = [stem for stem, page in PAGES.items() if "{code-cell}" in BOOK.path(page).read_text()]
    if os.environ.get("SHARDLAB_LAB") == "all":
        return stems
    command = ["git", "rev-list", "--count", "HEAD"]
    count = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    return [stems[0], *stems[1 + int(count or 0) % 3 :: 3]]


@pytest.mark.parametrize("stem", of_this_commit())
def test_all_cells_run_and_a_slider_moves_the_figure(stem: str, tab: Any, running: Lab) -> None:
    """Where a chapter shows an error on purpose, the cell is tagged raises-exception."""
    path = running.open(tab, PAGES[stem])
    tab.evaluate(RUN_ALL, 5 * MINUTE)
    tab.evaluate(SAVE)
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    for cell in cells:
        errors = [each.evalue for each in cell.outputs if each.output_type == "error"]
        assert not errors or "raises-exception" in cell.metadata.get("tags", []), f"{cell.source}\n{errors}"
    assert [cell.source for cell in cells if not cell.execution_count] == []
    if tab.locator(f".jp-OutputArea {SLIDER}").count():
        move_a_slider(tab)


def move_a_slider(tab: Any) -> None:
    """Press an arrow key on the first slider and wait for the figures below it to change."""
    cell = tab.locator(".jp-CodeCell").filter(has=tab.locator(SLIDER)).first
    cell.locator(".js-plotly-plot .main-svg").first.wait_for()
    slider = cell.locator(SLIDER).first
    slider.scroll_into_view_if_needed()
    at_the_end = slider.get_attribute("aria-valuenow") == slider.get_attribute("aria-valuemax")
    before = cell.evaluate(DRAWN)
    slider.press("ArrowLeft" if at_the_end else "ArrowRight")
    tab.wait_for_function(f"([cell, before]) => ({DRAWN})(cell) !== before", arg=[cell.element_handle(), before])


def test_kernels_listen_on_no_tcp_port_and_warn_of_none(running: Lab) -> None:
    kernel = json.loads(running.ask("POST", "api/kernels"))
    client = BlockingKernelClient(connection_file=str(running.runtime / f"kernel-{kernel['id']}.json"))
    client.load_connection_file()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    client.stop_channels()
    running.end_kernels()
    assert client.transport == "ipc"
    assert "eavesdropping" not in running.log.read_text()
