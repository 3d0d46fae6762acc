"""Runs that are killed at random moments lose no checkpoint, and have the losses of runs that nobody killed."""

import itertools
import mmap
import os
import random
import shutil
import signal
import struct
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from shardlab import comm
from shardlab.launch import RankError, run
from shardlab.ranks import checkpoint
from shardlab.ranks.checkpoint import loading, saving
from shardlab.ranks.checkpoint.boxes import TensorBox
from shardlab.sharding.layout import Layout
from tests.patience import kills, until
from tests.ranks.training import alone, batch, make_trainer

pytestmark = pytest.mark.slow

KILLS, LIVES = kills(10), kills(6)
SAVES, PERIOD = 2, 0.12  # saves before the one in which the kill falls; s from one to the next, about
MOMENT = 0.0002  # s


def killer(folder, rank, share, within):
    """Fork a process that kills this one: `share` of a save after one has begun, or `share` of a short life from now.

    It leaves in the folder whether a save was under way. Returns a byte to tell it so.
    """
    saving, victim = mmap.mmap(-1, 1), os.getpid()
    if os.fork():
        return saving

    def pause(seconds):
        time.sleep(seconds)
        if os.getppid() != victim:  # its peer was killed, and it with it
            os._exit(0)

    def until(state):
        while saving[0] != state:
            pause(MOMENT)
        return time.monotonic()

    if within:
        for _ in range(SAVES):
            took = -until(1) + until(0)
        until(1)
        pause(share * took)
    else:
        pause(share * 2 * SAVES * PERIOD)
    os.kill(victim, signal.SIGKILL)
    (folder / f"died-{rank}").write_text("saving" if saving[0] else "training")
    os._exit(0)


