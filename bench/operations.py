"""How much of a run's time counts, by the interval between two saves, where it is killed at random times?

Two ranks train the model of book/train.py (dp=2, zero=1) until one of them gets a SIGKILL; the launcher ends the other,
and the next start goes on from the last checkpoint. Saves hold up training, or go on in the background. The seconds
from kill to kill are exponentially distributed: one is drawn in each of KILLS equally likely parts of the distribution,
in random order, the same for all rows, which take turns. The disk is played: after its real write and fsync, each
rank's file takes DISK seconds more. Kills are so frequent that seconds here stand for the hours of a large run.

`goodput` is the steps in the last checkpoint x the row's mean seconds of a step / all seconds. `predicted` is that of
`shardlab.costs.operations.Reliability` with the medians measured here, null where a save would begin before the last
one is safe. `predicted, these kills` counts the saves that fit between the kills as they were.
"""

import math
import os
import random
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import record
import torch

from shardlab import comm, schedules
from shardlab.costs.operations import Reliability
from shardlab.files.terminal import no_arguments
from shardlab.launch import RankError, run
from shardlab.model.spec import TransformerSpec
from shardlab.ranks import checkpoint, text, transformer
from shardlab.ranks.checkpoint import background, tensors
from shardlab.ranks.mesh import Mesh
from shardlab.ranks.train import Trainer
from shardlab.sharding.layout import Layout

SPEC = TransformerSpec(vocab_size=text.VOCAB_SIZE, context_length=64, hidden_size=64, num_layers=4, num_heads=8)
LAYOUT, SAMPLES = Layout(dp=2, zero=1), 2  # of each rank
BETWEEN, DISK = 2.0, 0.25  # s, from kill to kill on average; the disk's part of a save
INTERVALS = {  # s of training between two saves, about, on both sides of the best one
    True: (0.2, 0.45, 0.9, 1.8, 2.7),  # training waits
    False: (0.2, 0.45, 0.9, 1.8),
}
KILLS, SEED = 16, 0  # in each row
Note = tuple[str, int, float, float]  # what, step, its seconds, when it began


@dataclass(kw_only=True)
class Row:
    """A run that is killed again and again."""

    waits: bool  # training waits for a save
    every: int  # steps from one save to the next
    step: float  # s of a step, about
    folder: Path
    ending: float = 0.0  # s from the last kill until the launcher was back
    lives: list[float] = field(default_factory=list)  # s from kill to kill
    restarts: list[float] = field(default_factory=list)  # s from a kill to the first step, with what is slow in it

    def notes(self, what: str) -> list[Note]:
        """What the first rank wrote down of all lives; a kill may have cut the last line of one."""
        path = self.folder / "notes"
        rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [(row[0], int(row[1]), float(row[2]), float(row[3])) for row in rows if row[0] == what and len(row) == 5]


