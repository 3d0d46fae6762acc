"""Profiles of every version of torch give the collectives, sizes, waiting and kernels that are in them."""

import gzip
import json

import pytest
import torch

from shardlab import launch
from shardlab.costs.traces import waiting
from shardlab.figures.trace import timeline
from shardlab.own import kineto
from shardlab.own.__main__ import main
from shardlab.own.recording import elements, message_bytes, verb
from shardlab.own.report import report
from shardlab.ranks.observe.ledger import Ledger
from shardlab.trace import communication

from .written import dlrm, files, span
from .written import kineto as trace

CALLS = [("all_reduce", 4000, 100, 50), ("all_gather", 800, 200, 30), ("reduce_scatter", 1600, 300, 40)]
LATER = [(op, nbytes, start + 20, dur - 20) for op, nbytes, start, dur in CALLS]  # rank 1, of the same ends
DIALECTS = ["2.1", "2.2", "2.4", "2026", "ROCm", "gloo"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_each_dialect_says_what_was_written(tmp_path, dialect):
    found = kineto.read(files(tmp_path, [trace(dialect, 0, CALLS), trace(dialect, 1, LATER)]))
    for rank, calls in enumerate([CALLS, LATER]):
        mine = [event for event in found.events if event.rank == rank]
        sizes = [0 if dialect == "ROCm" else nbytes for _, nbytes, _, _ in calls]
        assert [(event.op, event.nbytes) for event in mine] == [
            (op, nbytes) for (op, *_), nbytes in zip(calls, sizes, strict=True)
        ]
        assert [event.group for event in mine] == [(0, 1)] * 3
        assert [event.start for event in mine] == pytest.approx([(call[2] - 100) / 1e6 for call in calls], abs=1e-9)
        assert [event.end for event in mine] == pytest.approx([(c[2] + c[3] - 100) / 1e6 for c in calls], abs=1e-9)
    assert waiting.who_waits(found.together) == {(0, 1): pytest.approx(60e-6)}
    assert ("without a size" in " ".join(found.missing)) == (dialect == "ROCm")
    assert timeline(waiting.parted(found.together)).data


def test_kernels_are_sorted_by_name_and_what_follows_is_one_span(tmp_path):
    named = [("ampere_sgemm_128", 0, 10), ("flash_fwd", 10, 10), ("flash_bwd", 15, 10), ("elementwise", 30, 20)]
    found = kineto.read(files(tmp_path, [trace("2.2", 0, CALLS[:1], world=1, kernels=named)]))
    spans = [(event.op, round(event.end * 1e6)) for event in found.events if event.kind == "compute"]
    assert spans == [("products", 10), ("attention", 25), ("rest", 50)]
    assert report(found)["unnamed"] == pytest.approx(20 / 95)


def test_without_kernels_a_rank_computes_while_an_operation_of_torch_runs(tmp_path):
    names = ["aten::linear", "aten::addmm", "aten::mul", "aten::_flash_attention_forward", "aten::copy_"]
    spans = [(names[0], 0, 20), (names[1], 5, 10), *((name, 20 + 10 * i, 5) for i, name in enumerate(names[2:]))]
    one = trace("gloo", 0, CALLS, world=1)
    one["traceEvents"] += [span(name, "cpu_op", start, dur) for name, start, dur in spans]
    found = kineto.read(files(tmp_path, [one]))
    computing = [(event.op, round(event.end * 1e6)) for event in found.events if event.kind == "compute"]
    assert computing == [("products", 20), ("rest", 25), ("attention", 35), ("copies", 45)]
    assert not found.on_gpu


def test_the_last_common_step_is_read(tmp_path):
    kernels = [("ampere_sgemm", 120, 20), ("ampere_sgemm", 160, 20), ("ampere_sgemm", 260, 20)]
    traces = [trace("2.2", rank, CALLS, step=("7", 150, 100), kernels=kernels) for rank in (0, 1)]
    traces[0]["traceEvents"].append({**traces[0]["traceEvents"][-1], "name": "ProfilerStep#8", "ts": 250})
    paths = files(tmp_path, traces)
    found = kineto.read(paths)
    assert found.step == "ProfilerStep#7"
    assert [event.op for event in found.events] == ["products"] * 2 + ["all_gather"] * 2
    with pytest.raises(ValueError, match=r"ProfilerStep#8 is not in all files .*trace1.json: ProfilerStep#7"):
        kineto.read(paths, step=8)


def test_calls_match_by_sequence_number_where_a_rank_lacks_the_first(tmp_path):
    late = trace("2026", 1, LATER)
    late["traceEvents"] = [each for each in late["traceEvents"] if each["args"]["Seq"]]
    found = kineto.read(files(tmp_path, [trace("2026", 0, CALLS), late]))
    assert [event.op for event in found.together] == ["all_gather"] * 2 + ["reduce_scatter"] * 2


def test_a_missing_rank_is_named_and_the_others_still_compared(tmp_path):
    ranks = [trace("2.2", rank, calls, world=3) for rank, calls in ((0, CALLS), (2, LATER))]
    found = kineto.read(files(tmp_path, ranks))
    assert waiting.who_waits(found.together) == {(0, 2): pytest.approx(60e-6)}
    assert found.events[0].group == (0, 1, 2)
    assert "2 of 3 ranks" in found.missing[0]


def test_no_rank_is_blamed_where_clocks_are_apart(tmp_path):
    shifted = [(op, nbytes, start + 45, dur) for op, nbytes, start, dur in CALLS]
    found = kineto.read(files(tmp_path, [trace("2.2", 0, CALLS), trace("2.2", 1, shifted)]))
    assert "the clocks differ" in found.clocks
    assert report(found)["late"] == {}


def test_a_published_step_of_eight_gpus_is_mostly_waiting_for_rank_7(tmp_path):
    found = kineto.read(files(tmp_path, dlrm()))
    waited = waiting.who_waits(found.together)
    assert sum(event.seconds for event in communication(found.events)) == pytest.approx(48.5e-3, abs=5e-5)
    assert sum(waited.values()) == pytest.approx(46.8e-3, abs=5e-5)
    assert sum(seconds for (_, last), seconds in waited.items() if last == 7) == pytest.approx(35.6e-3, abs=5e-5)


def recorded(rank, folder):
    """Profile this rank's collectives under a ledger; return what the ledger counted."""
    torch.set_num_threads(1)
    group = torch.distributed.group.WORLD
    x = torch.ones(1000)
    with torch.profiler.profile(record_shapes=True) as profile, Ledger() as ledger:
        torch.distributed.all_reduce(x, group=group)
        torch.distributed.all_gather_into_tensor(torch.zeros(2000), x, group=group)
        torch.distributed.reduce_scatter_tensor(torch.zeros(500), x, group=group)
        torch.distributed.all_to_all_single(torch.zeros(1000), x, group=group)
        torch.distributed.broadcast(x, 0, group=group)
        if rank:
            torch.distributed.recv(x, 0, group=group)
        else:
            torch.distributed.send(x, 1, group=group)
    profile.export_chrome_trace(f"{folder}/rank{rank}.json")
    return [(event.op, event.nbytes, event.peer) for event in ledger.events]


def profiled(group, folder):
    return recorded(group.rank(), folder)


@pytest.mark.filterwarnings("ignore")
def test_a_profile_of_gloo_has_the_bytes_that_the_ledger_counts(tmp_path, capsys):
    counted = launch.run(profiled, str(tmp_path), world_size=2)
    found = kineto.read([tmp_path / "rank0.json", tmp_path / "rank1.json"])
    for rank in (0, 1):
        sent = [event for event in communication(found.events) if event.rank == rank]
        assert [(event.op, event.nbytes, event.peer) for event in sent] == counted[rank]
    assert {event.op for event in found.events if event.kind == "compute"} >= {"copies", "rest"}
    assert (found.dialect, found.missing) == ("gloo", ())
    capsys.readouterr()
    assert main([f"{tmp_path}/rank0.json", f"{tmp_path}/rank1.json", "--json"]) == 0
    said = {(each["op"], each["nbytes"]) for each in json.loads(capsys.readouterr().out)["collectives"]}
    assert said == {(op, nbytes) for op, nbytes, peer in counted[0] if peer is None}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ts": float("nan")}, "finite number"),
        ({"ts": "12"}, "finite number"),
        ({"dur": float("inf")}, "finite number"),
        ({"dur": -1}, "dur=-1 of event 1"),
        ({"ts": 10**400}, "finite number"),
        ({"args": {"Collective name": "allreduce", "In msg nelems": "8"}}, "msg nelems='8' must be a whole"),
        ({"args": {"Collective name": "allreduce", "In msg nelems": -8}}, "must be a whole"),
        ({"args": {"Collective name": "allreduce", "In msg nelems": 1e300}}, "must be a whole"),
    ],
)
def test_bad_numbers_are_refused(tmp_path, change, message):
    one = trace("2.2", 0, CALLS)
    one["traceEvents"][0] |= change
    with pytest.raises(ValueError, match=message):
        kineto.read(files(tmp_path, [one]))


