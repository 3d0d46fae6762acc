"""The checker survives whatever a learner writes, says which line it was, and finds the smallest case."""

import inspect
import os
import threading
import time

import pytest
import torch
from IPython.core.formatters import DisplayFormatter

from shardlab import exercises
from shardlab.exercises import checker, evidence
from shardlab.exercises.checker import FAILED, PASSED, RUNS, UNKNOWN, Case, Exercise, Finding
from shardlab.ranks import comm
from shardlab.ranks.observe import ledger

PROMPTLY = 60.0  # s: far above what two busy cores need, far below the launcher's own time-out


def toy(properties=None, cases=None, attempt=lambda function, group, case, rank: function(case.given)):
    """An exercise in which the function gets a number and shall return it."""
    return Exercise(
        name="toy.same",
        prompt="Return the number.",
        starter="",
        hint="Return it.",
        points=3,
        cases=cases or [Case(world_size=n, title=f"number {n}{x}", given=10 * n + x) for n in (1, 2) for x in (1, 2)],
        attempt=attempt,
        properties=properties or {"it is the number": is_number, "it is small": is_small},
    )


def is_number(case, seen):
    return None if seen == [case.given] * case.world_size else Finding(str(case.given), str(case.given), str(seen))


def is_small(case, seen):
    return Finding("", "below 100", str(seen)) if max(seen) >= 100 else None


def stops_at(number, how):
    def function(x):
        if x == number:
            how()
        return x

    return function


def stopped(function, exercise=None):
    """The reason of a check in which the function does not run to its end, promptly."""
    begin = time.monotonic()
    report = checker.check(exercise or toy(), function)
    assert time.monotonic() - begin < PROMPTLY
    assert report.marks == {RUNS: FAILED, "it is the number": UNKNOWN, "it is small": UNKNOWN}
    assert not report
    return report.reason


# ---- the report ------------------------------------------------------------------------------------------------------


def test_all_that_is_right_passes():
    report = checker.check(toy(), lambda x: x)
    assert report
    assert set(report.marks.values()) == {PASSED}
    assert str(report).startswith("toy.same: passed, 3 of 3 points")
    assert "Smallest" not in str(report)


def test_the_first_property_that_fails_is_shown_in_its_smallest_case():
    report = checker.check(toy(), lambda x: x + 100 * (x > 20))
    assert report.marks == {RUNS: PASSED, "it is the number": FAILED, "it is small": FAILED}
    lines = ["Smallest failing case: 2 ranks, number 21", "  given     21", "  expected  21", "  got       [121, 121]"]
    assert report.reason.splitlines() == lines
    assert str(report).endswith('Stuck? hint("toy.same")')
    assert "0 of 3 points" in str(report)


def test_a_finding_can_say_what_to_try():
    small = {"it is small": lambda case, seen: Finding("", "below 10", str(seen[0]), "return less")}
    reason = checker.check(toy(small), lambda x: x).reason
    assert reason.splitlines()[-2:] == ["  got       11", "  try       return less"]


def test_a_judge_of_each_rank_tells_of_the_first_that_fails():
    judge = checker.on_each_rank(lambda case, rank, seen: Finding("", "", str(rank)) if seen > 1 else None)
    assert judge(toy().cases[0], [1, 2, 3]).got == "1"
    assert judge(toy().cases[0], [1, 1, 1]) is None


def test_one_property_can_fail_alone():
    marks = checker.check(toy(), lambda x: x + 1).marks
    assert marks == {RUNS: PASSED, "it is the number": FAILED, "it is small": PASSED}


def test_a_notebook_shows_the_report_once(capsys):
    report = exercises.check("data_parallel.shard", None)
    printed = capsys.readouterr().out
    assert printed == f"{report}\n"
    assert DisplayFormatter().format(report) == ({}, {}), "the value of the cell would be shown, too"
    assert repr(report) == "<data_parallel.shard: failed>"


def test_an_unknown_exercise_lists_those_there_are():
    for ask in (exercises.hint, exercises.starter, lambda name: exercises.check(name, len)):
        with pytest.raises(ValueError, match=r"'data_parallel.sard'.*data_parallel.shard, data_parallel.average"):
            ask("data_parallel.sard")


