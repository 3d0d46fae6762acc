"""Starts whose agents meet, and whose ranks do not: one row for each cause, as in `rendezvous`."""

import sys

from .agents import PROGRAM, Start, StartNode
from .parts import ALONE, static

# The last number of the key is the rank that is missing.
NO_RANK = r"wait timeout after \d+ms, keys: /default_pg/0//cpu//0/\d+"
FULL_MESH = r"Gloo connectFullMesh failed.*Connection refused, remote=\[127\."
CONNECT = r"Gloo connectFullMesh failed.*Connect timeout"  # after five of its time-outs
LO = {"GLOO_SOCKET_IFNAME": "lo"}
GATHER = PROGRAM.replace(
    "dist.all_reduce(total)", "dist.all_gather([torch.ones(1), torch.ones(1)], total)"
)
LONGER = PROGRAM.replace("torch.ones(1)", "torch.ones(1_000)")
LATER = f"{PROGRAM}import time\ntime.sleep(3)\n"
BROKEN = PROGRAM.replace("import torch,", "import not_installed, torch,")


def bare(**environment: str) -> StartNode:
    """Start the program as `python train.py`, with these variables."""
    return StartNode(arguments=(), environment=environment, launcher=(sys.executable,))


def of_three(rank: int) -> StartNode:
    """Start one of three ranks by hand."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "{port}"}
    return bare(**where, RANK=str(rank), WORLD_SIZE="3")


STARTS = (
    Start(
        name="own name is loopback",
        cause="each node's own name resolves to 127.0.1.1, and gloo gives that to the others",
        command="getent hosts $(hostname)   # then GLOO_SOCKET_IFNAME=CARD, or repair /etc/hosts",
        phrases=(CONNECT, FULL_MESH),
        stage="connections, gloo",
        nodes=(
            StartNode(arguments=static(0, address="node-a")),
            StartNode(arguments=static(1, address="node-a")),
        ),
        names="own is loopback",
    ),
    Start(
        name="loopback interface",
        cause="GLOO_SOCKET_IFNAME=lo on two machines: each gives the other an address of itself",
        command="env | grep IFNAME; ip -br addr",
        phrases=(CONNECT, FULL_MESH),
        stage="connections, gloo",
        nodes=(
            StartNode(arguments=static(0, address="node-a"), environment=LO),
            StartNode(arguments=static(1, address="node-a"), environment=LO),
        ),
        names="right",
    ),
    Start(
        name="other ports are dropped",
        cause="a firewall lets the port of the rendezvous pass, and drops those that ranks choose",
        command="sysctl net.ipv4.ip_local_port_range   # open these between the nodes",
        phrases=(CONNECT, CONNECT),
        stage="connections, gloo",
        nodes=(
            StartNode(arguments=static(0, address="node-a")),
            StartNode(arguments=static(1, address="node-a")),
        ),
        names="right",
        firewall=True,
    ),
    Start(
        name="interface",
        cause="GLOO_SOCKET_IFNAME names an interface that this node does not have",
        command="env | grep IFNAME; ip -br addr",
        phrases=(NO_RANK, r"Unable to find address for: "),
        stage="process group, gloo",
        nodes=(
            StartNode(arguments=static(0)),
            StartNode(arguments=static(1), environment={"GLOO_SOCKET_IFNAME": "nothere"}),
        ),
    ),
    Start(
        name="dies at import",
        cause="a module is missing on one node; the others wait for its ranks",
        command="torchrun --tee=3 --log-dir=LOGS ...   # the first traceback of all, by its time",
        phrases=(NO_RANK, "ModuleNotFoundError"),
        stage="process group, gloo",
        nodes=(StartNode(arguments=static(0)), StartNode(arguments=static(1), program=BROKEN)),
    ),
    Start(
        name="another collective",
        cause="nodes have different versions of the program: all_reduce here, all_gather there",
        command="sha256sum train.py   # on each node; or TORCH_DISTRIBUTED_DEBUG=DETAIL",
        phrases=(
            r"Timed out waiting \d+ms for recv operation",
            r"Timed out waiting \d+ms for send operation",
        ),
        stage="process group, gloo",
        nodes=(StartNode(arguments=static(0)), StartNode(arguments=static(1), program=GATHER)),
    ),
    Start(
        name="another size",
        cause="nodes have different versions of the program: tensors of another size",
        command="sha256sum train.py   # on each node; or TORCH_DISTRIBUTED_DEBUG=DETAIL",
        phrases=("Received data size doesn't match expected size", "Connection reset by peer"),
        stage="",
        nodes=(StartNode(arguments=static(0)), StartNode(arguments=static(1), program=LONGER)),
    ),
    Start(
        name="unequal nnodes",
        cause="--nnodes is unequal: if who expects more is last, all wait at the end",
        command="ps -ef | grep -o 'nnodes[= ][0-9:]*'   # on each node",
        phrases=("Error waiting on exit barrier",),
        stage="exit barrier",
        nodes=(
            StartNode(arguments=static(0, nodes=2)),
            StartNode(arguments=static(1, nodes=3), program=LATER),
        ),
    ),
    Start(
        name="without torchrun",
        cause="the program was started by python, not by torchrun",
        command="env | grep -E 'MASTER|RANK|WORLD_SIZE'",
        phrases=("environment variable RANK expected, but not set",),
        stage="",
        nodes=(bare(),),
    ),
    Start(
        name="no address",
        cause="RANK and WORLD_SIZE were set by hand, and MASTER_ADDR forgotten",
        command="env | grep -E 'MASTER|RANK|WORLD_SIZE'",
        phrases=("environment variable MASTER_ADDR expected, but not set",),
        stage="",
        nodes=(bare(RANK="0", WORLD_SIZE="2"),),
    ),
    Start(
        name="WORLD_SIZE too large",
        cause="fewer ranks come than WORLD_SIZE says",
        command="env | grep -E 'MASTER|RANK|WORLD_SIZE'   # on each node",
        phrases=(ALONE, NO_RANK),
        stage="process group, gloo",
        nodes=(of_three(0), of_three(1)),
    ),
)
