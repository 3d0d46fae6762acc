import re

import pytest

from shardlab.costs import hardware
from shardlab.costs.units import GB

EVERYTHING = [*hardware.CHIPS.values(), *hardware.LINKS.values()]


@pytest.mark.parametrize("fact", EVERYTHING, ids=lambda fact: fact.name)
def test_every_fact_has_its_source(fact):
    assert re.match(r"https://\S+", fact.source)
    assert not isinstance(fact, hardware.Link) or "https://" in fact.latency_source


@pytest.mark.parametrize("chip", hardware.CHIPS.values(), ids=lambda chip: chip.name)
def test_the_capacity_is_the_number_in_the_name(chip):
    """Catches a capacity in GiB, a swapped line, a sparse peak: peak / bandwidth is 130 to 380 on these chips."""
    assert chip.memory == int(re.search(r"(\d+) GB", chip.name)[1]) * GB
    assert 130 < chip.peak_flops / chip.memory_bandwidth < 380


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("NVLink 4", 450),  # 900 GB/s is both directions
        ("PCIe 4.0 x16", 31.5),
        ("PCIe 5.0 x16", 63.0),
        ("InfiniBand NDR", 50),  # 400 Gb/s; 8 of them are the 3.2 Tb/s of an H100 server
        ("10 GbE", 1.25),
    ],
)
def test_bandwidths_are_bytes_in_one_direction(name, gigabytes):
    assert hardware.link(name).bandwidth / GB == pytest.approx(gigabytes, rel=0.001)


def test_the_utilisation_of_links_is_what_nccl_counts_on():
    """Rates of one link in GB/s: nominal, and in https://github.com/NVIDIA/nccl/blob/v2.26.2-1/src/graph/topo.h"""
    for nominal, counted_on in [(25, 20.0), (25, 20.6), (50, 40.0), (15.75, 12.0)]:
        assert counted_on / nominal == pytest.approx(hardware.LINK_UTILISATION, abs=0.05)
    assert hardware.LINK_UTILISATION < 12.0 / 12.5  # of a network, where ours is the careful guess


def test_a_pcie_card_is_a_slower_chip_than_the_module_of_its_name():
    for name in ("A100", "H100"):
        card, module = hardware.chip(f"{name} PCIe 80 GB"), hardware.chip(f"{name} SXM 80 GB")
        assert card.memory_bandwidth < module.memory_bandwidth
        assert card.peak_flops <= module.peak_flops
    assert 2 * hardware.chip("H100 PCIe 80 GB").peak_flops == 1513e12  # the data sheet's, with sparsity


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"H1000.*H100 SXM 80 GB"):
        hardware.chip("H1000")
    with pytest.raises(ValueError, match=r"NVLink 9.*NVLink 4"):
        hardware.link("NVLink 9")
    assert hardware.chip("B200 SXM 180 GB").name == "B200 SXM 180 GB"
