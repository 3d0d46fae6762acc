"""A file from outside, whatever it is, gets an answer or one short line, soon, and moves no terminal's cursor."""

import contextlib
import json
import os
import re
import signal
import sys
import zlib

import pytest
import torch

from shardlab import launch, trace
from shardlab.costs.facts import hugging_face, machines
from shardlab.exercises import homework, notebook, record
from shardlab.explorers import kept
from shardlab.files import described, given, learner
from shardlab.ranks import checkpoint
from shardlab.ranks.checkpoint.boxes import whole

pytestmark = pytest.mark.usefixtures("own_path")
ERASE = "\x1b[2J<script>alert(1)</script>\u202e"
LONGEST = 2 * given.END + 5  # characters of a message
PATIENCE = 60.0  # s, for a reader that would wait without end


@pytest.fixture
def own_path(monkeypatch):
    """Forget the folders of files that were run: no later test can import from them."""
    monkeypatch.setattr(sys, "path", list(sys.path))


CONFIG = {
    "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 96,
    "max_position_embeddings": 128, "num_attention_heads": 8, "num_hidden_layers": 2, "num_key_value_heads": 4,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "vocab_size": 100,
}  # fmt: skip
CLUSTER = 'chip = "H100 SXM 80 GB"\ngpus = 8\nnvlink = "NVLink 4"\ncards = 8\nnetwork = "InfiniBand NDR"\nnodes = 2\n'
EVENT = {"rank": 0, "name": "x", "kind": "forward", "begin": 0.5, "end": 1.5}
CELL = {"cell_type": "code", "source": ["def my_shard(n):\n", "    return 'n'\n"]}
RESULT = {"date": "2026-11-27T10:00:00+00:00", "exercise": "zero.clip", "passed": True, "name": "x", "given": "1"}
HOMEWORK = """
from shardlab.exercises import find
DUE = '2027-01-15'
def exercises(random):
    return [find('zero.clip')]
"""
PLAIN = ("", "\0", "null", "[]", "{}", "[[]]", "[null]", "NaN", '"x"', "{}\n" * 99)
NUMBERS = ("NaN", "-Infinity", "nan", "-1", "0", "1e999", "1" * 400, "1" * 5000, '"x"', "[]", "{}", "null", "true")
STRINGS = ("0", "[]", "{}", "null", "[[[]]]", json.dumps(ERASE), json.dumps("x" * 10**5))


def record_of(path):
    """A learner's own record."""
    kept.kept("x")
    return record.best(learner.read(path.stem))


def checkpoint_of(path):
    checkpoint.latest(path.parent.parent)
    return checkpoint.contents(path.parent), checkpoint.weights(path.parent)


def save(group, folder):
    return checkpoint.save(folder, 1, group, [whole("weights/w", torch.ones(3))], {})


READERS = {  # name of the file, a sound text or None for a checkpoint's own file -> who reads it
    "config.json": (json.dumps(CONFIG), lambda path: hugging_face.read(described.read_json(str(path)))),
    "cluster.toml": (CLUSTER, lambda path: machines.read(described.read_toml(str(path)), 8)),
    "trace.json": (json.dumps([EVENT]), trace.load),
    "a.ipynb": (json.dumps({"cells": [CELL], "metadata": {}}), notebook.source),
    "a.py": (HOMEWORK, notebook.source),
    "homework.py": (HOMEWORK, lambda path: homework.read(path, 0)),
    "guesses.jsonl": (json.dumps(RESULT) + "\n", record_of),
    "step-00000001/checkpoint.json": (None, checkpoint_of),
    "step-00000001/rank-0-of-1.safetensors": (None, checkpoint_of),
}


@pytest.fixture(scope="module")
def sound_checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    launch.run(save, folder, world_size=1)
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.glob("*/*")}


def written(sound):
    """Bytes that may stand in a file instead of what is sound."""
    text = sound.decode("latin-1")
    yield "as it is", sound
    yield "noise", bytes(range(256)) * 8
    yield "escapes", ERASE.encode() * 50
    yield from ((f"cut at {2**n}", sound[: 2**n]) for n in range(len(sound).bit_length()))
    yield from ((each, each.encode()) for each in PLAIN)
    for name, nest in {"[": "[", "{": '{"a":', "=": "a = [", "(": "("}.items():
        yield f"10^5 {name}", nest.encode() * 100_000
    for number in NUMBERS:
        yield f"numbers {number[:9]}", re.sub(r"(?<=[ \[])[\d.e-]+", number, text).encode("latin-1")
    for number in STRINGS:
        yield f"strings {number[:9]}", re.sub(r'"[^"\n]*"(?!:)', lambda _, n=number: n, text).encode("latin-1")
    yield "one more name", text.replace("{", f"{{{json.dumps(ERASE)}: 1, ", 1).encode("latin-1")
    yield "a tensor's name", text.replace("weights/w", "weights/" + json.dumps(ERASE)[1:-1]).encode("latin-1")
    yield "names", re.sub(r'"[^"\n]*"(?=:)', lambda _: json.dumps(ERASE), text).encode("latin-1")


def sealed(name, content):
    """An index whose checksum is right."""
    if not name.endswith("checkpoint.json"):
        return content
    return b'{"crc32": %d, "checkpoint":\n%s}\n' % (zlib.crc32(content), content)


def put(path, kind):
    """Something that is no ordinary file."""
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "200 MB":
        path.touch()
        os.truncate(path, 200 * 10**6)
    elif kind == "closed":
        path.write_text("{}")
        path.chmod(0)


def said(read, path):
    """What is wrong with the message that a reader gives, if it gives one."""

    def too_long(*_):
        raise AssertionError(f"no answer after {PATIENCE} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        with contextlib.suppress(UserWarning):
            read(path)
    except (ValueError, OSError, SyntaxError) as error:
        message = str(error)
        if not message.isprintable() or len(message) > LONGEST:
            return f"{len(message)} characters: {message[:200]!r}"
    except Exception as error:
        return repr(error)[:200]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.filterwarnings("ignore:.*passes over")
@pytest.mark.parametrize("name", READERS)
def test_a_reader_answers_or_says_one_line(name, tmp_path, monkeypatch, sound_checkpoint, capsys):
    text, read = READERS[name]
    sound = sound_checkpoint[name] if text is None else text.encode()
    if name.endswith("checkpoint.json"):
        sound = sound.partition(b"\n")[2].removesuffix(b"}\n")
    wrong, path = {}, tmp_path / "a" / name
    monkeypatch.setenv("SHARDLAB_FOLDER", str(path.parent))
    path.parent.mkdir(parents=True)
    for other, content in sound_checkpoint.items():
        if text is None:
            (tmp_path / "a" / other).write_bytes(content)
    for what, content in written(sound):
        path.write_bytes(sealed(name, content))
        if fault := said(read, path):
            wrong[what] = fault
    for kind in ("missing", "folder", "pipe", "loop", "200 MB", *(["closed"] if os.getuid() else [])):
        path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        put(path, kind)
        if fault := said(read, path):
            wrong[kind] = fault
    assert wrong == {}
    assert capsys.readouterr().out.replace("\n", "").isprintable()


@pytest.mark.parametrize("name", [name for name, (text, _) in READERS.items() if text])
def test_a_hostile_name_is_shown_escaped(name, tmp_path):
    path = tmp_path / ERASE.replace("/", "") / name
    assert said(READERS[name][1], path) is None
