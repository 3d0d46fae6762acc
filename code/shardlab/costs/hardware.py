"""Chips and links as their makers describe them: facts with a source, no arithmetic beyond units.

Conventions, the same for every entry:
- FLOP/s are dense (never "with sparsity"), for 16-bit inputs and 32-bit accumulation;
- the capacity of a chip is the number on its data sheet, read as 10^9 bytes. `nvidia-smi` shows 3 to 7 % more (the makers
  count in GiB); that difference is left to the CUDA context, NCCL's buffers and fragmentation;
- the bandwidth of a link is one direction, of one GPU. Makers of GPUs print both directions added up.
"""

from dataclasses import dataclass

from .units import GB, TB, TFLOP, Gbit, us


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One accelerator."""

    name: str
    memory: float  # bytes
    memory_bandwidth: float  # bytes/s
    peak_flops: float  # FLOP/s, dense, 16-bit inputs, 32-bit accumulation
    precision: str  # the 16-bit format meant
    source: str


@dataclass(frozen=True, kw_only=True)
class Link:
    """What a rank sends its messages over."""

    name: str
    bandwidth: float  # bytes/s, one direction, per GPU
    latency: float  # seconds for one step of a collective, however short the message
    source: str
    latency_source: str
    longest_latency: float | None = None  # of the slowest hop, where `latency` is an average over unlike hops

    @property
    def slowest_hop(self) -> float:
        """Seconds for one step over the slowest hop."""
        return self.latency if self.longest_latency is None else self.longest_latency


CHIPS: dict[str, Chip] = {
    chip.name: chip
    for chip in (
        Chip(
            name="V100 SXM2 32 GB",
            memory=32 * GB,
            memory_bandwidth=900 * GB,
            peak_flops=125 * TFLOP,
            precision="fp16",  # Volta has no bf16
            source="https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf",
        ),
        Chip(
            name="A100 SXM 40 GB",
            memory=40 * GB,
            memory_bandwidth=1555 * GB,
            peak_flops=312 * TFLOP,
            precision="bf16",
            source="https://images.nvidia.com/aem-dam/en-zz/Solutions/data-center/nvidia-ampere-architecture-whitepaper.pdf",
        ),
        Chip(
            name="A100 SXM 80 GB",
            memory=80 * GB,
            memory_bandwidth=2039 * GB,
            peak_flops=312 * TFLOP,
            precision="bf16",
            source="https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf (dense; the starred figure, 624, is with sparsity)",
        ),
        Chip(
            name="A100 PCIe 80 GB",
            memory=80 * GB,
            memory_bandwidth=1935 * GB,
            peak_flops=312 * TFLOP,
            precision="bf16",
            source="https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf (dense; the starred figure, 624, is with sparsity)",
        ),
        Chip(
            name="H100 SXM 80 GB",
            memory=80 * GB,
            memory_bandwidth=3.35 * TB,
            peak_flops=989.4 * TFLOP,
            precision="bf16",
            source="https://resources.nvidia.com/en-us-tensor-core/gtc22-whitepaper-hopper (dense; the data sheet's 1,979 is with sparsity)",
        ),
        Chip(
            name="H100 PCIe 80 GB",
            memory=80 * GB,
            memory_bandwidth=2 * TB,
            peak_flops=756.5 * TFLOP,
            precision="bf16",
            source="https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet (dense: half of the 1,513 printed with sparsity)",
        ),
        Chip(
            name="H200 SXM 141 GB",
            memory=141 * GB,
            memory_bandwidth=4.8 * TB,
            peak_flops=989.4 * TFLOP,
            precision="bf16",
            source="https://www.nvidia.com/en-us/data-center/h200/ (same chip as the H100, whose white paper gives 989.4 dense; half of the 1,979 printed here with sparsity is 989.5)",
        ),
        Chip(
            name="B200 SXM 180 GB",
            memory=180 * GB,
            memory_bandwidth=8 * TB,
            peak_flops=2250 * TFLOP,
            precision="bf16",
            source="https://www.nvidia.com/en-us/data-center/dgx-b200/ (8 GPUs: 1,440 GB and 64 TB/s) and https://www.nvidia.com/en-us/data-center/hgx/ (8 GPUs: 36 PFLOPS bf16 with sparsity, so 18 dense); 7.7 TB/s is in print too, from the width and clock its driver reports: https://github.com/pytorch/ao/pull/4002",
        ),
        Chip(
            name="RTX 4090 24 GB",
            memory=24 * GB,
            memory_bandwidth=1008 * GB,
            peak_flops=165.2 * TFLOP,
            precision="bf16",
            source="https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf (dense, fp32 accumulate; 330.3 is with sparsity or with fp16 accumulate)",
        ),
    )
}

# NCCL's own performance model, ring algorithm, "Simple" protocol: microseconds for each step over each kind of hardware.
# (For its tree: 4.0, 4.0 and 14.)
NCCL = "NCCL's tuning model, ring, Simple protocol: https://github.com/NVIDIA/nccl/blob/v2.26.2-1/src/graph/tuning.cc"
NVLINK_STEP, PCIE_STEP, NETWORK_STEP = 3.4 * us, 5.7 * us, 14.0 * us
# The share of a link's rate that a collective is assumed to reach: one number for all links. NCCL's model counts on 20 of
# NVLink 3's 25 GB/s, 20.6 of NVLink 4's 25, 40.0 of NVLink 5's 50 and 12 of PCIe 3's 15.75: 0.76 to 0.82. For a network it
# counts on more, 12 of 12.5 GB/s (0.96); 0.8 is our assumption there, and leaves room for headers, TCP and other traffic.
# https://github.com/NVIDIA/nccl/blob/v2.26.2-1/src/graph/topo.h
LINK_UTILISATION = 0.8
TCP_NOTE = " (for any network; through Linux's TCP, 10 µs one way is the best case for a message between two programs: Larsen et al. 2009, doi:10.1007/s10766-009-0109-6)"


def _nvlink(generation: int, both_directions: float, source: str) -> Link:
    return Link(
        name=f"NVLink {generation}",
        bandwidth=both_directions / 2,
        latency=NVLINK_STEP,
        source=f"{source} ({both_directions / GB:.0f} GB/s is both directions of all links of one GPU)",
        latency_source=NCCL,
    )


def _pcie(generation: int, transfers: float) -> Link:
    return Link(
        name=f"PCIe {generation}.0 x16",
        bandwidth=transfers * 16 * 128 / 130 / 8,  # 16 lanes, 1 bit a transfer, 128 of 130 bits are data
        latency=PCIE_STEP,
        source="https://pcisig.com/faq (128b/130b encoding; per lane and direction)",
        latency_source=NCCL,
    )


def _network(name: str, rate: float, source: str, note: str = "") -> Link:
    return Link(name=name, bandwidth=rate, latency=NETWORK_STEP, source=source, latency_source=NCCL + note)


_IB = "https://www.infinibandta.org/infiniband-roadmap/ (4 lanes; one port per GPU)"
_ETHERNET = "https://ethernetalliance.org/technology/ethernet-roadmap/ (line rate, one port per GPU)"

LINKS: dict[str, Link] = {
    link.name: link
    for link in (
        _nvlink(2, 300 * GB, CHIPS["V100 SXM2 32 GB"].source),
        _nvlink(3, 600 * GB, CHIPS["A100 SXM 80 GB"].source),
        _nvlink(4, 900 * GB, "https://www.nvidia.com/en-us/data-center/h100/"),
        _nvlink(5, 1800 * GB, "https://www.nvidia.com/en-us/data-center/dgx-b200/"),
        _pcie(3, 8e9),
        _pcie(4, 16e9),
        _pcie(5, 32e9),
        _network("InfiniBand HDR", 200 * Gbit, _IB),
        _network("InfiniBand NDR", 400 * Gbit, _IB),
        _network("10 GbE", 10 * Gbit, _ETHERNET, TCP_NOTE),
        _network("25 GbE", 25 * Gbit, _ETHERNET, TCP_NOTE),
        _network("100 GbE", 100 * Gbit, _ETHERNET, TCP_NOTE),
        _network("400 GbE", 400 * Gbit, _ETHERNET, TCP_NOTE),
    )
}


def chip(name: str) -> Chip:
    """The chip of that name. Errors: ValueError that lists the known names."""
    if name not in CHIPS:
        raise ValueError(f"no facts about the chip {name!r}; known: {', '.join(CHIPS)}")
    return CHIPS[name]


def link(name: str) -> Link:
    """The link of that name. Errors: ValueError that lists the known names."""
    if name not in LINKS:
        raise ValueError(f"no facts about the link {name!r}; known: {', '.join(LINKS)}")
    return LINKS[name]
