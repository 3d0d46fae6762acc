"""Chips and links as their makers describe them: the rows of `chips.csv` and `links.csv`.

A row names its source, and the first lines of a table say what its columns mean: peaks are dense,
capacities are those of the data sheet in 10^9 bytes, and the bandwidth of a link is one direction,
for one GPU, where makers print the sum of both.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from shardlab.files.arguments import Count, Positive, checked

from ..units import us
from . import names, tables

# How a file for `machines` describes one that is not here.
OWN_CHIP = (
    'chip = {name = "ours", memory_GB = 96, memory_GB_per_s = 4000, TFLOPs = 148, watts = 500}'
)
TRAINING = ("bf16", "fp16", "fp32")  # precisions to train in, the best first


@dataclass(frozen=True, kw_only=True)
@checked
class Chip:
    """One accelerator, or the processor of a laptop."""

    name: str
    memory: Positive  # bytes
    memory_bandwidth: Positive  # bytes/s
    peaks: Mapping[str, Positive] = field(hash=False)  # precision -> FLOP/s
    nvlink: float = 0.0  # bytes/s in one direction, also of Infinity Fabric or ICI; 0: it has none
    pcie: Count | None = None  # generation of its 16 lanes; None: another link leads to the host
    power: Count | Positive | None  # watts: the maker's limit (TDP); None: not published
    generation: str | None = None  # such as "Hopper"; None: the chip has none of its own tables
    announced: str  # year-month
    source: str

    def __post_init__(self) -> None:
        if not self.peaks.keys() & TRAINING:
            raise ValueError(f"peaks={dict(self.peaks)} must name one of {', '.join(TRAINING)}")

    def peak(self, precision: str) -> float:
        """Return the FLOP/s in `precision`.

        Errors: ValueError that names the precisions of the chip.
        """
        if precision not in self.peaks:
            raise ValueError(f"{self.name} has no {precision}; use {', '.join(self.peaks)}")
        return self.peaks[precision]

    @property
    def precision(self) -> str:
        """The training precision: bf16 (16 bits, the range of fp32), else fp16, else fp32."""
        return next(name for name in TRAINING if name in self.peaks)

    @property
    def peak_flops(self) -> float:
        """FLOP/s in the training precision."""
        return self.peak(self.precision)


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
    # NVLinks of one GPU, whose rates add up to `bandwidth`; None: not told
    count: Count | None = None
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
NCCL = (
    "NCCL's tuning model, ring, Simple protocol: "
    "https://github.com/NVIDIA/nccl/blob/v2.26.2-1/src/graph/tuning.cc"
)
NVLINK_STEP, PCIE_STEP, NETWORK_STEP = 3.4 * us, 5.7 * us, 14.0 * us
# What the same model adds once for every kernel of that protocol, on any hardware.
LAUNCH = 8.4 * us
# The share of a link's rate that a collective is assumed to reach, the same for all links. NCCL's
# model has 20 of NVLink 3's 25 GB/s, 20.6 of NVLink 4's 25, 40.0 of NVLink 5's 50 and 12 of PCIe
# 3's 15.75: 0.76 to 0.82. For a network it has more, 12 of 12.5 GB/s (0.96); 0.8 is our assumption
# there, and leaves room for headers, TCP and other traffic.
# https://github.com/NVIDIA/nccl/blob/v2.26.2-1/src/graph/topo.h
# In an all-gather of 512 MB in one node, 8 GPUs reached 0.68 (A100), 0.74 (H100) and 0.69 (B200) of
# the rate that is sold, four 0.64, 0.71 and 0.63, and two 0.50, 0.57 and 0.49; an all-reduce on 8
# MI300X reached 0.70 (`published/recordings.csv`).
LINK_UTILISATION = 0.8
# The same by protocol: LL and LL128, which NCCL takes for short messages, and Simple. A step uses
# Simple alone; `collectives.library` the others, too.
PROTOCOL_STEPS = {
    "NVLink": {"LL": 0.6 * us, "LL128": 1.9 * us, "Simple": NVLINK_STEP},
    "PCIe": {"LL": 1.0 * us, "LL128": 2.5 * us, "Simple": PCIE_STEP},
    "network": {"LL": 2.7 * us, "LL128": 4.0 * us, "Simple": NETWORK_STEP},
}
CHIPS = {each.name: each for each in tables.rows("chips", Chip)}
LINKS = {each.name: each for each in tables.rows("links", Link)}


@checked
def chip(name: str) -> Chip:
    """Return the chip called `name`. Errors: ValueError that lists the known names."""
    if name not in CHIPS:
        way_out = f"a file for --cluster may hold its numbers: {OWN_CHIP}"
        raise names.unknown("chip", name, dict.fromkeys(CHIPS, ""), way_out)
    return CHIPS[name]


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