def noting(folder: Path, rank: int) -> Callable[[str, int, float], None]:
    """What writes down what began when and took how long, on the first rank."""
    file = os.open(folder / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(what: str, step: int, began: float) -> None:
        if rank == 0:
            os.write(file, f"{what} {step} {time.monotonic() - began} {began} .\n".encode())

    return note


def slow_disk(note: Callable[[str, int, float], None]) -> None:
    """Let each file take DISK seconds more, and note how long a save in the background takes."""
    write, whole = tensors.write, background.write

    def slowly(*args: Any) -> Any:
        checksums = write(*args)
        time.sleep(DISK)
        return checksums

    def timed(*args: Any) -> Any:
        began = time.monotonic()
        path = whole(*args)
        note("safe", 0, began)
        return path

    tensors.write, background.write = slowly, timed


def live(group: comm.Group, folder: Path, every: int, waits: bool, num_steps: float) -> None:
    """Train from the last checkpoint until a kill, or for `num_steps`."""
    (folder / f"process-{group.rank()}").write_text(f"{os.getpid()}\n")
    note = noting(folder, group.rank())
    slow_disk(note)
    mesh = Mesh(LAYOUT, group)
    torch.manual_seed(0)
    trainer = Trainer(transformer.Transformer(SPEC), mesh, schedules.make("1F1B", 1, 1), torch.optim.AdamW)
    saver = checkpoint.Background(folder / "run", group)
    path = checkpoint.latest(folder / "run", group)
    step = 0 if path is None else trainer.load(path)["step"]
    what = "first"
    while step < num_steps:
        began = time.monotonic()
        tokens = torch.randint(SPEC.vocab_size, (SAMPLES, SPEC.context_length + 1))
        trainer.step(tokens[:, :-1], tokens[:, 1:]).item()
        step += 1
        note(what, step, began)
        what = "step"
        if step % every == 0:
            began = time.monotonic()
            if waits:
                trainer.save(folder / "run", step)
            else:
                trainer.save_behind(saver, step)
            note("save", step, began)


def kill(row: Row, victim: int, at: float, killed: list[float]) -> None:
    """Kill a rank at a time, or as soon as it exists."""
    process = row.folder / f"process-{victim}"
    while not (process.exists() and process.read_text().endswith("\n")):
        time.sleep(0.001)
    time.sleep(max(0.0, at - time.monotonic()))
    killed.append(time.monotonic())
    os.kill(int(process.read_text()), signal.SIGKILL)


def one_life(row: Row, victim: int, seconds: float) -> None:
    """Start, and be killed `seconds` after the kill before."""
    for old in row.folder.glob("process-*"):
        old.unlink()
    began, killed = time.monotonic(), list[float]()
    killer = threading.Thread(target=kill, args=(row, victim, began + seconds - row.ending, killed))
    killer.start()
    try:
        run(live, row.folder, row.every, row.waits, float("inf"), world_size=LAYOUT.ranks)
    except RankError as error:
        if "SIGKILL" not in str(error):
            raise
    killer.join()
    row.lives.append(killed[0] - began + row.ending)
    for _, _, took, first in row.notes("first")[-1:]:
        if first > began:
            row.restarts.append(first + took - row.step - began + row.ending)
    row.ending = time.monotonic() - killed[0]


def these_kills(row: Row, suffers: Reliability, interval: float) -> float:
    """The goodput of the rule behind `Reliability` for the lives that a row has had."""
    saves, cycle = 0, max(interval + suffers.save, suffers.lag)
    for seconds in row.lives:
        saves += max(0, int((seconds - suffers.restart - suffers.lag) // cycle))
    return saves * interval / sum(row.lives)


def judged(row: Row, medians: dict[str, float]) -> dict[str, Any]:
    """What a row has measured, beside what is predicted for it."""
    path = checkpoint.latest(row.folder / "run")
    useful = int(path.name.removeprefix("step-")) if path else 0
    suffers = Reliability(between=sum(row.lives) / len(row.lives), **medians)
    step = statistics.mean(note[2] for note in row.notes("step"))
    interval = row.every * step
    return {
        "saves": "training waits" if row.waits else "in the background",
        "steps between saves": row.every,
        "step": step,
        "interval": interval,
        "kills": len(row.lives),
        "seconds": sum(row.lives),
        "useful steps": useful,
        "goodput": useful * step / sum(row.lives),
        "predicted": suffers.goodput(interval) if interval > suffers.lag else None,
        "predicted, these kills": these_kills(row, suffers, interval),
    }


def spread(values: list[float]) -> dict[str, float]:
    """The median of values, with its quartiles."""
    low, median, high = statistics.quantiles(values, n=4)
    return {"median": median, "quartile 1": low, "quartile 3": high}


def calibrate(folder: Path) -> float:
    """Seconds of a step where nothing is saved."""
    folder.mkdir()
    run(live, folder, 10**6, True, 100, world_size=LAYOUT.ranks)
    row = Row(waits=True, every=10**6, step=0.0, folder=folder)
    return statistics.median(note[2] for note in row.notes("step"))


def kill_times() -> list[float]:
    """Seconds from kill to kill: exponentially distributed, with one in each of KILLS parts of the distribution."""
    drawn = random.Random(SEED)
    times = [-BETWEEN * math.log1p(-(part + drawn.random()) / KILLS) for part in range(KILLS)]
    drawn.shuffle(times)
    return times


def measure(folder: Path) -> dict[str, Any]:
    """All rows, in turns, from kill to kill."""
    once = calibrate(folder / "calibration")
    rows = []
    for waits in (True, False):
        for interval in INTERVALS[waits]:
            every = max(1, round(interval / once))
            rows.append(Row(waits=waits, every=every, step=once, folder=folder / f"{waits}-{interval}"))
            rows[-1].folder.mkdir()
    drawn = random.Random(SEED)
    for number, seconds in enumerate(kill_times()):
        victim = drawn.randrange(LAYOUT.ranks)
        for row in rows:
            one_life(row, victim, seconds)
        print(f"kill {number + 1} of {KILLS} in each row, after {seconds:.2f} s", flush=True)
    found: dict[str, Any] = {"disk": DISK, "seed": SEED, "between": BETWEEN}
    results = []
    for waits in (True, False):
        mine = [row for row in rows if row.waits == waits]
        seconds = {"save": [note[2] for row in mine for note in row.notes("save")]}
        seconds["restart"] = [each for row in mine for each in row.restarts]
        if not waits:
            seconds["lag"] = [note[2] for row in mine for note in row.notes("safe")]
        medians = {name: statistics.median(values) for name, values in seconds.items()}
        name = "training waits" if waits else "in the background"
        found[name] = {each: spread(values) for each, values in seconds.items()}
        found[name]["best interval"] = Reliability(between=BETWEEN, **medians).best_interval()
        results += [judged(row, medians) for row in mine]
    return {**found, "rows": results}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        result = measure(Path(folder))
    for row in result["rows"]:
        print({key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()})
    print("written to", record.write("operations", result).name)


if __name__ == "__main__":
    no_arguments(__doc__)
    main()
