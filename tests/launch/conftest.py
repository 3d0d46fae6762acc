"""Let the tests' own process compute on one thread, as a rank does."""

import signal

import pytest

from tests.ranks.conftest import one_thread

__all__ = ["one_thread"]


@pytest.fixture
def terminal():
    """Let Ctrl-C reach this process, even if a script has started it in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
