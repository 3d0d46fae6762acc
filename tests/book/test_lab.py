"""The chapter alive in JupyterLab: cells run, ranks answer, a slider moved by keyboard, the figure follows.

The build of the book and test_chapters.py run every cell; here it is about what only a live notebook does.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import ROOT

CHAPTER = ROOT / "book" / "data_parallel.md"
MINUTE = 60_000  # milliseconds
SLIDER = ".noUi-handle"  # of ipywidgets


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[str]:
    """The address of a chapter in a JupyterLab over a copy of the book: loopback only, a token of its own."""
    work, runtime, token = tmp_path / "book", tmp_path / "runtime", secrets.token_hex(16)
    shutil.copytree(ROOT / "book", work)
    shutil.copytree(ROOT / "bench" / "results", tmp_path / "bench" / "results")  # chapters plot them
    # as `make lab` does: JupyterLab then opens a chapter's .md as a notebook
    places = {"JUPYTER_CONFIG_PATH": str(work / "_ext"), "SHARDLAB_STATIC": ""}
    places |= {f"JUPYTER_{kind}_DIR": str(tmp_path / kind.lower()) for kind in ("CONFIG", "DATA", "RUNTIME")}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", "--port=0", "--allow-root"]
    with (tmp_path / "log").open("w+") as log:
        server = subprocess.Popen(
            [*command, f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={work}"],
            env={**os.environ, **places},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            yield f"{address(server, runtime, tmp_path / 'log')}lab/tree/{CHAPTER.name}?token={token}"
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


def run_cell(tab: Any, words: str) -> Any:
    """Run the first cell with these words and return it when it is done; one that fails says so itself."""
    cell = tab.locator(".jp-CodeCell").filter(has_text=words).first
    cell.locator(".jp-InputArea-editor").click()
    tab.keyboard.press("Shift+Enter")
    tab.wait_for_function(
        "cell => /\\d/.test(cell.querySelector('.jp-InputPrompt').textContent)", arg=cell.element_handle()
    )
    assert cell.locator("[data-mime-type='application/vnd.jupyter.error']").count() == 0, cell.inner_text()
    return cell


def test_cells_run_and_a_slider_moves_the_figure_in_jupyterlab(browser: Any, lab: str) -> None:
    tab = browser.new_page(viewport={"width": 1280, "height": 1000})
    tab.set_default_timeout(2 * MINUTE)
    tab.goto(lab)
    tab.get_by_text("| Idle").wait_for()  # the kernel has started; before that, a cell that is run asks for one
    run_cell(tab, "from shardlab.explorers import")
    assert "[rank 3] samples  96 to 127" in run_cell(tab, "four = launch.run(one_step").inner_text()
    run_cell(tab, "draw.shares(shares)").locator(".js-plotly-plot .main-svg").first.wait_for()
    cell = run_cell(tab, "explorers.explorer()")
    figure, slider = cell.locator(".js-plotly-plot").first, cell.locator(SLIDER).first
    slider.scroll_into_view_if_needed()
    before = figure.evaluate("plot => JSON.stringify(plot.data)")
    slider.focus()
    tab.keyboard.press("ArrowRight")
    tab.wait_for_function(
        "([cell, before]) => { const plot = cell.querySelector('.js-plotly-plot');"
        "return plot && plot.data && JSON.stringify(plot.data) !== before; }",
        arg=[cell.element_handle(), before],
    )
    tab.close()