@pytest.mark.parametrize(
    "args",
    [
        [],
        {"Collective name": 5},
        {"Collective name": "allreduce", "dtype": [1], "Process Group Ranks": "[0, ..., 9]"},
        {"Collective name": "allreduce", "Process Group Ranks": [0, 0], "Group size": {}},
        {"correlation": [1], "External id": {}},
        {"Collective name": "send", "Dst Rank": 9},
    ],
)
def test_odd_arguments_leave_a_collective_out_or_without_a_size(tmp_path, args):
    one = trace("2.2", 0, CALLS)
    one["traceEvents"][0]["args"] = args
    found = kineto.read(files(tmp_path, [one]))
    assert [event.nbytes for event in found.events if event.nbytes] == [800, 1600]
    assert len(found.missing) == 2


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([0, 0], "two files are of rank 0"),
        ([0, -1], "rank=-1 must be a whole number"),
        ([0, "1"], "rank='1' must be"),
        ([0, 1 << 40], "must be a whole number"),
        ([], "no files"),
    ],
)
def test_bad_ranks_are_refused(tmp_path, ranks, message):
    with pytest.raises(ValueError, match=message):
        kineto.read(files(tmp_path, [trace("2.2", rank, CALLS) for rank in ranks]))


def test_ranks_of_different_steps_are_refused(tmp_path):
    traces = [trace("2.2", rank, CALLS, step=(str(rank), 0, 900)) for rank in (0, 1)]
    with pytest.raises(ValueError, match=r"no step in all files .*: ProfilerStep#0; .*: ProfilerStep#1\)"):
        kineto.read(files(tmp_path, traces))


def test_a_cut_file_is_read_to_its_last_whole_event(tmp_path):
    text = json.dumps(trace("2.2", 0, CALLS))
    path = tmp_path / "cut.json.gz"
    path.write_bytes(gzip.compress(text[: text.rindex('"ph"')].encode()))
    found = kineto.read([path])
    assert [event.op for event in found.events] == ["all_reduce", "all_gather"]
    assert "ends early, after 2 whole events" in found.missing[-1]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("nccl:_all_gather_base", "all_gather"),
        ("c10d::allreduce_", "all_reduce"),
        ("all_to_allv", "all_to_all"),
        ("c10d::_reduce_scatter_base_", "reduce_scatter"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("c10d::recv_", "receive"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("wait", None),
    ],
)
def test_names_of_collectives_have_one_verb(name, found):
    assert verb(name) == found


def test_elements_and_their_bytes():
    assert (elements([2, 3]), elements([[[2, 3]], [[4]]]), elements([]), elements("34")) == (6, 10, 0, 0)
    assert [message_bytes("send", 3, each) for each in ("c10::BFloat16", "Float", None)] == [6, 12, 0]
