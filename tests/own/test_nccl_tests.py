"""A log of nccl-tests says by its bandwidths how many ranks it had, and becomes a cluster's file for the planner."""

import json
import re

import pytest

from shardlab.costs.facts import hardware, machines, models, nodes
from shardlab.costs.planning import planner, plans
from shardlab.files import described, project
from shardlab.own import nccl_tests
from shardlab.own.__main__ import main
from shardlab.plan.__main__ import main as plan
from tests.costs.facts.test_hugging_face import LLAMA

SHARE = {"all_reduce": lambda n: 2 * (n - 1) / n, "all_gather": lambda n: (n - 1) / n, "sendrecv": lambda n: 1}


def log(op, ranks, *, listed=0, hosts=1, sizes=(2**20, 2**30), in_place=True):
    """What a test prints, for a time of 1 us + bytes / (400 GB/s)."""
    lines = [f"#  Rank {i:2} Group  0 Pid  9 on  host{i % hosts} device  {i} [0x1b] H100" for i in range(listed)]
    lines += [f"# Collective test starting: {op}_perf", "#       size         count      type   redop    root     time"]
    for size in sizes:
        us = 1 + size / 400e3
        algorithm = size / us / 1e3
        part = f"{us:.2f} {algorithm:.2f} {algorithm * SHARE[op](ranks):.2f} 0 "
        lines.append(f"{size} {size // 4} float sum -1 {part * (1 + in_place)}")
    return "\n".join([*lines, "# Out of bounds values : 0 OK", ""])


@pytest.mark.parametrize("op", ["all_reduce", "all_gather"])
@pytest.mark.parametrize("ranks", [2, 8, 96])
@pytest.mark.parametrize("in_place", [True, False])
def test_ranks_are_those_of_the_table_and_not_of_its_header(op, ranks, in_place):
    (found,) = nccl_tests.read(log(op, ranks, listed=64, hosts=8, in_place=in_place))
    assert (found.op, found.ranks, found.nodes) == (op, ranks, 8)


def test_many_ranks_are_told_by_the_list_of_devices_and_not_by_two_digits_alone():
    assert nccl_tests.read(log("all_reduce", 1440, listed=1440))[0].ranks == 1440
    for listed in (0, 64):
        with pytest.raises(ValueError, match="on unknown ranks"):
            nccl_tests.read(log("all_reduce", 1440, listed=listed))


def test_several_tables_of_a_log():
    found = nccl_tests.read(log("all_reduce", 8) + log("all_gather", 4) + log("all_gather", 2))
    assert [(each.op, each.ranks) for each in found] == [("all_reduce", 8), ("all_gather", 4), ("all_gather", 2)]


@pytest.mark.parametrize(("op", "steps", "share"), [("all_reduce", 14, 2 * 7 / 8), ("all_gather", 7, 7 / 8)])
def test_alpha_is_of_one_step_and_beta_the_bus_bandwidth(op, steps, share):
    (found,) = nccl_tests.read(log(op, 8, sizes=(1000, 2**30)))
    assert found.alpha == pytest.approx(1e-6 / steps, rel=0.01)
    assert found.beta == pytest.approx(share * 400e9, rel=0.01)


ROW = "8 2 float sum -1 {} 1.00 1.75 0 5.0 1.00 1.75 0"


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "no row"), ("all_reduce_perf\n1 2 3", "no row"), (ROW.format("5.0"), "the test 'unknown'")]
    + [(f"odd_perf\n{ROW.format('5.0')}", "the test 'odd'")]
    + [(f"all_reduce_perf\n{ROW.format(word)}", f"{word} as a time") for word in ("nan", "inf", "0", "-3", "x")]
    + [(f"all_reduce_perf\n{'9' * 40}{ROW.format('1')}", "no row"), ("sendrecv_perf\n" + ROW.format("5.0"), "no rate")],
)
def test_what_is_no_table_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        nccl_tests.read(text)


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


def test_a_ring_through_one_gpu_of_each_node_says_nothing_of_all_cards():
    found = nccl_tests.read(log("all_reduce", 8, listed=8, hosts=8))
    with pytest.raises(ValueError, match=r"8 ranks on 8 nodes do not use all 8 GPUs .*; pass a log of 64 ranks"):
        nccl_tests.toml(found, nodes.cluster("DGX H100", 8))


def test_the_rates_of_the_books_logs_choose_another_plan(tmp_path):
    """The numbers of the page on interconnects; the first table is the one on collectives, too."""
    pages = [(project.BOOK / f"{page}.md").read_text() for page in ("collectives", "interconnects")]
    one, both = (nccl_tests.read(re.search(r'logs? = """(.*?)"""', page, re.DOTALL)[1]) for page in pages)
    assert one == both[:1]
    for found, ranks, alpha, beta in zip(both, (8, 16), (5e-6, 12e-6), (340e9, 100e9), strict=True):
        assert found.ranks == ranks
        assert [found.alpha, found.beta] == pytest.approx([alpha, beta], rel=5e-3)
    sold = nodes.cluster("DGX H100", 2)
    (tmp_path / "ours.toml").write_text(nccl_tests.toml(both, sold))
    ours = machines.read(described.read_toml(tmp_path / "ours.toml")).cluster
    spec = models.published("Llama 3 8B").spec
    first, then = (planner.search(plans.Question(spec=spec, cluster=each, batch=64)) for each in (sold, ours))
    assert first.best.name.startswith("dp 16, ZeRO-3")
    assert then.best.name.startswith("tp 2, dp 8")
    again = next(plan for plan in then.fitting if plan.name == first.best.name)
    assert again.seconds / then.best.seconds == pytest.approx(1.025, abs=5e-4)
