"""Every figure of these tests is validated by plotly, which `style.figure` leaves out to be fast."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import pytest

from shardlab.figures import style


@pytest.fixture(autouse=True)
def validated(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that plotly does not know, or a value that it does not take, raises ValueError."""
    figure = style.figure

    def checked(*args: Any, **options: Any) -> go.Figure:
        return go.Figure(figure(*args, **options).to_dict())

    monkeypatch.setattr(style, "figure", checked)
