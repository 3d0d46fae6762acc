"""What tests of the grader share."""

import pytest

from shardlab.exercises import grader

from ..launch.failing import LIGHT


@pytest.fixture
def light_ranks(monkeypatch):
    """Start a light helper, where no answer does more than count."""
    monkeypatch.setattr(grader, "SERVE", grader.SERVE.replace("launch.warm(); ", f"exec({LIGHT!r}); launch.warm(); "))
