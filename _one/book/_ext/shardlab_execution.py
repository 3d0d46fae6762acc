"""Sphinx extension: chapters are executed several at a time, and again when anything that they use has changed."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from jupyter_cache import get_cache
from jupyter_cache.executors.basic import ExecutionWorkerLocalSerial, ProcessData
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# Whatever can change the output of a chapter beside its own text.
SOURCES = ("code/shardlab/**/*.py", "book/_ext/*.py", "bench/results/*.json", "requirements.txt")
READER = {"name": "myst_nb_md", "type": "plugin"}  # as myst-nb registers itself at jupyter-cache
AT_A_TIME = 3  # on two cores: a chapter computes half of its time, and waits for its ranks in the other half


def digest(root: Path) -> str:
    """A name for the present state of SOURCES and of the running Python."""
    state = hashlib.sha256(sys.version.encode())
    for path in sorted(path for pattern in SOURCES for path in root.glob(pattern)):
        state.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return state.hexdigest()[:16]


def prepare(app: Sphinx, config: Config) -> None:
    """Tell the kernels that they build pages, and keep results of other sources out of the cache.

    jupyter-cache looks at the text of the cells alone: a changed module would leave stale output.
    """
    os.environ["SHARDLAB_STATIC"] = "1"
    os.environ["PYTHONSTARTUP"] = str(HERE / "kernel_start.py")
    if config.nb_execution_mode == "cache":
        caches, current = Path(app.outdir).parent / ".jupyter_cache", digest(ROOT)
        for old in caches.glob("*"):
            if old.is_dir() and old.name != current:
                shutil.rmtree(old)
        config.nb_execution_cache_path = str(caches / current)


def execute(app: Sphinx, env: BuildEnvironment, docnames: list[str]) -> None:
    """Execute the chapters of these pages that are not in the cache, where myst-nb finds them.

    myst-nb would execute one after the other. It still executes, and reports, what fails here.
    """
    if app.config.nb_execution_mode != "cache":
        return
    cache, paths = get_cache(app.config.nb_execution_cache_path), [Path(env.doc2path(name)) for name in docnames]
    chapters = [str(path) for path in paths if path.suffix == ".md" and "```{code-cell}" in path.read_text()]
    for chapter in chapters:
        cache.add_nb_to_project(chapter, read_data=READER)
    worker = ExecutionWorkerLocalSerial(logging.getLogger(__name__))
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        for record in cache.list_unexecuted(chapters):
            pool.submit(worker, ProcessData(record.pk, record.uri, cache, app.config.nb_execution_timeout, False))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register both; the priority puts the first before myst-nb."""
    app.connect("config-inited", prepare, priority=100)
    app.connect("env-before-read-docs", execute)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
