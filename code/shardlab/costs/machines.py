"""Machines by name: networks that grow with the number of GPUs, and examples with a model that fits on them."""

from . import collectives, hardware, models
from .data_parallel import Run
from .hardware import Link

GPUS_PER_SERVER = 8

# name: the link inside a server, the network cards between servers, how many of them each server has
NETWORKS: dict[str, tuple[str, str, int]] = {
    "NVLink, 8 InfiniBand cards": ("NVLink 4", "InfiniBand NDR", 8),
    "PCIe, 1 InfiniBand card": ("PCIe 5.0 x16", "InfiniBand NDR", 1),
    "PCIe, 100 GbE": ("PCIe 5.0 x16", "100 GbE", 1),
    "PCIe, 25 GbE": ("PCIe 5.0 x16", "25 GbE", 1),
    "PCIe, 10 GbE": ("PCIe 5.0 x16", "10 GbE", 1),
}


def network(name: str, ranks: int) -> Link:
    """What a ring of so many GPUs runs at: the link inside as long as one server holds them all, else both.

    Errors: ValueError that lists the known networks.
    """
    if name not in NETWORKS:
        raise ValueError(f"no network is named {name!r}; known: {', '.join(NETWORKS)}")
    inside, between, cards = NETWORKS[name]
    if ranks <= GPUS_PER_SERVER:
        return hardware.link(inside)
    return collectives.ring_through_servers(
        hardware.link(inside), hardware.link(between), gpus=GPUS_PER_SERVER, cards=cards
    )


def examples() -> dict[str, Run]:
    """Machines with a model that fits, from one that hardly notices the all-reduce to one that mostly waits.

    PCIe and NVLink join the GPUs of one machine; InfiniBand joins servers of 8; on Ethernet each machine has one GPU.
    """
    nvlink, ethernet, slow = (hardware.link(name) for name in ("NVLink 4", "100 GbE", "10 GbE"))
    infiniband = network("NVLink, 8 InfiniBand cards", 64)
    h100, rtx = "H100 SXM 80 GB", "RTX 4090 24 GB"
    return {
        "8 H100, NVLink": _run("Llama 3.2 1B", h100, nvlink, 8, 2, 8192),
        "64 H100, InfiniBand": _run("Llama 3.2 1B", h100, infiniband, 64, 2, 8192),
        "8 B200, NVLink": _run("Llama 3 8B", "B200 SXM 180 GB", hardware.link("NVLink 5"), 8, 1, 4096),
        "4 RTX 4090, PCIe": _run("GPT-2 large", rtx, hardware.link("PCIe 4.0 x16"), 4, 4, 1024),
        "8 H100, PCIe": _run("GPT-2 XL", h100, hardware.link("PCIe 5.0 x16"), 8, 8, 1024),
        "8 A100, 100 GbE": _run("GPT-2 XL", "A100 SXM 80 GB", ethernet, 8, 4, 1024),
        "4 RTX 4090, 10 GbE": _run("GPT-2 large", rtx, slow, 4, 4, 1024),
    }


def _run(model: str, chip: str, link: Link, ranks: int, batch_per_rank: int, sequence: int) -> Run:
    return Run(
        spec=models.published(model).spec,
        chip=hardware.chip(chip),
        link=link,
        ranks=ranks,
        batch_per_rank=batch_per_rank,
        sequence=sequence,
    )
