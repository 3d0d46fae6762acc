"""Each part of the lab passes for what is right, and fails for its own reason for what is not."""

import json
import subprocess
import sys

import pytest

from shardlab.costs.facts import hugging_face
from shardlab.files.project import BOOK
from shardlab.own import lab
from shardlab.own.lab import main
from shardlab.own.report import report
from shardlab.plan.__main__ import main as plan
from tests.costs.facts.released import GPT2

from .written import dlrm, files, kineto, span

MODEL = {**GPT2, "n_embd": 64, "n_layer": 2, "n_head": 1, "n_positions": 64, "n_ctx": 64, "vocab_size": 256}
LAYOUT = "dp=2,sequence=64,microbatch=8"
CHIP = '{name = "ours", memory_GB = 8, memory_GB_per_s = 10, TFLOPs = 0.05, watts = 10}'
OURS = f"chip = {CHIP}\ngpus = 2\nnodes = 2\ncards = 1\nnetwork = 10\n"


def run(folder, *, sent=100_000, load=20_000, ahead=False, products=1, gpu=False, world=2):
    """Write a step of 100 ms: the last rank loads while the others wait, or ahead, while it computes."""
    folder.mkdir(exist_ok=True)
    traces = []
    for rank in range(world):
        late = load if rank == world - 1 else 10
        begin = 0 if ahead else late
        calls = [("all_reduce", sent, begin + 40_000, 10_000 + (0 if ahead else load - late))]
        trace = kineto(
            "gloo", rank, calls if world > 1 else [], world=world, step=("4", 0, 100_000 if not ahead else 80_000)
        )
        dims = {"Input Dims": [[512, 1024], [1024, 338 * products]]}  # about what MODEL needs
        computing = [("aten::mm", dims), ("aten::embedding", {"Input Dims": [[256, 64], [8, 64]]})]
        events = [span(name, "cpu_op", begin + 20_000 * i, 19_000, **args) for i, (name, args) in enumerate(computing)]
        if gpu:
            events += [span("sgemm", "kernel", begin + 20_000 * i, 19_000) for i in range(2)]
        events += [span("load", "user_annotation", 0, late, 3), span("forward", "user_annotation", begin, 39_000)]
        trace["traceEvents"] += events
        traces.append(trace)
    return list(map(str, files(folder, traces)))


@pytest.fixture
def ask(capsys):
    def check(*words, main=main):
        try:
            status = main([str(word) for word in words])
        except SystemExit as stopped:
            status = stopped.code
        out, error = capsys.readouterr()
        return status, out or error

    return check


@pytest.mark.parametrize(
    ("named", "ms", "status", "reason"),
    [
        ("rank 1, load", 20, 0, "5 of 5 points: rank 1, load is right; 20 ms"),
        ("rank 0, load", 20, 1, "rank 0 is not the rank for which most is waited"),
        ("rank 1, forward", 20, 1, "rank 1 is right, and forward is not the phase"),
        ("rank 1", 20, 1, "rank 1 is right, and"),
        ("rank 1, load", 0.02, 1, "0.02 ms is off by more than 10 %"),
    ],
)
def test_the_rank_its_phase_and_the_waiting_are_read_from_the_profile(tmp_path, ask, named, ms, status, reason):
    found = ask(1, *run(tmp_path), "--named", named, "--ms", ms)
    assert found[0] == status
    assert reason in found[1]


@pytest.mark.parametrize(("named", "status"), [("rank 7", 0), ("rank 5", 1)])
def test_a_published_recording_without_steps_will_do_for_the_first_part(tmp_path, ask, named, status):
    paths = files(tmp_path, dlrm())
    assert ask(1, *paths, "--named", named, "--ms", 35.6)[0] == status
    assert "have no steps" in ask(3, *paths, "--after", *paths)[1]


@pytest.mark.parametrize("named", ["load", "forward"])
def test_one_gpu_waits_in_a_phase_of_its_own(tmp_path, ask, named):
    paths = run(tmp_path, gpu=True, world=1)
    assert ask(1, *paths, "--named", f"rank 0, {named}", "--ms", 20)[0] == (named != "load")


