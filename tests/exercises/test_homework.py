"""A teacher's file: variants, own exercises, a seed; and a class that is graded with it."""

import csv
import json
import os
import sys
from dataclasses import replace
from datetime import datetime, timedelta
from inspect import cleandoc

import pytest

from shardlab.exercises import Case, check, find, grader, homework, marks, variant
from shardlab.exercises import __main__ as command

pytestmark = pytest.mark.slow

SHARD = find("data_parallel.shard")
USED = "from shardlab.exercises import find, variant\n"
REPLACED = f"from dataclasses import replace\n{USED}def exercises(random):\n    return [replace(find('zero.clip'), "
TAUGHT = '''
from shardlab.exercises import Case, find, variant
from shardlab.exercises.checker import Exercise, Finding

DUE = "2027-01-15 23:59"

def doubled(case, observed):
    if observed[0] != 2 * case.given:
        return Finding(str(case.given), str(2 * case.given), str(observed[0]))

def exercises(random):
    sizes = random.sample(range(5, 40), 4)
    cases = [Case(n, f"{size} samples", size) for n, size in enumerate(sizes, start=1)]
    own = Exercise(
        name="week1.twice", prompt="Double x.", starter="def my_twice(x):\\n    return x\\n", points=3,
        hints=("How much is it?", "Twice.", "Add."),
        cases=[Case(1, "a number", random.randrange(100))], properties={"is doubled": doubled}, pure=True,
        attempt=lambda function, group, case, rank: function(case.given))
    return [variant(find("data_parallel.shard"), points=5, cases=cases), own]
'''
RIGHT = "def my_shard(n, r, w):\n    return range(r, n, w)\n\ndef my_twice(x):\n    print('5 of 5')\n    return x + x\n"
WRONG = "def my_shard(n, r, w):\n    return range(n // w)\n"


@pytest.fixture
def taught(tmp_path, monkeypatch, light_ranks):
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / "homework.py"
    file.write_text(TAUGHT)
    return file


@pytest.fixture
def cli(monkeypatch, capsys, taught):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["exercises", *map(str, arguments)])
        code = command.main()
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return call


def test_a_seed_draws_cases_and_the_same_seed_the_same(taught):
    given = {
        seed: [case.given for each in homework.read(taught, seed).exercises.values() for case in each.cases]
        for seed in (0, 1)
    }
    again = homework.read(taught, 1)
    assert [case.given for each in again.exercises.values() for case in each.cases] == given[1] != given[0]
    assert again.due == datetime(2027, 1, 15, 23, 59)


def test_with_the_cases_of_the_written_example_a_usual_mistake_fails_for_every_seed(tmp_path):
    example = homework.__doc__.partition("\n\n")[2].partition("The function")[0]
    (file := tmp_path / "example.py").write_text(cleandoc(example))
    for seed in range(20):
        exercise = homework.read(file, seed).exercises["data_parallel.shard"]
        got = [(case, exercise.attempt(chunked, None, case, 0)) for case in exercise.cases]
        assert any(judge(case, [shards]) for case, shards in got for judge in exercise.properties.values()), seed


def chunked(n, rank, size):
    return [*range(n)][rank * -(-n // size) : (rank + 1) * -(-n // size)]


def test_a_variant_has_its_own_points_name_and_cases_in_the_order_of_their_ranks():
    cases = [Case(4, "many", 9), Case(1, "one", 3)]
    changed = variant(SHARD, name="week1.split", points=7, cases=cases)
    assert (changed.name, changed.function, changed.points) == ("week1.split", "my_split", 7)
    assert changed.starter == SHARD.starter.replace("my_shard", "my_split") != SHARD.starter
    assert [case.world_size for case in changed.cases] == [1, 4]
    assert variant(SHARD) == SHARD


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"points": 0}, "points must be a whole number from 1 on, and not 0"),
        ({"points": "2"}, "and not '2'"),
        ({"cases": []}, "data_parallel.shard needs a case at least"),
        ({"cases": [Case(9, "nine", 1)]}, "9 ranks, nine: use 1 to 8 ranks"),
        ({"cases": [3]}, "3 is not a Case"),
    ],
)
def test_what_no_variant_can_be_is_told(changes, says):
    with pytest.raises((ValueError, TypeError), match=says):
        variant(SHARD, **changes)


