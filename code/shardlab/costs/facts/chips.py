"""Chips as their makers describe them: facts with a source, no arithmetic beyond units.

Conventions, the same for every entry:
- peaks are dense (never "with sparsity"), and sums are kept in fp32, also for 16-bit and 8-bit
  inputs. "fp32" are the ordinary cores; "tf32" are the tensor cores, which round fp32 inputs to 10
  bits of fraction;
- the capacity is the number on the data sheet, read as 10^9 bytes. `nvidia-smi` shows 3 to 7 % more
  (the makers count in GiB); that difference is a reserve, beside what `memory.overhead` counts;
- NVLink is one direction, all links of one chip. Makers print the sum of both directions. AMD's
  Infinity Fabric and Google's ICI stand in its place.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardlab.files.arguments import Count, Positive, checked

from ..units import GB, GFLOP, TB, TFLOP
from . import names

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
    power: Positive | None  # watts: the maker's limit (TDP); None: not published
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


@checked
def chip(name: str) -> Chip:
    """Return the chip called `name`. Errors: ValueError that lists the known names."""
    if name not in CHIPS:
        way_out = f"a file for --cluster may hold its numbers: {OWN_CHIP}"
        raise names.unknown("chip", name, dict.fromkeys(CHIPS, ""), way_out)
    return CHIPS[name]


def _peaks(**tflops: float) -> dict[str, float]:
    return {precision: value * TFLOP for precision, value in tflops.items()}


_A100 = _peaks(fp32=19.5, tf32=156, fp16=312, bf16=312)
_H100 = _peaks(fp32=66.9, tf32=494.7, fp16=989.4, bf16=989.4, fp8=1978.9)
_A100_SHEET = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf (dense; the starred figure, 624, is with sparsity)"
_HOPPER = "https://resources.nvidia.com/en-us-tensor-core/gtc22-whitepaper-hopper (dense; the data sheet's 1,979 is with sparsity)"

CHIPS: dict[str, Chip] = {
    chip.name: chip
    for chip in (
        Chip(
            name="V100 SXM2 32 GB",
            memory=32 * GB,
            memory_bandwidth=900 * GB,
            peaks=_peaks(fp32=15.7, fp16=125),  # Volta has no bf16, tf32 or fp8
            nvlink=300 * GB / 2,
            pcie=3,
            power=300,
            announced="2018-03",  # with 16 GB: 2017-05
            source="https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf",
        ),
        Chip(
            name="A100 SXM 40 GB",
            memory=40 * GB,
            memory_bandwidth=1555 * GB,
            peaks=_A100,
            nvlink=600 * GB / 2,
            pcie=4,
            power=400,
            announced="2020-05",
            source="https://images.nvidia.com/aem-dam/en-zz/Solutions/data-center/nvidia-ampere-architecture-whitepaper.pdf",
        ),
        Chip(
            name="A100 SXM 80 GB",
            memory=80 * GB,
            memory_bandwidth=2039 * GB,
            peaks=_A100,
            nvlink=600 * GB / 2,
            pcie=4,
            power=400,
            announced="2020-11",
            source=_A100_SHEET,
        ),
        Chip(
            name="A100 PCIe 80 GB",
            memory=80 * GB,
            memory_bandwidth=1935 * GB,
            peaks=_A100,
            nvlink=600 * GB / 2,  # a bridge to one other card
            pcie=4,
            power=300,
            announced="2021-06",
            source=_A100_SHEET,
        ),
        Chip(
            name="H100 SXM 80 GB",
            memory=80 * GB,
            memory_bandwidth=3.35 * TB,
            peaks=_H100,
            nvlink=900 * GB / 2,
            pcie=5,
            power=700,
            announced="2022-03",
            source=_HOPPER,
        ),
        Chip(
            name="H100 PCIe 80 GB",
            memory=80 * GB,
            memory_bandwidth=2 * TB,
            peaks=_peaks(fp32=51, tf32=378, fp16=756.5, bf16=756.5, fp8=1513),
            nvlink=600 * GB / 2,  # a bridge to one other card
            pcie=5,
            power=350,
            announced="2022-03",
            source="https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet (dense: half of the 756, 1,513 and 3,026 printed with sparsity)",
        ),
        Chip(
            name="H200 SXM 141 GB",
            memory=141 * GB,
            memory_bandwidth=4.8 * TB,
            peaks=_H100,
            nvlink=900 * GB / 2,
            pcie=5,
            power=700,
            announced="2023-11",
            source="https://www.nvidia.com/en-us/data-center/h200/ (same chip as the H100, whose white paper gives 989.4 dense; half of the 1,979 printed here with sparsity is 989.5)",
        ),
        Chip(
            name="B200 SXM 180 GB",
            memory=180 * GB,
            memory_bandwidth=8 * TB,
            peaks=_peaks(fp32=75, tf32=1125, fp16=2250, bf16=2250, fp8=4500),
            nvlink=1800 * GB / 2,
            pcie=5,
            power=1000,
            announced="2024-03",
            source="https://www.nvidia.com/en-us/data-center/dgx-b200/ (8 GPUs: 1,440 GB and 64 TB/s) and https://www.nvidia.com/en-us/data-center/hgx/ (8 GPUs: 600 TFLOPS fp32 and, with sparsity, 18, 36 and 72 PFLOPS tf32, bf16 and fp8: half of that dense); 7.7 TB/s is in print too, from the width and clock its driver reports: https://github.com/pytorch/ao/pull/4002",
        ),
        # One of the two GPUs of a superchip; the link to its processor is NVLink-C2C, not PCIe.
        Chip(
            name="GB200 186 GB",
            memory=186 * GB,
            memory_bandwidth=8 * TB,
            peaks=_peaks(fp32=80, tf32=1250, fp16=2500, bf16=2500, fp8=5000),
            nvlink=1800 * GB / 2,
            power=1200,
            announced="2024-03",
            source="https://www.nvidia.com/en-us/data-center/gb200-nvl72/ (2 GPUs: 372 GB, 16 TB/s, 160 TFLOPS fp32, NVLink 3.6 TB/s and, with sparsity, 5, 10 and 20 PFLOPS tf32, bf16 and fp8: half of that dense)",
        ),
        Chip(  # its own slot is PCIe 6.0, that of the processors beside it 5.0
            name="B300 SXM 270 GB",
            memory=270 * GB,
            memory_bandwidth=8 * TB,
            peaks=_peaks(fp32=75, tf32=1125, fp16=2250, bf16=2250, fp8=4500),
            nvlink=1800 * GB / 2,
            pcie=6,
            power=1100,
            announced="2025-03",
            source="https://verda.com/blog/gb300-nvl72-architecture (270 GB and 1,100 W for a B300; 288 GB is in print too: eight stacks of 36) and https://glennklockwood.com/garden/processors/B300 (PCIe 6.0; dense peaks from NVIDIA's 18, 36 and 72 PFLOPS tf32, bf16 and fp8 for 8 GPUs with sparsity)",
        ),
        # One of the two GPUs of a superchip; the link to its processor is NVLink-C2C, not PCIe.
        Chip(
            name="GB300 279 GB",
            memory=279 * GB,
            memory_bandwidth=8 * TB,
            peaks=_peaks(fp32=80, tf32=1250, fp16=2500, bf16=2500, fp8=5000),
            nvlink=1800 * GB / 2,
            power=1400,
            announced="2025-03",
            source="https://verda.com/blog/gb300-nvl72-architecture (72 GPUs: 360 PFLOPS fp8 without sparsity, 20 TB, 576 TB/s; of one GPU 279 GB and 1,400 W, and 80 TFLOPS fp32; 288 GB is in print too)",
        ),
        Chip(
            name="MI300X 192 GB",
            memory=192 * GB,
            memory_bandwidth=5.3 * TB,
            peaks=_peaks(fp32=163.4, tf32=653.7, fp16=1307.4, bf16=1307.4, fp8=2614.9),
            nvlink=896 * GB / 2,  # 7 links of 128 GB/s in both directions
            pcie=5,
            power=750,
            announced="2023-12",
            source="https://www.amd.com/content/dam/amd/en/documents/instinct-tech-docs/data-sheets/amd-instinct-mi300x-data-sheet.pdf (dense; the figures with sparsity are twice as large)",
        ),
        Chip(
            name="MI355X 288 GB",
            memory=288 * GB,
            memory_bandwidth=8 * TB,
            peaks=_peaks(fp32=157.3, fp16=2516.6, bf16=2516.6, fp8=5033.2),  # no tf32 units
            nvlink=7 * 153.6 * GB / 2,  # 7 links
            pcie=5,
            power=1400,
            announced="2025-06",
            source="https://www.amd.com/en/products/accelerators/instinct/mi350/mi355x.html (dense: 256 compute units at 2.4 GHz with 8,192 FLOPs a cycle in fp8, half of it in 16 bits; 5.0 and 10.1 PFLOPS are with sparsity)",
        ),
        Chip(  # its matrix units multiply bf16, and int8 at twice the rate; it has no fp16
            name="TPU v6e 32 GB",
            memory=32 * GB,
            memory_bandwidth=1638 * GB,
            peaks=_peaks(bf16=918),
            nvlink=800 * GB / 2,  # 4 links of 100 GB/s in each direction
            pcie=5,
            power=None,
            announced="2024-05",
            source="https://docs.cloud.google.com/tpu/docs/v6e (918 TFLOPs bf16, 1,638 GB/s, ICI 800 GB/s in both directions; a pod is a torus of 256 chips)",
        ),
        Chip(
            name="RTX 3090 24 GB",
            memory=24 * GB,
            memory_bandwidth=936 * GB,
            peaks=_peaks(fp32=35.6, tf32=35.6, fp16=71, bf16=71),
            nvlink=112.5 * GB / 2,  # a bridge to one other card
            pcie=4,
            power=350,
            announced="2020-09",
            source="https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf (dense, fp32 accumulate; 142 is with sparsity or with fp16 accumulate)",
        ),
        Chip(
            name="RTX 4090 24 GB",
            memory=24 * GB,
            memory_bandwidth=1008 * GB,
            peaks=_peaks(fp32=82.6, tf32=82.6, fp16=165.2, bf16=165.2, fp8=330.3),
            pcie=4,
            power=450,
            announced="2022-09",
            source="https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf (dense, fp32 accumulate; 330.3 for bf16 is with sparsity or with fp16 accumulate)",
        ),
        Chip(
            name="Laptop CPU (Ryzen 7 5800H) 16 GB",
            memory=16 * GB,  # our choice: two modules of 8
            memory_bandwidth=51.2 * GB,  # 2 channels * 8 bytes * 3.2e9 transfers/s
            peaks={
                "fp32": 819.2 * GFLOP
            },  # 8 cores * 3.2e9 cycles/s * 2 units * 8 numbers * (multiply + add)
            power=45,
            announced="2021-01",
            source="https://www.amd.com/en/products/apu/amd-ryzen-7-5800h (8 cores at a base clock of 3.2 GHz, DDR4-3200) and AMD's Software Optimization Guide for Family 19h, publication 56665 (two units for 256-bit multiply-adds)",
        ),
    )
}
