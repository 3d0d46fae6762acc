"""A right, a wrong, a hanging and a hostile file get on every platform what the command gives them."""

import contextlib
import errno
import io
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest

from shardlab.exercises import __main__ as command
from shardlab.exercises import attempts, export, grader

pytestmark = pytest.mark.slow

MEMORY, CORES, SECONDS = 768e6, 0.5, 600  # what Gradescope gives by default
SHARD = "data_parallel.shard"
HOMEWORK = f"""
from shardlab.exercises import Case, find, variant

def exercises(random):
    return [variant(find("{SHARD}"), points=3, cases=[Case(2, "10 samples", 10)])]
"""
RIGHT = "def my_shard(n, r, w):\n    return range(r, n, w)\n"
WRONG = "def my_shard(n, r, w):\n    return range(n // w)\n"
HANGING = "def my_shard(n, r, w):\n    while True:\n        pass\n"
HOSTILE = """
import json, os, signal, sys
from pathlib import Path

fake = {"tests": [{"name": "all", "score": 99, "max_score": 99}], "score": 99, "max-score": 99}
for place in (Path(__file__).parent / "result.json", Path(__file__).parent.parent / "results" / "results.json"):
    if place.parent.is_dir():
        place.write_text(json.dumps(fake))
print(json.dumps(fake))

def my_shard(n, r, w):
    os.kill(os.getppid(), signal.SIGKILL)
    os._exit(0)
"""
POINTS = {RIGHT: 3, WRONG: 0, HANGING: 0, HOSTILE: 0}
FILES = pytest.mark.parametrize("text", POINTS, ids=["right", "wrong", "hanging", "hostile"])
ANSWERED = {}  # text of a harmless file -> what the command has answered; all platforms run the same command
RUNNER = {  # what the runner of Classroom 50 sets
    **{"CLASSROOM": "fall", "ASSIGNMENT": "week1", "ASSIGNMENT_TYPE": "individual", "OWNER": "ada"},
    "SUBMISSION_TAG": "submit/20270115T225900Z-0123abc",
    **{f"{each}_URL": f"https://example.org/{each.lower()}" for each in ("COMMIT", "RELEASE", "REVIEW")},
}


