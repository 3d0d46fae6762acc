"""A PDF with few bytes: its dictionaries and lists lie compressed in object streams (ISO 32000-1, 7.5.7 and 7.5.8)."""

import io
from pathlib import Path
from typing import Any

from pypdf import PdfWriter
from pypdf.generic import ArrayObject, DecodedStreamObject, NameObject, NumberObject, StreamObject

TOGETHER = 200  # objects in a stream
FREE, PLAIN, INSIDE = range(3)  # kinds of entries in the table of objects
WIDTHS = 1, 5, 2  # bytes of an entry's kind; of its place in the file, or its stream's number; of its place in that


def write(book: PdfWriter, target: Path) -> None:
    """Write a document as `book.write` does, but compress what is not a stream."""
    book._resolve_links()
    objects = {number: each for number, each in enumerate(book._objects, start=1) if each is not None}
    loose = [number for number, each in objects.items() if not isinstance(each, StreamObject)]
    size = len(book._objects) + 1
    entries = dict.fromkeys(range(size), (FREE, 0, 0))
    for begin in range(0, len(loose), TOGETHER):
        part = loose[begin : begin + TOGETHER]
        objects[size] = together({number: objects.pop(number) for number in part})
        entries |= {number: (INSIDE, size, place) for place, number in enumerate(part)}
        size += 1
    with target.open("wb") as file:
        file.write(b"%PDF-1.5\n%\xe2\xe3\xcf\xd3\n")
        for number, each in objects.items():
            entries[number] = (PLAIN, file.tell(), 0)
            file.write(numbered(number, each))
        entries[size] = (PLAIN, end := file.tell(), 0)
        file.write(numbered(size, table(entries, book)))
        file.write(f"startxref\n{end}\n%%EOF\n".encode())


def together(part: dict[int, Any]) -> StreamObject:
    """Return objects as one stream: number and place of each, then all of them."""
    texts = [written(each) + b"\n" for each in part.values()]
    places = [sum(map(len, texts[:count])) for count in range(len(texts))]
    index = " ".join(f"{number} {place}" for number, place in zip(part, places, strict=True)).encode() + b"\n"
    about = {"/Type": NameObject("/ObjStm"), "/N": NumberObject(len(part)), "/First": NumberObject(len(index))}
    return compressed(index + b"".join(texts), about)


def table(entries: dict[int, tuple[int, int, int]], book: PdfWriter) -> StreamObject:
    """Return the table of objects, which also says where the document begins."""
    rows = [b"".join(map(int.to_bytes, entries[number], WIDTHS, ["big"] * 3)) for number in sorted(entries)]
    about = {"/Type": NameObject("/XRef"), "/Size": NumberObject(len(rows))}
    about |= {"/W": ArrayObject(map(NumberObject, WIDTHS)), "/Root": book.root_object.indirect_reference}
    about |= {"/Info": book._info.indirect_reference} if book._info is not None else {}
    return compressed(b"".join(rows), about)


def compressed(data: bytes, about: dict[str, Any]) -> StreamObject:
    """Return a compressed stream with these entries."""
    made = DecodedStreamObject()
    made.set_data(data)
    made = made.flate_encode()
    made.update({NameObject(key): value for key, value in about.items()})
    return made


def numbered(number: int, each: Any) -> bytes:
    """Return an object as it stands in a file."""
    return b"%d 0 obj\n%b\nendobj\n" % (number, written(each))


def written(each: Any) -> bytes:
    """Return an object as PDF writes it."""
    stream = io.BytesIO()
    each.write_to_stream(stream)
    return stream.getvalue()
