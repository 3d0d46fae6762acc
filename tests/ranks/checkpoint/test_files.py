"""A checkpoint of any layout loads in any other, and a run that was killed ends as if it had not been."""

import hashlib
import os
import re
import shutil
import signal

import pytest
import torch

from shardlab.layout import Layout
from shardlab.ranks import checkpoint, train, transformer
from shardlab.ranks.checkpoint import files
from shardlab.ranks.launch import RankError, run
from shardlab.ranks.mesh import Mesh
from shardlab.schedules import make
from shardlab.spec import TransformerSpec
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
        for each in checkpoint.contents(path).values():
            assert sum(chunk.sizes.numel() for chunk in each.chunks) == each.size.numel()
        numbers = sum(each.size.numel() for each in checkpoint.contents(path).values() if each.size)
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
    path = checkpoint.latest(folder)
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
    write, calls = files.Writing.resolve_data, []

    def some(self, item):
        calls.append(item)
        return die() if len(calls) > 10 else write(self, item)

    files.Writing.resolve_data = some


KILLS = {
    "before it is saved": die_in(files, "delete_partial"),
    "in the middle of a file": die_after_some_tensors,
    "when all is written but the name": die_in(files, "flush"),
    "when it has its name": die_in(files, "complete"),
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


# ---- what cannot be read ---------------------------------------------------------------------------------------------


def told(group, path, spec):
    torch.manual_seed(0)
    model = transformer.Transformer(spec)
    trainer = train.Trainer(model, Mesh(Layout(tp=2), group), make("GPipe", 1, 1), torch.optim.AdamW)
    trainer.load(path)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    run(steps, folder, Layout(dp=2), world_size=2)
    return checkpoint.latest(folder)


def other(**changes):
    sizes = {"vocab_size": 13, "context_length": 8, "hidden_size": 8, "num_layers": 2, "num_heads": 2}
    return TransformerSpec(**{**sizes, **changes})


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (other(vocab_size=15), "another model: embedding.tokens.weight is (13, 8) there, and (15, 8) here; build the"),
        (other(num_layers=3), "another model: blocks.2.attention.k.bias is missing there, and (8,) here"),
        (other(num_layers=1), "another model: blocks.1.attention.k.bias is (8,) there, and missing here"),
    ],
)
def test_another_model_is_refused(spec, said, saved):
    with pytest.raises(RankError, match=re.escape(said)):
        run(told, saved, spec, world_size=2)


@pytest.mark.parametrize("damage", ["no .metadata", "a file less", "a short file", "no folder"])
def test_a_damaged_checkpoint_says_what_is_wrong(damage, saved, tmp_path):
    path = tmp_path / "copy"
    if damage != "no folder":
        shutil.copytree(saved, path)
    file = path / "__0_0.distcp"
    if damage == "no .metadata":
        (path / ".metadata").unlink()
    elif damage == "a file less":
        file.unlink()
    elif damage == "a short file":
        os.truncate(file, file.stat().st_size // 2)
    said = {
        "a file less": "is damaged: its file __0_0.distcp is missing; use an earlier checkpoint",
        "a short file": "is damaged: its file __0_0.distcp has .* bytes of",
    }.get(damage, "is no checkpoint: it has no file .metadata; pass what checkpoint.latest")
    with pytest.raises(ValueError, match=said):
        checkpoint.weights(path)


def test_a_step_is_saved_once(saved):
    def again(group):
        checkpoint.save(saved.parent, STEPS, group, [], {})

    with pytest.raises(RankError, match="is there already; go on from it"):
        run(again, world_size=2)


def test_boxes_that_leave_something_out_are_refused(tmp_path):
    def half(group):
        from shardlab.ranks.checkpoint.boxes import Box

        box = Box(name="weights/x", shape=(4,), offsets=(group.rank(),), tensor=torch.zeros(1))
        checkpoint.save(tmp_path, 1, group, [box], {})

    with pytest.raises(RankError, match="Failed to validate global plan"):
        run(half, world_size=2)
    assert checkpoint.latest(tmp_path) is None


def test_there_is_none_at_first(tmp_path):
    assert checkpoint.latest(tmp_path / "nowhere") is None
