"""The command line: what it prints, and 0 or 1 at the end."""

import subprocess
import sys
from pathlib import Path

import pytest

from shardlab import exercises
from shardlab.exercises import __main__ as command

from .solutions import data_parallel as solutions

SHARD, STEP = "data_parallel.shard", "data_parallel.step_with_accumulation"


@pytest.fixture
def cli(monkeypatch, capsys):
    """Calls the command in this process: arguments -> exit code, what it printed."""

    def call(*arguments):
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setattr(sys, "argv", ["exercises", *map(str, arguments)])
        code = command.main()
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return call


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "my_file.py"
        path.write_text(text)
        return path

    return write


def test_a_shell_gets_0_for_the_solutions_and_1_for_the_starters(tmp_path):
    starters = tmp_path / "starters.py"
    starters.write_text("\n".join(exercise.starter for exercise in exercises.every().values()))
    for answers, code, points in [(Path(solutions.__file__), 0, "10 of 10 points"), (starters, 1, "0 of 10 points")]:
        line = [sys.executable, "-m", "shardlab.exercises", "check", "data_parallel", str(answers)]
        done = subprocess.run(line, capture_output=True, text=True, timeout=300, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (code, ""), done.stdout
        assert done.stdout.splitlines()[-1] == points


def test_list_names_every_exercise(cli):
    code, text = cli("list")
    assert code == 0
    for each in exercises.every().values():
        assert f"{each.name}  ({each.points} points)\n    {each.prompt}\n" in text


def test_starter_and_hint_are_printed(cli):
    assert cli("starter", SHARD) == (0, exercises.find(SHARD).starter)
    assert cli("hint", SHARD) == (0, exercises.find(SHARD).hint + "\n")


def test_one_exercise_of_a_file_is_checked_with_the_file_s_own_helpers(cli, file):
    answers = file("import helper\ndef my_shard(n, r, w):\n    return part(n, r, w)\npart = helper.part\n")
    answers.with_name("helper.py").write_text("def part(n, r, w):\n    return range(r, n, w)\n")
    code, text = cli("check", SHARD, answers)
    assert code == 0, text
    assert text.endswith("1 of 1 points\n")


def test_a_wrong_line_is_named(cli, file):
    code, text = cli("check", SHARD, file("def my_shard(n, r, w):\n    return range(n / w)\n"))
    assert code == 1
    assert 'my_file.py", line 2, in my_shard\n    return range(n / w)\nTypeError' in text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def my_shard(:\n", "line 1"),
        ("x = 1\nx / 0\n", "line 2"),
        ("raise SystemExit(0)\n", "line 1"),
        ("def shard():\n    pass\n", "defines no my_shard"),
    ],
    ids=["syntax", "exception", "exit", "no function"],
)
def test_a_file_that_is_no_answer_is_told_why(cli, file, text, says):
    code, printed = cli("check", SHARD, file(text))
    assert code == 1
    assert says in printed


def test_a_missing_file_and_an_unknown_name_are_told(cli, tmp_path):
    for arguments in (("check", SHARD, tmp_path / "none.py"), ("check", SHARD, tmp_path)):
        code, printed = cli(*arguments)
        assert code == 1
        assert "cannot be run" in printed
    code, printed = cli("starter", "sharding")
    assert code == 1
    assert "'sharding'; choose from memory.model_states, " in printed
