"""Machines by name: networks that grow with the number of GPUs, and examples with a model that fits on them."""

from dataclasses import dataclass

from . import collectives, hardware, models
from .data_parallel import Run
from .hardware import Chip, Link

GPUS_PER_SERVER = 8


@dataclass(frozen=True, kw_only=True)
class Server:
    """The parts of one kind of server, by their names in `hardware`."""

    chip: str
    inside: str  # the link between its GPUs
    between: str  # the network cards between servers
    cards: int  # how many of them each server has


_SXM, _PCIE = "H100 SXM 80 GB", "H100 PCIe 80 GB"  # the SXM module has NVLink; the PCIe card is a slower chip

NETWORKS: dict[str, Server] = {
    "NVLink, 8 InfiniBand cards": Server(chip=_SXM, inside="NVLink 4", between="InfiniBand NDR", cards=8),
    "PCIe, 1 InfiniBand card": Server(chip=_PCIE, inside="PCIe 5.0 x16", between="InfiniBand NDR", cards=1),
    "PCIe, 100 GbE": Server(chip=_PCIE, inside="PCIe 5.0 x16", between="100 GbE", cards=1),
    "PCIe, 25 GbE": Server(chip=_PCIE, inside="PCIe 5.0 x16", between="25 GbE", cards=1),
    "PCIe, 10 GbE": Server(chip=_PCIE, inside="PCIe 5.0 x16", between="10 GbE", cards=1),
}


def server(name: str) -> Server:
    """The server of the network of that name. Errors: ValueError that lists the known networks."""
    if name not in NETWORKS:
        raise ValueError(f"no network is named {name!r}; known: {', '.join(NETWORKS)}")
    return NETWORKS[name]


def chip(name: str) -> Chip:
    """The GPU in the servers of that network."""
    return hardware.chip(server(name).chip)


def network(name: str, ranks: int) -> Link:
    """What a ring of so many GPUs runs at: the link inside as long as one server holds them all, else both."""
    one = server(name)
    inside = hardware.link(one.inside)
    if ranks <= GPUS_PER_SERVER:
        return inside
    between = hardware.link(one.between)
    return collectives.ring_through_servers(inside, between, gpus=GPUS_PER_SERVER, cards=one.cards)


def examples() -> dict[str, Run]:
    """The same model and tokens per rank on different machines: one hardly notices the all-reduce, one mostly waits.

    PCIe and NVLink join the GPUs of one machine; InfiniBand joins servers of 8; on Ethernet each machine has one GPU.
    The RTX 4090 stands only there: two of them in one machine cannot talk directly, NVIDIA does not support it
    (https://forums.developer.nvidia.com/t/parallel-training-with-4-cards-4090-cannot-be-performed-on-amd-5975wx-stuck-at-the-beginning/237813).
    """
    infiniband = network("NVLink, 8 InfiniBand cards", 64)
    return {
        "8 B200, NVLink": _run("B200 SXM 180 GB", hardware.link("NVLink 5"), 8),
        "8 H100, NVLink": _run(_SXM, hardware.link("NVLink 4"), 8),
        "64 H100, InfiniBand": _run(_SXM, infiniband, 64),
        "4 A100, PCIe": _run("A100 PCIe 80 GB", hardware.link("PCIe 4.0 x16"), 4),
        "8 H100, PCIe": _run(_PCIE, hardware.link("PCIe 5.0 x16"), 8),
        "8 A100, 100 GbE": _run("A100 PCIe 80 GB", hardware.link("100 GbE"), 8),
        "4 RTX 4090, 10 GbE": _run("RTX 4090 24 GB", hardware.link("10 GbE"), 4),
    }


def facts(run: Run) -> tuple[str, int, float]:
    """What decides whether the all-reduce hides: the model's name, the tokens of each rank, the tokens it needs.

    Errors: ValueError for a model that is none of `models.PUBLISHED`.
    """
    names = [name for name, model in models.PUBLISHED.items() if model.spec == run.spec]
    if not names:
        raise ValueError(f"no published model has the sizes {run.spec}; known: {', '.join(models.PUBLISHED)}")
    return names[0], run.tokens_per_rank, run.tokens_needed


def _run(chip: str, link: Link, ranks: int) -> Run:
    spec = models.published("GPT-2 medium").spec  # with this batch it fits in 24 GB; GPT-2 large does not
    return Run(spec=spec, chip=hardware.chip(chip), link=link, ranks=ranks, batch_per_rank=8, sequence=1024)
