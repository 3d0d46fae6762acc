"""Chips and links as their makers describe them; the chips are in `chips`.

The bandwidth of a link is one direction, for one GPU. Makers of GPUs print the sum of both
directions.
"""

from dataclasses import dataclass, fields

from shardlab.files.arguments import Positive, checked

from ..units import GB, Gbit, us
from . import names
from .chips import CHIPS, Chip, chip

__all__ = [
    "CHIPS",
    "LAUNCH",
    "LINKS",
    "LINK_UTILISATION",
    "NCCL",
    "Chip",
    "Link",
    "ReachedLink",
    "chip",
    "host_link",
    "link",
]


@dataclass(frozen=True, kw_only=True)
@checked
class Link:
    """A connection over which a rank sends its messages."""

    name: str
    # "NVLink", "Infinity Fabric", "ICI", "PCIe", "host" (to or between processors), "network"
    # (between nodes)
    kind: str
    bandwidth: Positive  # bytes/s, one direction, per GPU
    latency: float  # seconds of one step of a collective, for the shortest message
    source: str
    latency_source: str
    # Latency of the slowest hop, where `latency` is an average over unequal hops.
    longest_latency: float | None = None
    # The share of `bandwidth` at which a switch adds what passes it; 0: none joins all ranks.
    adds: float = 0.0

    @property
    def slowest_hop(self) -> float:
        """Seconds of one step over the slowest hop."""
        return self.latency if self.longest_latency is None else self.longest_latency

    @property
    def reached(self) -> "ReachedLink":
        """The link at the rate that collectives reach: `LINK_UTILISATION` of what is sold."""
        sold = {field.name: getattr(self, field.name) for field in fields(self)}
        return ReachedLink(**sold | {"bandwidth": LINK_UTILISATION * self.bandwidth})


@dataclass(frozen=True, kw_only=True)
@checked
class ReachedLink(Link):
    """A link at the rate that collectives reach; what is sold as `Link` never times a step."""

    @property
    def reached(self) -> "ReachedLink":
        """The link itself: its rate is not reduced twice."""
        return self


# NCCL's own performance model, ring algorithm, "Simple" protocol: microseconds for each step over
# each kind of hardware. For its tree the model has 4.0, 4.0 and 14.
NCCL = "NCCL's tuning model, ring, Simple protocol: https://github.com/NVIDIA/nccl/blob/v2.26.2-1/src/graph/tuning.cc"
NVLINK_STEP, PCIE_STEP, NETWORK_STEP = 3.4 * us, 5.7 * us, 14.0 * us
# What the same model adds once for every kernel of that protocol, on any hardware.
LAUNCH = 8.4 * us
# The share of a link's rate that a collective is assumed to reach, the same for all links. NCCL's
# model has 20 of NVLink 3's 25 GB/s, 20.6 of NVLink 4's 25, 40.0 of NVLink 5's 50 and 12 of PCIe
# 3's 15.75: 0.76 to 0.82. For a network it has more, 12 of 12.5 GB/s (0.96); 0.8 is our assumption
# there, and leaves room for headers, TCP and other traffic.
# https://github.com/NVIDIA/nccl/blob/v2.26.2-1/src/graph/topo.h
LINK_UTILISATION = 0.8
# The same by protocol: LL and LL128, which NCCL takes for short messages, and Simple. No formula of
# ours uses the first two.
PROTOCOL_STEPS = {
    "NVLink": {"LL": 0.6 * us, "LL128": 1.9 * us, "Simple": NVLINK_STEP},
    "PCIe": {"LL": 1.0 * us, "LL128": 2.5 * us, "Simple": PCIE_STEP},
    "network": {"LL": 2.7 * us, "LL128": 4.0 * us, "Simple": NETWORK_STEP},
}
ICI_STEP = 1.0 * us
TCP_NOTE = (
    " (for any network; through Linux's TCP, 10 µs one way is the best case for a message between "
    "two programs: Larsen et al. 2009, doi:10.1007/s10766-009-0109-6)"
)


def _nvlink(name: str, both_directions: float, source: str) -> Link:
    return Link(
        name=name,
        kind="NVLink",
        bandwidth=both_directions / 2,
        latency=NVLINK_STEP,
        source=f"{source} ({both_directions / GB:g} GB/s is both directions of all links "
        "of one GPU)",
        latency_source=NCCL,
    )


def _infinity_fabric(name: str, both_directions: float, source: str) -> Link:
    latency_source = f"{NCCL} (that of NVLink: our assumption)"
    return Link(
        name=name,
        kind="Infinity Fabric",
        bandwidth=both_directions / 2,
        latency=NVLINK_STEP,
        source=f"{source} ({both_directions / GB:g} GB/s: both directions of a GPU's seven links)",
        latency_source=latency_source,
    )


def _pcie(
    generation: int, transfers: float, data: float = 128 / 130, note: str = "128b/130b encoding"
) -> Link:
    return Link(
        name=f"PCIe {generation}.0 x16",
        kind="PCIe",
        # 16 lanes, 1 bit a transfer, of which this share is data.
        bandwidth=transfers * 16 * data / 8,
        latency=PCIE_STEP,
        source=f"https://pcisig.com/faq ({note}; per lane and direction)",
        latency_source=NCCL,
    )


