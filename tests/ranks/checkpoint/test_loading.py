"""What is damaged, malicious or of another model is refused in one line, and no number changes silently."""

import copy
import io
import json
import os
import pickle
import re
import shutil
import warnings
from contextlib import suppress

import pytest
import torch

from shardlab.launch import RankError, run
from shardlab.model.spec import TransformerSpec
from shardlab.ranks import checkpoint, train, transformer
from shardlab.ranks.checkpoint import index, loading
from shardlab.ranks.checkpoint.boxes import TensorBox, whole
from shardlab.ranks.mesh import Mesh
from shardlab.schedules import make
from shardlab.sharding.layout import Layout

SIZES = {"vocab_size": 13, "context_length": 8, "hidden_size": 8, "num_layers": 2, "num_heads": 2}


def other(**changes):
    return TransformerSpec(**{**SIZES, **changes})


def make_trainer(group, layout, spec):
    torch.manual_seed(0)
    return train.Trainer(
        transformer.Transformer(spec), Mesh(layout, group), make("GPipe", 1, 1), torch.optim.AdamW
    )


def save_two(group, folder):
    trainer = make_trainer(group, Layout(dp=2, zero=1), other())
    for step in (1, 2):
        tokens = torch.randint(13, (3, 9), generator=torch.Generator().manual_seed(step))
        trainer.step(tokens[:, :-1], tokens[:, 1:])
        trainer.save(folder, step, seen=[3 * step])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    run(save_two, folder, world_size=2)
    return folder


@pytest.fixture
def path(folder, tmp_path):
    """A copy of the second checkpoint, beside the first."""
    shutil.copytree(folder, tmp_path / "copy")
    return tmp_path / "copy" / "step-00000002"


# ---- of another model ------------------------------------------------------------------------------------------------


def load(group, path, spec):
    return make_trainer(group, Layout(tp=2), spec).load(path)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (other(vocab_size=15), "another model: embedding.tokens.weight is (13, 8) there, and (15, 8) here; build the"),
        (other(num_layers=3), "another model: blocks.2.attention.k.bias is missing there, and (8,) here"),
        (other(num_layers=1), "another model: blocks.1.attention.k.bias is (8,) there, and missing here"),
    ],
)
def test_another_model_is_refused(spec, said, path):
    with pytest.raises(RankError, match=re.escape(said)):
        run(load, path, spec, world_size=2)


def test_boxes_that_were_not_saved_are_refused(path):
    def load(group):
        boxes = [whole("weights/y", torch.zeros(3))]
        if group.rank():
            boxes = [TensorBox(name="weights/norm.weight", shape=(9,), offsets=(0,), tensor=torch.zeros(9))]
        with pytest.raises(ValueError, match=r"has none for weights/y of shape \(3,\); load what was saved"):
            checkpoint.load(path, group, boxes)

    run(load, world_size=2)


# ---- damaged ---------------------------------------------------------------------------------------------------------

DAMAGE = {
    "no index": r"is no checkpoint: it has no file checkpoint.json; use what checkpoint.latest\(...\) returns",
    "no folder": "is no checkpoint: it has no file checkpoint.json",
    "an empty index": "is damaged: checkpoint.json does not have its checksum; use an earlier checkpoint",
    "half an index": "is damaged: checkpoint.json does not have its checksum; use an earlier checkpoint",
    "a file less": "is damaged: its file rank-1-of-2.safetensors is missing; use an earlier checkpoint",
    "half a file": "is damaged: its file rank-1-of-2.safetensors has .* bytes of at least",
    "an empty file": "is damaged: its file rank-1-of-2.safetensors has 0 bytes of at least",
    "zeros": "is damaged: in its file rank-1-of-2.safetensors, .*; use an earlier checkpoint",
    "zeros in the numbers": "is damaged: in its file rank-1-of-2.safetensors, the checksum of .* is wrong; use",
}


