"""Starts whose agents do not meet: one row for each cause.

Time-outs are shortened by the options of `stages`. The agents are on loopback; where a row has
names, they are on two hosts, each with a file of hosts of its own (bench/starts.py makes them).
"""

from .agents import Start, StartNode
from .parts import ALONE, NOTHING, c10d, static

UNREACHED = r"timed out \(try=0, .*socket has timed out"
REFUSED = r"failed to connect/validate to host \S+ - retrying \(try=0"  # at once, so there is time
TAKEN = "EADDRINUSE"
LATE = "rendezvous.api.RendezvousTimeoutError"
LEFT = "rendezvous.api.Rendezvous(Closed|Connection)Error"  # once another gave up

STARTS = (
    Start(
        name="refused",
        cause="the wrong address or port: the host is there, and nobody listens at the port",
        command="nc -vz HOST PORT",
        phrases=(ALONE, REFUSED),
        stage="static rendezvous",
        nodes=(StartNode(arguments=static(0)), StartNode(arguments=static(1, port="{other}"))),
    ),
    Start(
        name="late",
        cause="node 0 starts after the others have given up",
        command="ss -ltnp | grep PORT   # on node 0",
        phrases=(ALONE, REFUSED),
        stage="static rendezvous",
        nodes=(StartNode(arguments=static(0), seconds_late=12.0), StartNode(arguments=static(1))),
    ),
    Start(
        name="no rank 0",
        cause="no node has --node-rank=0: two have the same other one",
        command="ps -ef | grep -o 'node.rank[= ][0-9]*'   # on each node",
        phrases=(REFUSED, REFUSED),
        stage="static rendezvous",
        nodes=(StartNode(arguments=static(1)), StartNode(arguments=static(1))),
    ),
    Start(
        name="dropped",
        cause="a firewall drops what is sent to the port, or a wrong address is nobody's",
        command="nc -vz -w 5 HOST PORT",
        phrases=(ALONE, UNREACHED),
        stage="static rendezvous",
        nodes=(StartNode(arguments=static(0)), StartNode(arguments=static(1, port="{other}"))),
        other="dropping",
    ),
    Start(
        name="no such host",
        cause="the wrong address: no machine of this network has it",
        command="ping -c 1 HOST",
        phrases=(ALONE, r"errno: 113 - No route to host"),
        stage="static rendezvous",
        nodes=(
            StartNode(arguments=static(0, address="node-a")),
            StartNode(arguments=static(1, address="10.213.7.9")),
        ),
        names="right",
    ),
    Start(
        name="no such name",
        cause="a name that this node cannot resolve",
        command="getent hosts NAME",
        phrases=(ALONE, r"cannot be retrieved \(gai error: -2"),
        stage="static rendezvous",
        nodes=(
            StartNode(arguments=static(0)),
            StartNode(arguments=static(1, address="node-a.invalid")),
        ),
    ),
    Start(
        name="node 0 is me",
        cause="the name of node 0 resolves to 127.0.1.1 on the other node, which calls itself",
        command="getent hosts NAME   # on each node: the same address, none that begins with 127",
        phrases=(ALONE, REFUSED),
        stage="static rendezvous",
        nodes=(
            StartNode(arguments=static(0, address="node-a")),
            StartNode(arguments=static(1, address="node-a")),
        ),
        names="others are loopback",
    ),
    Start(
        name="silent",
        cause="something takes the connection and never answers: a proxy, another program",
        command="ss -ltnp | grep PORT   # on node 0",
        phrases=(ALONE, NOTHING),
        stage="static rendezvous",
        nodes=(StartNode(arguments=static(0)), StartNode(arguments=static(1, port="{other}"))),
        other="silent",
    ),
    Start(
        name="port in use",
        cause="another program listens at the port on node 0, often the run before",
        command="ss -ltnp | grep PORT   # on node 0",
        phrases=(TAKEN, NOTHING),
        stage="",
        nodes=(StartNode(arguments=static(0)), StartNode(arguments=static(1))),
        port="silent",
    ),
    Start(
        name="port in use, c10d",
        cause="the same, where both nodes take the other program for the store of the rendezvous",
        command="ss -ltnp | grep PORT   # on the host of the endpoint",
        phrases=(NOTHING, NOTHING),
        stage="c10d store",
        nodes=(StartNode(arguments=c10d()), StartNode(arguments=c10d())),
        port="silent",
    ),
    Start(
        name="rank 0 twice",
        cause="--node-rank=0 on two nodes (on one machine; on two, each waits for the other)",
        command="ps -ef | grep -o 'node.rank[= ][0-9]*'   # on each node",
        phrases=(TAKEN, ALONE),
        stage="static rendezvous",
        nodes=(StartNode(arguments=static(0)), StartNode(arguments=static(0))),
    ),
    Start(
        name="unequal nnodes, c10d",
        cause="--nnodes is unequal: if who expects more comes last, all wait for more",
        command="ps -ef | grep -o 'nnodes[= ][0-9:]*'   # on each node",
        phrases=(LATE, LEFT),
        stage="c10d join",
        nodes=(
            StartNode(arguments=c10d(nodes=2)),
            StartNode(arguments=c10d(nodes=3), seconds_late=3.0),
        ),
    ),
    Start(
        name="other job",
        cause="--rdzv-id is not the same on all nodes: each waits in a rendezvous of its own",
        command="ps -ef | grep -o 'rdzv.id[= ][^ ]*'   # on each node",
        phrases=(LATE, LATE),
        stage="c10d join",
        nodes=(StartNode(arguments=c10d()), StartNode(arguments=c10d(job="another"))),
    ),
    Start(
        name="too few nodes, c10d",
        cause="fewer nodes come than --nnodes says: one was never started, or died before",
        command="squeue --steps, kubectl get pods, or ps on each node",
        phrases=(LATE, LEFT),
        stage="c10d join",
        nodes=(StartNode(arguments=c10d(nodes=3)), StartNode(arguments=c10d(nodes=3))),
    ),
    Start(
        name="too few nodes",
        cause="fewer nodes come than --nnodes says: one was never started, or died before",
        command="squeue --steps, kubectl get pods, or ps on each node",
        phrases=(ALONE, r"keys: /none/torchelastic/assigned_ranks/\d+"),
        stage="static rendezvous",
        nodes=(StartNode(arguments=static(0, nodes=3)), StartNode(arguments=static(1, nodes=3))),
    ),
)
