"""The modules of shardlab that the launcher has imported: the helper imports them, too, so that no rank needs to."""

import importlib
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from types import ModuleType

NOT_OF_RANKS = ("shardlab.figures", "shardlab.explorers")  # they draw
RUNNING = ("shardlab.ranks", "shardlab.ranks.launch")  # what the helper itself is made of
Stamp = tuple[int, int]  # of a file: when it was changed, and its size


def in_use() -> list[str]:
    """Names of the modules that ranks of this process may want."""
    return [name for name in [*sys.modules] if _is_shared(name)]


class Modules:
    """What the helper has imported for its ranks. When a file was edited, everything is imported anew."""

    def __init__(self) -> None:
        self.stamps: dict[str, Stamp | None] = {}

    def keep_up(self, names: Iterable[str]) -> bool:
        """Import what is not here yet; whether there was any."""
        if any(_stamp(sys.modules.get(name)) != stamp for name, stamp in self.stamps.items()):
            for name in self.stamps:
                sys.modules.pop(name, None)
            self.stamps = {}
        new = [name for name in names if name not in sys.modules]
        for name in new:
            with suppress(Exception):  # the rank that wants it will report it
                importlib.import_module(name)
        self.stamps |= {name: _stamp(sys.modules[name]) for name in in_use() if name not in self.stamps}
        return bool(new)


def _is_shared(name: str) -> bool:
    return name.startswith("shardlab.") and name != RUNNING[0] and not name.startswith((RUNNING[1], *NOT_OF_RANKS))


def _stamp(module: ModuleType | None) -> Stamp | None:
    with suppress(OSError, TypeError):  # the file is gone, or there never was one
        status = os.stat(getattr(module, "__file__", None) or "")
        return status.st_mtime_ns, status.st_size
    return None