@pytest.fixture
def exported(tmp_path, monkeypatch):
    """Writes what a platform needs: platform, folder -> the folder."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(platform, folder):
        file = tmp_path / "teachers.py"
        file.write_text(HOMEWORK)
        assert called("export", platform, file, folder, "--seed", 7) == (0, "")
        return folder

    return write


@pytest.fixture
def quick(monkeypatch, light_ranks):
    """Start light helpers, and run the command in this process."""

    def run(line, cwd, env, stdout):
        assert line[:3] == [sys.executable, "-m", "shardlab.exercises"]
        text = Path(line[-1]).read_text()
        if text in ANSWERED:
            return subprocess.CompletedProcess(line, *ANSWERED[text])
        with monkeypatch.context() as patch:
            patch.chdir(cwd)
            if text == HANGING:
                limit = "from shardlab.exercises import attempts; attempts.TOGETHER = 1.0; "
                patch.setattr(grader, "SERVE", grader.SERVE.replace("launch.warm(); ", f"{limit}launch.warm(); "))
            answer = called(*line[3:])
        if text != HOSTILE and answer[0] != 2:
            ANSWERED[text] = answer
        return subprocess.CompletedProcess(line, *answer)

    monkeypatch.setattr(subprocess, "run", run)


def called(*arguments):
    """The exit status of the command, and what it printed."""
    before, sys.argv = sys.argv, ["exercises", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            return command.main(), printed.getvalue()
    finally:
        sys.argv = before


def adapted(folder, platform, place):
    """The exit status of the adapter that was written."""
    before, sys.argv = sys.argv, ["adapter.py", platform, str(place)]
    try:
        runpy.run_path(str(folder / "adapter.py"), run_name="__main__")
    except SystemExit as end:
        return end.code
    finally:
        sys.argv = before
    return 0


def on_gradescope(exported, root, text):
    """Lays out /autograder as its specification does; returns where the results will be."""
    exported("gradescope", root / "source")
    (root / "run_autograder").write_bytes((root / "source" / "run_autograder").read_bytes())
    (root / "run_autograder").chmod(0o755)
    for name in ("results", "submission"):
        (root / name).mkdir()
    (root / "submission" / "mine.py").write_text(text)
    return root / "results" / "results.json"


@FILES
def test_gradescope_reads_a_test_for_each_exercise(exported, quick, tmp_path, text):
    results = on_gradescope(exported, tmp_path / "autograder", text)
    assert adapted(tmp_path / "autograder" / "source", "gradescope", tmp_path / "autograder") == 0
    found = json.loads(results.read_text())
    assert found.keys() == {"execution_time", "tests"}
    (test,) = found["tests"]
    assert (test["name"], test["score"], test["max_score"]) == (SHARD, POINTS[text], 3)
    assert test["status"] == ("passed" if POINTS[text] else "failed")
    assert test["visibility"] == "visible"
    assert "runs to its end on every rank" in test["output"]
    assert ("Smallest failing case" in test["output"]) == (text is not RIGHT)


def memory_of(process):
    """Bytes that a process and those below it hold, each shared page counted once."""
    try:
        every = [process, *process.children(recursive=True)]
    except psutil.Error:
        return 0
    total = 0
    for each in every:
        with contextlib.suppress(psutil.Error):
            total += each.memory_full_info().pss
    return total


@pytest.mark.skipif(sys.platform != "linux", reason="proportional set sizes are Linux's")
def test_gradescopes_memory_and_time_suffice(exported, tmp_path):
    results = on_gradescope(exported, tmp_path / "autograder", RIGHT)
    variables = {**os.environ, "AUTOGRADER": str(tmp_path / "autograder"), "PYTHON": sys.executable}
    before, peak = os.times(), 0
    with subprocess.Popen([tmp_path / "autograder" / "run_autograder"], env=variables) as running:
        while running.poll() is None:
            peak = max(peak, memory_of(psutil.Process(running.pid)))
            time.sleep(0.2)
    after = os.times()
    assert running.returncode == 0
    assert json.loads(results.read_text())["tests"][0]["score"] == 3
    assert 200e6 < peak < MEMORY
    cpu = sum(after[2:4]) - sum(before[2:4])
    assert 1 < cpu / CORES < SECONDS / 4


@FILES
def test_classroom_50_reads_a_result_of_its_schema(exported, quick, monkeypatch, tmp_path, text):
    folder = exported("classroom50", tmp_path / "classroom50" / "fall" / "autograders" / "week1")
    for name, value in RUNNER.items():
        monkeypatch.setenv(name, value)
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "mine.py").write_text(text)
    assert adapted(folder, "classroom50", checkout) == 0
    result = json.loads((checkout / "result.json").read_text())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", result.pop("datetime"))
    assert result == {
        **{"schema": "classroom50/result/v1", "submission": RUNNER["SUBMISSION_TAG"], "owner": "ada"},
        **{"classroom": "fall", "assignment": "week1", "assignment_type": "individual"},
        **{each: f"https://example.org/{each}" for each in ("commit", "release", "review")},
        **{"score": POINTS[text], "max-score": 3},
        "tests": [{"test-name": SHARD, "passed": POINTS[text] == 3, "score": POINTS[text], "max-score": 3}],
    }
    assert (checkout / "release-body.md").read_text().startswith(f"### {SHARD}\n\n    ")


def test_classroom_50_starts_the_autograder_in_a_checkout_whose_modules_it_does_not_import(exported, tmp_path):
    folder = exported("classroom50", tmp_path / "week1")
    checkout = tmp_path / "checkout"
    (checkout / "shardlab").mkdir(parents=True)
    (checkout / "shardlab" / "__init__.py").write_text("1 / 0")
    line = [sys.executable, str(folder / "autograder.py")]
    done = subprocess.run(line, cwd=checkout, env={**os.environ, **RUNNER}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((checkout / "result.json").read_text())["max-score"] == 3
    assert "hand in one Python file or notebook; found: none" in (checkout / "release-body.md").read_text()


@pytest.mark.parametrize("platform", ["gradescope", "classroom50"])
def test_a_grader_that_fails_leaves_no_points_and_not_those_that_a_file_has_written(
    exported, quick, monkeypatch, tmp_path, capsys, platform
):
    results = on_gradescope(exported, tmp_path / "autograder", "# a file that nobody reads\n")
    place = {"gradescope": tmp_path / "autograder", "classroom50": tmp_path / "autograder" / "submission"}[platform]
    results = results if platform == "gradescope" else place / "result.json"
    results.write_text('{"score": 99}')
    monkeypatch.setattr(grader, "SERVE", "raise ImportError('no torch')")
    assert adapted(tmp_path / "autograder" / "source", platform, place) == 2
    assert "not graded: before the file was read" in capsys.readouterr().out
    assert not results.exists()


@FILES
def test_a_notebook_of_nbgrader_asserts_what_each_test_cell_checks(exported, monkeypatch, tmp_path, text):
    folder = exported("nbgrader", tmp_path / "source" / "week1")
    notebook = nbformat.read(folder / "week1.ipynb", as_version=4)
    nbformat.validate(notebook)
    _, prompt, answer, test = notebook.cells
    assert prompt.source.startswith(f"## {SHARD}\n")
    assert prompt.source.endswith("Points: 3")
    assert "nbgrader" not in answer.metadata
    graded = {"grade": True, "solution": False, "locked": True, "task": False, "points": 3, "schema_version": 3}
    assert test.metadata.nbgrader == {**graded, "grade_id": "exercise-1"}
    monkeypatch.chdir(folder)
    if text is HANGING:
        monkeypatch.setattr(attempts, "TOGETHER", 1.0)
    names = {"__file__": str(folder / "cell"), "__name__": "cells"}
    exec(text, names)
    with contextlib.nullcontext() if POINTS[text] else pytest.raises(AssertionError):
        exec(test.source, names)
    assert not (folder / ".shardlab").exists()


def test_a_container_copies_what_is_there_and_ends_in_the_command(exported, quick, tmp_path):
    folder = exported("container", tmp_path / "grader")
    lines = (folder / "Containerfile").read_text().splitlines()
    copied = [line.split()[1] for line in lines if line.startswith("COPY ")]
    assert sorted(copied) == ["homework.py", "package"] == sorted(set(os.listdir(folder)) - {"Containerfile"})
    line = json.loads(lines[-1].removeprefix("ENTRYPOINT "))
    (tmp_path / "mine.py").write_text(RIGHT)
    python = [sys.executable, *line[1:], str(tmp_path / "mine.py")]
    done = subprocess.run(python, cwd=folder, env=None, stdout=None)
    assert (line[0], done.returncode, json.loads(done.stdout)["points"]) == ("python", 0, 3)


def test_the_package_beside_an_autograder_can_be_installed(exported, tmp_path):
    package = exported("gradescope", tmp_path / "source") / "package"
    build = "from setuptools import build_meta; print('\\n' + build_meta.prepare_metadata_for_build_wheel('.'))"
    done = subprocess.run([sys.executable, "-c", build], cwd=package, capture_output=True, text=True, check=True)
    written = package / done.stdout.splitlines()[-1]
    head = (written / "METADATA").read_text()
    assert f"\nVersion: {export.metadata.version('shardlab')}\n" in head
    assert "\nRequires-Dist: torch" in head
    assert "jupyterlab" not in head
    assert "\nLicense-File: LICENSE\n" in head
    assert (written / "top_level.txt").read_text() == "shardlab\n"
    read = "from shardlab.exercises import pages; print(pages.__file__, len(pages.texts('zero.clip').hints))"
    done = subprocess.run([sys.executable, "-c", read], cwd=package, env={}, capture_output=True, text=True, check=True)
    assert done.stdout == f"{package / 'shardlab' / 'exercises' / 'pages.py'} 3\n"


def test_a_folder_that_is_there_is_left_alone(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / "teachers.py"
    file.write_text(HOMEWORK)
    assert called("export", "nbgrader", file, tmp_path) == (2, "")
    assert capsys.readouterr().err == f"{tmp_path} must be a new folder: File exists\n"
    assert [each.name for each in Path(tmp_path).iterdir()] == ["teachers.py"]


def test_what_a_full_disk_leaves_is_removed(tmp_path, monkeypatch, capsys):
    copied, copyfile = [], shutil.copyfile

    def full(source, target):
        if len(copied) > 9:  # in the middle of the package
            raise OSError(errno.ENOSPC, "No space left on device", str(target))
        copied.append(copyfile(source, target))

    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(export.shutil, "copyfile", full)
    file, folder = tmp_path / "teachers.py", tmp_path / "term" / "week 1" / "new"
    file.write_text(HOMEWORK)
    assert called("export", "container", file, folder) == (2, "")
    assert capsys.readouterr().err == f"{folder} cannot be written: No space left on device\n"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(("name", "said"), [("x" * 300, "File name too long"), ("a\0b", "embedded null byte")])
def test_a_name_that_no_folder_can_have_leaves_those_above_it_unmade(name, said, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / "teachers.py"
    file.write_text(HOMEWORK)
    assert called("export", "nbgrader", file, tmp_path / "term" / name) == (2, "")
    assert f"must be a new folder: {said}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [file]
