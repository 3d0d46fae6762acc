"""What a learner's folder remembers, and that nothing in it, and nothing about it, stops anybody."""

import json
import re
from datetime import datetime
from pathlib import Path

import pytest

from shardlab.files import learner


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty current folder, whose records are those of a learner."""
    monkeypatch.delenv("SHARDLAB_FOLDER")
    monkeypatch.delenv("SHARDLAB_STATIC", raising=False)
    monkeypatch.setattr(learner, "_printed", set())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_records_come_back_in_order_with_their_local_time(folder):
    for n in (1, 2):
        learner.append("notes", {"n": n})
    first, second = learner.read("notes")
    assert (first["n"], second["n"]) == (1, 2)
    written = datetime.fromisoformat(first["date"])
    assert abs((datetime.now().astimezone() - written).total_seconds()) < 3600
    assert written.utcoffset() == datetime.now().astimezone().utcoffset()
    assert [path.name for path in (folder / ".shardlab").iterdir()] == ["notes.jsonl"]


def test_a_folder_of_ones_own_may_be_named(folder, monkeypatch):
    monkeypatch.setenv("SHARDLAB_FOLDER", str(folder / "deep" / "mine"))
    learner.append("notes", {})
    assert (folder / "deep" / "mine" / "notes.jsonl").is_file()
    assert not (folder / ".shardlab").exists()


@pytest.mark.parametrize("mark", learner.MARKS)
def test_the_folders_of_a_project_share_one_record(folder, monkeypatch, mark):
    (folder / mark).mkdir()
    (folder / "notebooks").mkdir()
    for n, here in enumerate([folder / "notebooks", folder]):
        monkeypatch.chdir(here)
        learner.append("notes", {"n": n})
        assert [record["n"] for record in learner.read("notes")] == [*range(n + 1)]
    assert not [*(folder / "notebooks").iterdir()]


def test_a_deleted_current_folder_stops_nothing(folder, capsys):
    folder.rmdir()
    learner.append("notes", {})
    assert learner.read("notes") == []
    assert "(Not recorded in .shardlab/notes.jsonl: " in capsys.readouterr().out


@pytest.mark.parametrize(("name", "value"), [("SHARDLAB_FOLDER", ""), ("SHARDLAB_STATIC", "1")])
def test_nothing_is_kept_where_that_is_asked_for(folder, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    learner.append("notes", {})
    assert learner.read("notes") == []
    assert not [*folder.iterdir()]


def test_lines_that_are_no_records_are_left_out_and_that_is_said_once(folder, capsys):
    learner.append("notes", {"n": 1})
    bad = [b"\xff\xfe", b"{", b"[1]", b"1" * 5000, b"[" * 100_000, b"null"]
    with Path(".shardlab/notes.jsonl").open("ab") as file:
        file.write(b"\n".join(bad))  # the last one is cut off: no newline
    learner.append("notes", {"n": 2})
    for _ in range(2):
        assert [record["n"] for record in learner.read("notes")] == [1, 2]
    assert capsys.readouterr().out == "(6 lines of .shardlab/notes.jsonl cannot be read and are left out.)\n"


def test_a_folder_that_cannot_be_written_stops_nothing(folder, capsys):
    (folder / ".shardlab").write_text("a file, where the folder should be")
    for _ in range(2):
        learner.append("notes", {})
        assert learner.read("notes") == []
    assert capsys.readouterr().out.count("(Not recorded in .shardlab/notes.jsonl: ") == 1


def test_a_file_that_is_a_folder_stops_nothing(folder, capsys):
    (folder / ".shardlab" / "notes.jsonl").mkdir(parents=True)
    learner.append("notes", {})
    assert learner.read("notes") == []
    found = re.findall("Is a directory|no regular file", capsys.readouterr().out)
    assert found == ["Is a directory", "no regular file"]


def test_a_line_is_plain_json(folder):
    learner.append("notes", {"text": "두 줄\n"})
    (line,) = Path(".shardlab/notes.jsonl").read_text().splitlines()
    assert json.loads(line)["text"] == "두 줄\n"
