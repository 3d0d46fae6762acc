"""How long is a run held up, and how many steps does it lose, when a whole node dies?

Two agents of torchrun on loopback, with c10d and torch's own waiting times, and two ranks each, which train the model
of book/train.py with ZeRO-1. At a step between two saves node 1 is killed: its agent, its ranks, its folder in memory.
Every 10 steps all ranks save in the file system, and every 2 in the memory of their node and the next one. Rows: only
the file system, and the node is started again after 5 s; two nodes or one may train, and the other goes on alone; a
third agent has waited, and takes the place. Losses are compared with those of a run that nobody kills.
"""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import record
import torch
from two_agents import ports
from two_agents.agents import Agent, StartNode, descendants
from two_agents.events import BACKENDS

from shardlab import comm, launch, schedules
from shardlab.files.terminal import no_arguments
from shardlab.model.spec import TransformerSpec
from shardlab.ranks import checkpoint, text, transformer
from shardlab.ranks.checkpoint import neighbour
from shardlab.ranks.data_parallel import sampler
from shardlab.ranks.mesh import Mesh
from shardlab.ranks.train import Trainer
from shardlab.sharding.layout import Layout

SPEC = TransformerSpec(vocab_size=text.VOCAB_SIZE, context_length=64, hidden_size=64, num_layers=4, num_heads=8)
RANKS, BATCH = 2, 16  # on each node; samples of all replicas
MEMORY_EVERY, DISK_EVERY, DIES, STEPS = 2, 10, 17, 30  # steps
LATER, LOOK, PATIENCE = 5.0, 0.02, 180.0  # s from the kill to the new agent; between two looks; for each half of a run
SHARED_MEMORY = Path("/dev/shm")
PROGRAM = "import time\nbegun = time.monotonic()\nimport survivors\nsurvivors.rank(begun)\n"


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to go on after node 1 has died."""

    name: str
    nnodes: str = "2"
    memory: bool = True  # or only the file system
    again: bool = False  # node 1 is started again
    spare: bool = False  # a third agent waits from the beginning


WAYS = (
    Way(name="the node again, from the file system", memory=False, again=True),
    Way(name="fewer ranks, from memory", nnodes="1:2"),
    Way(name="a spare node, from a neighbour's memory", spare=True),
)


# ---- a rank ----------------------------------------------------------------------------------------------------------


def rank(begun: float) -> None:
    """Train as one rank under torchrun, as the environment says."""
    folder, memory = Path(os.environ["RUN_FOLDER"]), os.environ["RUN_MEMORY"]
    launch.run(train, folder, memory and Path(memory), begun, world_size=int(os.environ["WORLD_SIZE"]))


def train(group: comm.Group, folder: Path, memory: Path | str, begun: float) -> list[float]:
    """Go on from the memory of nodes or else from the file system, and note what is done when."""
    joined, nodes = time.monotonic(), group.size() // RANKS
    torch.manual_seed(0)
    mesh = Mesh(Layout(dp=group.size(), zero=1), group)
    model, plan = transformer.Transformer(SPEC), schedules.make("1F1B", 1, 2)
    trainer = Trainer(model, mesh, plan, torch.optim.AdamW, max_norm=1.0)
    built = time.monotonic()
    path = memory and neighbour.latest(memory, group, nodes=nodes)
    source = "memory" if path else "file system"
    path = path or checkpoint.latest(folder / "saves", group)
    begins, losses = trainer.load(path)["step"] if path else 0, []
    tokens, length = text.read(), SPEC.context_length
    batches = sampler.epoch(text.num_samples(tokens, length), BATCH, group.rank(), group.size())
    with (folder / f"rank-{begun:.6f}-{os.getpid()}").open("w", buffering=1) as notes:
        known = {"pid": os.getpid(), "rank": group.rank(), "ranks": group.size(), "begun": begun, "joined": joined}
        known |= {"built": built, "loaded": time.monotonic(), "from": source if path else "", "step": begins}
        print(json.dumps(known), file=notes)
        for step in range(begins, STEPS):
            indices, weight = batches[step]
            losses.append(trainer.step(*text.batch(tokens, indices, length), weight).item())
            print(json.dumps([step + 1, losses[-1], time.monotonic()]), file=notes)
            if (step + 1) % DISK_EVERY == 0:
                trainer.save(folder / "saves", step + 1)
            if memory and (step + 1) % MEMORY_EVERY == 0:
                trainer.save(memory, step + 1, nodes=nodes)
    return losses


# ---- a run -----------------------------------------------------------------------------------------------------------


@contextmanager
def folders() -> Iterator[tuple[Path, Path]]:
    """A folder for the run, and one in memory, where there is such."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as held:
        shared = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
        yield Path(folder), Path(held.enter_context(tempfile.TemporaryDirectory(prefix="survivors-", dir=shared)))


