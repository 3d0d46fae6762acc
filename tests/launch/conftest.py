"""Let the tests' own process compute on one thread, as a rank does."""

from tests.ranks.conftest import one_thread

__all__ = ["one_thread"]
