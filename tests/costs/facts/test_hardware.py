"""Every chip and link has a source, and its peaks and bandwidths are those in print."""

import re

import pytest

from shardlab.costs.facts import hardware, models
from shardlab.costs.step import exposed
from shardlab.costs.training import Training
from shardlab.costs.units import GB
from shardlab.sharding.layout import Layout

EVERYTHING = [*hardware.CHIPS.values(), *hardware.LINKS.values()]
GPUS = [chip for chip in hardware.CHIPS.values() if "fp16" in chip.peaks]  # not a TPU, nor a laptop's processor


@pytest.mark.parametrize("fact", EVERYTHING, ids=lambda fact: fact.name)
def test_every_fact_has_its_source(fact):
    assert re.match(r"https://\S+", fact.source)
    assert not isinstance(fact, hardware.Link) or "https://" in fact.latency_source


@pytest.mark.parametrize("chip", hardware.CHIPS.values(), ids=lambda chip: chip.name)
def test_the_capacity_is_the_number_in_the_name(chip):
    assert chip.memory == int(re.search(r"(\d+) GB", chip.name)[1]) * GB
    assert re.fullmatch(r"20[12]\d-(0[1-9]|1[0-2])", chip.announced)


@pytest.mark.parametrize("chip", GPUS, ids=lambda chip: chip.name)
def test_peaks_are_dense_and_double_with_each_halving(chip):
    """Catches a sparse peak, a swapped line, fp16 sums: each would break a ratio by two."""
    assert 70 < chip.peak_flops / chip.memory_bandwidth < 380
    assert chip.peaks["fp16"] == chip.peaks.get("bf16", chip.peaks["fp16"])
    assert chip.peaks.get("tf32", 2 * chip.peaks["fp32"]) >= chip.peaks["fp32"]
    for wide, narrow in (("tf32", "bf16"), ("bf16", "fp8")):
        if wide in chip.peaks and narrow in chip.peaks:
            ratio = 17.5 / 4 if (chip.name, narrow) == ("Rubin 288 GB", "fp8") else 2  # as NVIDIA prints them
            assert chip.peaks[narrow] / chip.peaks[wide] == pytest.approx(ratio, rel=0.01)


UNPRINTED = {"Laptop CPU (Ryzen 7 5800H) 16 GB"}  # computed: see its note
# Without sparsity in NVIDIA's white papers, in TFLOP/s; Blackwell: half of what its pages print for 8 or 72 GPUs.
PRINTED = {
    ("V100 SXM2 32 GB", "fp16"): 125,
    ("A100 SXM 40 GB", "tf32"): 156,
    ("A100 SXM 80 GB", "bf16"): 312,
    ("A100 PCIe 80 GB", "bf16"): 312,
    ("H100 SXM 80 GB", "tf32"): 494.7,
    ("H100 SXM 80 GB", "fp8"): 1978.9,
    ("H100 PCIe 80 GB", "fp8"): 3026 / 2,
    ("H200 SXM 141 GB", "bf16"): 989.4,
    ("B200 SXM 180 GB", "bf16"): 36_000 / 8 / 2,
    ("B200 SXM 180 GB", "fp8"): 72_000 / 8 / 2,
    ("GB200 186 GB", "bf16"): 360_000 / 72 / 2,
    ("GB200 186 GB", "fp8"): 720_000 / 72 / 2,
    ("GB200 186 GB", "fp32"): 5760 / 72,
    ("B300 SXM 270 GB", "bf16"): 36_000 / 8 / 2,
    ("GB300 279 GB", "fp8"): 360_000 / 72,
    ("Rubin 288 GB", "tf32"): 2000,
    ("Rubin 288 GB", "bf16"): 4000,
    ("Rubin 288 GB", "fp8"): 17_500,
    ("MI300X 192 GB", "bf16"): 1307.4,
    ("MI355X 288 GB", "fp8"): 256 * 2.4e9 * 8192 / 1e12,
    ("MI355X 288 GB", "bf16"): 256 * 2.4e9 * 4096 / 1e12,
    ("TPU v6e 32 GB", "bf16"): 234.9e3 / 256,
    ("RTX 3090 24 GB", "bf16"): 71,
    ("RTX 4090 24 GB", "fp8"): 330.3,
}


@pytest.mark.parametrize(("chip", "precision"), PRINTED)
def test_peaks_are_those_that_are_printed(chip, precision):
    assert hardware.chip(chip).peak(precision) / 1e12 == pytest.approx(PRINTED[chip, precision], rel=1e-3)


def test_every_chip_has_a_printed_peak():
    assert hardware.CHIPS.keys() - {chip for chip, _ in PRINTED} == UNPRINTED


