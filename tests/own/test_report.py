"""The command says in one screen what a step did, who is late, and what differs from the prediction."""

import json
import sys

import pytest

from shardlab.costs import units
from shardlab.costs.collectives import library
from shardlab.costs.facts import hugging_face, nodes
from shardlab.costs.step import Run, axes, step
from shardlab.costs.training import Training
from shardlab.own.__main__ import main
from shardlab.sharding.layout import Layout
from tests.costs.facts.test_hugging_face import LLAMA

from .test_kineto import CALLS, LATER
from .test_nccl_tests import log
from .written import dlrm, files
from .written import kineto as trace

BY_NAME = sorted(CALLS)


@pytest.fixture
def ask(capsys):
    def run(*words):
        try:
            status = main([str(word) for word in words])
        except SystemExit as stopped:
            status = stopped.code
        return status, *capsys.readouterr()

    return run


SCREEN = """8 ranks of 8
read from: enclosing call (torch to 2.1)
Note: rank 0: 8 of 8 collectives without a size
Note: rank 1: 8 of 8 collectives without a size
Note: rank 2: 8 of 8 collectives without a size
and 5 notes more, which --json has

rank 0, 10.7 ms:
  other kernels 844 µs · exposed in ranks 0 to 7 5.72 ms · hidden in ranks 0 to 7 82 µs · nothing launched 4.09 ms
  of the kernels' seconds, 13 % have no known name
collectives of all ranks: 48.5 ms of kernels, of which 46.8 ms wait for the last rank
  waited for: rank 7 35.6 ms (last in 5 of 8), rank 5 6.28 ms (last in 2 of 8), rank 4 5.01 ms (last in 1 of 8)
  all_to_all x 5, of unknown size, ranks 0 to 7: sending 8.4 µs
  all_reduce x 3, of unknown size, ranks 0 to 7: sending 58.3 µs

the largest differences, per rank:
  1 5.86 ms: kernels are longer than the sending: they wait for rank 7 (chapter: failures)
  2 4.93 ms: nothing is launched: the host is late, so fuse, compile or take a larger batch (chapter: compute)
"""


def test_the_screen_of_a_published_step(tmp_path, ask):
    assert ask(*files(tmp_path, dlrm()), "--node", "DGX-1V") == (0, SCREEN, "")


def test_a_call_is_split_where_its_last_rank_came_and_has_its_prediction(tmp_path, ask):
    kernels = [("ampere_sgemm", 120, 100)]  # over half of the all-reduce, and half of the gap after it
    traces = [trace("2.2", rank, calls, kernels=kernels) for rank, calls in enumerate([CALLS, LATER])]
    paths = files(tmp_path, traces)
    data = json.loads(ask(*paths, "--node", "DGX H100", "--json")[1])
    link = axes.link(nodes.cluster("DGX H100"), 1, 2)
    for call, (op, nbytes, _, dur) in zip(sorted(data["collectives"], key=lambda c: c["op"]), BY_NAME, strict=True):
        share = 1 if op == "all_reduce" else 1 / 2
        assert (call["op"], call["nbytes"], call["count"]) == (op, nbytes, 1)
        assert call["waiting"] == pytest.approx(20e-6)
        assert call["sending"] == pytest.approx((dur - 20) / 1e6)
        assert call["busbw"] == pytest.approx(share * nbytes / call["sending"])
        assert call["predicted"] == pytest.approx(library.node_seconds(op, nbytes, 2, link))
    assert data["late"] == {"1": {"seconds": pytest.approx(60e-6), "last": 3}}
    first = data["kinds"]["0"]  # all-reduce 100 to 150, all-gather 200 to 230, reduce-scatter 300 to 340
    spans = {"products": 100, "hidden in ranks 0, 1": 50, "exposed": 70, "nothing launched": 70, "all": 240}
    assert {name: first[name] for name in spans} == pytest.approx({name: us / 1e6 for name, us in spans.items()})
    slower = sum(each["sending"] - each["predicted"] for each in data["collectives"])
    found = {each["name"]: each["seconds"] for each in data["differences"]}
    assert found.get("short", 0.0) == pytest.approx(max(0.0, slower))
    assert found["waiting"] == pytest.approx(30e-6)


def test_one_rank_alone_cannot_tell_waiting_from_sending(tmp_path, ask):
    out = ask(*files(tmp_path, [trace("2.2", 0, CALLS)]), "--node", "DGX H100")[1]
    assert "rank 0 alone says how long its collectives took, and not how much of it was waiting" in out
    assert "are waiting or a slower link" in out
    assert "they wait for rank" not in out


def test_a_model_and_its_layout_have_the_steps_prediction(tmp_path, ask):
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "num_hidden_layers": 2}))
    paths = files(tmp_path, [trace("2.2", rank, CALLS) for rank in (0, 1)])
    words = ["--node", "DGX H100", "--config", tmp_path, "--layout", "tp=2,sequence=512,num_microbatches=2"]
    spec = hugging_face.read({**LLAMA, "num_hidden_layers": 2}).spec
    training = Training(spec=spec, layout=Layout(tp=2), sequence=512, num_microbatches=2)
    predicted = step(Run(training=training, cluster=nodes.cluster("DGX H100")))
    assert json.loads(ask(*paths, *words, "--json")[1])["predicted"] == pytest.approx(predicted.summary)
    assert f"predicted step: {units.text(predicted.seconds, 's')}" in ask(*paths, *words)[1]


def test_a_picture_opens_from_disk_and_replaces_nothing(tmp_path, ask, monkeypatch):
    words = [*files(tmp_path, [trace("2.2", 0, CALLS), trace("2.2", 1, LATER)]), "--picture", tmp_path / "out.html"]
    assert ask(*words)[0] == 0
    page = (tmp_path / "out.html").read_text()
    assert "rank 1 communicates" in page
    assert 'src="http' not in page
    assert "name a new file" in ask(*words)[2]
    monkeypatch.setitem(sys.modules, "shardlab.figures.trace", None)
    assert "pip install 'shardlab[book]'" in ask(*words)[2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing.json"], "cannot be read"),
        (["trace0.json", "log"], "the files are of nccl-tests and torch.profiler; pass one kind at a time"),
        (["log", "--step", "0"], "--step says nothing about files of nccl-tests"),
        (["log", "--write-cluster", "x"], "needs --node or --cluster"),
        (["trace0.json", "--write-cluster", "x"], "--write-cluster says nothing about files of torch.profiler"),
        (["trace0.json", "--step", "3"], "ProfilerStep#3 is not in all files"),
        (["trace0.json", "--node", "DGX"], "DGX"),
        (["trace0.json", "--layout", "tp=2"], "belong together"),
        (["trace0.json", "--layout", "tp=x", "--config", "c", "--node", "DGX H100"], "--layout 'tp=x' must be"),
        (["trace0.json", "--layout", "tp=4", "--config", "c", "--node", "DGX H100"], "4 ranks, and the run has 2"),
        (["trace0.json", "--cluster", "small.toml"], "2 ranks do not fit on"),
        (["trace0.json", "--node", "DGX H100", "--cluster", "x"], "not allowed with"),
        ([], "required"),
    ],
)
def test_bad_options_are_refused_in_one_line(tmp_path, ask, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    files(tmp_path, [trace("2.2", 0, CALLS)])
    (tmp_path / "log").write_text(log("all_reduce", 8))
    (tmp_path / "small.toml").write_text('chip = "H100 SXM 80 GB"\ngpus = 1\n')
    status, out, error = ask(*words)
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert message in error