def noting(folder, rank):
    """Return what writes down on the first rank what a save does."""
    notes = os.open(folder / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    return lambda what, step: os.write(notes, f"{what} {step}\n".encode()) if rank == 0 else 0


def last(notes, what):
    return max([int(line.split()[1]) for line in notes if line.startswith(what)], default=0)


def live(folder, train, *args, world_size):
    """Train until the killer has come. What it leaves is whole, and never older than the last that was called safe.

    Returns the last checkpoint, its step, the step of the last save that began, and whether one was under way.
    """
    with pytest.raises(RankError, match="SIGKILL"):
        run(train, folder, *args, world_size=world_size)
    notes = (folder / "notes").read_text().splitlines()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of a damaged one
        path = checkpoint.latest(folder / "run")
    step, begun = saving.step_in(path) if path else 0, last(notes, "begins")
    assert last(notes, "safe") <= step <= begun
    died = [(each.read_text(), each.unlink())[0] for each in folder.glob("died-*")]
    return path, step, begun, "saving" in died


# ---- under one layout: every save ------------------------------------------------------------------------------------

RANKS, NUMBERS, OWN = 2, 100_000, 10_000


def train_on(group, folder, doomed, share, within):
    """Go on from the last checkpoint, whose numbers must all be its step, until the killer comes."""
    path, rank = checkpoint.latest(folder / "run", group), group.rank()
    step, x, note = 0, torch.zeros(NUMBERS), noting(folder, rank)
    boxes = [TensorBox(name="weights/x", shape=(RANKS * NUMBERS,), offsets=(rank * NUMBERS,), tensor=x)]
    if path is not None:
        facts, own = checkpoint.load(path, group, boxes)
        step = facts["step"]
        assert (x == step).all()
        assert own["seed"].tolist() == [step] * OWN
    saver = checkpoint.Background(folder / "run", group, keep=1)
    comm.barrier(group)
    saving = killer(folder, rank, share, within) if rank in doomed else bytearray(1)
    while True:
        step += 1
        x.fill_(step)
        note("begins", step)
        saving[0] = 1
        saver.save(step, boxes, {}, {"seed": torch.full((OWN,), step)})
        saver._writing.add_done_callback(lambda _: saving.__setitem__(0, 0))
        x.fill_(-1)  # training goes on, and its ranks need each other
        comm.all_reduce(x[:9], group)
        saver.wait()
        note("safe", step)
        time.sleep(PERIOD / 2)  # some steps


def test_no_kill_costs_the_last_checkpoint(tmp_path):
    """In half of the cases the kill is placed within a save. Of one rank or both; the launcher then ends the others."""
    drawn, within_a_save, dropped = random.Random(0), 0, 0
    for number in range(KILLS):
        doomed, share = drawn.choice([[0], [1], [0, 1]]), drawn.random()
        path, step, begun, within = live(tmp_path, train_on, doomed, share, number % 2 == 0, world_size=RANKS)
        assert begun <= step + 1
        if path:
            weights = checkpoint.weights(path)["x"]
            assert weights.tolist() == [step] * (RANKS * NUMBERS)
        within_a_save += within
        dropped += begun - step
    print(f"{KILLS} kills, {within_a_save} within a save, of which {dropped} were dropped; at step {step}")
    assert within_a_save >= KILLS / 3


# ---- under changing layouts: every loss ------------------------------------------------------------------------------

LAYOUTS = [Layout(dp=2, zero=1), Layout(pp=2), Layout(dp=2, tp=2), Layout(tp=2), Layout(dp=2)]  # two lives each
STYLE, LAYERS, SAMPLES, EVERY = "llama", 2, 5, 2  # samples of all replicas; steps from one save to the next
AS_ONE_PROCESS = 1e-12  # relative, in float64, after hundreds of steps; rounding stays below 1e-15


def trainer_of(group, layout, known=None):
    return make_trainer(group, (layout, "1F1B", STYLE, LAYERS, SAMPLES), known=known)


def steps(trainer, path):
    """Go on from a checkpoint without end: (step, its loss)."""
    step = trainer.load(path)["step"] if path else 0
    while True:
        loss = trainer.step(*batch(trainer.mesh, STYLE, step, SAMPLES)).item()
        step += 1
        yield step, loss


def train_in(group, folder, layout, number, doomed, share, within):
    """Write down every loss, and save in turns while training waits and in the background, until the killer comes."""
    rank, trainer = group.rank(), trainer_of(group, layout)
    losses, note = os.open(folder / f"losses-{number}-{rank}", os.O_WRONLY | os.O_CREAT), noting(folder, rank)
    (folder / f"process-{number}-{rank}").write_text(str(os.getpid()))
    saver, runs = checkpoint.Background(folder / "run", group, keep=1), folder / "run"
    path = checkpoint.latest(runs, group)
    comm.barrier(group)
    under_way = killer(folder, rank, share, within) if rank in doomed else bytearray(1)

    def safe(step):
        note("safe", step)
        under_way[0] = 0

    for step, loss in steps(trainer, path):
        os.write(losses, struct.pack("qd", step, loss))
        if step % EVERY == 0:
            saver.wait()
            note("begins", step)
            under_way[0] = 1
            if step % (2 * EVERY):
                trainer.save(runs, step, keep=1, life=number)
                safe(step)
            else:
                trainer.save_behind(saver, step, life=number)
                saver._writing.add_done_callback(lambda writing, step=step: writing.exception() or safe(step))


def go_on(group, chains):
    """Return the losses of each chain where nobody interrupts it: {step: loss}."""
    known = {}
    return [
        dict(itertools.islice(steps(trainer_of(group, layout, known), path), count)) for layout, path, count in chains
    ]


def written(folder, number):
    """What each rank wrote down in a life: step -> loss. A kill may have cut the last one."""
    files = [each.read_bytes() for each in folder.glob(f"losses-{number}-*")]
    return [dict(struct.iter_unpack("qd", each[: len(each) // 16 * 16])) for each in files]


def is_alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@dataclass(eq=False)
class Chain:
    """Lives in one layout, each from a save of the one before."""

    layout: Layout
    begins: Path | None  # a copy of the save of another layout
    losses: list = field(default_factory=list)  # {step: loss} of all lives and ranks

    def count(self):
        begins = saving.step_in(self.begins) if self.begins else 0
        return max([begins, *(step for life in self.losses for step in life)]) - begins


def test_losses_are_those_of_a_run_that_nobody_killed_under_changing_layouts(tmp_path, record_property):
    """Bitwise those of one layout going on from the save of another, and to rounding those of one process.

    `SHARDLAB_KILLS=100 pytest -s -k layouts tests/ranks/checkpoint/test_killed.py` kills a hundred times, and
    `python bench/killed.py` records it.
    """
    drawn, path, chain_of, within_a_save, again = random.Random(0), None, {}, 0, 0
    for number in range(LIVES):
        layout = LAYOUTS[number // 2 % len(LAYOUTS)]
        chain = chain_of.get(loading._open(path).facts["life"]) if path else None
        if chain is None or chain.layout != layout:
            chain = Chain(layout, path and Path(shutil.copytree(path, tmp_path / f"before-{number}" / path.name)))
        chain_of[number] = chain
        doomed = drawn.sample(range(layout.ranks), drawn.randint(1, layout.ranks))
        options = (layout, number, doomed, drawn.random(), number % 3 != 1)
        path, step, begun, within = live(tmp_path, train_in, *options, world_size=layout.ranks)
        assert begun <= step + EVERY
        found = written(tmp_path, number)
        again += sum(map(len, found)) if chain.losses else 0
        chain.losses += found
        within_a_save += within
    assert until(lambda: not any(is_alive(int(each.read_text())) for each in tmp_path.glob("process-*")))

    chains = [*dict.fromkeys(chain_of.values())]
    for size in (2, 4):
        mine = [chain for chain in chains if chain.layout.ranks == size]
        given = [(chain.layout, chain.begins, chain.count()) for chain in mine]
        for rank in run(go_on, given, world_size=size) if mine else []:
            for chain, expected in zip(mine, rank, strict=True):
                assert all(each.items() <= expected.items() for each in chain.losses)
    losses = [each for chain in chains for life in chain.losses for each in life.items()]
    expected, _ = alone(STYLE, LAYERS, SAMPLES, max(step for step, _ in losses))
    apart = max(abs(loss / expected[step - 1][0] - 1) for step, loss in losses)
    found = {"kills": LIVES, "within a save": within_a_save, "changes of layout": len(chains) - 1}
    found |= {"last step saved": step, "losses on all ranks": len(losses), "after a kill in the same layout": again}
    found |= {"largest relative difference": apart}
    record_property("found", found)
    print(found)
    assert apart < AS_ONE_PROCESS
    assert again > 0
