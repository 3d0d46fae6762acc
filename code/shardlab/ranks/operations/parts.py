"""What rows are made of: arguments of torchrun, and phrases that several causes share."""

from .agents import Start, StartNode

STATIC = "--rdzv-conf=timeout=4"
C10D = "--rdzv-conf=join_timeout=5,read_timeout=4,last_call_timeout=1"
ALONE = r"Timed out after \d+ seconds waiting for clients\. \d+/\d+ clients joined"
NOTHING = r"\A\s*\Z"


def static(
    rank: int, *, nodes: int = 2, workers: int = 1, address: str = "127.0.0.1", port: str = "{port}"
) -> tuple[str, ...]:
    """Arguments of a rendezvous with ranks given by hand."""
    counts = (f"--nnodes={nodes}", f"--nproc-per-node={workers}", f"--node-rank={rank}")
    return (*counts, f"--master-addr={address}", f"--master-port={port}", STATIC)


def c10d(*, nodes: int = 2, workers: int = 1, job: str = "one") -> tuple[str, ...]:
    """Arguments of a rendezvous that gives the ranks itself."""
    counts = (f"--nnodes={nodes}", f"--nproc-per-node={workers}", f"--rdzv-id={job}")
    return (*counts, "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:{port}", C10D)


SOUND = Start(
    name="sound",
    cause="nothing is wrong",
    command="",
    phrases=(r"\Asum 2\.0",),
    stage="",
    nodes=(StartNode(arguments=static(0)), StartNode(arguments=static(1))),
)
UNEQUAL = Start(
    name="unequal nproc-per-node",
    cause="nothing is wrong: nodes may bring different numbers of ranks",
    command="",
    phrases=(r"\Asum 3\.0", NOTHING),
    stage="",
    nodes=(StartNode(arguments=static(0)), StartNode(arguments=static(1, workers=2))),
)
