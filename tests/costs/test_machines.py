import pytest

from shardlab.costs import hardware, machines
from shardlab.costs.data_parallel import step


@pytest.mark.parametrize("name", machines.NETWORKS)
def test_a_network_slows_where_a_second_server_begins(name):
    inside, between, cards = machines.NETWORKS[name]
    assert machines.network(name, 8) == hardware.link(inside)
    more = machines.network(name, 16)
    assert more.bandwidth == min(hardware.link(inside).bandwidth, cards * hardware.link(between).bandwidth)
    assert more.latency > hardware.link(inside).latency


def test_the_networks_are_in_order():
    rates = [machines.network(name, 16).bandwidth for name in machines.NETWORKS]
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize("name", machines.examples())
def test_every_example_fits_and_says_how_many_gpus_it_has(name):
    run = machines.examples()[name]
    assert step(run).fits
    assert name.startswith(f"{run.ranks} {run.chip.name.split(' SXM')[0].split(' 24')[0]}")


def test_an_unknown_network_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"wifi.*PCIe, 10 GbE"):
        machines.network("wifi", 2)
