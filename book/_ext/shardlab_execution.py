"""Sphinx extension: chapters are executed several at a time, and again when anything that they use has changed.

Without Jupyter Book 1: mystmd executes chapters.
"""

from __future__ import annotations

import atexit
import json
import logging as plain_logging
import math
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nbclient
import shardlab_uses
from jupyter_cache import get_cache
from jupyter_cache.base import JupyterCacheAbstract
from jupyter_cache.executors import utils
from jupyter_cache.executors.basic import ExecutionWorkerLocalSerial, ProcessData
from jupyter_client.manager import AsyncKernelManager
from myst_nb.core.execute import ExecutionError
from nbclient.exceptions import CellExecutionError, DeadKernelError
from nbformat import NotebookNode
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
READER = {"name": "myst_nb_md", "type": "plugin"}  # as myst-nb registers itself at jupyter-cache
AT_A_TIME = 3  # on two cores: a chapter computes half of its time, and waits for its ranks in the other half


class KernelManager(AsyncKernelManager):
    """Speaks to a kernel through sockets in a folder of its own: nothing listens on TCP, and no kernel warns of it."""

    def __init__(self, **options: Any) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="kernel")  # a socket's address has at most 100 characters
        super().__init__(transport="ipc", connection_file=str(Path(self.folder.name, "kernel.json")), **options)


def execute_cells(notebook: NotebookNode, **options: Any) -> None:
    """Execute a chapter. A kernel that dies is an error of the cell that it ran: jupyter-cache knows no other."""
    begun: list[NotebookNode] = []
    options["on_cell_start"] = lambda cell, cell_index: begun.append(cell)
    try:
        nbclient.execute(notebook, kernel_manager_class=KernelManager, **options)
    except DeadKernelError as error:
        told = {"traceback": [f"{type(error).__name__}: {error}"]}
        raise CellExecutionError.from_cell_and_msg(begun[-1], told) from error
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = joined(cell.outputs)


def joined(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Make one text of all that a cell prints between two displays: it arrives in pieces, cut at any moment.

    myst-nb would begin a new line at each piece.
    """
    found: list[NotebookNode] = []
    streams: dict[str, NotebookNode] = {}
    for output in outputs:
        if output.output_type != "stream":
            streams.clear()
        elif output.name in streams:
            streams[output.name].text += output.text
            continue
        else:
            streams[output.name] = output
        found.append(output)
    return found


def prepare(app: Sphinx, config: Config) -> None:
    """Tell the kernels that they build pages. When anything has changed beside pages, all pages are read again."""
    utils.executenb = execute_cells
    os.environ["SHARDLAB_STATIC"] = "1"
    os.environ["PYTHONSTARTUP"] = str(HERE / "kernel_start.py")
    config.shardlab_state = shardlab_uses.digest(ROOT, shardlab_uses.everything(ROOT))
    if config.nb_execution_mode == "cache":
        config.nb_execution_cache_path = str(Path(app.outdir).parent / ".jupyter_cache")


def execute(app: Sphinx, env: BuildEnvironment, docnames: list[str]) -> None:
    """Execute the chapters of these pages that are not in the cache, where myst-nb finds them; the slowest first.

    myst-nb would execute one after the other. It executes again what fails here, perhaps for a moment only, and
    reports what fails twice; so a first failure is no warning.
    """
    if app.config.nb_execution_mode != "cache":
        return
    cache, paths = get_cache(app.config.nb_execution_cache_path), [Path(env.doc2path(name)) for name in docnames]
    chapters = [str(path) for path in paths if path.suffix == ".md" and "```{code-cell}" in path.read_text()]
    seconds = forget_stale(cache, chapters)
    for chapter in chapters:
        cache.add_nb_to_project(chapter, read_data=READER)
    silent = plain_logging.Logger("first attempts")
    silent.addHandler(plain_logging.NullHandler())
    worker, logger = ExecutionWorkerLocalSerial(silent), logging.getLogger(__name__)
    slowest_first = sorted(
        cache.list_unexecuted(chapters),
        key=lambda record: (seconds.get(record.uri, math.inf), Path(record.uri).stat().st_size),
        reverse=True,
    )
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        jobs = [
            ProcessData(record.pk, record.uri, cache, app.config.nb_execution_timeout, False)
            for record in slowest_first
        ]
        for failed, chapter in pool.map(worker, jobs):
            told = "did not run at first, and is tried again when it is read" if failed else "has run"
            logger.info("%s %s", Path(chapter).relative_to(app.srcdir), told)


def forget_stale(cache: JupyterCacheAbstract, chapters: list[str]) -> dict[str, float]:
    """Remove what chapters printed with other sources from the cache; return the seconds that each took.

    jupyter-cache looks at the text of the cells alone: a changed module would leave stale output.
    """
    notes = Path(cache.path) / "sources.json"
    before = json.loads(notes.read_text()) if notes.is_file() else {}
    now = {chapter: shardlab_uses.digest(ROOT, shardlab_uses.used(ROOT, Path(chapter))) for chapter in chapters}
    seconds = {}
    for record in cache.list_cache_records():
        seconds[record.uri] = record.data.get("execution_seconds", math.inf)
        if before.get(record.uri) != now.get(record.uri, before.get(record.uri)):
            cache.remove_cache(record.pk)
    notes.write_text(json.dumps({**before, **now}))
    return seconds


def tell_at_the_end(app: Sphinx, error: Exception | None) -> None:
    """Name page, cell and cause of what failed, below everything else that jupyter-book prints."""
    if isinstance(error, ExecutionError):
        page, cause = Path(str(error)).relative_to(app.srcdir), str(error.__cause__).strip()
        atexit.register(print, f"\n{page} fails twice. {cause}", file=sys.stderr)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register all three; the priority puts the first before myst-nb."""
    app.add_config_value("shardlab_state", "", "env")
    app.connect("config-inited", prepare, priority=100)
    app.connect("env-before-read-docs", execute)
    app.connect("build-finished", tell_at_the_end)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
