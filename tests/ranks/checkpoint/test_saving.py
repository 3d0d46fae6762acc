"""A checkpoint of any layout loads in any other, and a run that was killed ends as if it had not been."""

import errno
import hashlib
import os
import resource
import shutil
import signal
import warnings
from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shardlab import comm
from shardlab.launch import RankError, run
from shardlab.model.spec import TransformerSpec
from shardlab.ranks import checkpoint, train, transformer
from shardlab.ranks.checkpoint import folders, index, loading, saving, tensors
from shardlab.ranks.checkpoint.boxes import TensorBox
from shardlab.ranks.mesh import Mesh
from shardlab.schedules import make
from shardlab.sharding.layout import Layout
from tests.ranks import training
from tests.ranks.second_device import as_on_gpus

# ---- from layout to layout -------------------------------------------------------------------------------------------

CHAIN = [
    (Layout(tp=2, pp=2), "1F1B"),
    (Layout(tp=4, sequence_parallel=True), "GPipe"),
    (Layout(dp=4, zero=3), "GPipe"),
    (Layout(dp=2, pp=2, zero=2), "ZB-H1"),
    (Layout(dp=2, tp=2, zero=1), "GPipe"),
    (Layout(dp=4), "GPipe"),
]
LAYERS, SAMPLES = 3, 9


def steps_apart(group, folder, style):
    """Take every step in another layout, from the checkpoint of the step before; return the losses."""
    known, losses, path = {}, [], None
    for step, (layout, schedule) in enumerate(CHAIN):
        trainer = training.make_trainer(group, (layout, schedule, style, LAYERS, None), known=known)
        if path is not None:
            facts = trainer.load(path)
            assert (facts["step"], facts["position"]) == (step, step * SAMPLES)
        losses.append(trainer.step(*training.batch(trainer.mesh, style, step, SAMPLES)).item())
        path = trainer.save(folder, step + 1, position=(step + 1) * SAMPLES)
    return losses


