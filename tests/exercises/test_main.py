"""The command line: what it prints, and 0, 1 or 2 at the end."""

import io
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from shardlab import exercises
from shardlab.exercises import __main__ as command
from shardlab.exercises import attempts, grader, room

pytestmark = pytest.mark.slow

COMMAND = "python -m shardlab.exercises hint"
SHARD = "data_parallel.shard"
PATIENCE = 60.0  # s, far above what two busy cores need


@pytest.fixture
def cli(monkeypatch, capsys):
    """Calls the command in this process: arguments -> exit code, what it printed."""

    def call(*arguments, apart=False):
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setattr(sys, "argv", ["exercises", *map(str, arguments)])
        code = command.main()
        captured = capsys.readouterr()
        return code, captured.out if apart else captured.out + captured.err

    return call


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "my_file.py"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def without_ranks(monkeypatch):
    """Start no helper beside a file that will not be imported: it would import torch in vain."""
    assert "launch.warm(); " in grader.SERVE
    monkeypatch.setattr(grader, "SERVE", grader.SERVE.replace("launch.warm(); ", ""))


def runs(pid):
    """Whether a process runs, which a zombie does not; False where there is no /proc."""
    return Path("/proc", pid, "exe").exists()


def test_a_shell_gets_1_for_starters_and_a_wrong_line_is_named(tmp_path):
    answers = tmp_path / "starters.py"
    wrong = "def my_shard(n, r, w):\n    return range(n / w)\n"
    answers.write_text("\n".join([*(each.starter for each in exercises.every().values()), wrong]))
    line = [sys.executable, "-m", "shardlab.exercises", "check", SHARD, "zero.pieces", str(answers)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, ""), done.stdout
    assert done.stdout.splitlines()[-1].startswith("0 of ")
    last = answers.read_text().count("\n")
    assert f'starters.py", line {last}, in my_shard\n    return range(n / w)\nTypeError' in done.stdout
    assert f"Stuck? {COMMAND} {SHARD}\n" in done.stdout


def test_a_program_gets_each_verdict_with_its_properties_and_what_the_file_prints_stays_apart(
    cli, light_ranks, tmp_path
):
    notebook = tmp_path / "homework.ipynb"
    cells = [f"import torch\n{RIGHT}", "print('points')\ntorch.boom()", "def my_clip():\n    print('2 of 2 points')\n"]
    notebook.write_text(json.dumps({"cells": [{"cell_type": "code", "source": cell} for cell in cells]}))
    code, printed = cli("check", SHARD, "zero.clip", "zero.pieces", notebook, "--json", apart=True)
    answer = json.loads(printed)
    assert (code, answer["status"], answer["points"], answer["maximum"]) == (1, "failed", 1, 5)
    right, wrong, missing = answer["exercises"]
    assert (right["name"], right["status"], right["points"], right["reason"]) == (SHARD, "passed", 1, "")
    assert {each["status"] for each in right["properties"]} == {"passed"}
    assert (wrong["status"], wrong["points"], wrong["maximum"]) == ("failed", 0, 2)
    assert wrong["properties"][0] == {"name": "runs to its end on every rank", "status": "failed"}
    assert "Smallest failing case: 1 rank" in wrong["reason"]
    assert missing["reason"] == f"zero.pieces: {notebook} defines no my_pieces"
    assert right["seconds"] > 0
    assert answer["shardlab"]


def test_a_program_is_told_that_nothing_was_graded(cli, file, monkeypatch, without_ranks):
    begin = "from shardlab.exercises import room"
    monkeypatch.setattr(grader, "SERVE", grader.SERVE.replace(begin, "raise ImportError('no torch'); " + begin))
    code, printed = cli("check", SHARD, file(RIGHT), "--json", apart=True)
    answer = json.loads(printed)
    assert (code, answer["status"], answer["points"]) == (2, "not graded", None)
    assert "before the file was read" in answer["exercises"][0]["reason"]


