"""How long each stage of a start waits in torch 2.13, what changes it, and where torch says so."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StartStage:
    """One stage: what is waited for, how many seconds, and the option, file and constant."""

    name: str
    waits_for: str
    seconds: float
    option: str  # empty where there is none
    file: str  # below torch/
    constant: str


STAGES = (
    StartStage(
        name="static rendezvous",
        waits_for="node 0 to answer at its address and port, and all other nodes to come",
        seconds=900,
        option="torchrun --rdzv-conf=timeout=SECONDS",
        file="distributed/launcher/api.py",
        constant="default_timeout",
    ),
    StartStage(
        name="c10d store",
        waits_for="the endpoint of --rdzv-backend=c10d to answer",
        seconds=60,
        option="torchrun --rdzv-conf=read_timeout=SECONDS",
        file="distributed/elastic/rendezvous/c10d_rendezvous_backend.py",
        constant="read_timeout",
    ),
    StartStage(
        name="c10d join",
        waits_for="the fewest nodes that --nnodes allows",
        seconds=600,
        option="torchrun --rdzv-conf=join_timeout=SECONDS",
        file="distributed/elastic/rendezvous/dynamic_rendezvous.py",
        constant="_DEFAULT_TIMEOUTS",
    ),
    StartStage(
        name="c10d last call",
        waits_for="more nodes, once the fewest have come",
        seconds=30,
        option="torchrun --rdzv-conf=last_call_timeout=SECONDS",
        file="distributed/elastic/rendezvous/dynamic_rendezvous.py",
        constant="_DEFAULT_TIMEOUTS",
    ),
    StartStage(
        name="store",
        waits_for="an answer, or a key, of a TCPStore that a program makes itself",
        seconds=300,
        option="TCPStore(timeout=...)",
        file="include/torch/csrc/distributed/c10d/Store.hpp",
        constant="kDefaultTimeout",
    ),
    StartStage(
        name="process group, gloo",
        waits_for="all ranks in init_process_group, and then in each collective",
        seconds=1800,
        option="init_process_group(timeout=...)",
        file="include/torch/csrc/distributed/c10d/Backend.hpp",
        constant="kBackendDefaultTimeout",
    ),
    StartStage(
        name="connections, gloo",
        waits_for="a rank to reach each other one: five times what the process group waits",
        seconds=5 * 1800,
        option="init_process_group(timeout=...)",
        file="third_party/gloo/gloo/transport/tcp/pair.h",
        constant="timeout_ * 5",
    ),
    StartStage(
        name="process group, NCCL",
        waits_for="all ranks in init_process_group and in each collective; the first connects them",
        seconds=600,
        option="init_process_group(timeout=...)",
        file="include/torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp",
        constant="kProcessGroupNCCLDefaultTimeout",
    ),
    StartStage(
        name="exit barrier",
        waits_for="the other agents, once the workers of this one have ended well",
        seconds=300,
        option="",
        file="distributed/elastic/agent/server/api.py",
        constant="exit_barrier_timeout",
    ),
)