def test_a_name_in_place_of_an_exercise_is_told():
    with pytest.raises(TypeError, match=r"'zero.clip' is not an exercise, such as find"):
        variant("zero.clip")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "module 'shardlab_homework' has no attribute 'exercises'"),
        ("\n1 / 0", "line 2: ZeroDivisionError: division by zero"),
        ("def exercises(random):\n    return ['zero.clip']\n", "TypeError: 'zero.clip' is not an exercise"),
        ("def exercises(random):\n    return []\n", "it needs exercises, each name once"),
        (f"{USED}def exercises(random):\n    return [variant(find('zero.clip'), name='a b')]\n", "'a b' is no name"),
        (f"{REPLACED}hints='Add.')]\n", "zero.clip needs three hints"),
        (f"{REPLACED}starter='')]\n", "zero.clip needs a prompt and a starter"),
        ("DUE = 'Friday'\ndef exercises(random):\n    return []\n", "Invalid isoformat string: 'Friday'"),
    ],
)
def test_a_file_that_is_no_homework_is_told_in_a_line(cli, taught, text, says):
    taught.write_text(text)
    code, printed = cli("grade", taught, taught.parent)
    assert code == 2
    assert printed.startswith(f"{taught} is no homework: ")
    assert says in printed
    assert printed.count("\n") == 1


