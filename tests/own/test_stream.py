"""A trace of any size is read event by event; what is cut, too large or another tool's is said in one line."""

import gzip
import json
import pickle

import pytest

from shardlab.own import stream
from shardlab.own.stream import Stream

EVENTS = [{"name": "é" * 300, "ts": i, "args": {"n": [i, {"x": "]}"}]}} for i in range(9000)]
WHOLE = json.dumps({"schemaVersion": 1, "traceEvents": EVENTS, "last": 12}, ensure_ascii=False).encode()


def two_members(data):
    return gzip.compress(data[:99]) + gzip.compress(data[99:])


@pytest.mark.parametrize("pack", [bytes, gzip.compress, two_members])
def test_all_events_and_fields_come_back_over_several_pieces(tmp_path, pack):
    path = tmp_path / "trace"
    path.write_bytes(pack(WHOLE))
    read = Stream(path)
    assert len(WHOLE) > 3 * stream.PIECE
    assert list(read) == EVENTS
    assert (read.head, read.cut, read.count) == ({"schemaVersion": 1, "last": 12}, False, 9000)


@pytest.mark.parametrize("pack", [lambda data: data[: len(data) // 2], lambda data: gzip.compress(data)[:-3000]])
def test_a_cut_file_has_its_whole_events(tmp_path, pack):
    path = tmp_path / "trace"
    path.write_bytes(pack(WHOLE))
    read = Stream(path)
    found = list(read)
    assert read.cut
    assert 4000 < len(found) < 9000
    assert found == EVENTS[: len(found)]


JAX = {"displayTimeUnit": "ns", "metadata": {}, "traceEvents": [{"ph": "X"}]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (b"[]", "no such JSON: '{' expected"),
        (b"\x00\x01\x02", "no such JSON"),
        (b'{"schemaVersion": 1, "traceEvents": [{"na', "before its first whole event"),
        (gzip.compress(WHOLE, mtime=0)[:30], "is empty or ends before its first whole event"),
        (b'{"schemaVersion": 1, "traceEvents": [1, 2]}', "an event that is no object, after 0 others"),
        (b'{"schemaVersion": 1, "traceEvents": {}}', "'\\[' expected"),
        (b'{"schemaVersion": 1, "traceEvents": [' + b'{"a":' * 99999 + b"]}", "too deep|before its first"),
        (b'{"schemaVersion": 1, "traceEvents": [{"name": "' + b"x" * 5 * stream.LONGEST, "or longer than"),
        (json.dumps(JAX).encode(), "another tool: it has no schemaVersion"),
        (b'{"traceFile": "a.nsys-rep"}\n{"TraceProcessEvent": {}}', "no traceEvents, but traceFile"),
        (b'{"entries": [], "pg_config": {}}', "no traceEvents, but entries, pg_config"),
        (b'{"segments": [], "device_traces": []}', "no traceEvents, but segments, device_traces"),
        (b'{"schema": "1.1", "nodes": []}', "no traceEvents, but schema, nodes"),
        (b'{"other": 1}', "no traceEvents, but other"),
        (pickle.dumps({"segments": []}), "no such JSON"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(tmp_path, content, message):
    path = tmp_path / "trace"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as refused:
        list(Stream(path))
    assert len(str(refused.value)) < 400
    assert "\n" not in str(refused.value)


def test_files_above_the_limits_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(b'{"schemaVersion": 1, "traceEvents": [' + b" " * 10**8))
    monkeypatch.setattr(stream, "MOST_BYTES", 10**7)
    with pytest.raises(ValueError, match="more than 10,000,000 bytes uncompressed"):
        list(Stream(path))
    with pytest.raises(ValueError, match="no regular file"):
        list(Stream(tmp_path))