def _network(name: str, rate: float, source: str, note: str = "") -> Link:
    latency_source = NCCL + note
    return Link(
        name=name,
        kind="network",
        bandwidth=rate,
        latency=NETWORK_STEP,
        source=source,
        latency_source=latency_source,
    )


def _host(name: str, rate: float, source: str) -> Link:
    return Link(
        name=name,
        kind="host",
        bandwidth=rate,
        latency=PCIE_STEP,
        source=source,
        latency_source=NCCL,
    )


_IB = "https://www.infinibandta.org/infiniband-roadmap/ (4 lanes; one port per GPU)"
_ETHERNET = (
    "https://ethernetalliance.org/technology/ethernet-roadmap/ (line rate, one port per GPU)"
)
_AWS = "https://docs.aws.amazon.com/ec2/latest/instancetypes/ac.html (one network card with EFA)"
_SOCKETS = "https://github.com/NVIDIA/nccl/blob/v2.26.2-1/src/graph/topo.h: what NCCL counts on between GPUs of two processors, less than the links' own rate"

LINKS: dict[str, Link] = {
    link.name: link
    for link in (
        _nvlink(
            "NVLink 1",
            160 * GB,
            "https://images.nvidia.com/content/pdf/tesla/whitepaper/pascal-architecture-whitepaper.pdf",
        ),
        _nvlink("NVLink 2", 300 * GB, CHIPS["V100 SXM2 32 GB"].source),
        _nvlink("NVLink 3", 600 * GB, CHIPS["A100 SXM 80 GB"].source),
        _nvlink("NVLink 4", 900 * GB, "https://www.nvidia.com/en-us/data-center/h100/"),
        _nvlink(
            "NVLink 4 (H800)",
            400 * GB,
            "https://arxiv.org/abs/2505.09343, section 4.1",
        ),
        _nvlink("NVLink 5", 1800 * GB, "https://www.nvidia.com/en-us/data-center/dgx-b200/"),
        _nvlink(
            "NVLink bridge (GeForce)",
            112.5 * GB,
            "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.1.pdf",
        ),
        _pcie(3, 8e9),
        _pcie(4, 16e9),
        _pcie(5, 32e9),
        _pcie(6, 64e9, 242 / 256, "flits of 256 bytes, 14 of them checksum and error correction"),
        _infinity_fabric("Infinity Fabric (MI300X)", 7 * 128 * GB, CHIPS["MI300X 192 GB"].source),
        _infinity_fabric("Infinity Fabric (MI355X)", 7 * 153.6 * GB, CHIPS["MI355X 288 GB"].source),
        Link(
            name="ICI (TPU v6e)",
            kind="ICI",
            bandwidth=800 * GB / 2,
            latency=ICI_STEP,
            source=CHIPS["TPU v6e 32 GB"].source,
            latency_source="https://astra-sim.github.io/astra-sim-docs/validation/hardware/tpu-validation.html (1 µs a link, told of TPU v3)",
        ),
        _host(
            "NVLink-C2C",
            450 * GB,
            "https://www.nvidia.com/en-us/data-center/gb200-nvl72/ (900 GB/s is both directions; one Grace with its GPUs)",
        ),
        _host("sockets (Broadwell)", 6 * GB, _SOCKETS),
        _host("sockets (Skylake)", 10 * GB, _SOCKETS),
        _host("sockets (Sapphire Rapids)", 22 * GB, _SOCKETS),
        _host("sockets (AMD)", 16 * GB, _SOCKETS),
        _network("InfiniBand EDR", 100 * Gbit, _IB),
        _network("InfiniBand HDR", 200 * Gbit, _IB),
        _network("InfiniBand NDR", 400 * Gbit, _IB),
        _network("InfiniBand XDR", 800 * Gbit, _IB),
        _network("EFA 100 Gb/s", 100 * Gbit, _AWS),
        _network("EFA 200 Gb/s", 200 * Gbit, _AWS),
        _network("10 GbE", 10 * Gbit, _ETHERNET, TCP_NOTE),
        _network("25 GbE", 25 * Gbit, _ETHERNET, TCP_NOTE),
        _network("100 GbE", 100 * Gbit, _ETHERNET, TCP_NOTE),
        _network("200 GbE", 200 * Gbit, _ETHERNET, TCP_NOTE),
        _network("400 GbE", 400 * Gbit, _ETHERNET, TCP_NOTE),
    )
}


@checked
def link(name: str) -> Link:
    """Return the link called `name`. Errors: ValueError that lists the known names."""
    if name not in LINKS:
        raise names.unknown("link", name, dict.fromkeys(LINKS, ""))
    return LINKS[name]


@checked
def host_link(chip: Chip) -> Link:
    """Return the PCIe slot between a chip and its host.

    Errors: ValueError for a chip without one.
    """
    if chip.pcie is None:
        raise ValueError(
            f"{chip.name} has no PCIe slot to its host, so its wires are not those of a server; "
            'use a node that is known, or of GB200 and GB300 some trays: node = "NVL72 rack" and '
            "gpus = 64 in a file for --cluster"
        )
    return link(f"PCIe {chip.pcie}.0 x16")