@pytest.fixture(scope="module", params=training.STYLES)
def chain(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("chain")
    return request.param, folder, run(steps_apart, folder, request.param, world_size=4)


@pytest.mark.parity("composition", "a checkpoint of any layout goes on in any other: losses and weights")
def test_every_layout_goes_on_where_another_stopped(chain):
    style, folder, ranks = chain
    history, weights = training.alone(style, LAYERS, SAMPLES, len(CHAIN))
    losses = [loss for loss, _ in history]
    for rank in ranks:
        torch.testing.assert_close(rank, losses, rtol=0, atol=1e-12)
    found = checkpoint.weights(checkpoint.latest(folder))
    assert found.keys() == weights.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(found[name], weight, rtol=0, atol=1e-12)


def test_every_number_is_written_once_and_old_ones_go(chain):
    style, folder, _ = chain
    assert sorted(os.listdir(folder)) == ["step-00000005", "step-00000006"]
    for path in folder.iterdir():
        saved = checkpoint.contents(path).values()
        for each in saved:
            assert sum(prod(box.sizes) for box in each.boxes) == prod(each.shape)
        numbers = sum(prod(each.shape) for each in saved if each.shape)
        assert numbers == 3 * sum(p.numel() for p in training.plain(style, LAYERS).parameters())


# ---- killed ----------------------------------------------------------------------------------------------------------

SPEC = TransformerSpec(vocab_size=13, context_length=8, hidden_size=8, num_layers=2, num_heads=2)
STEPS, KILLED_AT = 5, 3


def steps(group, folder, layout, kill=None):
    """Train to the end, with random samples and a falling learning rate, from the last checkpoint if there is one."""
    torch.manual_seed(0)
    model = transformer.Transformer(SPEC)
    mesh = Mesh(layout, group)
    trainer = train.Trainer(model, mesh, make("1F1B", layout.pp, 2), torch.optim.AdamW, max_norm=1.0)
    torch.manual_seed(mesh.place["dp"])
    path = checkpoint.latest(folder, group)
    step = 0 if path is None else trainer.load(path)["step"]
    while step < STEPS:
        tokens = torch.randint(13, (3, 9))
        trainer.step(tokens[:, :-1], tokens[:, 1:])
        for state in trainer.states:
            state.optimizer.param_groups[0]["lr"] *= 0.8
        step += 1
        if kill and step == KILLED_AT and group.rank() == 0:
            KILLS[kill]()
        trainer.save(folder, step)
    whole = trainer.gather()
    return hashlib.sha256(b"".join(whole[name].numpy().tobytes() for name in sorted(whole))).hexdigest()


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def die_in(owner, name):
    """Let the rank die at the next call of this function."""
    return lambda: setattr(owner, name, die)


def die_after_some_tensors():
    take, calls = tensors.as_bytes, []

    def some(tensor):
        calls.append(tensor)
        return die() if len(calls) > 10 else take(tensor)

    tensors.as_bytes = some


KILLS = {
    "before it is saved": die_in(saving, "delete_partial"),
    "in the middle of a file": die_after_some_tensors,
    "when all is written but the name": die_in(saving, "flush"),
    "when it has its name": die_in(saving, "named"),
    "when an old one goes": die_in(shutil, "rmtree"),
}
LAYOUTS = [Layout(dp=2, zero=2), Layout(tp=2), Layout(pp=2), Layout(dp=2), Layout(dp=2, zero=3)]


@pytest.mark.parametrize(("kill", "layout"), list(zip(KILLS, LAYOUTS, strict=True)), ids=list(KILLS))
@pytest.mark.parity("composition", "a run killed while it saved ends bit by bit like one that was not")
def test_a_run_that_was_killed_ends_bit_identical_to_one_that_was_not(kill, layout, tmp_path):
    (expected, _) = run(steps, tmp_path / "whole", layout, world_size=2)
    folder = tmp_path / "killed"
    with pytest.raises(RankError, match="SIGKILL"):
        run(steps, folder, layout, kill, world_size=2)
    last = checkpoint.latest(folder)
    assert last is not None
    checkpoint.contents(last)  # it is whole
    assert run(steps, folder, layout, world_size=2) == [expected] * 2
    assert sorted(os.listdir(folder)) == ["step-00000004", "step-00000005"]


# ---- where the ranks have a device ----------------------------------------------------------------------------------

ON_DEVICE = [  # without ZeRO-3: the stand-in for a GPU has no storage that one could free
    (Layout(dp=2, zero=2), "GPipe"),
    (Layout(tp=2, sequence_parallel=True), "ZB-H1"),
    (Layout(pp=2), "1F1B"),
]


def there_and_back(group, folder):
    """Save and load a checkpoint, take a step, and return its loss."""
    found = []
    for number, (layout, schedule) in enumerate(ON_DEVICE):
        torch.manual_seed(0)
        model = transformer.Transformer(SPEC)
        mesh = Mesh(layout, group)
        trainer = train.Trainer(model, mesh, make(schedule, layout.pp, 2), torch.optim.AdamW, max_norm=1.0)
        torch.manual_seed(1)
        tokens = torch.randint(13, (3, 9))
        trainer.step(tokens[:, :-1], tokens[:, 1:])
        trainer.load(trainer.save(folder, number))
        found.append(trainer.step(tokens[:, :-1], tokens[:, 1:]).item())
    return found


def test_it_trains_and_saves_where_ranks_have_a_device(tmp_path):
    there = run(as_on_gpus(there_and_back), tmp_path / "there", world_size=2)
    assert there == run(there_and_back, tmp_path / "here", world_size=2)


# ---- what cannot be saved --------------------------------------------------------------------------------------------


def test_a_step_is_saved_once_unless_it_is_damaged(tmp_path):
    def save(group):
        return checkpoint.save(tmp_path, 1, group, [], {})

    (path, _) = run(save, world_size=2)
    with pytest.raises(RankError, match="step-00000001 is there already; go on from it"):
        run(save, world_size=2)
    (path / index.FILE).write_text("{}")
    run(save, world_size=2)
    assert checkpoint.latest(tmp_path) == path


@pytest.mark.parametrize(
    ("offset", "size", "said"),
    [
        (1, 1, "boxes hold 2 of the 4 numbers of weights/x; save those of all ranks"),
        (1, 3, "boxes of weights/x, at .* share numbers; save boxes that are equal or disjoint"),
        (4, 1, "has shape .* but a box of it has offsets .* save boxes that lie inside"),
    ],
)
def test_boxes_that_do_not_fill_a_tensor_are_refused(offset, size, said, tmp_path):
    def some(group):
        box = TensorBox(name="weights/x", shape=(4,), offsets=(group.rank() * offset,), tensor=torch.zeros(size))
        checkpoint.save(tmp_path, 1, group, [box], {})

    with pytest.raises(RankError, match=said):
        run(some, world_size=2)
    assert os.listdir(tmp_path) == []


def test_ranks_that_disagree_on_a_tensor_are_refused(tmp_path):
    def save(group):
        tensor = torch.zeros(2, dtype=[torch.float32, torch.float64][group.rank()])
        checkpoint.save(tmp_path, 1, group, [TensorBox(name="weights/x", shape=(2,), offsets=(0,), tensor=tensor)], {})

    with pytest.raises(RankError, match=r"ranks disagree on weights/x: torch.float32 of .* build the same model"):
        run(save, world_size=2)


@pytest.mark.parametrize("what", ["facts", "own", "dtype"])
def test_what_json_and_safetensors_cannot_hold_is_refused_on_all_ranks(what, tmp_path):
    def save(group):
        facts = {"seed": torch.zeros(1)} if what == "facts" else {}
        own = {"seed": {1, 2}} if what == "own" and group.rank() else {}
        dtype = torch.complex64 if what == "dtype" else torch.float32
        box = TensorBox(name="weights/x", shape=(2,), offsets=(0,), tensor=torch.zeros(2, dtype=dtype))
        with pytest.raises(ValueError, match=r"is not JSON serializable|convert it to one of") as raised:
            checkpoint.save(tmp_path, 1, group, [box], facts, own)
        return str(raised.value)

    said = run(save, world_size=2)
    assert said[0] == said[1]
    assert os.listdir(tmp_path) == []


def no_space(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("where", ["a rank's file", "the index", "the folder", "a limit"])
def test_a_full_disk_is_one_line_and_leaves_the_earlier_checkpoints(where, tmp_path):
    def save(group, step):
        held = [TensorBox(name="weights/x", shape=(99, 99), offsets=(0, 0), tensor=torch.full((99, 99), float(step)))]
        return checkpoint.save(tmp_path, step, group, held, {}, {"seed": torch.zeros(9999)})

    def save_and_fail(group):
        save(group, 1)
        before = tensors.as_bytes, saving.index.write, saving.delete_partial
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        if where == "a rank's file" and group.rank() == 1:
            tensors.as_bytes = no_space
        if where == "the index":
            saving.index.write = no_space
        if where == "the folder":
            saving.delete_partial = no_space
        if where == "a limit":
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
        with pytest.raises(OSError, match=r"step-00000002 was not saved: .* make room, or save") as raised:
            save(group, 2)
        left = sorted(os.listdir(tmp_path))
        comm.barrier(group)
        tensors.as_bytes, saving.index.write, saving.delete_partial = before
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        save(group, 2)
        return raised.value.errno, str(raised.value), left

    (one, other) = run(save_and_fail, world_size=2)
    assert one == other
    assert one[0] == (errno.EFBIG if where == "a limit" else errno.ENOSPC)
    assert "\n" not in one[1]
    assert one[2] == ["step-00000001"]
    assert checkpoint.latest(tmp_path).name == "step-00000002"


# ---- among other things in the folder --------------------------------------------------------------------------------


def save_steps(group, folder, steps, keep=2):
    """Save these steps; return what was warned of on this rank."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in steps:
            checkpoint.save(folder, step, group, [], {}, keep=keep)
    return [str(each.message) for each in told]


WRONG = [-1, 0, 1.5, 2.0, None, "2", True, np.array([2]), torch.tensor(2.0), 10**30, 10**5000, float("nan")]


def test_numbers_that_are_none_cost_no_checkpoint(tmp_path):
    def save(group):
        save_steps(group, tmp_path, [1])
        for wrong in WRONG:
            with pytest.raises(ValueError, match="keep must be a whole number from 1 to"):
                save_steps(group, tmp_path, [2], wrong)
        for wrong in (-1, *WRONG[2:]):
            with pytest.raises(ValueError, match="step must be a whole number from 0 to"):
                save_steps(group, tmp_path, [wrong])

    run(save, world_size=1)
    assert os.listdir(tmp_path) == ["step-00000001"]


@pytest.mark.parametrize(
    "steps",
    [(0, 1, 2), (99_999_999, 10**8, 10**9), (8, 10**17, 10**18), (np.int64(1), torch.tensor(2), np.uint8(3))],
)
def test_steps_of_any_size_and_kind_are_kept_in_their_order(steps, tmp_path):
    assert run(save_steps, tmp_path, steps, np.int64(2), world_size=1) == [[]]
    assert sorted(os.listdir(tmp_path)) == sorted(f"step-{int(step):08d}" for step in steps[1:])
    assert checkpoint.latest(tmp_path).name == f"step-{int(steps[2]):08d}"


def moved(folder, name):
    """Move a checkpoint to another disk, and leave a link."""
    shutil.move(folder / name, folder.parent / "disk")
    (folder / name).symlink_to(folder.parent / "disk")


STRAY = {
    "a checkpoint that was moved": lambda folder: moved(folder, "step-00000001"),
    "a link to nowhere": lambda folder: (folder / "step-00000000").symlink_to(folder / "nowhere"),
    "a link in a circle": lambda folder: (folder / "step-00000000").symlink_to(folder / "step-00000000"),
    "a file with such a name": lambda folder: (folder / "step-00000000").write_text("mine"),
    "a folder with such a name": lambda folder: (folder / "step-00000000").mkdir(),
    "another name": lambda folder: (folder / "step-000000001").mkdir(),
    "notes": lambda folder: (folder / ".step-notes.old").write_text("mine"),
}
ENDS = {  # of a save that was killed, or of an earlier version
    "a link": lambda path: path.symlink_to(path.parent / "step-00000001"),
    "a file": lambda path: path.write_text(""),
    "a folder": lambda path: (path / "deep").mkdir(parents=True),
}


@pytest.mark.parametrize("stray", STRAY)
def test_what_else_lies_there_ends_no_save(stray, tmp_path):
    folder = tmp_path / "run"
    run(save_steps, folder, [1], world_size=1)
    STRAY[stray](folder)
    before = {path.name for path in folder.iterdir()} - {"step-00000001"}
    assert run(save_steps, folder, [2, 3, 4], world_size=1) == [[]]
    assert {path.name for path in folder.iterdir()} == before | {"step-00000003", "step-00000004"}
    if stray == "a checkpoint that was moved":
        assert loading.problem(tmp_path / "disk") is None


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", [".step-00000001.old", ".step-00000002.part", ".step-00000009.part"])
def test_the_rests_of_other_saves_go(name, end, tmp_path):
    run(save_steps, tmp_path, [1], world_size=1)
    ENDS[end](tmp_path / name)
    assert run(save_steps, tmp_path, [2, 3], world_size=1) == [[]]
    assert sorted(os.listdir(tmp_path)) == ["step-00000002", "step-00000003"]


def test_a_link_to_a_damaged_checkpoint_is_replaced_and_a_file_is_not(tmp_path):
    folder = tmp_path / "run"
    run(save_steps, folder, [1], world_size=1)
    moved(folder, "step-00000001")
    (tmp_path / "disk" / index.FILE).write_text("{}")
    run(save_steps, folder, [1], world_size=1)
    assert checkpoint.latest(folder) == folder / "step-00000001"
    assert (tmp_path / "disk" / index.FILE).read_text() == "{}"
    (folder / "step-00000002").write_text("mine")
    with pytest.raises(RankError, match="step-00000002 is a file, and no checkpoint; move it away"):
        run(save_steps, folder, [2], world_size=1)


@pytest.mark.parametrize("refused", ["rename", "rmtree"])
def test_a_save_that_cannot_tidy_up_warns(refused, tmp_path):
    """As for a mount, a folder of another user, or a file that is in use."""

    def busy(*_, **__):
        raise OSError(errno.EBUSY, "Device or resource busy")

    def save(group):
        owner = shutil if refused == "rmtree" else folders.Path
        kept = getattr(owner, refused)
        save_steps(group, tmp_path, [1, 2])
        act = lambda path, *rest: busy() if "00000001" in path.name else kept(path, *rest)  # noqa: E731
        setattr(owner, refused, act)
        told = save_steps(group, tmp_path, [3, 4, 5])
        setattr(owner, refused, kept)
        return told

    (told,) = run(save, world_size=1)
    assert len(told) >= 3
    assert all("step-00000001" in each and "could not be deleted: Device or resource busy" in each for each in told)
    assert {"step-00000004", "step-00000005"} < {*os.listdir(tmp_path)}
    assert len(os.listdir(tmp_path)) == 3


# ---- who writes what -------------------------------------------------------------------------------------------------


@given(st.lists(st.sets(st.integers(0, 30), max_size=20), min_size=1, max_size=6))
def test_each_box_has_one_writer_that_holds_it(held):
    pieces = [[piece(number) for number in sorted(some)] for some in held]
    writers = saving.share(pieces)
    assert writers.keys() == {each for some in pieces for each in some}
    for each, rank in writers.items():
        assert each in pieces[rank]


def test_replicas_write_alike():
    pieces = [piece(number) for number in range(40)]
    writers = saving.share([pieces] * 4)
    loads = [sum(4 * each.sizes[0] for each, rank in writers.items() if rank == r) for r in range(4)]
    assert max(loads) - min(loads) <= 4 * max(each.sizes[0] for each in pieces)
    assert max(loads) < 1.05 * sum(loads) / 4


def piece(number):
    size = (number + 1,)
    return index.Piece(f"weights/{number}", torch.float32, size, (0,), size)
