"""Import in the helper what the launcher uses of shardlab, so that no rank needs to import it."""

import importlib
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from types import ModuleType

NOT_OF_RANKS = ("shardlab.figures", "shardlab.explorers")  # they draw; ranks do not
RUNNING = "shardlab.launch"  # the helper itself runs it
Stamp = tuple[int, int]  # of a file: time of its last change, in ns, and size in bytes


def in_use() -> list[str]:
    """List the imported modules of shardlab that ranks may use."""
    return [name for name in [*sys.modules] if _is_shared(name)]


class Modules:
    """The modules that the helper has imported; after an edit of a file it imports all again."""

    def __init__(self) -> None:
        self.stamps: dict[str, Stamp | None] = {}

    def keep_up(self, names: Iterable[str]) -> bool:
        """Import the modules that are missing; return whether any was."""
        if any(_stamp(sys.modules.get(name)) != stamp for name, stamp in self.stamps.items()):
            for name in self.stamps:
                sys.modules.pop(name, None)
            self.stamps = {}
        new = [name for name in names if name not in sys.modules]
        for name in new:
            with suppress(Exception):  # a rank that imports it will report the error
                importlib.import_module(name)
        for name in in_use():
            if name not in self.stamps:
                self.stamps[name] = _stamp(sys.modules[name])
        return bool(new)


def _is_shared(name: str) -> bool:
    return name.startswith("shardlab.") and not name.startswith((RUNNING, *NOT_OF_RANKS))


def _stamp(module: ModuleType | None) -> Stamp | None:
    with suppress(OSError, TypeError):  # the file is gone, or the module has none
        status = os.stat(getattr(module, "__file__", None) or "")
        return status.st_mtime_ns, status.st_size
    return None
