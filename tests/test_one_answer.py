"""Questions that several parts of the book answer: one answer each."""

from dataclasses import replace

import pytest

from shardlab import project
from shardlab.costs import step
from shardlab.costs.compute import kernels
from shardlab.costs.expert_parallel import hiding_width
from shardlab.costs.facts import mixtures, nodes
from shardlab.costs.program import BF16, EXPERT_OVERLAPS
from shardlab.costs.programs import DEEPSEEK_2024
from shardlab.costs.step import axes, experts
from shardlab.costs.training import Training
from shardlab.explorers import expert_parallel
from shardlab.layout import Layout
from tests.explorers.views import number, table


@pytest.mark.parametrize("overlap", EXPERT_OVERLAPS)
def test_experts_of_deepseek_v3_take_as_long_in_the_explorer_on_the_page_and_in_a_step(overlap):
    """One layer on 8 servers with ep = 64. `experts.forward` is the page's; a step has 61 layers, there and back."""
    state = {"experts": 256, "per_token": 8, "ep": 64, "tokens": 8192, "overlap": overlap}
    training, servers = expert_parallel.training(**state), expert_parallel.cluster("DGX H100")
    page = experts.forward(training, servers)
    shown = table(expert_parallel.machine_view(**state, machine="DGX H100"))
    assert {part: number(shown[part][0]) for part in page} == pytest.approx(page, rel=0.01, abs=1e-9)
    alone = replace(training, layout=replace(training.layout, pp=1), imbalance=1.0)
    even = experts.forward(alone, servers)
    run = step.Run(training=alone, cluster=servers)
    travels = even["all-to-all, hidden"] + even["all-to-all, exposed"]
    waits = step.step(run).parts["expert parallel"] / 61
    assert even["all-to-all, exposed"] <= waits <= even["all-to-all, exposed"] + travels
    if overlap == "nothing":
        assert waits == pytest.approx(2 * travels)
    computes = step.microbatch(run, axes.links(servers, alone.layout)).forward
    assert sum(even[part] for part in EXPERT_OVERLAPS["another microbatch"]) == pytest.approx(computes)


def test_experts_of_published_models_are_as_wide_as_the_page_says_at_the_rate_of_products():
    """Behind another microbatch's experts: where a server suits all but one, and a network two."""
    page = (project.BOOK / "expert_parallel.md").read_text()
    assert "0.4 *" not in page
    assert "kernels.ordinary_flops(cluster.node.chip, precision)" in page
    widths = {name: each.spec.experts.expert_size for name, each in mixtures.PUBLISHED.items()}

    def narrow(cluster, ep, level, program):
        training = Training(spec=mixtures.published("DeepSeek-V3").spec, layout=Layout(dp=ep, ep=ep), program=program)
        rate, link = kernels.ordinary_flops(cluster.node.chip), axes.links(cluster, training.layout)[f"ep {level}"]
        needed = hiding_width(
            experts.exchange(training, cluster), program.expert_way, rate=rate, bandwidth=link.bandwidth, level=level
        )
        return {name for name, width in widths.items() if width < needed}

    servers, rack = nodes.cluster("DGX H100", 8), nodes.cluster("NVL72 rack")
    flat = replace(DEEPSEEK_2024, expert_way="flat", expert_nodes=None, expert_bytes=BF16)
    assert narrow(servers, 8, "inside", flat) == narrow(rack, 64, "inside", flat) == {"Qwen3-30B-A3B"}
    assert widths.keys() - narrow(servers, 64, "across", flat) == {"Mixtral 8x7B", "Mixtral 8x22B"}
    assert "DeepSeek-V3" in narrow(servers, 64, "across", DEEPSEEK_2024)
