"""All ranks answer, and where some are missing they are named in time and nobody hangs."""

import json
import os
import subprocess
import sys
import time

import pytest
import torch.distributed as dist

from shardlab.preflight import __main__ as command
from shardlab.preflight import roll, together

from .made_up import bad, cluster

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "shardlab.preflight"]
STARTING = 60.0  # s that a busy machine may take to import torch


def start(rank, size, port, *options, **more):
    """Start one rank as a script of Slurm would."""
    told = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": port}
    told |= {"MASTER_ADDR": "127.0.0.1", **more}
    environment = os.environ | {name: str(value) for name, value in told.items()}
    words = [*COMMAND, "--code", __file__, *options]
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    """Return the exit status and what was printed."""
    told, complained = process.communicate(timeout=2 * STARTING)
    return process.returncode, told, complained


def free_port():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return store.port


def test_two_ranks_of_torchrun_are_well():
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    words += ["shardlab.preflight", "--json", "--code", __file__]
    done = subprocess.run(words, capture_output=True, text=True, timeout=2 * STARTING)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)  # one object: the other rank printed nothing
    assert (told["status"], told["ranks"]) == (0, 2)
    verdicts = {each["name"]: each["verdict"] for each in told["findings"]}
    assert "FAIL" not in verdicts.values()
    assert {"who", "torch", "code", "environment", "MASTER_ADDR", "clocks", "links", "checksum"} <= verdicts.keys()


def test_a_rank_alone_checks_its_machine():
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run([*COMMAND, "--code", __file__], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ok    who: 1 host with 1 rank\n")


def test_a_rank_that_is_missing_is_named_in_time():
    began = time.monotonic()
    status, told, _ = finish(start(0, 2, free_port(), "--timeout", "3"))
    assert status == 1
    assert told.startswith("FAIL  who: rank 1 of 2 did not come within 3 s")
    assert time.monotonic() - began < 3 + STARTING


def test_without_the_rank_that_hosts_the_store_each_says_so():
    status, told, _ = finish(start(1, 2, free_port(), "--timeout", "2"))
    assert status == 1
    assert told.startswith("FAIL  who: rank 1 could not reach rank 0's store at 127.0.0.1:")


def test_without_rank_0_the_lowest_one_there_speaks():
    """As under torchrun, whose agent hosts the store."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = [start(rank, 3, store.port, "--timeout", "8", TORCHELASTIC_USE_AGENT_STORE=True) for rank in (1, 2)]
    (first, told, _), (second, silent, _) = map(finish, ranks)
    assert first == second == 1
    assert told.startswith("FAIL  who: rank 0 of 3 did not come within 8 s")
    assert silent == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--timeout", "0"], "--timeout=0.0 must be a number from 1"),
        (["--cluster", "my rack"], "--cluster my rack is no file and no node; use DGX-1V"),
        (["--cluster", "DGX H100"], "gpus=1 do not fill nodes of 8 GPUs"),
        (["--code", "/no/such/file.py"], "--code /no/such/file.py does not exist"),
        (["--loud"], "unrecognized arguments: --loud; `python -m shardlab.preflight --help` lists"),
    ],
)
def test_bad_use_is_refused_in_one_line(options, message, capsys, monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    try:
        status = command.main(options)
    except SystemExit as end:
        status = end.code
    assert status == 2
    complained = capsys.readouterr().err
    assert message in complained
    assert complained.count("\n") == 1


def test_a_cluster_of_a_file(tmp_path):
    file = tmp_path / "ours.toml"
    file.write_text('chip = "H100 SXM 80 GB"\ngpus = 4\nnvlink = "NVLink 4"\ncards = 4\nnetwork = 400\n')
    assert command.known(str(file), 8).num_nodes == 2


def test_nccl_only_where_each_rank_has_a_gpu_of_its_own():
    world = cluster(2)
    assert together.plan_of(world) == {"backend": "nccl", "clocks": [8], "one_host": False}
    world[1]["gpu"]["id"] = "GPU-0"
    assert together.plan_of(world)["backend"] == "gloo"
    assert together.plan_of(cluster(1))["one_host"]


def test_ranks_that_are_stuck_or_silent_are_named():
    world = cluster(1, 3)
    well = {"over": True, "error": "", "doing": "", "rates": {"1": 1e9}, "sum": "e0be"}
    stuck = {"over": False, "error": "", "doing": "sends to rank 2 and waits for rank 0", "rates": {}, "sum": ""}
    lines = bad(together.after(world, {0: well, 1: stuck}, {}, None))
    assert lines == [
        "FAIL  links: rank 2 (node00) no longer answers; see what was printed there",
        "FAIL  links: rank 1 (node00) sends to rank 2 and waits for rank 0 when time was up; "
        "see whether a firewall lies between them",
    ]


def test_a_store_without_an_address_is_refused(monkeypatch):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(roll.Unreachable, match="MASTER_ADDR and MASTER_PORT are not set"):
        roll.Roll(1, 2, 1.0)