def test_hint_and_starter_are_printed(capsys):
    exercises.hint("data_parallel.shard")
    exercises.starter("data_parallel.shard")
    exercise = exercises.find("data_parallel.shard")
    assert capsys.readouterr().out == exercise.hint + "\n" + exercise.starter


# ---- whatever a learner writes ---------------------------------------------------------------------------------------


def test_an_exception_is_shown_with_its_line_and_in_its_case():
    def function(x):
        if x == 21:
            return x + "1"
        return x

    reason = stopped(function)
    line = inspect.getsourcelines(function)[1] + 2
    assert reason.startswith("Smallest failing case: 2 ranks, number 21\nranks 0 and 1 raised\n")
    assert f'test_checker.py", line {line}, in function\n    return x + "1"\nTypeError' in reason
    assert "checker.py\", line" not in reason.replace("test_checker.py", "")


def test_one_rank_that_leaves_is_a_deadlock():
    def watched(function, group, case, rank):
        with ledger.Ledger():
            return function(case.given, group)

    def skips(x, group):
        return x if group.rank() == 1 else comm.all_reduce(torch.ones(1), group)

    report = checker.check(toy(attempt=watched), skips)
    assert report.marks[RUNS] == FAILED
    assert "2 ranks, number 21" in report.reason
    assert "Deadlock" in report.reason
    assert "comm.all_reduce(torch.ones(1), group)\nrank 1 had finished" in report.reason, "no line that is not theirs"


def test_an_endless_loop_is_ended(monkeypatch):
    monkeypatch.setattr(checker, "TIMEOUT", 2.0)

    def loop():
        while True:
            pass

    reason = stopped(stops_at(12, loop))
    assert "1 rank, number 12" in reason
    assert "No result after 2 s" in reason


@pytest.mark.parametrize(
    ("how", "says"),
    [(lambda: os._exit(3), "exit code 3"), (lambda: exit(0), "SystemExit"), (lambda: 1 / 0, "ZeroDivisionError")],
    ids=["_exit", "exit", "1/0"],
)
def test_a_rank_that_dies_is_reported(how, says):
    assert says in stopped(stops_at(11, how))


def test_too_few_parameters_are_reported():
    assert "takes 0 positional arguments but 1 was given" in stopped(lambda: 1)


def test_what_cannot_run_on_ranks_is_reported():
    lock = threading.Lock()
    assert "cannot be sent to the ranks" in stopped(lambda x: lock)
    assert "got       [1, 2], a list" in stopped([1, 2])


def test_a_failure_that_does_not_come_back_is_reported_all_the_same(tmp_path):
    def only_once(x):
        if x == 12 and not (tmp_path / "seen").exists():
            (tmp_path / "seen").touch()
            raise RuntimeError("once")
        return x

    assert "once" in stopped(only_once)


def test_ranks_talk_in_the_groups_of_the_case():
    cases = [Case(world_size=4, title="sizes", given=4), Case(world_size=4, title="sizes", given=2, group_size=2)]
    exercise = toy({"it is the number": is_number}, cases, lambda function, group, case, rank: function(group))
    assert checker.check(exercise, lambda group: group.size())
    assert [list(cases[1].members(rank)) for rank in range(4)] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert str(cases[1]) == "4 ranks in groups of 2, sizes"


def test_under_torchrun_the_checker_says_why_it_cannot_run(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(RuntimeError, match="without torchrun"):
        exercises.check("data_parallel.shard", len)


def test_a_long_report_is_cut():
    assert checker.shorten("\n".join(map(str, range(100)))).splitlines()[-2:] == ["15", "..."]


# ---- evidence --------------------------------------------------------------------------------------------------------


def test_the_first_number_that_differs_is_found_and_shown():
    right = torch.arange(10.0)
    wrong = right.clone()
    wrong[7] = -1
    assert evidence.first_difference(right, right.clone()) is None
    assert evidence.first_difference(right, wrong) == 7
    assert evidence.show(wrong, 7) == "[..., -1, 8, 9]"
    assert evidence.show(right, 0) == "[0, 1, 2, 3, ...]"
    assert evidence.show(None) == "None"


@pytest.mark.parametrize("got", [None, torch.zeros(3), torch.tensor([1e-6, 0]), torch.tensor([float("nan"), 0])])
def test_what_is_not_the_same_differs(got):
    assert evidence.first_difference(torch.zeros(2), got) == 0