@pytest.mark.parametrize(
    ("named", "layout", "status", "reason"),
    [
        ("computing", LAYOUT, 0, "computing takes longer than predicted"),
        ("waiting", LAYOUT, 1, "waiting is number 2"),
        ("idle", LAYOUT, 1, "idle is not among the largest"),
        ("computing", "dp=4", 2, "4 ranks, and the run has 2"),
    ],
)
def test_the_largest_difference_is_that_of_the_prediction(tmp_path, ask, named, layout, status, reason):
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    (tmp_path / "ours.toml").write_text(OURS)
    words = ["--cluster", tmp_path / "ours.toml", "--config", tmp_path, "--layout", layout]
    found = ask(2, *run(tmp_path), "--named", named, *words)
    assert found[0] == status
    assert reason in found[1]


@pytest.mark.parametrize(
    ("change", "status", "reason"),
    [
        ({"ahead": True}, 0, "62 ms before, 42 ms after: 32 % less"),
        ({}, 1, "the same profile"),
        ({"ahead": True, "load": 10}, 1, "less loading: 0 ms in all, and 20 ms before"),
        ({"ahead": True, "products": 0}, 1, "less work: 0 FLOPs"),
        ({"ahead": True, "sent": 50_000}, 1, "less work: 100,000 bytes in collectives"),
        ({"sent": 100_004}, 1, "at least 25 % are asked"),
        ({"ahead": True, "world": 1}, 1, "2 ranks before, 1 after"),
    ],
)
def test_a_change_does_the_same_work_and_waits_less(tmp_path, ask, change, status, reason):
    before, after = run(tmp_path / "before"), run(tmp_path / "after", **change)
    found = ask(3, *before, "--after", *after)
    assert found[0] == status, found
    assert reason in found[1]


@pytest.mark.parametrize(
    ("change", "named", "times", "status", "reason"),
    [
        ({}, "idle", 1, 0, "communicating +"),
        ({}, "computing", 1, 1, "computing has not the largest error"),
        ({}, "idle", 1.2, 1, "is off by more than 10 %"),
        ({"--batch-tokens": 2048}, "idle", 1, 1, "another run's plan: 2,048 tokens in a step, and 1,024"),
        ({"--gpus": 4}, "idle", 1, 1, "another run's plan: 4 ranks, and 2 in the profile"),
        ({"--show": 0}, "idle", 1, 2, "is not what"),
        ({"n_layer": 12}, "idle", 1, 1, "another model's plan"),
    ],
)
def test_the_plan_is_of_this_run_and_its_largest_error_is_named(tmp_path, ask, change, named, times, status, reason):
    (tmp_path / "config.json").write_text(json.dumps({**MODEL, "n_layer": change.pop("n_layer", 2)}))
    (tmp_path / "ours.toml").write_text(OURS)
    options = {
        "--cluster": tmp_path / "ours.toml",
        "--batch-tokens": 1024,
        "--sequence": 64,
        "--zero": 0,
        "--gpus": 2,
        **change,
    }
    words = ["--recipe", "fp32 Adam", "--headroom", 0, "--json", *(word for pair in options.items() for word in pair)]
    out = ask(tmp_path, *words, main=plan)[1] if options.get("--show") != 0 else "{}"
    (tmp_path / "plan.json").write_text(out)
    planned = json.loads(out).get("plans", [{"step_seconds": 1}])[0]["step_seconds"]
    paths = run(tmp_path, load=40_000)
    found = ask(4, *paths, "--plan", tmp_path / "plan.json", "--named", named, "--ratio", times * 0.1 / planned)
    assert found[0] == status, found
    assert reason in found[1]


@pytest.mark.slow
def test_the_program_of_the_page_waits_for_its_last_rank_which_loads(tmp_path):
    script = BOOK / "lab.py"
    subprocess.run([sys.executable, script, tmp_path / "before"], check=True, timeout=300, capture_output=True)
    profile = lab.read([str(tmp_path / "before" / f"rank{rank}.json") for rank in (0, 1)])
    assert next(iter(report(profile.recording)["late"])) == 1
    assert profile.phase(1)[0] == "load"
    assert profile.work["tokens"] == 2 * 8 * 64
    spec = hugging_face.read(json.loads((tmp_path / "before" / "config.json").read_text())).spec
    assert profile.work["products"] == pytest.approx(6 * 2 * 8 * 64 * (2 * 12 * spec.hidden_size**2 + 256 * 128))
