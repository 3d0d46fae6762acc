"""A trace is counted by the shares of nccl-tests, saved and loaded without loss, and shown by Perfetto."""

import json
import math

import pytest

from shardlab import trace
from shardlab.trace import Event

EVENTS = [
    Event(0, "compute", "forward", (0,), 0, 10.0, 10.5),
    Event(0, "communicate", "all_reduce", (0, 1, 2, 3), 1000, 10.5, 10.75),
    Event(1, "communicate", "all_reduce", (0, 1, 2, 3), 1000, 10.25, 10.75),
    Event(1, "communicate", "send", (0, 1, 2, 3), 64, 10.75, 11.0),
]


@pytest.mark.parametrize(
    ("op", "ranks", "sent"),
    [
        ("all_reduce", 4, 1500),
        ("all_reduce", 1, 0),
        ("all_gather", 4, 750),
        ("reduce_scatter", 4, 750),
        ("barrier", 4, 0),
    ],
)
def test_wire_bytes_are_the_shares_of_nccl_tests(op, ranks, sent):
    """busbw / algbw in https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md"""
    assert trace.wire_bytes(Event(0, "communicate", op, tuple(range(ranks)), 1000, 0, 1)) == sent


def test_unequal_pieces_are_sent_as_they_are_and_saved(tmp_path):
    event = Event(0, "communicate", "all_to_all", (0, 1, 2), 1000, 0, 1, pieces=(0, 700, 20))
    assert trace.wire_bytes(event) == 720
    trace.save([event], tmp_path / "trace.json")
    assert trace.load(tmp_path / "trace.json") == [event]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("op", ["gather", "scatter"])
def test_gathering_moves_every_piece_but_the_roots_own_once(op, ranks):
    """The root's event holds all pieces, the others' hold one each: 1000 bytes a piece."""
    group = tuple(range(ranks))
    events = [Event(rank, "communicate", op, group, 1000 if rank else 1000 * ranks, 0, 1) for rank in group]
    assert sum(map(trace.wire_bytes, events)) == pytest.approx((ranks - 1) * 1000)


def test_an_unknown_operation_has_no_wire_bytes():
    with pytest.raises(ValueError, match=r"unknown operation 'teleport'; known: all_reduce, .*, receive$"):
        trace.wire_bytes(Event(0, "communicate", "teleport", (0, 1), 1000, 0, 1))


def test_computing_sends_nothing():
    assert trace.wire_bytes(EVENTS[0]) == 0


def compute(rank, op, start, end):
    return Event(rank, "compute", op, (rank,), 0, start, end)


def message(rank, start, end):
    return Event(rank, "communicate", "all_reduce", (0, 1), 100, start, end)


def test_totals_by_operation():
    assert trace.totals(EVENTS) == {
        "all_reduce": {"count": 2, "nbytes": 2000, "wire_bytes": 3000.0, "seconds": 0.75},
        "send": {"count": 1, "nbytes": 64, "wire_bytes": 64.0, "seconds": 0.25},
    }


def test_a_trace_for_perfetto():
    told = json.loads(json.dumps(trace.chrome(EVENTS)))["traceEvents"]
    spans = [event for event in told if event["ph"] == "X"]
    assert [(event["pid"], event["name"], event["ts"], event["dur"]) for event in spans] == [
        (0, "forward", 0, 500_000),
        (0, "all_reduce", 500_000, 250_000),
        (1, "all_reduce", 250_000, 500_000),
        (1, "send", 750_000, 250_000),
    ]
    assert {event["args"]["name"] for event in told if event["name"] == "process_name"} == {"rank 0", "rank 1"}


def test_an_empty_trace():
    assert trace.chrome([]) == {"traceEvents": [], "displayTimeUnit": "ms"}
    assert trace.totals([]) == {}


def test_there_and_back_through_json():
    rows = json.loads(json.dumps(trace.plain(EVENTS)))
    assert trace.from_plain(rows) == EVENTS


def test_a_saved_trace_has_one_event_a_line(tmp_path):
    sent = Event(1, "communicate", "send", (0, 1), 64, 0.0, 1.0, peer=0, tag=3, number=7)
    trace.save([*EVENTS, sent], tmp_path / "trace.json")
    assert trace.load(tmp_path / "trace.json") == [*EVENTS, sent]
    lines = (tmp_path / "trace.json").read_text().splitlines()
    assert json.loads(lines[trace.line(4) - 1]) == {
        "rank": 1, "kind": "communicate", "op": "send", "group": [0, 1], "nbytes": 64, "start": 0.0, "end": 1.0,
        "peer": 0, "tag": 3, "number": 7,
    }  # fmt: skip
    assert "peer" not in lines[trace.line(0) - 1]


ROW = {"rank": 0, "kind": "compute", "op": "forward", "group": [0], "nbytes": 0, "start": 0.0, "end": 1.0}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"rank": 0}, "kind, op, group, nbytes, start, end: missing"),
        ({**ROW, "colour": "red"}, "colour: unknown"),
        *(({**ROW, name: None}, f"{name}=.* must be ") for name in [*ROW, "tag", "flops"]),
        *(({**ROW, name: True}, f"{name}=.* must be ") for name in [*ROW, "peer", "tag", "flops", "number"]),
        *(({**ROW, name: math.nan}, f"{name}=.* must be ") for name in ROW),
        *(({**ROW, name: "0"}, f"{name}=.* must be ") for name in ("rank", "group", "nbytes", "start", "peer")),
        ({**ROW, "group": [0, "1"]}, "group=.* must be "),
        ({**ROW, "group": 0, "end": math.inf}, "group=.* must be "),
        ({**ROW, "kind": "communicate", "op": "all_reduce", "group": []}, "all_reduce has no group"),
        ([], "no object"),
        (None, "no object"),
    ],
)
def test_a_line_that_is_no_event_is_named(tmp_path, row, said):
    path = tmp_path / "trace.json"
    trace.save(EVENTS[:1], path)
    path.write_text(path.read_text().replace("\n]", f",\n{json.dumps(row)}\n]"))
    with pytest.raises(ValueError, match=f"trace.json, line 3: .* is not an event of a trace .*{said}"):
        trace.load(path)


@pytest.mark.parametrize("text", ["", "{", '{"rank": 0}', "7", "null", '"events"', "[" * 100_000, "1" * 9999])
def test_a_file_that_is_no_list_of_events_is_refused(tmp_path, text):
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"trace.json (is not JSON|holds no list).*; pass a file of trace.save"):
        trace.load(path)


def test_a_file_that_cannot_be_read_is_refused_once(tmp_path):
    (tmp_path / "bytes").write_bytes(b"\xff")
    (tmp_path / "folder").mkdir()
    for name in ("bytes", "folder", "missing"):
        with pytest.raises(ValueError, match=f"^{tmp_path / name} cannot be read[^;]*$"):
            trace.load(tmp_path / name)


def test_where_it_was_replayed_and_what_the_links_carried_stand_in_the_trace_for_perfetto():
    rates = {"GPU 0 → switch": [(10.0, 2e9), (10.5, 0.0)]}
    told = trace.chrome(EVENTS, where="replayed on two tins", rates=rates)["traceEvents"]
    names = [event["args"]["name"] for event in told if event["name"] == "process_name"]
    assert names == [f"{what}, replayed on two tins" for what in ("rank 0", "rank 1", "links")]
    curve = [(event["ts"], event["args"]) for event in told if event["ph"] == "C"]
    assert curve == [(0, {"GB/s": 2}), (500_000, {"GB/s": 0})]
