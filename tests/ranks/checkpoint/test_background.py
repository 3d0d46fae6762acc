"""A save in the background writes what the rank held when it began, and no kill costs the checkpoint before it."""

import errno
import os
import threading
from pathlib import Path

import pytest
import torch

from shardlab import comm
from shardlab.launch import run
from shardlab.model.spec import TransformerSpec
from shardlab.ranks import checkpoint, train, transformer
from shardlab.ranks.checkpoint import background, saving, tensors
from shardlab.ranks.checkpoint.boxes import TensorBox
from shardlab.ranks.mesh import Mesh
from shardlab.schedules import make
from shardlab.sharding.layout import Layout
from tests.ranks.second_device import as_on_gpus

# ---- what it writes --------------------------------------------------------------------------------------------------

SPEC = TransformerSpec(vocab_size=13, context_length=8, hidden_size=8, num_layers=2, num_heads=2)
LAYOUTS = [
    Layout(),
    Layout(dp=2, zero=3),
    Layout(tp=2, pp=2),
    Layout(dp=2, pp=2, zero=1),
]
PAUSE = 0.4  # s


def gate():
    """Let writing wait at an event, which is set: the files of all ranks begin after it."""
    begin, is_open = saving._begin, threading.Event()
    is_open.set()
    saving._begin = lambda *paths: (is_open.wait(), begin(*paths))
    return is_open


def save_twice(group, folder, layout):
    """Save the same steps at once and in the background, where training changes all before anything is written."""
    torch.manual_seed(0)
    mesh = Mesh(layout, group)
    trainer = train.Trainer(transformer.Transformer(SPEC), mesh, make("1F1B", layout.pp, 2), torch.optim.AdamW)
    saver = checkpoint.Background(folder / "background", group)
    is_open, seen = gate(), []

    def step():
        tokens = torch.randint(13, (3, 9))
        trainer.step(tokens[:, :-1], tokens[:, 1:])
        for state in trainer.states:
            state.optimizer.param_groups[0]["lr"] *= 0.8

    for number in (1, 2, 3):
        position = [number]
        step()
        trainer.save(folder / "at once", number, position=position)
        is_open.clear()
        trainer.save_behind(saver, number, position=position)
        position.append("changed by training")
        step()
        seen.append(sorted(path.name for path in (folder / "background").glob("*")))
        is_open.set()
        assert saver.wait() == saver.wait() == folder / "background" / f"step-{number:08d}"
    return seen


def bytes_in(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parity("composition", "a checkpoint written in the background is byte for byte one written at once")
def test_it_writes_the_bytes_that_a_save_writes_at_once(layout, tmp_path):
    (seen, *_) = run(save_twice, tmp_path, layout, world_size=layout.ranks)
    assert seen == [[], ["step-00000001"], ["step-00000001", "step-00000002"]]
    written = bytes_in(tmp_path / "background")
    assert len(written) == 2 * (layout.ranks + 1)
    assert written == bytes_in(tmp_path / "at once")


def test_it_copies_from_the_device_of_a_rank_to_the_host(tmp_path):
    def copied(group):
        x = torch.full((3,), 1.0, device=comm.device(group))
        boxes = [TensorBox(name="weights/x", shape=(3,), offsets=(0,), tensor=x)]
        share = background._copy(saving.prepare(tmp_path, 1, group, boxes, {}))
        x.fill_(2)
        return x.device.type, [(each.device.type, each.tolist()) for each in share.held.values()]

    assert run(as_on_gpus(copied), world_size=2) == [("lazy", [("cpu", [1, 1, 1])]), ("lazy", [])]


# ---- one after the other, and its errors -----------------------------------------------------------------------------


def held(value, rank=0, size=1, numbers=999):
    x = torch.full((numbers,), float(value))
    return [TensorBox(name="weights/x", shape=(size * numbers,), offsets=(rank * numbers,), tensor=x)]


def test_a_save_waits_until_the_one_before_is_safe_and_says_how_long(tmp_path):
    def two(group):
        is_open = gate()
        saver = checkpoint.Background(tmp_path, group)
        is_open.clear()
        first = saver.save(1, held(1), {})
        threading.Timer(PAUSE, is_open.set).start()
        second = saver.save(2, held(2), {})
        checkpoint.contents(tmp_path / "step-00000001")
        assert min(first.copying, second.copying) > 0
        return first.waiting, second.waiting, saver.wait().name

    for first, second, last in run(two, world_size=2):
        assert first < PAUSE / 4 < PAUSE * 0.8 < second
        assert last == "step-00000002"


def no_space(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("found_by", ["wait", "save"])
def test_a_full_disk_is_an_error_of_the_next_call_on_all_ranks_and_only_of_that(found_by, tmp_path):
    def save(group):
        saver = checkpoint.Background(tmp_path, group)
        saver.save(1, held(1), {})
        saver.wait()
        write = tensors.as_bytes
        if group.rank() == 1:
            tensors.as_bytes = no_space
        saver.save(2, held(2, group.rank(), 2), {})
        with pytest.raises(OSError, match=r"step-00000002 was not saved: No space .*rank 1.* make room") as raised:
            saver.wait() if found_by == "wait" else saver.save(3, held(3), {})
        tensors.as_bytes = write
        left = sorted(os.listdir(tmp_path))
        last = saver.wait().name
        comm.barrier(group)
        saver.save(2, held(2), {})
        return raised.value.errno, left, last, saver.wait().name

    safe = "step-00000001"
    assert run(save, world_size=2) == [(errno.ENOSPC, [safe], safe, "step-00000002")] * 2


def test_a_step_that_is_none_is_refused_at_once_and_one_that_is_there_by_wait(tmp_path):
    def save(group):
        saver = checkpoint.Background(tmp_path, group)
        with pytest.raises(ValueError, match="step must be a whole number"):
            saver.save(-1, held(1), {})
        assert saver.wait() is None
        for _ in range(2):
            saver.wait()
            saver.save(1, held(1), {})
        with pytest.raises(ValueError, match="is there already"):
            saver.wait()

    run(save, world_size=2)


def test_the_bytes_of_all_ranks_are_on_the_disk_before_the_name_is_given(tmp_path):
    """A kill leaves what the system holds in memory; a machine that loses power does not."""

    def save(group):
        log, fsync, rename = os.open(tmp_path / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT), os.fsync, Path.rename
        os.fsync = lambda file: (fsync(file), os.write(log, f"{os.fstat(file).st_ino}\n".encode()))
        Path.rename = lambda path, to: (os.write(log, b"name\n"), rename(path, to))
        saver = checkpoint.Background(tmp_path / "run", group)
        saver.save(1, held(1, group.rank(), 4), {})
        return saver.wait()

    (path, *_) = run(save, world_size=4)
    before, after = (tmp_path / "log").read_text().split("name\n")
    files = {str(each.stat().st_ino) for each in (path, *path.iterdir())}
    assert len(files) == 1 + 4 + 1
    assert set(before.split()) == files
    assert after.split() == [str(path.parent.stat().st_ino)]
