"""A dump of the flight recorder gives its collectives, and a pickle can hold nothing but plain data."""

import json
import os
import pickle

import pytest

from shardlab.costs.traces import waiting
from shardlab.own import flight

START = 1_790_857_026_000_000_000


def dump(late=0, **changes):
    entry = {"profiling_name": "nccl:all_gather", "process_group": ["0", "default_pg"], "collective_seq_id": 3}
    entry |= {"input_sizes": [[100]], "input_dtypes": ["Float"], "output_sizes": [[200]], "output_dtypes": ["Float"]}
    entry |= {"time_created_ns": START + late, "duration_ms": (5000 - late) / 1e6, **changes}
    return {"pg_config": {"0": {"name": "0", "ranks": "[0, 1]"}}, "entries": [entry]}


def written(folder, dumps, pack):
    paths = [folder / f"nccl_trace_rank_{rank}" for rank in range(len(dumps))]
    for path, each in zip(paths, dumps, strict=True):
        path.write_bytes(pack(each))
    return paths


@pytest.mark.parametrize("pack", [pickle.dumps, lambda each: json.dumps(each).encode()])
def test_collectives_come_back_from_json_and_from_pickles(tmp_path, pack):
    found = flight.read(written(tmp_path, [dump(), dump(2000)], pack))
    assert [(event.op, event.nbytes, event.group) for event in found.events] == [("all_gather", 800, (0, 1))] * 2
    assert found.events[1].start == pytest.approx(2e-6, rel=1e-6)
    assert waiting.who_waits(found.together) == {(0, 1): pytest.approx(2e-6)}
    assert ([event.number for event in found.events], found.missing) == ([3, 3], ())


def test_what_did_not_end_or_has_no_group_is_counted(tmp_path):
    unended, unknown = dump(duration_ms=None), dump(process_group=["7", ""])
    missing = flight.read(written(tmp_path, [unended, unknown], pickle.dumps)).missing
    assert "rank 0: 1 collectives that did not end" in missing[0]
    assert "rank 1: 1 collectives whose kind or group" in missing[1]


class Harmful:
    def __reduce__(self):
        return os.system, ("false",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps({"entries": [Harmful()]}), "it holds posix.system, and not plain data only"),
        (b"", "cannot be read"),
        (pickle.dumps(dump())[:-9], "cannot be read"),
        (b"[" * 99999, "cannot be read"),
        (b"[]", "no list of at most"),
        (b'{"traceEvents": []}', "no list of at most"),
        (pickle.dumps({"entries": [1]}), "an entry is no object"),
        (pickle.dumps(dump(time_created_ns="x")), "time_created_ns='x' must be a whole"),
        (pickle.dumps(dump(duration_ms=float("nan"))), "duration_ms=nan must be"),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        flight.read(written(tmp_path, [content], bytes))


def test_a_rank_is_read_once(tmp_path):
    path = written(tmp_path, [dump()], pickle.dumps)[0]
    with pytest.raises(ValueError, match="two files are of rank 0"):
        flight.read([path, path])
