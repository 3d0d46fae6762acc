"""A folder on a disk with a cache, and what a power cut may leave of it.

As POSIX has it, a flush of a file makes its bytes safe, and not its name
(https://man7.org/linux/man-pages/man2/fsync.2.html). Anything not flushed may reach the disk or
not, in any order, and half of a file, too. Some file systems promise more; programs that trusted
one of them lost data on another (Pillai et al. 2014,
https://www.usenix.org/conference/osdi14/technical-sessions/presentation/pillai).
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

Files = dict[str, bytes]


class _Change(NamedTuple):
    """What waits in the cache: bytes of a file, or else a name that it gets or loses."""

    shown: str
    file: int  # the number that stays the same when the name changes
    data: bytes | None = None
    loses: str = ""
    gets: str = ""


@dataclass
class CachedFolder:
    """A folder of files. Its verbs are those that an exercise is given."""

    log: list[tuple[str, ...]] = field(default_factory=list)  # verbs, with the names they got
    contents: list[bytes] = field(default_factory=list)  # of each write, in order
    _names: dict[str, int] = field(default_factory=dict)  # on the disk: name -> file
    _bytes: dict[int, bytes] = field(default_factory=dict)  # on the disk: file -> its bytes
    _waiting: list[_Change] = field(default_factory=list)

    def write(self, name: str, data: bytes) -> None:
        """Make a file, or replace the bytes of one that exists, in the cache."""
        if not isinstance(name, str) or not isinstance(data, bytes):
            raise TypeError("write(name, data) takes a str and bytes")
        known = self._now()
        file = known.get(name, len(self.contents))
        if name not in known:
            self._waiting.append(_Change(f"the name {name}", file, gets=name))
        self._waiting.append(_Change(f"the bytes of {name}", file, data))
        self.contents.append(data)
        self.log.append(("write", name))

    def flush(self, name: str) -> None:
        """Put the bytes of a file on the disk; its name may still be lost."""
        file = self._file(name)
        for change in self._waiting:
            if change.file == file and change.data is not None:
                self._bytes[file] = change.data
        mine = [each for each in self._waiting if each.file == file and each.data is not None]
        self._waiting = [each for each in self._waiting if each not in mine]
        self.log.append(("flush", name))

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, which a file may have that is then gone: all or nothing."""
        change = _Change(f"the rename to {new}", self._file(old), loses=old, gets=new)
        self._waiting.append(change)
        self.log.append(("rename", old, new))

    def delete(self, name: str) -> None:
        """Remove a name."""
        change = _Change(f"the removal of {name}", self._file(name), loses=name)
        self._waiting.append(change)
        self.log.append(("delete", name))

    def flush_folder(self) -> None:
        """Put all names on the disk, as they are now."""
        self._names = self._now()
        self._waiting = [each for each in self._waiting if each.data is not None]
        self.log.append(("flush_folder",))

    def names(self) -> list[str]:
        """List the names that there are now, sorted."""
        return sorted(self._now())

    def read(self, name: str) -> bytes:
        """Return the bytes of a file as they are now."""
        self._file(name)
        return self.files()[name]

    def files(self) -> Files:
        """Return all files as they are now."""
        return self._left(range(len(self._waiting)))

    def power_cuts(self) -> Iterator[tuple[str, Files]]:
        """Yield what a power cut may leave, and in words which changes had reached the disk.

        Of the changes that wait: all, none, just one, or all but one; of the others nothing, or
        half of a file's bytes.
        """
        places = range(len(self._waiting))
        yield "everything is kept", self.files()
        for torn, half in ((False, ""), (True, "half of ")):
            yield f"{half or 'nothing of '}what waits is kept", self._left((), torn)
            for place in places:
                shown = self._waiting[place].shown
                others = [each for each in places if each != place]
                yield f"only {half}{shown} is lost", self._left(others, torn)
                rest = f"{half or 'nothing of '}the rest"
                yield f"only {shown} is kept, and {rest}", self._left([place], torn)

    def _left(self, kept: Collection[int], torn: bool = False) -> Files:
        names, data = dict(self._names), dict(self._bytes)
        for place, change in enumerate(self._waiting):
            if change.data is None:
                if place in kept:
                    _rename(names, change)
            elif place in kept:
                data[change.file] = change.data
            elif torn:
                data[change.file] = change.data[: len(change.data) // 2]
        return {name: data.get(file, b"") for name, file in names.items()}

    def _now(self) -> dict[str, int]:
        names = dict(self._names)
        for change in self._waiting:
            if change.data is None:
                _rename(names, change)
        return names

    def _file(self, name: str) -> int:
        names = self._now()
        if name not in names:
            raise FileNotFoundError(f"no file is called {name!r}; there are {', '.join(names)}")
        return names[name]


def _rename(names: dict[str, int], change: _Change) -> None:
    names.pop(change.loses, None)
    if change.gets:
        names[change.gets] = change.file


def on_disk(files: Mapping[str, bytes]) -> CachedFolder:
    """Make a folder with these files, all of them safe."""
    folder = CachedFolder()
    for name, data in files.items():
        folder.write(name, data)
        folder.flush(name)
    folder.flush_folder()
    folder.log.clear()
    return folder


def replay(
    files: Mapping[str, bytes], log: list[tuple[str, ...]], contents: list[bytes]
) -> Iterator[CachedFolder]:
    """Yield the folder before the first verb of a log, and after each."""
    folder, written = on_disk(files), iter(contents[len(files) :])
    yield folder
    for verb, *names in log:
        data = [next(written)] if verb == "write" else []
        getattr(folder, verb)(*names, *data)
        yield folder
