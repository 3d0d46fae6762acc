"""The plotly.js of the pages: the version of the wheel, checked; without npm, the wheel's own."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import shardlab_plotly


def test_the_part_is_of_the_version_in_the_wheel() -> None:
    assert f"plotly.js v{shardlab_plotly.VERSION}" in shardlab_plotly.whole().read_text(encoding="utf-8")[:200]


def test_an_archive_that_was_not_published_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / f"{shardlab_plotly.PACKAGE}-{shardlab_plotly.VERSION}.tgz"
    archive.write_bytes(b"something else")
    with pytest.raises(ValueError, match="delete it and build again"):
        shardlab_plotly.script(tmp_path)


def missing(*_: Any, **__: Any) -> Any:
    raise FileNotFoundError


def failing(*_: Any, **__: Any) -> Any:
    return subprocess.CompletedProcess([], 1, "", "no network")


def slow(*_: Any, **__: Any) -> Any:
    raise subprocess.TimeoutExpired("npm", shardlab_plotly.SECONDS)


@pytest.mark.parametrize("npm", [missing, failing, slow])
def test_without_npm_the_pages_take_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, npm: Any) -> None:
    monkeypatch.setattr(subprocess, "run", npm)
    assert shardlab_plotly.script(tmp_path) == shardlab_plotly.whole()
