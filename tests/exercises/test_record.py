"""A learner's record."""

import json
import linecache
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlab import exercises
from shardlab.exercises import __main__ as command
from shardlab.exercises import checker, record
from shardlab.files import learner

SHARD, AVERAGE = "data_parallel.shard", "data_parallel.average_gradients"
KNOWN = exercises.every()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The empty current folder of a learner."""
    monkeypatch.delenv("SHARDLAB_FOLDER")
    monkeypatch.delenv("SHARDLAB_STATIC", raising=False)
    monkeypatch.setattr(learner, "_printed", set())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines_of(text, first):
    (found,) = [line.split() for line in text.splitlines() if line.startswith(first)]
    return found


# ---- a learner's own -----------------------------------------------------------------------------------------------


def test_a_check_is_remembered_when_it_is_the_first_and_when_it_passes(folder, capsys):
    def wrong(n, r, w):
        return range(0)

    def right(n, r, w):
        return range(r, n, w)

    for function in (wrong, wrong, right, wrong, right):
        exercises.check(SHARD, function)
    kept = learner.read("progress")
    told = [(each["exercise"], each["passed"], each["points"]) for each in kept]
    assert told == [(SHARD, False, 0), (SHARD, True, 1)]
    capsys.readouterr()
    exercises.progress()
    text = capsys.readouterr().out
    today = kept[1]["date"][:10]
    assert lines_of(text, "data_parallel")[1:] == ["1", "of", "4", "1", "of", "10", today]
    assert lines_of(text, "all")[1:4] == ["1", "of", str(len(KNOWN))]
    exercises.progress("data_parallel")
    text = capsys.readouterr().out
    assert lines_of(text, f"{SHARD} ")[1:] == ["1", "of", "1", today]
    assert lines_of(text, f"{AVERAGE} ")[1:3] == ["0", "of"]


def test_a_starter_as_it_stands_is_no_try(folder, capsys):
    """Whoever runs all cells of a notebook, or checks a file of starters, has tried none."""
    name, function = "tensor_parallel.gather_from_ranks", "my_gather_from_ranks"  # with a class beside it
    starter = exercises.find(name).starter
    changed = starter.replace("return ", "return None or ", 1)
    for number, (source, tries) in enumerate([(starter, 0), (f"# mine\n{starter}", 0), (changed, 1)]):
        cell, names = f"<cell {number}>", {}
        linecache.cache[cell] = len(source), None, source.splitlines(True), cell
        exec(compile(source, cell, "exec"), names)
        report = exercises.check(name, names[function])
        assert len(learner.read("progress")) == tries
        shown = capsys.readouterr().out
        assert not report
        assert len(shown.splitlines()) == 2 or tries
        assert f'hint("{name}")' in shown
        assert ("not tried yet" in shown, "failed, 0 of" in shown) == (not tries, bool(tries))


def test_a_starter_in_a_file_is_no_try(folder, cli, light_ranks):
    file = folder / "mine.py"
    file.write_text(exercises.find("zero.pieces").starter + "\n\ndef my_shard(n, r, w):\n    return range(0)\n")
    assert cli("check", "zero.pieces", SHARD, file)[0] == 1
    assert [each["exercise"] for each in learner.read("progress")] == [SHARD]


def test_what_was_not_graded_is_not_recorded(folder):
    record.keep(checker.Report(KNOWN[SHARD], {}, "no rank can start"))
    assert learner.read("progress") == []


def test_the_best_result_is_kept_with_the_day_it_was_first_reached():
    days = [(False, "2026-01-01"), (True, "2026-01-05"), (True, "2026-01-03"), (False, "2026-01-09")]
    records = [{"exercise": SHARD, "passed": passed, "date": f"{day}T23:30:00-05:00"} for passed, day in days]
    assert record.best(records) == {SHARD: record.Result(True, "2026-01-03")}
    assert "not yet; tried 2026-01-01" in record.by_exercise(record.best(records[:1]), [KNOWN[SHARD]])


def test_an_unknown_chapter_is_told(folder):
    with pytest.raises(ValueError, match="no chapter is called 'shards'; choose from memory"):
        exercises.progress("shards")


def test_a_check_passes_where_no_record_can_be_kept(folder, capsys):
    (folder / ".shardlab").write_text("")
    assert exercises.check(SHARD, lambda n, r, w: range(r, n, w))
    assert "passed, 1 of 1 points" in capsys.readouterr().out


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
JSON = st.recursive(VALUES, lambda each: st.lists(each) | st.dictionaries(st.text(), each), max_leaves=4)
KEYS = st.sampled_from(["exercise", "passed", "date", "points", "name", "given"])


@given(st.lists(st.dictionaries(KEYS, JSON | st.sampled_from([SHARD, "2026-03-01", True]))))
def test_records_of_any_types_are_never_an_error(records):
    read, unread = learner.parse("\n".join(map(json.dumps, records)).encode())
    results = record.best(read)
    assert unread == 0
    assert len(results) <= len(records)
    assert all(isinstance(name, str) and isinstance(each.passed, bool) for name, each in results.items())


@given(st.binary())
def test_bytes_that_are_no_records_are_left_out(whole):
    read, unread = learner.parse(whole)
    assert all(isinstance(each, dict) for each in read)
    assert len(read) + unread <= whole.count(b"\n") + 1


# ---- the command ---------------------------------------------------------------------------------------------------


@pytest.fixture
def cli(monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["exercises", *map(str, arguments)])
        code = command.main()
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_the_command_shows_progress(folder, cli):
    learner.append("progress", {"exercise": SHARD, "passed": True})
    code, text, _ = cli("progress")
    assert (code, lines_of(text, "data_parallel")[1]) == (0, "1")
    code, text, _ = cli("progress", "memory")
    assert (code, text.splitlines()[0].split()) == (0, ["exercise", "points", "passed"])
    with pytest.raises(SystemExit, match="2"):
        cli("progress", "shards")
