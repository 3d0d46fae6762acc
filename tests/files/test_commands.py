"""A command that gets nonsense ends in one line on standard error with status 2, soon, and leaves nothing behind."""

import json
import re
import sys
from pathlib import Path

import pytest

from shardlab.exercises import __main__ as exercises
from shardlab.files import take
from shardlab.plan import __main__ as plan
from shardlab.plan import arguments
from shardlab.preflight import __main__ as preflight
from tests.files.test_hostile import CONFIG, HOMEWORK

ROOT = Path(__file__).parents[2]
ESCAPES = "\x1b[2J\n\udcff"  # clears a terminal, is no line, and is no letter
BAD = ["", "--", "-1", "nan", "1e999", "9" * 5000, "x" * 10**5, ESCAPES, "none/such", "folder", "/proc/self/mem"]
PLAN = ["config.json", "--gpus", "8", "--node", "DGX H100", "--batch-tokens", "1024"]
OPTIONS = [option for action in arguments.parser()._actions if action.nargs is None for option in action.option_strings]
WRONG = {  # command -> words with one place for a value
    "plan": [["{}", *PLAN[1:]], *([*PLAN, f"{option}={{}}"] for option in OPTIONS)],
    "preflight": [["--timeout={}"], ["--code={}"], ["--cluster={}"], ["{}"]],
    "take": [["plain.zero", "{}-"], ["plain.{}", "course"], ["{}", "course"], ["plain.zero", "plain.{}", "course"]],
    "exercises": [
        ["{}"], ["starter", "{}"], ["hint", "zero.clip", "{}"], ["check", "{}", "a.py"], ["progress", "no {}"],
        ["list", "--seed={}"], ["list", "--with={}"], ["grade", "{}", "folder"], ["grade", "--seed={}", "a.py", "b"],
        ["gather", "folder", "--csv={}/no/file"], ["export", "{}", "homework.py", "new"],
        ["questions", "{}"], ["questions", "memory", "--seed={}"], ["hint", "zero.clip", "--step={}"],
        ["export", "gradescope", "{}", "new"], ["export", "gradescope", "homework.py", "homework.py/{}"],
    ],
}  # fmt: skip
NO_WORDS = {"plan", "take", "exercises"}  # preflight checks this machine
MAINS = {"plan": plan.main, "preflight": preflight.main, "take": take.main, "exercises": lambda _: exercises.main()}


@pytest.fixture
def ask(tmp_path, monkeypatch, capsys):
    """Call a command in this process, in a folder of its own; return its status and its errors."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "homework.py").write_text(HOMEWORK)
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(preflight.together, "check", lambda *_: 0)
    before = sorted(tmp_path.rglob("*"))

    def call(command, words):
        monkeypatch.setattr(sys, "argv", [command, *words])
        try:
            status = MAINS[command](words)
        except SystemExit as end:
            status = end.code
        assert sorted(tmp_path.rglob("*")) == before, words
        return status, capsys.readouterr().err

    return call


@pytest.mark.parametrize("command", MAINS)
def test_nonsense_is_answered_or_refused_in_one_line(command, ask):
    wrong = [[], ["--no-such"], [*"abc"]] if command in NO_WORDS else [["--no-such"], ["abc"]]
    wrong += [[word.format(bad) for word in words] for words in WRONG[command] for bad in BAD]
    refused = 0
    for words in wrong:
        status, errors = ask(command, words)
        assert status in (0, 1, 2), words
        if status == 2:
            refused += 1
            assert errors.count("\n") == 1, words
            assert errors[:-1].isprintable(), words
            assert len(errors) < 3000, words
        else:
            assert errors == "", words
    assert refused > len(wrong) / 2


def test_every_script_parses_its_words():
    """`--help` shows what it is for, and does not measure for an hour."""
    scripts = [path for folder in ("bench", "tools") for path in (ROOT / folder).glob("*.py")]
    texts = {path.name: path.read_text() for path in scripts}
    begun = {name for name, text in texts.items() if '__name__ == "__main__"' in text}
    assert {name for name in begun if not re.search(r"no_arguments\(__doc__\)|Parser\(", texts[name])} == set()
    assert len(begun) > 20