def test_a_chip_says_what_it_can_compute():
    volta, laptop = hardware.chip("V100 SXM2 32 GB"), hardware.chip("Laptop CPU (Ryzen 7 5800H) 16 GB")
    assert (volta.precision, volta.peak_flops) == ("fp16", 125e12)
    assert hardware.chip("H100 SXM 80 GB").precision == "bf16"
    assert (laptop.precision, laptop.peak_flops) == ("fp32", 8 * 3.2e9 * 32)
    with pytest.raises(ValueError, match=r"V100 SXM2 32 GB has no bf16; use fp32, fp16"):
        volta.peak("bf16")


@pytest.mark.parametrize(
    ("chip", "link"),
    [
        ("V100 SXM2 32 GB", "NVLink 2"),
        ("A100 SXM 80 GB", "NVLink 3"),
        ("H100 SXM 80 GB", "NVLink 4"),
        ("B200 SXM 180 GB", "NVLink 5"),
        ("GB200 186 GB", "NVLink 5"),
        ("B300 SXM 270 GB", "NVLink 5"),
        ("Rubin 288 GB", "NVLink 6"),
        ("MI300X 192 GB", "Infinity Fabric (MI300X)"),
        ("MI355X 288 GB", "Infinity Fabric (MI355X)"),
        ("TPU v6e 32 GB", "ICI (TPU v6e)"),
    ],
)
def test_nvlink_is_one_direction_and_agrees_with_the_link(chip, link):
    assert hardware.chip(chip).nvlink == hardware.link(link).bandwidth


@pytest.mark.parametrize("chip", [each for each in hardware.CHIPS.values() if each.nvlink], ids=lambda chip: chip.name)
def test_the_nvlinks_of_a_chip_can_be_counted(chip):
    """`nvidia-smi topo -m` numbers NVLinks: without their count none of them would become a wire."""
    (link,) = (each for each in hardware.LINKS.values() if each.kind != "host" and each.bandwidth == chip.nvlink)
    assert bool(link.count) == (link.kind == "NVLink")


def test_a_chip_knows_the_slot_to_its_host():
    assert hardware.host_link(hardware.chip("A100 SXM 80 GB")) == hardware.link("PCIe 4.0 x16")
    assert hardware.host_link(hardware.chip("V100 SXM2 32 GB")).bandwidth / GB == pytest.approx(15.75, rel=0.001)
    with pytest.raises(ValueError, match=r"GB200 186 GB has no PCIe slot.*some trays"):
        hardware.host_link(hardware.chip("GB200 186 GB"))


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("NVLink 4", 450),  # 900 GB/s is both directions
        ("PCIe 4.0 x16", 31.5),
        ("PCIe 5.0 x16", 63.0),
        ("PCIe 6.0 x16", 121.0),
        ("InfiniBand XDR", 100),  # 800 Gb/s
        ("Infinity Fabric (MI355X)", 537.6),  # 7 links
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


@pytest.mark.parametrize("kind", hardware.PROTOCOL_STEPS)
def test_latencies_are_those_of_the_protocol_for_long_messages(kind):
    """The protocols for short messages wait less: https://github.com/NVIDIA/nccl/blob/v2.26.2-1/src/graph/tuning.cc"""
    waits = hardware.PROTOCOL_STEPS[kind]
    assert waits["LL"] < waits["LL128"] < waits["Simple"]
    assert {link.latency for link in hardware.LINKS.values() if link.kind == kind} == {waits["Simple"]}


def test_a_pcie_card_is_a_slower_chip_than_the_module_of_its_name():
    for name in ("A100", "H100"):
        card, module = hardware.chip(f"{name} PCIe 80 GB"), hardware.chip(f"{name} SXM 80 GB")
        assert card.memory_bandwidth < module.memory_bandwidth
        assert card.peak_flops <= module.peak_flops
        assert card.power < module.power
    assert 2 * hardware.chip("H100 PCIe 80 GB").peak_flops == 1513e12  # the data sheet's, with sparsity


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"H1000.*H100 SXM 80 GB"):
        hardware.chip("H1000")
    with pytest.raises(ValueError, match=r"NVLink 9.*NVLink 4"):
        hardware.link("NVLink 9")
    assert hardware.chip("B200 SXM 180 GB").name == "B200 SXM 180 GB"


def test_a_rate_is_reduced_once_and_what_is_sold_times_no_step():
    sold = hardware.link("NVLink 4")
    assert sold.reached.bandwidth == hardware.LINK_UTILISATION * sold.bandwidth
    assert sold.reached.reached == sold.reached
    training = Training(spec=models.published("GPT-2 XL").spec, layout=Layout(tp=5))
    with pytest.raises(ValueError, match="must be a ReachedLink"):
        exposed.gather_seconds(training, sold)
    assert exposed.gather_seconds(training, sold.reached) > 0
