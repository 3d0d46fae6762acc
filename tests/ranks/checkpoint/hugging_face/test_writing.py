"""Ranks of any layout write a published checkpoint back, byte for byte as the library writes it."""

import hashlib
import os
import re
import signal
import threading

import pytest
from safetensors.torch import save_file

from shardlab.launch import RankError, run
from shardlab.ranks.checkpoint.hugging_face import writing
from shardlab.sharding.layout import Layout

from .test_reading import CASES, WHERE, plain, renamed, trainer

FILE = "model.safetensors"
MOST = 1000  # bytes of a file: several files of a small model


def publish(folder, architecture):
    """Let the library write a checkpoint in bf16, without buffers, and give it a tokenizer."""
    prefix = "transformer." if architecture == "GPT2LMHeadModel" else ""
    named = renamed(architecture, plain(architecture)).items()
    weights = {prefix + name: x.bfloat16() for name, x in named if not name.endswith(".attn.bias")}
    save_file(weights, folder / FILE, {"format": "pt"})
    (folder / "tokenizer.json").write_text("{}")
    return {"architectures": [architecture], "torch_dtype": "bfloat16", "tie_word_embeddings": CASES[architecture].tied}


def back(group, architecture, layout, origin, config, most=writing.MOST_BYTES):
    made = trainer(group, architecture, layout)
    made.read(origin, architecture)
    made.write(origin / "back", config, tokenizer=origin, most=most)


def hashes(folder):
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir() if file.is_file()}


@pytest.mark.parametrize(("architecture", "layout"), WHERE, ids=str)
def test_a_folder_that_is_read_and_written_has_the_bytes_of_before(tmp_path, architecture, layout):
    config = publish(tmp_path, architecture)
    before = hashes(tmp_path)
    run(back, architecture, layout, tmp_path, config, world_size=layout.ranks, ranks="threads")
    after = hashes(tmp_path / "back")
    assert after.keys() == {FILE, "tokenizer.json", "config.json"}
    assert before.items() <= after.items()


@pytest.mark.parametrize("architecture", ["Phi3ForCausalLM", "GPT2LMHeadModel"])
def test_two_layouts_write_the_same_files(tmp_path, architecture):
    found = []
    for layout in (Layout(tp=2, pp=2), Layout(dp=3, zero=3)):
        origin = tmp_path / str(layout.ranks)
        origin.mkdir()
        config = publish(origin, architecture)
        run(back, architecture, layout, origin, config, MOST, world_size=layout.ranks, ranks="threads")
        found.append(hashes(origin / "back"))
    assert found[0] == found[1]
    assert len(found[0]) > len(("index", "config", "tokenizer", "two files", "of tensors"))
    run(back, architecture, Layout(), origin / "back", config, world_size=1, ranks="threads")  # by the index
    assert hashes(origin).items() <= hashes(origin / "back" / "back").items()


def refused(group, origin, config, is_full):
    made = trainer(group, "LlamaForCausalLM", Layout(tp=2))
    put, own = writing._put, threading.get_ident()

    def full(*given):
        if threading.get_ident() == own:
            raise OSError(28, "No space left on device")
        put(*given)

    with pytest.MonkeyPatch.context() as patch:
        if is_full and group.rank() == 1:
            patch.setattr(writing, "_put", full)
        with pytest.raises((OSError, ValueError)) as error:
            made.write(origin / "back", config)
    return str(error.value)


CONFIG = {"architectures": ["LlamaForCausalLM"]}
WRONG = {
    "no space": (CONFIG, r"No space left on device \(rank 1\)"),
    "there": (CONFIG, "is there already"),
    "dtype": (CONFIG | {"dtype": "int8"}, "dtype='int8' cannot be written"),
    "tied": (CONFIG | {"tie_word_embeddings": True}, "tie_word_embeddings=True, and the model has tied=False"),
    "no architecture": ({}, "architectures=None must be a list of one name"),
    "another": ({"architectures": ["GemmaForCausalLM"]}, "no table of names"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_one_rank_cannot_write_all_ranks_refuse_and_nothing_is_left(tmp_path, name):
    config, words = WRONG[name]
    if name == "there":
        (tmp_path / "back").mkdir()
    first, second = run(refused, tmp_path, config, name == "no space", world_size=2, ranks="threads")
    assert first == second
    assert re.search(words, first), first
    assert [each.name for each in tmp_path.iterdir()] == ["back"] * (name == "there")


def killed(group, origin, config):
    if group.rank() == 1:
        writing._put = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    back(group, "LlamaForCausalLM", Layout(tp=2), origin, config)


def test_a_run_that_is_killed_while_it_writes_leaves_no_folder_of_that_name(tmp_path):
    config = publish(tmp_path, "LlamaForCausalLM")
    with pytest.raises(RankError, match="SIGKILL"):
        run(killed, tmp_path, config, world_size=2)
    assert (tmp_path / ".back.part" / FILE).exists()
    assert not (tmp_path / "back").exists()
    run(back, "LlamaForCausalLM", Layout(tp=2), tmp_path, config, world_size=2, ranks="threads")
    assert not (tmp_path / ".back.part").exists()
    assert hashes(tmp_path).items() <= hashes(tmp_path / "back").items()
