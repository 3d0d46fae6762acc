"""Every example machine is made of parts that exist, and a network is its link times its ranks."""

import re
from dataclasses import replace

import pytest

from shardlab.costs import step
from shardlab.costs.data_parallel import machines, scaling
from shardlab.costs.facts import hardware, models, recipes
from shardlab.costs.step import axes

PARTS = {  # the link inside, the link between, and how many cards
    "NVLink, 8 InfiniBand cards": ("NVLink 4", "InfiniBand NDR", 8),
    "PCIe, 1 InfiniBand card": ("PCIe 5.0 x16", "InfiniBand NDR", 1),
    "PCIe, 100 GbE": ("PCIe 5.0 x16", "100 GbE", 1),
    "PCIe, 25 GbE": ("PCIe 5.0 x16", "25 GbE", 1),
    "PCIe, 10 GbE": ("PCIe 5.0 x16", "10 GbE", 1),
}


def link(name, ranks):
    return axes.link(machines.cluster(name, ranks), 1, ranks)


@pytest.mark.parametrize("ranks", [2, 8, 16, 64])
@pytest.mark.parametrize("name", machines.NETWORKS)
def test_a_network_is_what_the_formula_makes_of_its_parts(name, ranks):
    """Rings laid over the wires of every server, against a formula that knows the parts only."""
    *links, cards = PARTS[name]
    inside, between = map(hardware.link, links)
    rate, latency, slowest = inside.bandwidth, inside.latency, inside.slowest_hop
    if ranks > 8:  # one hop in eight leaves the server, and all its cards carry one all-reduce together
        rate = min(rate, cards * between.bandwidth)
        latency = (7 * latency + between.latency) / 8
        slowest = max(inside.latency, between.latency)
    found = link(name, ranks)
    assert (found.bandwidth, found.latency) == pytest.approx((0.8 * rate, latency))
    assert found.slowest_hop == slowest


@pytest.mark.parametrize("name", machines.NETWORKS)
def test_a_chip_is_only_on_the_link_it_exists_with(name):
    kind, chip = name.split(",")[0], machines.cluster(name, 1).node.chip.name
    assert {"NVLink": "SXM", "PCIe": "PCIe"}[kind] in chip


def test_the_networks_are_in_order():
    rates = [link(name, 16).bandwidth for name in machines.NETWORKS]
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize("name", machines.examples())
def test_every_example_fits_and_says_how_many_gpus_it_has(name):
    run = machines.examples()[name]
    assert step.step(run).fits
    chip = run.cluster.node.chip.name
    assert name.startswith(f"{run.training.layout.dp} {re.split(' SXM| PCIe| 24', chip)[0]}, ")
    assert ("SXM" in chip) == ("NVLink" in name or "InfiniBand" in name)
    assert "RTX" not in name or "GbE" in name  # its driver allows no direct way to a second one in the same machine


def test_the_examples_differ_only_in_the_machine():
    runs = machines.examples().values()
    medium = models.published("GPT-2 medium").spec
    assert all((run.training.spec, run.training.tokens) == (medium, 8192) for run in runs)
    enough = {run: run.training.tokens > scaling.tokens_needed(run) for run in runs}
    shares = {run: scaling.communication_share(run)["with overlap"] for run in runs}
    most_hidden = max(shares[run] for run in runs if enough[run])
    least_hidden = min(shares[run] for run in runs if not enough[run])
    assert most_hidden < 0.1 < least_hidden


def test_gradients_of_more_bytes_need_more_tokens():
    run = machines.examples()["8 H100, PCIe"]
    fp32 = replace(run, training=replace(run.training, recipe=recipes.recipe("mixed, fp32 gradients")))
    assert scaling.tokens_needed(fp32) == pytest.approx(2 * scaling.tokens_needed(run), rel=1e-3)


def test_an_unknown_network_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"wifi.*PCIe, 10 GbE"):
        machines.cluster("wifi", 2)
