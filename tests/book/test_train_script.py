"""The book's training script: on ranks of its own, under torchrun on one node and on two, on two hosts with a cable."""

import functools
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from shardlab.launch import run
from shardlab.ranks import checkpoint
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
    return run(names["train"], layout, "1F1B", file, folder, num_steps, world_size=layout.ranks)[0]


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
