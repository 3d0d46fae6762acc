"""It never starts: a few wrong starts for real, and all of them as they were recorded."""

import dataclasses
import os
import socket
import sys
from pathlib import Path

import pytest
import torch
from torch.distributed import constants, elastic
from two_agents import agents, ports, starts

from shardlab.files import measured
from shardlab.ranks.observe import torchrun

from .. import patience

pytestmark = pytest.mark.slow

RECORDED = measured.results("starts")
ROWS = {row["name"]: row for row in RECORDED["rows"]}
START = {start.name: start for start in starts.STARTS}
SECONDS = {stage["name"]: stage["seconds"] for stage in RECORDED["stages"]}


def told(agent):
    return "\n".join(agent["said"])


# ---- for real ------------------------------------------------------------------------------------------------------


def test_a_program_without_torchrun_misses_its_variables():
    outcome = agents.meet(START["without torchrun"])
    assert outcome.codes == (1,)
    assert torchrun.cause(outcome.messages[0])[0]["name"] == "without torchrun"
    assert torchrun.said(outcome.messages[0])[-1].startswith("ValueError: ")


def test_an_agent_finds_its_port_in_use():
    """Node 0 alone: it ends at once."""
    start = START["port in use"]
    outcome = agents.meet(dataclasses.replace(start, nodes=start.nodes[:1]))
    assert outcome.codes == (1,)
    assert torchrun.cause(outcome.messages[0])[0]["name"] == "port in use"
    assert "port: 29500" in outcome.messages[0]


def test_what_would_wait_is_ended_with_all_it_started(tmp_path):
    """Workers of torchrun lead a session of their own: to end the group of their agent is not enough."""
    node = agents.StartNode(
        arguments=(), launcher=(sys.executable,), program=PARENT, environment={"FOLDER": str(tmp_path)}
    )
    outcome = agents.meet(dataclasses.replace(starts.SOUND, nodes=(node, node)), limit=3.0)
    assert outcome.codes == (None, None)
    started = list(tmp_path.iterdir())
    assert len(started) == 4
    for file in started:
        assert patience.until(lambda pid=file.name: not alive(pid), 5)


PARENT = """
import os, subprocess, sys, time
mine = "import os, time; open(os.environ['FOLDER'] + '/' + str(os.getpid()), 'w').close(); time.sleep(100)"
subprocess.Popen([sys.executable, "-c", mine], start_new_session=True)
exec(mine)
"""


def alive(pid):
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(("state", "error"), [("closed", ConnectionRefusedError), ("dropping", TimeoutError)])
def test_a_port_that_refuses_and_one_that_drops_differ(state, error):
    with ports.STATES[state]() as port, pytest.raises(error):
        socket.create_connection((ports.HOST, port), timeout=0.5)


def test_a_silent_port_takes_a_connection_and_says_nothing():
    with ports.silent() as port, socket.create_connection((ports.HOST, port), timeout=0.5) as client:
        with pytest.raises(TimeoutError):
            client.recv(1)


# ---- as recorded ---------------------------------------------------------------------------------------------------


def test_every_row_was_recorded_as_it_stands():
    assert list(ROWS) == [starts.SOUND.name, starts.UNEQUAL.name, *START]
    for name, start in START.items():
        assert ROWS[name]["phrases"] == list(start.phrases), name
        assert ROWS[name]["cause"] == start.cause, name
        assert ROWS[name]["command"] == start.command, name
        assert ROWS[name]["stage"] in {"", *SECONDS}, name
    assert RECORDED["stages"] == starts.STAGES


def test_what_only_looks_wrong_starts():
    for name, printed in (("sound", "sum 2.0"), ("unequal nproc-per-node", "sum 3.0")):
        first, second = ROWS[name]["agents"]
        assert (told(first), told(second)) == (printed, "")
        assert (first["exit code"], second["exit code"]) == (0, 0)


def test_what_takes_the_connection_and_is_silent_is_waited_for_beyond_the_time_out():
    """Torch gave the option 4 s; the agents were ended after two minutes."""
    for name in ("silent", "port in use", "port in use, c10d"):
        assert ROWS[name]["agents"][1]["exit code"] is None
        assert ROWS[name]["agents"][1]["seconds"] > 100


def test_gloo_waits_five_time_outs_for_a_connection():
    """And a start of the two agents and their ranks comes before."""
    row = ROWS["other ports are dropped"]
    if row["agents"]:
        assert all(5 * agents.TIMEOUT < agent["seconds"] < 5 * agents.TIMEOUT + 15 for agent in row["agents"])
    assert SECONDS["connections, gloo"] == 5 * SECONDS["process group, gloo"]


def test_agents_that_expect_different_numbers_work_and_wait_at_the_exit_for_five_minutes():
    """And their exit code says that all is well."""
    first, second = ROWS["unequal nnodes"]["agents"]
    assert (first["exit code"], second["exit code"]) == (0, 0)
    assert "sum 2.0" in told(first)
    assert all(SECONDS["exit barrier"] < agent["seconds"] < SECONDS["exit barrier"] + 30 for agent in (first, second))


# ---- the stages ----------------------------------------------------------------------------------------------------


def test_the_stages_wait_as_long_as_this_torch_says():
    if not torch.__version__.startswith("2.13."):
        pytest.skip("the stages are those of torch 2.13")
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousTimeout
    from torch.distributed.launcher.api import LaunchConfig

    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=1)
    assert SECONDS["static rendezvous"] == config.rdzv_configs["timeout"]
    assert SECONDS["c10d join"] == RendezvousTimeout().join.total_seconds()
    assert SECONDS["c10d last call"] == RendezvousTimeout().last_call.total_seconds()
    assert SECONDS["store"] == torch.distributed.HashStore().timeout.total_seconds()
    assert SECONDS["process group, gloo"] == constants.default_pg_timeout.total_seconds()
    agent = elastic.agent.server.api.SimpleElasticAgent.__init__
    assert SECONDS["exit barrier"] == agent.__defaults__[0]


@pytest.mark.parametrize("stage", starts.STAGES, ids=lambda stage: stage["name"])
def test_a_stage_says_where_its_time_out_stands(stage):
    """Gloo's source does not come with torch; `timeout_ * 5` was measured."""
    if not torch.__version__.startswith("2.13.") or stage["file"].startswith("third_party/"):
        pytest.skip("not the torch that the stages are of, or not a file of it")
    assert stage["constant"] in (Path(torch.__file__).parent / stage["file"]).read_text()
