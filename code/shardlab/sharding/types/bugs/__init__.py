"""Twenty bugs, reported or suspected in published code, each right and wrong: read `bug` first.

The number of a bug is its place in BUGS. `sums` has numbers 1 to 8; `end` has 9 to 20, those of the
end of a step and those that no type sees.
"""

from .end import END
from .sums import SUMS

BUGS = (*SUMS, *END)

__all__ = ["BUGS"]