def test_a_program_is_told_that_a_file_cannot_be_run(cli, file, without_ranks):
    code, printed = cli("check", SHARD, "zero.clip", file("1 / 0"), "--json", apart=True)
    answer = json.loads(printed)
    assert (code, answer["status"], answer["points"]) == (1, "failed", 0)
    assert all("cannot be run: line 1: ZeroDivisionError" in each["reason"] for each in answer["exercises"])


def test_list_names_every_exercise(cli):
    code, text = cli("list")
    assert code == 0
    for each in exercises.every().values():
        points = "1 point" if each.points == 1 else f"{each.points} points"
        assert f"{each.name}  ({points})\n    {each.prompt}\n" in text


def test_starter_and_hint_are_printed(cli):
    assert cli("starter", SHARD) == (0, exercises.find(SHARD).starter)
    nudge, idea, way = exercises.find(SHARD).hints
    assert cli("hint", SHARD) == (0, f"{SHARD}: {nudge}\n{COMMAND} {SHARD} --step 2 has the idea.\n")
    assert cli("hint", SHARD, "--step", "2") == (0, f"{SHARD}: {idea}\n{COMMAND} {SHARD} --step 3 has the way.\n")
    assert cli("hint", "zero.clip", SHARD, "--step", "3")[1].endswith(f"\n{SHARD}: {way}\n")
    assert [line.split(":")[0] for line in cli("hint", "zero")[1].splitlines()[::2]] == [
        each.name for each in exercises.of_chapter("zero")
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def my_shard(:\n", "SyntaxError: invalid syntax (my_file.py, line 1)"),
        ("x = 1\nx / 0\n", "line 2: ZeroDivisionError: division by zero"),
        ("import json\n\njson.loads('{')\n", "line 3: JSONDecodeError: Expecting property name"),
        ("import no_such_module\n", "line 1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise ValueError('two\\nlines')\n", "line 1: ValueError: two lines"),
        ("raise SystemExit(0)\n", "line 1: SystemExit: 0"),
    ],
    ids=["syntax", "exception", "in a library", "import", "two lines", "exit"],
)
def test_a_file_that_cannot_be_imported_says_so_in_one_line(file, monkeypatch, text, says):
    monkeypatch.setattr(sys, "path", list(sys.path))
    trouble = room._import(str(file(text)))["stopped"]
    assert trouble.startswith(says)
    assert "\n" not in trouble


def test_a_file_without_the_function_is_told_its_name(cli, file, without_ranks):
    code, printed = cli("check", SHARD, file("def shard():\n    pass\n"))
    assert code == 1
    assert "defines no my_shard" in printed


def test_an_exercise_that_cannot_be_imported_is_a_fault_of_the_grader(cli, file, monkeypatch):
    monkeypatch.setitem(sys.modules, "shardlab.exercises.zero", None)
    code, printed = cli("check", SHARD, file(RIGHT))
    assert code == 2
    assert printed.startswith("not graded: an exercise cannot be imported: ModuleNotFoundError(")
    assert "shardlab.exercises.zero" in printed
    assert printed.count("\n") == 1


def test_functions_of_a_file_are_all_checked_with_its_own_helpers_whatever_the_others_do(cli, file):
    text = """
import os, signal, time
import helper
def my_average_gradients(model, group, num_samples):
    return average(model, group, num_samples)
average = helper.average
def my_shard(n, r, w):
    print("1 of 1 points\\x1b[2J")
    os._exit(0)
def my_average_gradients_fused(model, group, num_samples):
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)
"""
    answers = file(text)
    own = "from tests.exercises.solutions.data_parallel import my_average_gradients as average\n"
    answers.with_name("helper.py").write_text(own)
    code, printed = cli("check", "data_parallel", answers)
    assert code == 1
    assert "\n  | [rank 0] 1 of 1 points\\x1b[2J\n" in f"\n{printed}"
    assert "Smallest failing case: 1 rank, 1 sample\nrank 0 died: exit code 0" in printed
    assert "data_parallel.average_gradients: passed, 2 of 2 points" in printed
    assert "\nThe helper process " in printed, printed
    assert "defines no my_step_with_accumulation" in printed
    assert printed.endswith("\n2 of 10 points\n")


