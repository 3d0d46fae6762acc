"""A log of nccl-tests becomes two numbers, and a cluster's file that the planner takes."""

import json

import pytest

from shardlab.costs.facts import hardware, machines, nodes
from shardlab.files import described
from shardlab.own import nccl_tests, rates
from shardlab.own.__main__ import main
from shardlab.plan.__main__ import main as plan
from tests.costs.facts.test_hugging_face import LLAMA

from .test_nccl_tests import log


@pytest.mark.parametrize(("op", "steps", "share"), [("all_reduce", 14, 2 * 7 / 8), ("all_gather", 7, 7 / 8)])
def test_alpha_is_of_one_step_and_beta_the_bus_bandwidth(op, steps, share):
    (table,) = nccl_tests.read(log(op, 8, sizes=(1000, 2**30)))
    found = rates.rates(table)
    assert found.alpha == pytest.approx(1e-6 / steps, rel=0.01)
    assert found.beta == pytest.approx(share * 400e9, rel=0.01)


def test_the_written_file_is_accepted_by_the_planner_and_has_the_rate(tmp_path, capsys):
    (tmp_path / "log").write_text(log("all_gather", 8) + log("all_gather", 16))
    words = [str(tmp_path / "log"), "--node", "DGX H100", "--write-cluster", str(tmp_path / "ours.toml")]
    assert main(words) == 0
    assert "all_gather of 16 ranks: alpha" in capsys.readouterr().out
    cluster = machines.read(described.read_toml(tmp_path / "ours.toml")).cluster
    reached = hardware.LINK_UTILISATION * nodes.rates_of_a_gpu(cluster.node)["NVLink"]
    assert reached == pytest.approx(350e9, rel=0.01)
    assert hardware.LINK_UTILISATION * cluster.node.network_bandwidth == pytest.approx(375e9, rel=0.01)
    assert cluster.num_nodes == 2
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "num_hidden_layers": 4}))
    at = ["--cluster", str(tmp_path / "ours.toml"), "--batch-tokens", "512K", "--sequence", "4096"]
    assert plan([str(tmp_path / "config.json"), *at]) == 0
    capsys.readouterr()
    assert main(words) == 2
    assert "name a new file" in capsys.readouterr().err