def do_damage(path, damage):
    file = path / (index.FILE if "index" in damage else "rank-1-of-2.safetensors")
    if damage == "no folder":
        shutil.rmtree(path)
    elif damage in ("no index", "a file less"):
        file.unlink()
    elif damage.startswith("zeros"):
        numbers = file.read_bytes()
        kept = b"" if damage == "zeros" else numbers[: len(numbers) // 2]
        file.write_bytes(kept.ljust(len(numbers), b"\0"))
    else:
        os.truncate(file, file.stat().st_size // 2 if "half" in damage else 0)


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_says_what_is_wrong_and_latest_passes_over_it(damage, path):
    do_damage(path, damage)
    with pytest.raises(ValueError, match=DAMAGE[damage]) as raised:
        checkpoint.weights(path)
    assert "\n" not in str(raised.value)
    if damage == "no folder":
        return
    said = DAMAGE[damage].partition(";")[0]
    with pytest.warns(UserWarning, match=f"step-00000002 {said}.*; checkpoint.latest passes over it, so delete it"):
        assert checkpoint.latest(path.parent) == path.with_name("step-00000001")


def test_an_empty_folder_is_passed_over_and_does_not_count(path):
    (path.parent / "step-00000009").mkdir()
    with pytest.warns(UserWarning, match="step-00000009 is no checkpoint: it has no file"):
        assert checkpoint.latest(path.parent) == path

    def save(group):
        checkpoint.save(path.parent, 10, group, [], {})

    run(save, world_size=1)
    assert sorted(os.listdir(path.parent)) == ["step-00000002", "step-00000009", "step-00000010"]


def test_ranks_share_the_reading_and_get_the_same_answer(path):
    do_damage(path, "zeros")  # one of the two ranks sees it

    def answer(group):
        with warnings.catch_warnings(record=True) as told:
            return loading.problem(path, group.rank(), 2), checkpoint.latest(path.parent, group), len(told)

    (first, second) = run(answer, world_size=2)
    assert first[0] is None
    assert "rank-1-of-2" in second[0]
    assert first[1] == second[1] == path.with_name("step-00000001")
    assert (first[2], second[2]) == (1, 0)


def test_what_one_rank_finds_damaged_is_an_error_on_all(path):
    do_damage(path, "zeros in the numbers")

    def load(group):
        trainer = make_trainer(group, Layout(dp=2, zero=1), other())
        with pytest.raises(ValueError, match="is damaged: in its file rank-1-of-2") as raised:
            trainer.load(path)
        return str(raised.value)

    assert len(set(run(load, world_size=2))) == 1


def test_there_is_none_at_first(tmp_path):
    assert checkpoint.latest(tmp_path / "nowhere") is None


# ---- flipped bits ----------------------------------------------------------------------------------------------------


def everything(path):
    """Return all that a checkpoint holds, as plain data and tensors."""
    found = index.read(path)
    held = {name: torch.empty(each.shape, dtype=each.dtype) for name, each in found.tensors.items()}
    loading._fill(path, found, [whole(name, tensor) for name, tensor in held.items()])
    return found.facts, found.own, held


def same(one, other):
    return one[:2] == other[:2] and all(torch.equal(x, other[2][name]) for name, x in one[2].items())


STRIDE = 307  # bytes from one flipped bit to the next; prime, as no file is laid out


def test_every_flipped_bit_is_found_or_harmless(path):
    before = everything(path)
    found, harmless = 0, 0
    for file in sorted(path.iterdir()):
        whole_file = file.read_bytes()
        for place in range(0, len(whole_file), STRIDE):
            flipped = bytearray(whole_file)
            flipped[place] ^= 1 << (place // STRIDE % 8)
            file.write_bytes(flipped)
            said = loading.problem(path)
            if said is None:
                harmless += 1
                assert same(everything(path), before)
                continue
            found += 1
            assert "\n" not in said
            assert file.name in said
            with pytest.raises(ValueError, match="is damaged: "):
                everything(path)
        file.write_bytes(whole_file)
    assert loading.problem(path) is None
    assert found > 150
    assert harmless < found / 50


# ---- malicious -------------------------------------------------------------------------------------------------------


class Payload:
    """What makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def packed_by_torch(x):
    with io.BytesIO() as file:
        torch.save(x, file)
        return file.getvalue()


@pytest.mark.parametrize("pack", [pickle.dumps, packed_by_torch])
def test_a_pickle_in_place_of_any_file_is_not_loaded(pack, path, tmp_path):
    trap = tmp_path / "sprung"
    for file in sorted(path.iterdir()):
        numbers = file.read_bytes()
        file.write_bytes(pack(Payload(trap)).ljust(len(numbers), b"\0"))
        for read in (checkpoint.contents, checkpoint.weights, everything):
            with suppress(ValueError):  # `contents` reads the index only
                read(path)
        assert "is damaged" in loading.problem(path)
        with pytest.raises(RankError, match=r"ValueError: .* is damaged"):
            run(load, path, other(), world_size=2)
        file.write_bytes(numbers)
    (path / ".metadata").write_bytes(pack(Payload(trap)))
    run(load, path, other(), world_size=2)
    assert not trap.exists()


WRONG = [None, -1, 1.5, 10**30, True, "x", [], [-1], {}, {"x": 1}]
MISSING = "missing"  # a field


def places(row, depth=0):
    """List the paths of all fields of an index, of dictionaries only the first two entries further down."""
    items = list(row.items()) if isinstance(row, dict) else list(enumerate(row)) if isinstance(row, list) else []
    for key, value in items[: 12 if depth < 2 else 2 + 4 * (depth == 3)]:
        yield (key,)
        yield from ((key, *rest) for rest in places(value, depth + 1))


def changed(row, place, value):
    row = copy.deepcopy(row)
    inner = row
    for each in place[:-1]:
        inner = inner[each]
    if value is MISSING:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return row


def test_an_index_with_wrong_types_or_missing_keys_is_a_value_error(tmp_path):
    """Its checksum is right, as an attacker would make it."""

    def load_all(group):
        trainer = make_trainer(group, Layout(), other())
        trainer.step(torch.zeros(1, 8, dtype=torch.long), torch.zeros(1, 8, dtype=torch.long))
        path = trainer.save(tmp_path, 1)
        file = path / index.FILE
        body = json.loads(file.read_bytes())["checkpoint"]
        loaded, refused = [], []
        for place in places(body):
            for value in [*WRONG, MISSING]:
                other_body = changed(body, place, value)
                if other_body == body:
                    continue
                file.write_bytes(index._sealed(json.dumps(other_body).encode()))
                try:
                    trainer.load(path)
                    loaded.append((place, json.dumps(value)))
                except ValueError as error:
                    refused.append(str(error))
                    trainer = make_trainer(group, Layout(), other())
        return loaded, refused

    ((loaded, refused),) = run(load_all, world_size=1)
    assert len(refused) > 5 * len(loaded)
    assert not [each for each in refused if "\n" in each]
    in_tensors = {(len(place), value) for place, value in loaded if place[0] == "tensors"}
    assert {value for place, value in loaded if place[-1] == "amsgrad"} <= {json.dumps(MISSING)}
    assert in_tensors <= {(2, json.dumps(MISSING))}  # a state of the optimizer that is not there: it may have had none


@pytest.mark.parametrize("shape", [[0, 10**30], [0, 10**15, 10**15]])
def test_a_shape_that_torch_cannot_hold_is_refused(shape, path):
    body = json.loads((path / index.FILE).read_bytes())["checkpoint"]
    huge = {"dtype": "F32", "shape": shape, "boxes": []}
    body = changed(body, ("tensors", "weights/norm.weight"), huge)
    (path / index.FILE).write_bytes(index._sealed(json.dumps(body).encode()))
    with pytest.raises(ValueError, match=r"is damaged: .* the shape of weights/norm.weight is .*; use an earlier"):
        checkpoint.weights(path)
    with pytest.warns(UserWarning, match="the shape of weights/norm.weight"):
        assert checkpoint.latest(path.parent) == path.with_name("step-00000001")


def test_a_checkpoint_in_the_folder_of_another_step_is_passed_over(path):
    moved = path.rename(path.with_name("step-00000009"))
    with pytest.raises(ValueError, match=r"step-00000009 holds step 2; rename it step-00000002"):
        checkpoint.weights(moved)
    with pytest.warns(UserWarning, match=r"step-00000009 holds step 2; checkpoint.latest passes over it"):
        assert checkpoint.latest(path.parent) == path.with_name("step-00000001")
    named_freely = moved.rename(path.with_name("best"))
    assert checkpoint.weights(named_freely)
    body = json.loads((named_freely / index.FILE).read_bytes())["checkpoint"]
    body = changed(body, ("facts", "step"), -7)
    (named_freely / index.FILE).write_bytes(index._sealed(json.dumps(body).encode()))
    with pytest.raises(ValueError, match=r"is damaged: .* step is -7 and not at least 0"):
        checkpoint.weights(named_freely)


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"{", b"\xff", b"[" * 100_000, b'{"facts": NaN}', b"1" * 9999])
def test_an_index_that_is_no_json_object_is_refused(body, path):
    (path / index.FILE).write_bytes(index._sealed(body))
    with pytest.raises(ValueError, match=r"is damaged: checkpoint.json: .*; use an earlier"):
        checkpoint.contents(path)


def test_an_index_that_names_another_dtype_is_refused(path):
    """The bytes and their checksum would be the same."""
    body = json.loads((path / index.FILE).read_bytes())["checkpoint"]
    changed_body = changed(body, ("tensors", "weights/embedding.tokens.weight", "dtype"), "I32")
    (path / index.FILE).write_bytes(index._sealed(json.dumps(changed_body).encode()))
    with pytest.raises(ValueError, match=r"the checksum of weights/embedding.tokens.weight at .* is wrong"):
        checkpoint.weights(path)