# ---- a file that harms its process, by mistake or not ----------------------------------------------------------------

RIGHT = "def my_shard(n, r, w):\n    return range(r, n, w)\n"
WRONG = "def my_shard(n, r, w):\n    return range(n)\n"
HOSTILE = {  # what the file does while it is imported -> a part of the report
    "import os; os._exit(0)": "The file's process ended with exit status 0 before it had replied.",
    "import os; os.kill(os.getpid(), 11)": "The file's process was ended by SIGSEGV before it had replied.",
    "import os\nfor n in range(3, 64):\n  try: os.write(n, b'points\\n')\n  except OSError: pass": "grader's channel.",
    "while True: print('1 of 1 points')": "The file has not replied after 1 s, which is the limit.",
}
if sys.platform == "linux":  # only Linux limits what a process allocates
    HOSTILE["b = bytearray(20 << 30)"] = "line 1: MemoryError"


@pytest.mark.parametrize(("text", "says"), HOSTILE.items(), ids=range(len(HOSTILE)))
def test_a_file_cannot_end_or_flood_the_grader(cli, file, monkeypatch, without_ranks, text, says):
    monkeypatch.setattr(grader, "LOAD", 1.0 if "while" in text else 30.0)
    code, printed = cli("check", SHARD, file(f"{text}\n{RIGHT}"))
    assert code == 1
    assert "my_file.py cannot be run: " in printed
    assert says in printed
    assert len(printed) < 20_000


def test_classes_that_a_file_patches_are_not_those_of_the_verdict(cli, file, light_ranks):
    patches = """
import atexit, os
from shardlab.exercises import attempts, checker, grader
checker.Report.__bool__ = lambda report: True
checker.judge = attempts.judge = grader.judge = lambda *_: print("1 of 1 points")
atexit.register(os._exit, 0)
"""
    code, printed = cli("check", SHARD, file(patches + WRONG))
    assert code == 1
    assert "failed       no sample is read twice" in printed
    assert printed.endswith("\n0 of 1 points\n")


def test_much_output_and_a_process_that_is_left_behind_do_not_fail_a_right_answer(cli, file, light_ranks, tmp_path):
    lines = f"""
import subprocess
for line in range(60_000):
    print("x" * 100, line)
left = subprocess.Popen(["sleep", "1000"])
open({str(tmp_path / "pid")!r}, "w").write(str(left.pid))
"""
    code, printed = cli("check", SHARD, file(lines + RIGHT))
    assert code == 0
    assert f"  | {'x' * 100} 0\n" in printed
    assert f"  | {'x' * 100} 59999\n" in printed
    assert "... 59,800 lines are left out (6.4 MB in all) ..." in printed
    assert len(printed) < 40_000
    assert not runs((tmp_path / "pid").read_text())


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes are not counted")
def test_a_file_that_starts_too_many_processes_is_ended_with_all_of_them(
    cli, file, monkeypatch, without_ranks, tmp_path
):
    pids = tmp_path / "pids"
    pids.touch()
    monkeypatch.setattr(grader, "MAX_PROCESSES", 40)
    text = f"""
import os, time
for _ in range(7):
    os.fork()
with open({str(pids)!r}, "a") as file:
    file.write(f"{{os.getpid()}} ")
time.sleep(97)
"""
    code, printed = cli("check", SHARD, file(text))
    assert code == 1
    assert "my_file.py cannot be run: The file has started more than 40 processes, the limit." in printed
    assert not any(map(runs, pids.read_text().split()))


def test_a_copy_that_a_file_forks_replies_nothing_and_the_room_ends_with_its_grader(file, without_ranks):
    room = grader.Room(file("import os\nos.fork()\n"), io.StringIO(), None)
    try:
        assert room.attempt(exercises.find(SHARD)) is None  # one reply to each request
        room.channel.shutdown(socket.SHUT_RDWR)  # as when the grader is killed
        assert room.process.wait(PATIENCE) == -signal.SIGKILL
    finally:
        room.close()


