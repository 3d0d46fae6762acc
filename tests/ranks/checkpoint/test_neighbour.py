"""Copies in the memory of two nodes: one node may be lost, at any moment; a node is a folder here."""

import errno
import json
import os
import random
import shutil
import time
import warnings
from pathlib import Path

import pytest
import torch

from shardlab import comm
from shardlab.launch import RankError, run
from shardlab.ranks import checkpoint
from shardlab.ranks.checkpoint import folders, neighbour, saving
from shardlab.ranks.checkpoint.boxes import TensorBox
from shardlab.sharding.layout import Layout
from tests.ranks import training
from tests.ranks.checkpoint.test_killed import killer, last, noting

pytestmark = pytest.mark.slow

CUT = Layout(dp=4, zero=1)  # ranks hold different states
STYLE, LAYERS, SAMPLES, STEPS = "llama", 2, 8, 4


def of_node(folder, group, nodes):
    return folder / f"node-{group.rank() * nodes // group.size()}"


def files(path):
    return {each.name: each.read_bytes() for each in path.iterdir()}


# ---- a training ------------------------------------------------------------------------------------------------------


def train(group, layout, folder, nodes, begin=0):
    """Go on from what nodes have, or else the disk has; save after two steps in both. Return losses, where it began."""
    trainer = training.make_trainer(group, (layout, "1F1B", STYLE, LAYERS, None))
    memory, losses = of_node(folder, group, nodes), []
    path = neighbour.latest(memory, group, nodes=nodes) or checkpoint.latest(folder / "disk", group)
    step = trainer.load(path)["step"] if path else 0
    while step < STEPS:
        losses.append(trainer.step(*training.batch(trainer.mesh, STYLE, step, SAMPLES)).item())
        step += 1
        if step == STEPS // 2 and path is None:
            trainer.save(folder / "disk", step)
            trainer.save(memory, step, nodes=nodes)
    return losses, path and path.parent.name


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    return folder, run(train, CUT, folder, 2, world_size=4)[0][0]


LOST = (), (0,), (1,), (0, 1)
HALF = Layout(dp=2, zero=1)


