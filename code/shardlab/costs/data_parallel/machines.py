"""Machines by name: networks that grow with the number of GPUs, and examples to try."""

from math import ceil

from shardlab.files.arguments import Count, checked
from shardlab.sharding.layout import Layout

from ..facts import hardware, models, nodes
from ..facts.network import Cluster, uniform
from ..programs import BOOK
from ..step import Run
from ..training import Training

NETWORKS: dict[str, str] = {  # description -> the server, in `nodes`
    "NVLink, 8 InfiniBand cards": "DGX H100",
    "PCIe, 1 InfiniBand card": "PCIe box, InfiniBand NDR",
    "PCIe, 100 GbE": "PCIe box, 100 GbE",
    "PCIe, 25 GbE": "PCIe box, 25 GbE",
    "PCIe, 10 GbE": "PCIe box, 10 GbE",
}
_SXM = "H100 SXM 80 GB"  # a module with NVLink
_PCIE = "H100 PCIe 80 GB"  # a card, with a slower chip


@checked
def cluster(name: str, ranks: Count) -> Cluster:
    """Build the cluster that `ranks` GPUs fill.

    Errors: ValueError that lists the known networks.
    """
    if name not in NETWORKS:
        raise ValueError(f"no network is named {name!r}; known: {', '.join(NETWORKS)}")
    node = nodes.node(NETWORKS[name])
    return Cluster(node=node, num_nodes=ceil(ranks / node.gpus))


def examples() -> dict[str, Run]:
    """Run the same model and tokens per rank on machines from fast to slow communication.

    The first hardly notices the all-reduce, the last mostly waits for it. PCIe and NVLink join the
    GPUs of one machine; InfiniBand joins servers of 8; on Ethernet each machine has one GPU. The
    RTX 4090 appears only there: NVIDIA does not support direct traffic between two of them in one
    machine
    (https://forums.developer.nvidia.com/t/parallel-training-with-4-cards-4090-cannot-be-performed-on-amd-5975wx-stuck-at-the-beginning/237813).
    """
    return {
        "8 B200, NVLink": _run("B200 SXM 180 GB", "NVLink 5", 8),
        "8 H100, NVLink": _run(_SXM, "NVLink 4", 8),
        "64 H100, InfiniBand": _in(cluster("NVLink, 8 InfiniBand cards", 64), 64),
        "4 A100, PCIe": _run("A100 PCIe 80 GB", "PCIe 4.0 x16", 4),
        "8 H100, PCIe": _run(_PCIE, "PCIe 5.0 x16", 8),
        "8 A100, 100 GbE": _run("A100 PCIe 80 GB", "100 GbE", 8),
        "4 RTX 4090, 10 GbE": _run("RTX 4090 24 GB", "10 GbE", 4),
    }


def _run(chip: str, link: str, ranks: int) -> Run:
    """Put the GPUs on one switch, each with a link of its own."""
    return _in(uniform(ranks, hardware.link(link), hardware.chip(chip)), ranks)


def _in(cluster: Cluster, ranks: int) -> Run:
    # With this batch it fits in 24 GB; GPT-2 large does not.
    spec = models.published("GPT-2 medium").spec
    training = Training(spec=spec, layout=Layout(dp=ranks), microbatch=8, program=BOOK)
    return Run(training=training, cluster=cluster)
