import json

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


def test_gathering_moves_every_share_once():
    event = Event(0, "communicate", "gather", (0, 1, 2, 3), 4000, 0, 1)
    assert 4 * trace.wire_bytes(event) == 3 * 1000


def test_computing_sends_nothing():
    assert trace.wire_bytes(EVENTS[0]) == 0


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
    assert [Event(**{**row, "group": tuple(row["group"])}) for row in rows] == EVENTS