def test_a_room_that_falls_silent_is_given_up_and_a_new_one_is_made(cli, file, monkeypatch, without_ranks):
    monkeypatch.setattr(grader, "EXERCISE", 3.0)
    text = """
import threading
class Slow:
    def __reduce__(self):
        threading.Event().wait()
slow = Slow()
def my_shard(n, r, w):
    return slow
"""
    code, printed = cli("check", "data_parallel", file(text))
    assert code == 1
    assert "The file has not replied after 3 s, which is the limit." in printed
    assert "data_parallel.average_gradients: " in printed
    assert "defines no my_average_gradients" in printed


def test_a_grader_that_fails_takes_nobodys_points(cli, file, monkeypatch, without_ranks):
    """A shell gets 2: the answer, which is right, is neither passed nor failed."""
    begin = "from shardlab.exercises import room"
    monkeypatch.setattr(grader, "SERVE", grader.SERVE.replace(begin, "raise ImportError('no safetensors'); " + begin))
    code, printed = cli("check", SHARD, file(RIGHT))
    assert code == 2
    assert "not graded: before the file was read: " in printed
    assert "0 of 1 points" not in printed


@pytest.mark.parametrize(
    ("alone", "code", "says"),
    [
        ("no rank", 2, f"{SHARD}: not graded, the checker itself failed"),
        ("", 1, "failed, 0 of 1 points"),
    ],
    ids=["nor without the file", "but without the file"],
)
def test_where_no_rank_starts_the_file_is_to_blame_only_if_ranks_start_without_it(
    cli, file, monkeypatch, without_ranks, alone, code, says
):
    begin = "from shardlab.exercises import room"
    breaks = "from shardlab.exercises import attempts as a; a.unready = lambda _: 'no rank'; "
    monkeypatch.setattr(grader, "SERVE", grader.SERVE.replace(begin, breaks + begin))
    monkeypatch.setattr(attempts, "unready", lambda exercise: alone)
    status, printed = cli("check", SHARD, file(RIGHT))
    assert status == code
    assert says in printed
    assert "no rank" in printed
    assert ("Ranks can start without the file, but not with it." in printed) == (code == 1)


def test_a_module_in_the_current_folder_is_not_imported_by_the_grader(tmp_path):
    for name in ("json", "pathlib", "random"):
        (tmp_path / f"{name}.py").write_text("import os; os._exit(0)")
    command = [sys.executable, "-m", "shardlab.exercises", "hint", SHARD]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "--step 2 has the idea." in done.stdout


def test_without_a_process_nothing_is_graded(cli, file, monkeypatch):
    def refuse(*arguments, **options):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(grader.subprocess, "Popen", refuse)
    code, printed = cli("check", SHARD, file(RIGHT))
    assert code == 2
    assert "not graded: no process can start: [Errno 11] Resource temporarily unavailable" in printed


@pytest.mark.parametrize("name", ["check", "grade"])
def test_under_torchrun_the_command_says_why_it_cannot_run(cli, file, monkeypatch, name):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    code, printed = cli(name, SHARD, file(RIGHT))
    assert code == 2
    assert printed == f"{name} starts its own ranks; call it without torchrun or mpiexec\n"


def test_a_missing_file_and_an_unknown_name_are_told(cli, tmp_path, without_ranks):
    code, printed = cli("check", SHARD, tmp_path / "none.py")
    assert code == 1
    assert "cannot be run" in printed
    code, printed = cli("starter", "shards")
    assert code == 2
    assert "'shards'; choose from memory.model_states, " in printed


@pytest.mark.parametrize("arguments", [("questions", "memory"), ("progress", "memory")])
def test_what_needs_one_chapter_imports_no_other(cli, monkeypatch, arguments):
    monkeypatch.setitem(sys.modules, "shardlab.exercises.zero", None)
    assert cli(*arguments)[0] == 0
