"""plotly.js for the pages: its part for lines and bars, a quarter of the whole, fetched by npm and checked.

The plotly of Python brings the whole one in its wheel. Without npm or a network the pages take that: they are heavier,
and the same in everything else.

Without Jupyter Book 1: it stays, and is called before the build.
"""

from __future__ import annotations

import hashlib
import subprocess
import tarfile
from importlib import metadata
from pathlib import Path

from sphinx.util import logging

VERSION = "4.1.1"  # the plotly.js in the wheel of the pinned plotly
PACKAGE, FILE = "plotly.js-basic-dist-min", "package/plotly-basic.min.js"
SHA512 = (  # of the archive
    "d68345f0f790c7686fff2eeda84556283dc91b09ff30610c43c98bf47530b1aa"
    "86f451b2fce539147507bf3a9bab13789a7c19188f5a6d3884efbe42e2492331"
)
SECONDS = 60  # to wait for npm


def whole() -> Path:
    """The plotly.js in the wheel."""
    return Path(str(metadata.distribution("plotly").locate_file("plotly/package_data/plotly.min.js")))


def script(cache: Path) -> Path:
    """The lightest plotly.js available; `cache` keeps what npm fetched. ValueError: it is not what was published."""
    archive, lean = cache / f"{PACKAGE}-{VERSION}.tgz", cache / Path(FILE).name
    if not archive.exists() and (why := fetched(cache)):
        logging.getLogger(__name__).info(f"plotly.js: the whole one, four times as large, because {why}")
        return whole()
    if hashlib.sha512(archive.read_bytes()).hexdigest() != SHA512:
        raise ValueError(f"{archive} is not the {PACKAGE} {VERSION} that was published; delete it and build again")
    with tarfile.open(archive) as files:
        content = files.extractfile(FILE)
        assert content is not None
        lean.write_bytes(content.read())
    return lean


def fetched(cache: Path) -> str:
    """Let npm put its archive into `cache`; return why it could not."""
    cache.mkdir(parents=True, exist_ok=True)
    command = ["npm", "pack", f"{PACKAGE}@{VERSION}", "--silent", "--fetch-retries=0"]
    try:
        done = subprocess.run(command, cwd=cache, capture_output=True, text=True, timeout=SECONDS, check=False)
    except FileNotFoundError:
        return "npm is not installed"
    except subprocess.TimeoutExpired:
        return f"npm did not answer in {SECONDS} s"
    return "" if done.returncode == 0 else f"npm failed: {done.stderr.strip() or done.returncode}"
