"""The book's training script: on ranks of its own, under torchrun on one node and on two, on two hosts with a cable."""

import functools
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from shardlab import schedules
from shardlab.costs.facts.hugging_face.details import read_whole
from shardlab.launch import run
from shardlab.ranks import checkpoint, text
from shardlab.ranks.mesh import Mesh
from shardlab.ranks.train import Trainer
from shardlab.ranks.transformer import Transformer
from shardlab.sharding.layout import Layout

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "book" / "train.py"
sys.path.insert(0, str(ROOT / "bench"))
import two_hosts  # noqa: E402

STEPS = 3  # of each start; every one goes on where the one before stopped


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_bytes(bytes(range(256)) * 20 + SCRIPT.read_bytes())
    return path


@functools.cache
def alone(file):
    """The losses of one process that never stopped."""
    return here(file, file.with_name("alone"), Layout(), 3 * STEPS)


def here(file, folder, layout, num_steps):
    names = {"__name__": "script", "__file__": str(SCRIPT)}
    exec(SCRIPT.read_text(), names)
    return run(names["train"], layout, "1F1B", text.read(file), folder, num_steps, world_size=layout.ranks)[0]


def losses(told):
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+): ([\d.]+) nats", told)}


def assert_goes_on(told, file, first):
    """Steps first + 1 to first + STEPS, with the losses of one process, as far as four digits tell."""
    expected = {first + i + 1: loss for i, loss in enumerate(alone(file)[first : first + STEPS])}
    assert losses(told) == pytest.approx(expected, abs=2e-4), told


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def arguments(file, folder, num_steps, *degrees):
    return [*degrees, "--steps", str(num_steps), "--folder", str(folder), "--text", str(file)]


def test_ranks_of_its_own_then_two_nodes_then_two_hosts(file, tmp_path, capsys):
    """Four ranks cut layers and model; two nodes the layers; two hosts share the states of replicas. One training."""
    folder = tmp_path / "checkpoints"
    here(file, folder, Layout(tp=2, pp=2, sequence_parallel=True), STEPS)
    assert_goes_on(capsys.readouterr().out, file, 0)

    meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--local-addr=127.0.0.1"]
    node = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", *meeting, str(SCRIPT)]
    node += arguments(file, folder, 2 * STEPS, "--tp", "2")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": environment}
    nodes = [subprocess.Popen(node, **pipes) for _ in range(2)]
    assert_goes_on("".join(each.communicate(timeout=240)[0] for each in nodes), file, STEPS)
    assert checkpoint.latest(folder).name == f"step-{2 * STEPS:08d}"

    if why_not := two_hosts.unavailable():
        pytest.skip(why_not)
    with two_hosts.TwoHosts(rate=1e9) as hosts:
        told = hosts.run(str(SCRIPT), *arguments(file, folder, 3 * STEPS, "--dp", "2", "--zero", "3"), ranks=2)
    assert_goes_on(told, file, 2 * STEPS)


def test_under_torchrun_on_one_node(file, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(SCRIPT)]
    command += arguments(file, tmp_path, STEPS, "--pp", "2", "--schedule", "ZB-V")
    told = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert_goes_on(told.stdout, file, 0)


SIZES = {"vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4}
CONFIG = SIZES | {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
    "dtype": "float32",
}


def published(folder):
    """A model that nobody has trained, in the files of Hugging Face."""

    def write(group):
        torch.manual_seed(0)
        _, spec = read_whole(CONFIG)
        plan = schedules.make("1F1B", 1, 1)
        trainer = Trainer(Transformer(spec), Mesh(Layout(), group), plan, torch.optim.AdamW)
        trainer.write(folder, CONFIG)

    run(write, world_size=1)
    (folder / "tokenizer.json").write_text("{}")
    return folder


def script(*options):
    told = subprocess.run([sys.executable, SCRIPT, *options], capture_output=True, text=True, timeout=240, check=False)
    return told.stdout, told.stderr


def test_two_layouts_go_on_from_one_published_model_with_the_same_losses(file, tmp_path):
    """And what they publish, a third goes on with."""
    seed, ids = published(tmp_path / "seed"), tmp_path / "tokens.i32"
    torch.arange(9000, dtype=torch.int32).remainder_(251).numpy().tofile(ids)
    runs = []
    for name, degrees in (("one", []), ("cut", ["--tp", "2", "--dp", "2", "--zero", "3"])):
        options = [*degrees, "--steps", str(STEPS), "--folder", tmp_path / f"{name} saves", "--ids", ids]
        told, error = script(*options, "--from", seed, "--to", tmp_path / name)
        assert len(losses(told)) == STEPS, error
        runs.append(losses(told))
    assert runs[0] == pytest.approx(runs[1], abs=2e-4)
    assert runs[0][STEPS] < runs[0][1]
    assert {path.name for path in (tmp_path / "cut").iterdir()} == {path.name for path in seed.iterdir()}
    told, error = script("--steps", "1", "--folder", tmp_path / "third", "--ids", ids, "--from", tmp_path / "cut")
    assert losses(told)[1] < runs[0][1], error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--to", "there"], "--to writes the config.json that it finds in --from; add --from FOLDER"),
        (["--from", "nowhere"], "nowhere cannot be read"),
        (["--ids", SCRIPT.parent / "nothing.i32"], "nothing.i32"),
        (["--tp", "0"], "tp=0"),
    ],
)
def test_wrong_options_get_one_line(options, message):
    told, error = script(*options)
    assert not told
    assert message in error.splitlines()[-1]