def test_a_learner_sees_and_checks_the_teachers_exercises(cli, taught, tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(RIGHT)
    assert "week1.twice  (3 points)\n    Double x.\n" in cli("list", "--with", taught)[1]
    assert cli("starter", "week1", "--with", taught) == (0, "def my_twice(x):\n    return x\n")
    hint = f"\npython -m shardlab.exercises hint week1.twice --with {taught} --step 2 has"
    assert hint in cli("hint", "week1", "--with", taught)[1]
    code, printed = cli("check", "week1", "data_parallel.shard", mine, "--with", taught, "--seed", 2)
    assert (code, printed.splitlines()[-1]) == (0, "8 of 8 points")
    assert not (tmp_path / ".shardlab").exists()
    known = "choose from data_parallel.shard, week1.twice\n"
    assert cli("check", "zero.clip", mine, "--with", taught)[1].endswith(known)


def test_a_class_is_graded_from_its_files_in_one_table(cli, taught, tmp_path, monkeypatch):
    handed_in = {"ada": {"a.py": RIGHT}, "=bob": {"b.py": WRONG}, "eve": {"e.py": "1 / 0"}}
    handed_in["max"] = {"x.py": "", "y.py": ""}
    for name, files in {**handed_in, "zoe": {}}.items():
        (tmp_path / "class" / name).mkdir(parents=True)
        for file, text in files.items():
            path = tmp_path / "class" / name / file
            path.write_text(text)
            at = datetime(2027, 1, 16, 1, 29).timestamp()
            os.utime(path, (at, at))
    places = sorted((tmp_path / "class").iterdir())
    code, printed = cli("grade", taught, *places, "--csv", tmp_path / "marks.csv")
    assert code == 0
    head, bob, ada, *_ = printed.splitlines()
    assert head.split() == ["learner", "data_parallel.shard", "week1.twice", "total", "late"]
    assert (bob.split(), ada.split()) == (["=bob", "0", "0", "0", "1:30"], ["ada", "5", "3", "8", "1:30"])
    assert "=bob: data_parallel.shard failed: no sample is read twice\n" in printed
    assert "=bob: week1.twice: b.py defines no my_twice\n" in printed
    assert "eve: e.py cannot be run: line 1: ZeroDivisionError: division by zero\n" in printed
    assert "max: x.py, y.py to grade; one is needed, or --file\n" in printed
    assert "zoe: no file to grade" in printed
    with (tmp_path / "marks.csv").open(newline="") as file:
        rows = {row["learner"]: row for row in csv.DictReader(file)}
    assert (rows["ada"]["total"], rows["ada"]["hours late"], rows["ada"]["remarks"]) == ("8", "1.5", "")
    assert "'=bob" in rows
    assert {each.learner for each in marks.grade(homework.read(taught, 0), [tmp_path / "x\x1b[2Jy"])} == {"x?[2Jy"}
    graded = []
    monkeypatch.setattr(grader, "grade", lambda _exercises, file, *_: graded.append(file.name) or ())
    assert len(list(marks.grade(homework.read(taught, 0), [tmp_path / "class" / "max"], "x.py"))) == 1
    assert graded == ["x.py"]


STOPPING = """
from shardlab.exercises.checker import Case, Exercise

def exercises(random):
    return [Exercise(name=f"week1.{each}", prompt="Stop.", starter=f"def my_{each}(group): pass", points=1,
        hints=("", "", ""), cases=[Case(2, "two ranks")], properties={},
        attempt=lambda function, group, case, rank: function(group))
        for each in ("waits", "sleeps", "raises", "dies")]
"""
STOPS = {  # a learner's function -> what a teacher reads about it in the table
    "def my_waits(group):\n    group.rank() or comm.all_reduce(torch.ones(1), group)\n": "Deadlock: every rank that",
    "def my_sleeps(group):\n    while True:\n        pass\n": "The case takes longer than 5 s, which is the limit.",
    "def my_raises(group):\n    return helps()\n\ndef helps():\n    return {}[3]\n": "ranks 0 and 1 raised KeyError: 3",
    "def my_dies(group):\n    group.rank() and os.kill(os.getpid(), 9)\n    time.sleep(2)\n": "rank 1 died: SIGKILL",
}


def test_how_a_function_stops_is_told_in_the_table(cli, taught, tmp_path):
    taught.write_text(STOPPING)
    mine = tmp_path / "mine.py"
    mine.write_text("\n".join(["import os, time, torch", "from shardlab import comm", *STOPS]))
    _, printed = cli("grade", taught, mine)
    remarks = printed.splitlines()[-len(STOPS) :]
    for remark, (function, told) in zip(remarks, STOPS.items(), strict=True):
        name = function[len("def my_") :].partition("(")[0]
        assert remark.startswith(f"mine: week1.{name} failed: {told}"), printed


COPIED = "from shardlab.plain.zero import rows\n" + RIGHT


def test_what_is_handed_back_says_all_that_was_found_and_remarks_say_what_a_teacher_looks_at(cli, taught, tmp_path):
    for learner, text in {"ada": COPIED, "bob": WRONG, "cem": COPIED}.items():
        (tmp_path / f"{learner}.py").write_text(text)
    places = [tmp_path / f"{learner}.py" for learner in ("ada", "bob", "cem")]
    code, printed = cli("grade", taught, *places, "--reports", tmp_path / "back", "--json")
    ada, bob, cem = json.loads(printed)
    assert code == 0
    taken = "imports shardlab.plain.zero.rows: is that what an exercise asks for?"
    assert ada["remarks"] == [taken]
    assert cem["remarks"] == ["the same file as that of ada", taken]
    assert (ada["points"], ada["maximum"], bob["points"]) == (8, 8, 0)
    text = (tmp_path / "back" / "bob.txt").read_text()
    assert "no sample is read twice" in text
    assert text.endswith("bob: 0 of 8 points\n")
    status, printed = cli("grade", taught, *places, "--reports", tmp_path / "back")
    assert (status, printed) == (2, f"{tmp_path}/back cannot be written: File exists\n")


@pytest.mark.parametrize(("due", "end"), [("2027-01-15", "2027-01-16 00:00"), ("2027-01-15 20:00", "2027-01-15 20:00")])
def test_a_day_alone_ends_at_midnight(taught, due, end):
    taught.write_text(TAUGHT.replace("2027-01-15 23:59", due))
    assert homework.read(taught, 0).due == datetime.fromisoformat(end)


def test_learners_whose_files_have_one_name_are_told_apart(taught, tmp_path):
    places = [tmp_path / learner / "mine.txt" for learner in ("ada", "bob")]
    assert [each.learner for each in marks.grade(homework.read(taught, 0), places)] == [*map(str, places)]


def test_a_check_with_a_homework_knows_only_its_exercises(taught):
    with pytest.raises(ValueError, match=r"has no exercise 'zero.clip'; choose from data_parallel.shard, week1.twice"):
        check("zero.clip", None, homework=str(taught))


def test_a_grader_that_fails_gives_nobody_points(cli, taught, tmp_path, monkeypatch):
    begin = "from shardlab.exercises import room"
    monkeypatch.setattr(grader, "SERVE", grader.SERVE.replace(begin, "raise ImportError('no torch'); " + begin))
    mine = tmp_path / "mine.py"
    mine.write_text(RIGHT)
    code, printed = cli("grade", taught, mine)
    assert code == 2
    assert printed.splitlines()[1].split()[:4] == ["mine", "not", "graded", "not"]


def test_a_file_cannot_change_its_own_date_and_links_that_lead_nowhere_stop_no_class(taught, tmp_path, monkeypatch):
    late, nowhere = tmp_path / "late", tmp_path / "nowhere"
    late.mkdir()
    (late / "a.py").touch()
    (late / "b.py").symlink_to("b.py")
    nowhere.symlink_to(nowhere)
    monkeypatch.setattr(grader, "grade", lambda _exercises, file, *_: os.utime(file, (0, 0)) or ())
    taught = replace(homework.read(taught, 0), due=datetime(2000, 1, 1))
    first, second = marks.grade(taught, [late, nowhere])
    assert (first.learner, first.late > timedelta(0), first.remarks) == ("late", True, [])
    assert (second.learner, second.remarks) == ("nowhere", ["no file to grade; one is needed, or --file"])
