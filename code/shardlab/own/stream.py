"""Read the events of a trace file one after another, in flat memory, however large the file is."""

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shardlab.files import given

PIECE = 1 << 20  # bytes that are read, and unpacked, at once
LONGEST = 4 * PIECE  # characters of one value: longer ones are no event of a profiler
MOST_BYTES = 4 << 30  # uncompressed
OF_TORCH = {"schemaVersion", "deviceProperties", "distributedInfo"}  # one of them is at the top
_GZIP = b"\x1f\x8b"
_DECODER = json.JSONDecoder()
_MARK = re.compile(r"[^\s:,]")


class Stream:
    """The events of one Kineto trace, plain or compressed by gzip, read by a single iteration.

    Errors while iterating: ValueError for a file of another tool, for one without any whole event,
    and for one above the limits. A file that ends early yields its whole events and sets `cut`.
    """

    def __init__(self, path: str | Path) -> None:
        self.name = given.line(str(path))
        self.head: dict[str, Any] = {}  # the file's fields beside its events
        self.count = 0  # of events so far
        self.cut = False  # whether the file ended early
        self._pieces = self._decoded(path)
        self._text, self._at = "", 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            yield from self._events()
        except _Cut:
            self.cut = True
            if not self.count:
                raise self._refusal("is empty or ends before its first whole event") from None

    def _events(self) -> Iterator[dict[str, Any]]:
        """Read the fields of the whole object; yield the events where they stand."""
        self._expect("{")
        listed = False
        while self._next() == '"':
            key = self._value()
            if key != "traceEvents":
                self.head[key] = self._value()
                continue
            if not OF_TORCH & self.head.keys():
                raise self._refusal("is a trace of another tool: it has no schemaVersion")
            listed = True
            self._expect("[")
            while self._next() != "]":
                event = self._value()
                if not isinstance(event, dict):
                    raise self._refusal(
                        f"has an event that is no object, after {self.count} others"
                    )
                self.count += 1
                yield event
            self._expect("]")
        self._expect("}")
        if not listed:
            fields = ", ".join(list(self.head)[:4])
            raise self._refusal(f"is a file of another tool: no traceEvents, but {fields}")

    def _next(self) -> str:
        """Return the next character that is not between values. Errors: _Cut at the end."""
        while not (found := _MARK.search(self._text, self._at)):
            self._at = len(self._text)
            self._more()
        self._at = found.start()
        return found[0]

    def _expect(self, mark: str) -> None:
        if self._next() != mark:
            raise self._refusal(f"is no such JSON: {mark!r} expected after {self.count} events")
        self._at += 1

    def _value(self) -> Any:
        self._next()
        while len(self._text) - self._at <= LONGEST:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except RecursionError:
                break
            except ValueError:  # a value that goes on in the next piece, or none at all
                end = len(self._text)
            if end < len(self._text):  # a number may go on in the next piece
                self._at = end
                return value
            self._more()
        what = f"is no such JSON: a value after {self.count} events is too deep, or longer than"
        raise self._refusal(f"{what} {LONGEST:,} characters")

    def _more(self) -> None:
        """Read another piece behind what is not used yet. Errors: _Cut at the end."""
        piece = next(self._pieces, None)
        if piece is None:
            raise _Cut
        self._text, self._at = self._text[self._at :] + piece, 0

    def _decoded(self, path: str | Path) -> Iterator[str]:
        """Yield the file's text in pieces; of a damaged gzip what can be unpacked."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        total = 0
        try:
            if not Path(path).is_file():
                raise OSError(0, "it is no regular file")
            with open(path, "rb") as file:
                source: Any = (
                    gzip.GzipFile(fileobj=file) if file.peek(2).startswith(_GZIP) else file
                )
                while piece := source.read1(PIECE):
                    total += len(piece)
                    if total > MOST_BYTES:
                        raise self._refusal(f"has more than {MOST_BYTES:,} bytes uncompressed")
                    yield decoder.decode(piece)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            return
        except OSError as error:
            raise ValueError(f"{self.name} cannot be read: {error.strerror}") from None

    def _refusal(self, what: str) -> ValueError:
        wanted = "pass a trace of a few steps by torch.profiler (export_chrome_trace)"
        return ValueError(f"{self.name} {what}; {wanted}")


class _Cut(Exception):
    """The file ended within a value."""