def lives(folder: Path) -> list[dict[str, Any]]:
    """What each rank has noted, in the order in which they began."""
    found = []
    for file in sorted(folder.glob("rank-*")):
        first, *steps = file.read_text().rpartition("\n")[0].splitlines() or [""]
        if first:
            found.append({**json.loads(first), "steps": [json.loads(line) for line in steps]})
    return found


def reached(folder: Path, first: int, step: int) -> bool:
    """Whether a rank 0 of the start after `first` ranks has taken this step."""
    return any(each["rank"] == 0 and each["steps"] and each["steps"][-1][0] >= step for each in lives(folder)[first:])


def wait(until: Callable[[], bool], agents: list[Agent]) -> None:
    limit = time.monotonic() + PATIENCE
    while not until():
        time.sleep(LOOK)
        if time.monotonic() > limit:
            raise RuntimeError("\n".join(agent.printed() for agent in agents))


def run(way: Way, whole: list[float]) -> dict[str, Any]:
    """Train, kill node 1, and see what becomes of the run."""
    with folders() as (folder, memory), ExitStack() as held:
        port, agents = str(ports.free()), []

        def begin(node: int) -> Agent:
            mine = memory / f"node-{len(agents)}"
            environment = {
                "RUN_FOLDER": str(folder),
                "RUN_MEMORY": str(mine) if way.memory else "",
                "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
                "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            }
            counts = (f"--nnodes={way.nnodes}", f"--nproc-per-node={RANKS}", "--max-restarts=3")
            start = StartNode(arguments=(*counts, *BACKENDS["c10d"]), environment=environment, program=PROGRAM)
            known = {"port": port, "other": port, "folder": str(folder), "host": str(node == 0)}
            agents.append(Agent(start, folder / f"agent-{len(agents)}", known))
            held.callback(agents[-1].end)
            agents[-1].begin()
            return agents[-1]

        first, second = begin(0), begin(1)
        wait(lambda: reached(folder, 0, 1), agents)
        if way.spare:
            begin(2)
        wait(lambda: reached(folder, 0, DIES), agents)
        old = lives(folder)
        ranks = descendants(first.process.pid)
        died = time.monotonic()
        second.end()
        shutil.rmtree(memory / "node-1", ignore_errors=True)
        reach = max(each["steps"][-1][0] for each in lives(folder))
        wait(lambda: not set(ranks) & set(descendants(first.process.pid)), agents)
        noticed = time.monotonic() - died
        if way.again:
            time.sleep(max(0.0, died + LATER - time.monotonic()))
            begin(1)
        wait(lambda: reached(folder, len(old), STEPS), agents)
        return outcome(lives(folder)[len(old) :], died, reach, whole) | {"noticed": round(noticed, 2)}


def outcome(new: list[dict[str, Any]], died: float, reach: int, whole: list[float]) -> dict[str, Any]:
    """Sum up the start that went on; seconds after the kill, but for those of loading."""
    last = max(new, key=lambda each: (each["rank"] == 0 and bool(each["steps"]), each["begun"]))
    peers = [each for each in new if each["steps"]]
    pairs = [(loss, whole[step - 1]) for step, loss, _ in last["steps"]]
    caught_up = next(at for step, _, at in last["steps"] if step > reach)
    return {
        "ranks": last["ranks"],
        "from": last["from"],
        "started": round(min(each["begun"] for each in peers) - died, 2),
        "trained": round(last["built"] - died, 2),
        "load": round(max(each["loaded"] - each["built"] for each in peers), 3),
        "reached": reach,
        "resumed": last["step"],
        "steps lost": reach - last["step"],
        "caught up": round(caught_up - died, 2),
        "losses": len(pairs),
        "bitwise": all(a == b for a, b in pairs),
        "largest relative difference": max(abs(a / b - 1) for a, b in pairs),
    }


def main() -> None:
    with folders() as (folder, _):
        whole = launch.run(train, folder, "", time.monotonic(), world_size=2 * RANKS)[0]
        rows = []
        for way in WAYS:
            rows.append(asdict(way) | run(way, whole))
            print(rows[-1], flush=True)
    setting = {"memory every": MEMORY_EVERY, "disk every": DISK_EVERY, "later": LATER, "rows": rows}
    print("written to", record.write("survivors", setting).name)


if __name__ == "__main__":
    no_arguments(__doc__)
    main()
