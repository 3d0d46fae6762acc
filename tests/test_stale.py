"""What is made by hand is listed with its command, and called stale when what it was made from does something else."""

import subprocess

import pytest

from tools import stale

SOURCE = '"""Counts."""\n\nimport math\n\n\ndef count():\n    """Say how many."""\n    return 3  # for now\n'
OTHER_WORDS = SOURCE.replace("Counts", "Still counts").replace("  # for now", "").replace("math", "cmath")
STARTED = SOURCE + '\n\nif __name__ == "__main__":\n    print(count())\n'
OTHER_NUMBER = SOURCE.replace("return 3", "return 4")


def test_every_file_that_a_command_makes_is_listed_with_a_command_that_is_there():
    listed = {made.file: made.command for made in stale.everything()}
    assert listed.keys() == {*stale.BENCH.glob("results/*.json"), *stale.IMAGES.glob("*.png")}
    python, scripts = {command.split()[0] for command in listed.values()}, {c.split()[1] for c in listed.values()}
    assert python == {"python"}
    assert all((stale.ROOT / script).is_file() for script in scripts)


def test_a_source_is_the_bench_and_what_it_names():
    sources = {path.relative_to(stale.ROOT).as_posix() for path in stale.measured("zero")}
    assert {"bench/zero.py", "code/shardlab/plain/zero.py", "code/shardlab/ranks/zero/flat.py"} <= sources
    assert "code/shardlab/files/terminal.py" not in sources
    assert stale.BENCH / "two_agents" / "starts.toml" in stale.measured("starts")
    assert stale.ROOT / "book" / "cluster" / "slurm.sh" in stale.measured("templates")
    assert stale.ROOT / "tests" / "plain" / "test_zero.py" in stale.measured("proofs")


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A result and its two sources, all committed."""
    monkeypatch.setattr(stale, "ROOT", tmp_path)
    for name, text in ("result.json", "3"), ("count.py", SOURCE), ("drawing.svg", "<svg/>"):
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    sources = {tmp_path / "count.py", tmp_path / "drawing.svg"}
    return stale.Made(tmp_path / "result.json", "python count.py", sources)


def git(folder, *words):
    names = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *names, *words], cwd=folder, check=True, capture_output=True)


def commit(folder):
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "One more")


@pytest.mark.parametrize(
    ("file", "text", "found"),
    [
        ("count.py", OTHER_WORDS, []),
        ("count.py", STARTED, []),
        ("count.py", OTHER_NUMBER, ["count.py"]),
        ("drawing.svg", "<svg></svg>", ["drawing.svg"]),
    ],
    ids=["words", "start", "number", "drawing"],
)
def test_a_result_is_stale_when_a_source_does_something_else(made, file, text, found):
    (stale.ROOT / file).write_text(text)
    assert stale.changed(made) == found
    commit(stale.ROOT)
    assert stale.changed(made) == found
    made.file.write_text("4")  # made anew
    assert stale.changed(made) == []
    commit(stale.ROOT)
    assert stale.changed(made) == []


def test_a_branch_is_told_of_its_own_changes_only(made):
    (stale.ROOT / "count.py").write_text(OTHER_NUMBER)
    commit(stale.ROOT)
    left_main = stale.git("rev-parse", "HEAD").strip()
    assert stale.changed(made, left_main) == []
    (stale.ROOT / "count.py").write_text(SOURCE.replace("return 3", "return 5"))
    commit(stale.ROOT)
    assert stale.changed(made, left_main) == ["count.py"]
    made.file.write_text("5")  # made anew
    commit(stale.ROOT)
    assert stale.changed(made, left_main) == []


def test_a_source_that_has_moved_is_the_same_source(made):
    git(stale.ROOT, "mv", "count.py", "number.py")
    moved = made._replace(sources={stale.ROOT / "number.py"})
    assert stale.changed(moved) == []
    (stale.ROOT / "number.py").write_text(OTHER_NUMBER)
    assert stale.changed(moved) == ["number.py"]


def test_what_is_said_of_a_stale_result(made):
    assert stale.told(made, ["code/shardlab/comm.py"]) == "python count.py: comm.py"
    assert stale.told(made._replace(seconds=7), ["a.py", "b.py"]) == "python count.py, 7 s: a.py, b.py"