@pytest.mark.parametrize(
    ("layout", "nodes", "lost"),
    [*((CUT, 2, lost) for lost in LOST), (HALF, 1, (0,)), (HALF, 1, (1,)), (Layout(tp=2), 2, (1,))],
)
def test_what_one_node_is_left_with_goes_on_in_any_layout(trained, layout, nodes, lost, tmp_path):
    """Bitwise in the same layout; without any copy from the disk."""
    folder, whole = trained
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    for node in lost:
        shutil.rmtree(tmp_path / f"node-{node}")
    if nodes == 1 and lost == (0,):
        (tmp_path / "node-1").rename(tmp_path / "node-0")  # the survivor is the first node now
    for rank, (losses, begun) in enumerate(run(train, layout, tmp_path, nodes, world_size=layout.ranks)):
        assert begun == ("disk" if len(lost) == 2 else f"node-{rank * nodes // layout.ranks}")
        if layout == CUT:
            assert losses == whole[STEPS // 2 :]
        torch.testing.assert_close(losses, whole[STEPS // 2 :], rtol=0, atol=1e-12)
    if len(lost) < 2:  # what each node has now is what the disk has
        for node in range(nodes):
            assert files(tmp_path / f"node-{node}" / "step-00000002") == files(folder / "disk" / "step-00000002")


# ---- three nodes -----------------------------------------------------------------------------------------------------

NODES = RANKS = 3
NUMBERS = 1000


def boxes_of(group, value):
    x = torch.full((NUMBERS,), float(value))
    name, shape = "weights/x", (NUMBERS * group.size(),)
    return [TensorBox(name=name, shape=shape, offsets=(NUMBERS * group.rank(),), tensor=x)]


def save_steps(group, folder, steps, keep=2, nodes=NODES):
    memory = of_node(folder, group, nodes)
    for step in steps:
        checkpoint.save(memory, step, group, boxes_of(group, step), {}, keep=keep, nodes=nodes)


def load_last(group, folder, nodes=NODES):
    """Return the step that is loaded, and what the ranks were warned of."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        path = neighbour.latest(of_node(folder, group, nodes), group, nodes=nodes)
    boxes = boxes_of(group, -1)
    step = checkpoint.load(path, group, boxes)[0]["step"] if path else 0
    assert (boxes[0].tensor == (step or -1)).all()
    return step, [str(each.message) for each in said]


def test_each_node_has_its_files_and_those_of_the_node_before(tmp_path):
    run(save_steps, tmp_path, range(1, 4), world_size=RANKS)
    for node in range(NODES):
        there = [each.name for each in folders.named(tmp_path / f"node-{node}")]
        assert there == ["step-00000002", "step-00000003"]
        mine = {f"rank-{rank}-of-3.safetensors" for rank in (node, (node - 1) % NODES)}
        assert files(tmp_path / f"node-{node}" / there[-1]).keys() == {*mine, "checkpoint.json"}


@pytest.mark.parametrize("lost", [(0,), (1,), (2,), (0, 1), (1, 2), (2, 0)])
def test_one_node_may_be_lost_and_no_two_that_follow_each_other(lost, tmp_path):
    run(save_steps, tmp_path, [1], world_size=RANKS)
    for node in lost:
        shutil.rmtree(tmp_path / f"node-{node}")
    step, said = run(load_last, tmp_path, world_size=RANKS)[0]
    assert step == (len(lost) == 1)
    gone = f"no node has rank-{lost[0]}-of-3.safetensors undamaged; neighbour.latest passes over it"
    assert [each.endswith(gone) for each in said] == [True] * (len(lost) - 1)


def spoil(folder, node, rank, size):
    file = folder / f"node-{node}" / "step-00000002" / f"rank-{rank}-of-{size}.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")


def test_a_damaged_copy_is_replaced_by_the_neighbours(tmp_path):
    run(save_steps, tmp_path, [1, 2], world_size=RANKS)
    spoil(tmp_path, 1, 1, 3)
    spoil(tmp_path, 1, 0, 3)
    assert run(load_last, tmp_path, world_size=RANKS)[0] == (2, [])


def test_where_both_copies_are_damaged_the_checkpoint_is_passed_over(tmp_path):
    run(save_steps, tmp_path, [1, 2], world_size=RANKS)
    for node in 1, 2:
        spoil(tmp_path, node, 1, 3)
    step, said = run(load_last, tmp_path, world_size=RANKS)[0]
    assert step == 1
    assert said[0].endswith("no node has rank-1-of-3.safetensors undamaged; neighbour.latest passes over it")


def test_a_step_that_was_passed_over_can_be_saved_again(tmp_path):
    run(save_steps, tmp_path, [1, 2], 2, 2, world_size=2)
    for node in 0, 1:
        spoil(tmp_path, node, 1, 2)
    assert run(load_last, tmp_path, 2, world_size=2)[0][0] == 1
    run(save_steps, tmp_path, [2], 2, 2, world_size=2)
    assert run(load_last, tmp_path, 2, world_size=2)[0] == (2, [])


def test_an_empty_file_is_one_that_a_node_lacks(tmp_path):
    run(save_steps, tmp_path, [1], world_size=RANKS)
    (tmp_path / "node-0" / "step-00000001" / "rank-0-of-3.safetensors").write_bytes(b"")
    assert run(load_last, tmp_path, world_size=RANKS)[0] == (1, [])


def test_two_starts_that_saved_the_same_step_are_not_mixed(tmp_path):
    """Node 0 comes back with what it saved before it was cut off; the others have gone on from elsewhere."""

    def other(group):
        where = of_node(tmp_path, group, NODES)
        return checkpoint.save(where, 2, group, boxes_of(group, 2), {"start": 2}, nodes=NODES)

    run(save_steps, tmp_path, [1, 2], world_size=RANKS)
    (tmp_path / "node-0").rename(tmp_path / "kept")
    shutil.rmtree(tmp_path / "node-1" / "step-00000002")
    shutil.rmtree(tmp_path / "node-2" / "step-00000002")
    run(other, world_size=RANKS)
    shutil.rmtree(tmp_path / "node-0")
    (tmp_path / "kept").rename(tmp_path / "node-0")
    assert run(load_last, tmp_path, world_size=RANKS)[0] == (2, [])
    for node in range(NODES):
        assert b'"start": 2' in files(tmp_path / f"node-{node}" / "step-00000002")["checkpoint.json"]


@pytest.mark.parametrize("nodes", [0, 2])
def test_nodes_with_unequal_ranks_are_refused(nodes, tmp_path):
    with pytest.raises(RankError, match=f"3 ranks do not fill {nodes} nodes; start as many on each"):
        run(save_steps, tmp_path, [1], 2, nodes, world_size=RANKS)


def no_space(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def fill_up(group, folder):
    save_steps(group, folder, [1])
    if group.rank() == 1:
        neighbour.flush = no_space  # for what comes from the node before
    with pytest.raises(OSError, match=r"step-00000002 was not saved: No space left on device \(rank 1\); make room"):
        save_steps(group, folder, [2])
    return sorted(each.name for each in of_node(folder, group, NODES).iterdir())


def test_a_node_without_room_for_the_copy_fails_all_and_leaves_the_earlier_checkpoint(tmp_path):
    assert run(fill_up, tmp_path, world_size=RANKS) == [["step-00000001"]] * RANKS


def refuse_the_name(group, folder, refused):
    """Fail when node 1 gives the name, or has given it. Return what is left, and what loads then and after a retry."""
    save_steps(group, folder, [1])
    memory = of_node(folder, group, NODES)
    at, owner, name = {"rename": (".step-00000002.part", Path, "rename"), "flush": ("node-1", saving, "flush")}[refused]
    kept = getattr(owner, name)
    if group.rank() == 1:
        setattr(owner, name, lambda path, *rest: no_space() if path.name == at else kept(path, *rest))
    with pytest.raises(OSError, match=r"step-00000002 was not saved: No space left on device \(rank 1\); make room"):
        save_steps(group, folder, [2])
    setattr(owner, name, kept)
    left, found = os.listdir(memory), load_last(group, folder)
    save_steps(group, folder, [2])
    return left, found, load_last(group, folder)


@pytest.mark.parametrize("refused", ["rename", "flush"])
def test_a_name_that_one_node_cannot_give_is_taken_back_on_all(refused, tmp_path):
    """The others together have every file."""
    expected = (["step-00000001"], (1, []), (2, []))
    assert run(refuse_the_name, tmp_path, refused, world_size=RANKS) == [expected] * RANKS


# ---- a name ----------------------------------------------------------------------------------------------------------


def watch_names(group, folder):
    """Note what lies on all nodes when each gives the name."""
    seen, give = [], saving._give_name

    def noted(part, path):
        for node in range(NODES):
            try:
                seen.append(len(os.listdir(folder / f"node-{node}" / part.name)))
            except FileNotFoundError:  # it has its name already
                seen.append(len(os.listdir(folder / f"node-{node}" / path.name)))
        give(part, path)

    saving._give_name = noted
    save_steps(group, folder, [1])
    return seen


def test_a_name_is_given_when_all_bytes_are_on_all_nodes(tmp_path):
    assert run(watch_names, tmp_path, world_size=RANKS) == [[3] * NODES] * RANKS  # two files and the index


KILLS, SIZE, PERIOD = 2, 4, 0.1


def train_on(group, folder, doomed, share):
    """Save in memory, in the background, until the killer comes: within a save."""
    rank, nodes = group.rank(), 2
    step, _ = load_last(group, folder, nodes)
    note, memory = noting(folder, rank), of_node(folder, group, nodes)
    saver = checkpoint.Background(memory, group, nodes=nodes)
    comm.barrier(group)
    under_way = killer(folder, rank, share, True) if rank in doomed else bytearray(1)
    while True:
        step += 1
        under_way[0] = 1
        saver.save(step, boxes_of(group, step), {})
        saver._writing.add_done_callback(lambda _: under_way.__setitem__(0, 0))
        saver.wait()
        note("safe", step)
        time.sleep(PERIOD / 2)


def test_a_node_killed_within_a_save_costs_no_save_that_was_safe(tmp_path):
    """A whole node dies, and its memory with it. The other node has all that is needed."""
    drawn = random.Random(0)
    for number in range(KILLS):
        node = number % 2
        with pytest.raises(RankError, match="SIGKILL"):
            run(train_on, tmp_path, [2 * node, 2 * node + 1], drawn.random(), world_size=SIZE)
        shutil.rmtree(tmp_path / f"node-{node}")
        step, _ = run(load_last, tmp_path, 2, world_size=SIZE)[0]
        safe = last((tmp_path / "notes").read_text().splitlines(), "safe")
        assert step in (safe, safe + 1)
        assert step > 0


# ---- as recorded -----------------------------------------------------------------------------------------------------

RECORDED = json.loads((Path(__file__).parents[3] / "bench" / "results" / "survivors.json").read_text())


@pytest.mark.parametrize("row", RECORDED["rows"], ids=lambda row: row["name"])
def test_a_run_whose_node_died_lost_no_more_than_it_had_not_saved(row):
    every = RECORDED["memory every" if row["memory"] else "disk every"]
    assert row["from"] == ("memory" if row["memory"] else "file system")
    assert row["resumed"] == row["reached"] // every * every
    assert row["losses"] >= 10
    assert row["bitwise"] == (row["ranks"] == 4)
    assert row["largest relative difference"] < 1e-5  # in float32
