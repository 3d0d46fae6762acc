"""Read the events of a trace file one after another, in flat memory, however large the file is."""

import codecs
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from shardlab.files import given

PIECE = 1 << 20  # bytes that are read, and unpacked, at once
LONGEST = 4 * PIECE  # characters of one value: longer ones are no event of a profiler
MOST_BYTES = 4 << 30  # uncompressed
MOST_EVENTS = 20_000_000
BLANK = " \t\r\n"
_GZIP, _PICKLE = b"\x1f\x8b", b"\x80"
_DECODER = json.JSONDecoder()
_OTHERS = {  # fields at the top of other tools' files -> what such a file is
    ("entries", "pg_config"): "a dump of the flight recorder; read it with own.flight",
    ("segments", "device_traces"): "a snapshot of memory; open it at pytorch.org/memory_viz",
    ("schema", "nodes"): "an execution trace (Chakra)",
    ("traceFile",): "an export of nsys",
    ("data",): "an export of nsys",
}
_WANTED = "pass a trace of torch.profiler (export_chrome_trace)"


class Stream:
    """The events of one Kineto trace, plain or compressed by gzip, read by a single iteration.

    Errors while iterating: ValueError for a file of another tool, for one without any whole event,
    and for one above the limits. A file that ends early yields its whole events and sets `cut`.
    """

    def __init__(
        self, path: str | Path, *, most_bytes: int = MOST_BYTES, most_events: int = MOST_EVENTS
    ) -> None:
        self.name = given.line(str(path))
        self.head: dict[str, Any] = {}  # the file's fields beside its events
        self.count = 0  # of events so far
        self.cut = False  # whether the file ended before its last event did
        self._path, self._most_bytes, self._most_events = path, most_bytes, most_events
        self._text, self._at, self._ended = "", 0, False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            if not Path(self._path).is_file():
                raise ValueError(f"{self.name} cannot be read: it is no regular file")
            with open(self._path, "rb") as file:
                self._pieces = self._decoded(file)
                yield from self._fields()
        except OSError as error:
            raise ValueError(f"{self.name} cannot be read: {error.strerror}") from None

    def _fields(self) -> Iterator[dict[str, Any]]:
        """Read the fields of the whole object; yield the events where they stand."""
        if self._next() != "{":
            what = "is no JSON object" if self._text else "is empty"
            raise ValueError(f"{self.name} {what}; {_WANTED}")
        self._at += 1
        known = False
        try:
            while self._next() == '"':
                key = self._value()
                self._skip(":")
                if key != "traceEvents":
                    self.head[key] = self._value()
                else:
                    self._recognise()
                    known = True
                    yield from self._list()
                self._comma()
        except _Cut:
            self.cut = True
        if not known:
            self._recognise(events=False)
        self.cut = self.cut or self._next() != "}"
        if self.cut and not self.count:
            raise ValueError(f"{self.name} ends before its first whole event; {_WANTED}")

    def _list(self) -> Iterator[dict[str, Any]]:
        self._skip("[")
        while self._next() != "]":
            event = self._value()
            if not isinstance(event, dict):
                raise ValueError(f"{self.name}: event {self.count} is no object; {_WANTED}")
            self.count += 1
            if self.count > self._most_events:
                raise self._large(f"{self._most_events:,} events")
            yield event
            self._comma()
        self._at += 1

    def _large(self, most: str) -> ValueError:
        return ValueError(f"{self.name} has more than {most}; profile fewer steps")

    def _comma(self) -> None:
        if self._next() == ",":
            self._at += 1

    def _recognise(self, *, events: bool = True) -> None:
        """Refuse the file of another tool."""
        for keys, what in _OTHERS.items():
            if not events and all(key in self.head for key in keys):
                raise ValueError(f"{self.name} is {what}; {_WANTED}")
        if not events:
            raise ValueError(f"{self.name} has no traceEvents; {_WANTED}")
        if not {"schemaVersion", "deviceProperties", "distributedInfo"} & self.head.keys():
            raise ValueError(
                f"{self.name} is a trace of another tool, such as JAX: it has no schemaVersion; "
                f"{_WANTED}"
            )

    def _next(self) -> str:
        """Return the next character that is not blank, or "" at the end of the file."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in BLANK:
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _skip(self, mark: str) -> None:
        if (found := self._next()) != mark:
            if not found:
                raise _Cut
            raise ValueError(f"{self.name}: {mark!r} expected after {self.count} events")
        self._at += 1

    def _value(self) -> Any:
        self._next()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
                if end < len(self._text):  # a number may go on in the next piece
                    self._at = end
                    return value
            except RecursionError:
                raise ValueError(f"{self.name}: lists within lists are too deep") from None
            except ValueError:
                pass  # a value that goes on in the next piece, or none at all
            if len(self._text) - self._at > LONGEST:
                raise ValueError(
                    f"{self.name}: after {self.count} events there is no JSON value of at most "
                    f"{LONGEST:,} characters"
                )
            if not self._more():
                raise _Cut

    def _more(self) -> bool:
        """Read another piece behind what is not used yet; return whether there was one."""
        piece = next(self._pieces, "")
        self._text, self._at = self._text[self._at :] + piece, 0
        return bool(piece)

    def _decoded(self, file: BinaryIO) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        total = 0
        for piece in _unpacked(file):
            if not total and piece.startswith(_PICKLE):
                raise ValueError(
                    f"{self.name} is a pickle: a snapshot of memory, or a dump of the flight "
                    f"recorder, which own.flight reads; {_WANTED}"
                )
            total += len(piece)
            if total > self._most_bytes:
                raise self._large(f"{self._most_bytes:,} bytes uncompressed")
            if text := decoder.decode(piece):
                yield text


class _Cut(Exception):
    """The file ended within a value."""


def _unpacked(file: BinaryIO) -> Iterator[bytes]:
    """Yield a file's bytes in pieces; of a damaged gzip what can be unpacked."""
    data = file.read(PIECE)
    unpack = zlib.decompressobj(zlib.MAX_WBITS | 16) if data.startswith(_GZIP) else None
    while data:
        if unpack is None:
            yield data
            data = file.read(PIECE)
            continue
        try:
            yield unpack.decompress(data, PIECE)
        except zlib.error:
            return
        data = unpack.unconsumed_tail or unpack.unused_data or file.read(PIECE)
        if unpack.eof:
            unpack = zlib.decompressobj(zlib.MAX_WBITS | 16)
    while unpack is not None and (rest := unpack.decompress(b"", PIECE)):
        yield rest
