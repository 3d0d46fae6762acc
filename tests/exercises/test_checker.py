"""The checker survives whatever a learner writes, says which line it was, and finds the smallest case."""

import dataclasses
import inspect
import os
import pkgutil
import re
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest
import torch
from IPython.core.formatters import DisplayFormatter

from shardlab import comm, exercises, schedules, trace
from shardlab.exercises import attempts, checker, evidence, output, packing, tensors
from shardlab.exercises.checker import FAILED, PASSED, RUNS, UNKNOWN, Case, Dependent, Exercise, Finding
from shardlab.launch import local
from shardlab.ranks.observe import ledger

# nothing in the package does this
NOTHING_NEAR = {"sharding.cheapest", "operations.survivors", "trainer_generator.commit", "trainer_generator.place"}
LONGEST_NUDGE = 200  # letters
CODE = r"\w\(|_|[=*^%]|//"  # a call, a name that only code has, an operator
PROMPTLY = 60.0  # s: far above what two busy cores need, far below the launcher's own time-out


def toy(properties=None, cases=None, attempt=lambda function, group, case, rank: function(case.given)):
    """An exercise in which the function gets a number and shall return it."""
    return Exercise(
        name="toy.same",
        prompt="Return the number.",
        starter="",
        hints=("What did you get?", "It is right already.", "Return it."),
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
    report = attempts.check(exercise or toy(), function)
    assert time.monotonic() - begin < PROMPTLY
    assert report.marks == {RUNS: FAILED, "it is the number": UNKNOWN, "it is small": UNKNOWN}
    assert not report
    return report.reason


# ---- the report ------------------------------------------------------------------------------------------------------


def test_all_that_is_right_passes():
    report = attempts.check(toy(), lambda x: x)
    assert report
    assert set(report.marks.values()) == {PASSED}
    assert str(report).startswith("toy.same: passed, 3 of 3 points")
    assert "Smallest" not in str(report)
    assert "Compare" not in str(report), "nothing in the package is near"


def test_a_pass_names_what_to_compare_with():
    exercise = dataclasses.replace(toy(), compare="shardlab.comm.all_reduce")
    assert str(attempts.check(exercise, lambda x: x)).endswith("\n\nCompare with shardlab.comm.all_reduce")
    assert "Compare" not in str(attempts.check(exercise, lambda x: 100))


def test_the_first_property_that_fails_is_shown_in_its_smallest_case():
    report = attempts.check(toy(), lambda x: x + 100 * (x > 20))
    assert report.marks == {RUNS: PASSED, "it is the number": FAILED, "it is small": FAILED}
    lines = ["Smallest failing case: 2 ranks, number 21", "  given     21", "  expected  21", "  got       [121, 121]"]
    assert report.reason.splitlines() == lines
    assert str(report).endswith('Stuck? hint("toy.same")')
    assert "0 of 3 points" in str(report)


def test_what_stops_later_hides_no_smaller_case_that_fails():
    report = attempts.check(toy(), lambda x: x + 1 if x < 20 else [][x])
    assert report.marks[RUNS] == FAILED
    assert report.reason.startswith("Smallest failing case: 1 rank, number 11\n")


def test_of_two_properties_the_one_that_fails_in_a_smaller_case_is_shown():
    small_first = toy({"it is small": is_small, "it is the number": is_number})
    report = attempts.check(small_first, lambda x: x + 100 if x > 20 else min(x, 11))
    assert report.reason.startswith("Smallest failing case: 1 rank, number 12\n")


def test_a_finding_can_say_what_to_try():
    small = {"it is small": lambda case, seen: Finding("", "below 10", str(seen[0]), "return less")}
    reason = attempts.check(toy(small), lambda x: x).reason
    assert reason.splitlines()[-2:] == ["  got       11", "  try       return less"]


def test_a_judge_of_each_rank_tells_of_the_first_that_fails():
    judge = checker.on_each_rank(lambda case, rank, seen: Finding("", "", str(rank)) if seen > 1 else None)
    assert judge(toy().cases[0], [1, 2, 3]).got == "1"
    assert judge(toy().cases[0], [1, 1, 1]) is None


def test_one_property_can_fail_alone():
    marks = attempts.check(toy(), lambda x: x + 1).marks
    assert marks == {RUNS: PASSED, "it is the number": FAILED, "it is small": PASSED}


def test_what_an_answer_costs_passes_only_where_it_is_right():
    """Nothing is cheaper than nothing: a budget that was kept is no merit of an answer that is wrong."""
    exercise = toy({"it is the number": is_number, "it is small": Dependent(is_small)})
    assert attempts.check(exercise, lambda x: x)
    for wrong, small in ((1, UNKNOWN), (100, FAILED)):
        marks = attempts.check(exercise, lambda x, wrong=wrong: x + wrong).marks
        assert marks == {RUNS: PASSED, "it is the number": FAILED, "it is small": small}


@pytest.mark.parametrize(("sent", "marks"), [(0, {FAILED}), (1, {PASSED}), (2, {FAILED})], ids=["none", "one", "two"])
def test_budgets_of_bytes_and_messages_have_two_ends(sent, marks):
    def attempt(function, group, case, rank):
        with ledger.Ledger() as book:
            for _ in range(sent):
                comm.all_reduce(torch.ones(2), group)
        return evidence.Seen(events=book.events)

    budgets = {"bytes": evidence.sends_one_all_reduce(lambda case: 8), "messages": evidence.sends_messages(1)}
    report = attempts.check(toy(budgets, [Case(2, "two numbers")], attempt), len)
    assert {report.marks[name] for name in budgets} == marks


def test_a_checker_that_fails_grades_nothing(monkeypatch, capsys):
    """Its own failure is not the learner's: no rank can start, here."""

    def run(fn, *arguments, **options):
        raise OSError("Resource temporarily unavailable")

    monkeypatch.setattr(attempts.launch, "run", run)
    report = exercises.check("data_parallel.shard", lambda n, r, w: range(r, n, w))
    assert not report
    assert repr(report) == "<data_parallel.shard: not graded>"
    assert "no ranks can start: Resource temporarily unavailable" in capsys.readouterr().out
    assert "points" not in str(report)


def test_where_too_few_ranks_can_start_nothing_is_graded(monkeypatch):
    """A right answer would otherwise fail in its first case of two ranks."""
    run = attempts.launch.run

    def run_few(*arguments, world_size, **options):
        if world_size > 1:
            raise attempts.launch.RankError("only 1 of 2 ranks could be started: Resource temporarily unavailable")
        return run(*arguments, world_size=world_size, **options)

    monkeypatch.setattr(attempts.launch, "run", run_few)
    report = attempts.check(toy(), lambda x: x)
    assert report.verdict == checker.UNGRADED
    assert "only 1 of 2 ranks" in str(report)


def test_a_notebook_shows_the_report_once(capsys):
    report = exercises.check("data_parallel.shard", None)
    printed = capsys.readouterr().out
    assert printed == f"{report}\n"
    assert DisplayFormatter().format(report) == ({}, {}), "the value of the cell would be shown, too"
    assert repr(report) == "<data_parallel.shard: failed>"


def test_a_mistyped_exercise_is_told_its_name_and_an_unknown_one_those_there_are():
    right = "data_parallel.shard"
    said = {"data_parallel.sard": f"did you mean {right}", "data_parallel.something": f"choose from {right}, "}
    for ask in (exercises.hint, exercises.starter, lambda name: exercises.check(name, len)):
        for name, what in said.items():
            with pytest.raises(ValueError, match=f"{name!r}; {re.escape(what)}"):
                ask(name)


def test_a_chapter_is_refused_with_its_exercises_alone():
    names = ", ".join(each.name for each in exercises.of_chapter("zero"))
    for ask in (exercises.hint, exercises.starter):
        with pytest.raises(ValueError, match=f"'zero'; choose from {names}$"):
            ask("zero")


def test_help_comes_in_three_steps_that_name_the_next(capsys):
    nudge, idea, way = exercises.find("zero.clip").hints
    for step, text in enumerate([nudge, idea, way], start=1):
        exercises.hint("zero.clip", step)
        more = {1: '\nhint("zero.clip", 2) has the idea.', 2: '\nhint("zero.clip", 3) has the way.'}.get(step, "")
        assert capsys.readouterr().out == f"{text}{more}\n"
    exercises.hint("zero.clip")
    assert capsys.readouterr().out.startswith(nudge)
    for step in (0, 4, -1, "2", None):
        with pytest.raises(ValueError, match=r"use 1 for a nudge, 2 for the idea, 3 for the way"):
            exercises.hint("zero.clip", step)


def test_a_starter_is_printed(capsys):
    exercises.starter("zero.clip")
    assert capsys.readouterr().out == exercises.find("zero.clip").starter


@pytest.mark.parametrize("name", exercises.every())
def test_a_nudge_shows_no_code_and_each_step_says_something_else(name):
    nudge, idea, _ = steps = exercises.find(name).hints
    assert all(steps)
    assert len(set(steps)) == 3
    assert len(nudge) <= LONGEST_NUDGE
    assert "?" in nudge or nudge.startswith("Draw"), "a nudge asks, or says where to look"
    assert not re.search(CODE, nudge + idea)


@pytest.mark.parametrize("name", exercises.every())
def test_what_to_compare_with_exists(name):
    compare = exercises.find(name).compare
    assert compare.startswith("shardlab.") or name in NOTHING_NEAR
    assert not compare or pkgutil.resolve_name(compare)


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


def test_one_rank_that_leaves_is_a_deadlock(impatient):
    def watched(function, group, case, rank):
        with ledger.Ledger():
            return function(case.given, group)

    def skips(x, group):
        if group.rank() != 1 and group.size() > 1:
            comm.all_reduce(torch.ones(1), group)
        return x

    report = attempts.check(toy(attempt=watched), skips)
    assert report.marks[RUNS] == FAILED
    assert "2 ranks, number 21" in report.reason
    assert "Deadlock" in report.reason
    assert "comm.all_reduce(torch.ones(1), group)\nrank 1 had finished" in report.reason, "no line that is not theirs"


def test_an_endless_loop_is_ended(monkeypatch):
    monkeypatch.setattr(attempts, "ALONE", 1.0)

    def loop():
        while True:
            pass

    lines = stopped(stops_at(12, loop)).splitlines()
    assert lines[0] == "Smallest failing case: 1 rank, number 12"
    assert lines[1] == "The case takes longer than 1 s, which is the limit."
    assert "No result after 1 s." in lines


@pytest.mark.slow
def test_slow_cases_meet_the_limit_of_all_together(monkeypatch):
    """Alone each of them would do; whoever waits for a whole exercise should wait for seconds."""
    monkeypatch.setattr(attempts, "TOGETHER", 3.0)
    begin = time.monotonic()
    reason = stopped(lambda x: time.sleep(2) or x)
    assert "The case together with the other 1 takes longer than 3 s, which is the limit." in reason
    assert time.monotonic() - begin < 30


def test_endless_recursion_is_named():
    def deeper(x):
        return deeper(x) + 1

    lines = stopped(deeper).splitlines()
    assert lines[-1].startswith("RecursionError: maximum recursion depth exceeded")
    assert "  ..." in lines
    assert len(lines) <= attempts.MAX_LINES


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits what a process allocates")
@pytest.mark.parametrize(
    ("allocate", "says"),
    [(lambda: bytearray(20 << 30), "MemoryError"), (lambda: torch.ones(20 << 27), "can't allocate memory")],
    ids=["bytes", "tensor"],
)
def test_memory_has_a_limit(allocate, says):
    assert says in stopped(stops_at(21, allocate))


def test_what_returns_before_it_has_run_is_told_so():
    async def waits(x):
        return x

    def gives(x):
        yield x

    for function, note in ((waits, "write def, not async def: "), (gives, "return the result: with yield, ")):
        reason = stopped(function)
        assert "cannot be judged; numbers, words and tensors can" in reason
        assert f"  try       {note}a call of this function runs none of its lines" in reason
    assert "try" not in stopped(lambda: 1)


def test_endless_output_is_shown_at_both_ends(capsys):
    def chatter(x):
        for line in range(30_000):
            print("word " * 20, line)
        return x

    assert attempts.check(toy(cases=toy().cases[:1]), chatter)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == output.FIRST + 1 + output.LAST
    assert lines[0] == "[rank 0] " + "word " * 20 + " 0"
    assert lines[output.FIRST].startswith("... 29,800 lines are left out (3.")
    assert lines[-1].endswith(" 29999")


def test_an_endless_line_is_not_collected(capsys):
    rank = local.Rank(0, "")
    rank.text += b"x" * (local.MAX_LINE + 1)
    assert rank.lines() == ["x" * (local.MAX_LINE + 1)]
    assert not rank.text
    rank.close()
    assert attempts.check(toy(cases=toy().cases[:1]), lambda x: print("y" * 10**6, end="") or x)
    assert capsys.readouterr().out == f"[rank 0] {'y' * (output.WIDTH - 9)} ...\n"


@pytest.mark.parametrize(
    ("how", "says"),
    [(lambda: os._exit(3), "exit code 3"), (lambda: exit(0), "SystemExit"), (lambda: 1 / 0, "ZeroDivisionError")],
    ids=["_exit", "exit", "1/0"],
)
def test_a_rank_that_dies_is_reported(how, says):
    assert says in stopped(stops_at(11, how))


def test_a_rank_that_writes_to_every_descriptor_is_reported():
    def scribble():
        for each in range(3, 64):
            with suppress(OSError):
                os.write(each, b"3 of 3 points\n")
        time.sleep(60)

    begin = time.monotonic()
    assert "something that is no message came from the rank" in stopped(stops_at(11, scribble))
    assert time.monotonic() - begin < 20


def test_too_few_parameters_are_reported():
    assert "takes 0 positional arguments but 1 was given" in stopped(lambda: 1)


def test_what_cannot_run_on_ranks_is_reported():
    lock = threading.Lock()
    assert "lock cannot be copied to the ranks" in stopped(lambda x: lock)
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
    assert attempts.check(exercise, lambda group: group.size())
    assert [list(cases[1].members(rank)) for rank in range(4)] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert str(cases[1]) == "4 ranks in groups of 2, sizes"


# ---- no code of the learner beside the judge -------------------------------------------------------------------------


def test_a_number_that_equals_everything_is_judged_by_its_value():
    class Always(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    assert attempts.check(toy(), lambda x: Always(x))
    assert attempts.check(toy(), lambda x: Always(-x)).marks["it is the number"] == FAILED


def test_an_object_of_the_learners_is_not_rebuilt(tmp_path):
    mark = tmp_path / "rebuilt"

    class Sly:
        def __reduce__(self):
            return mark.touch, ()

    assert "TypeError: a Sly cannot be judged" in stopped(lambda x: Sly())
    assert not mark.exists()


def test_what_a_judge_cannot_handle_is_a_finding():
    report = attempts.check(toy({"it is small": is_small, "it is the number": is_number}), lambda x: "2")
    assert report.marks == {RUNS: PASSED, "it is small": FAILED, "it is the number": FAILED}
    assert "got       something else, which cannot be compared (TypeError: " in report.reason


def test_a_judge_that_cannot_work_grades_nothing():
    """Whatever the error: a right answer fails for no bug of the checker, and a wrong one still does."""

    def judge(case, seen):
        return {}["no such key"]

    exercise = toy({"it is judged": judge, "it is the number": is_number})
    report = attempts.check(exercise, lambda x: x)
    assert report.verdict == checker.UNGRADED
    assert "cause     KeyError: 'no such key'" in str(report)
    assert attempts.check(exercise, lambda x: x + 1).verdict == FAILED


@pytest.mark.parametrize("replies", [[], [["1"]] * 3, [["11", "11"]], [["1"], ["}"]], [7], [[["11"]]]], ids=range(6))
def test_replies_that_do_not_fit_fail(replies):
    report = checker.judge(toy(), checker.Attempted(replies))
    assert report.marks[RUNS] == FAILED
    assert "Smallest failing case: " in report.reason


def test_plain_data_come_back_as_they_were():
    tensors = [torch.arange(6.0).view(2, 3).T, torch.tensor(True), torch.ones(0, 2), torch.ones(2).bfloat16()]
    tensors += [torch.ones(2, 6)[:1, 0], torch.tensor(1.0, requires_grad=True)]  # one number with a stride of 6
    event = trace.Event(0, "communicate", "send", (0, 1), 8, 0.5, 1.0, peer=1)
    seen = evidence.Seen(result={1: (2.5, None), "é": [b"\xff", True]}, events=[event])
    plain = [seen, schedules.Action("F", 1), float("inf"), -0.0, 2**80]
    assert packing.unpack(packing.pack(plain)) == plain
    assert str(packing.unpack(packing.pack(float("nan")))) == "nan"
    for before, after in zip(tensors, packing.unpack(packing.pack(tensors)), strict=True):
        assert (after.dtype, after.shape) == (before.dtype, before.shape)
        assert torch.equal(before, after)


ODD = [object(), {1}, torch.ones(2, device="meta"), torch.ones(2).to_sparse(), "x" * 2**24]


@pytest.mark.parametrize("odd", ODD, ids=range(5))
def test_anything_else_cannot_be_packed(odd):
    with pytest.raises((TypeError, ValueError), match=r"to judge|cannot be judged"):
        packing.pack(odd)


@pytest.mark.parametrize(
    "forged",
    [
        '{"record": ["os", "_exit", {}]}',
        '{"record": ["shardlab.files.learner", "read", {"kind": "x"}]}',
        '{"tensor": ["float64", [3], ""]}',
        '{"dict": [[[], 1]]}',
        '{"code": "1"}',
        "[" * 10**5,
        "no JSON",
    ],
    ids=range(7),
)
def test_a_forged_reply_builds_nothing(forged):
    with pytest.raises(ValueError, match="no plain data"):
        packing.unpack(forged)


def test_under_torchrun_the_checker_says_why_it_cannot_run(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(RuntimeError, match="without torchrun"):
        exercises.check("data_parallel.shard", len)


def test_a_long_report_is_cut():
    assert attempts.shorten("\n".join(map(str, range(100)))).splitlines()[-2:] == ["15", "..."]


def test_of_long_stacks_the_ends_stay_and_every_error():
    stack = [f"  {line}" for line in range(30)]
    short = attempts.shorten("\n".join(["rank 0 raised", *stack, "KeyError: 1", *stack, "ValueError: 2"]))
    ends = ["  0", "  1", "  ...", "  28", "  29"]
    assert short.splitlines() == ["rank 0 raised", *ends, "KeyError: 1", *ends, "ValueError: 2"]


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


DIFFERENT = [None, torch.zeros(3), torch.tensor([1e-6, 0]), torch.tensor([float("nan"), 0]), torch.zeros(2).double()]


@pytest.mark.parametrize("got", DIFFERENT)
def test_what_is_not_the_same_differs(got):
    assert evidence.first_difference(torch.zeros(2), got) == 0


# ---- tensors ---------------------------------------------------------------------------------------------------------


def of_rank(case, rank):
    return {"x": torch.tensor([1.0, 2.0 + rank])}


SUM = tensors.Comparison(  # all ranks' x, added up; every rank gets a gradient of ones
    inputs=of_rank,
    reference=lambda case, rank: {
        "output": sum(of_rank(case, each)["x"] for each in case.members(rank)),
        "x.grad": torch.full((2,), float(case.world_size)),
    },
    incoming=lambda case, rank: {"output": torch.ones(2)},
)
GIVEN = "given     x = [1, 2] on rank 0; x = [1, 3] on rank 1"
ENDS = tensors.Comparison(
    inputs=of_rank,
    reference=lambda case, rank: dict(zip(("low", "high"), of_rank(case, rank)["x"], strict=True)),
    outputs=("low", "high"),
)


def compared(comparison, function, *names):
    """The report of an exercise of two ranks that compares these tensors and asks for unchanged arguments."""
    judges = {name: comparison.has(name) for name in names} | {"x stays": evidence.leaves_arguments}
    return attempts.check(toy(judges, [Case(2, "two")], comparison.attempt), function)


class Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return comm.all_reduce(x, group)

    @staticmethod
    def backward(ctx, gradient):
        return comm.all_reduce(gradient, ctx.group), None


def without_history(x, group):
    return Summed.apply(x, group).detach()


def changes(x, group):
    return x.add_(1)[0], x[1]


def test_outputs_and_gradients_are_those_of_one_process():
    assert compared(SUM, Summed.apply, "output", "x.grad")
    assert compared(ENDS, lambda x, group: (x[0], x[1]), "low", "high")


@pytest.mark.parametrize(
    ("comparison", "function", "fails", "lines"),
    [
        (SUM, lambda x, group: 2 * x, {"output"}, [GIVEN, "output = [2, 5] on rank 0", "got       output = [2, 4]"]),
        (SUM, without_history, {"x.grad"}, [GIVEN, "x.grad = [2, 2] on rank 0", "x.grad = None"]),
        (SUM, lambda x, group: None, {"output", "x.grad"}, ["output = [2, 5] on rank 0", "got       None, a NoneType"]),
        (ENDS, lambda x, group: x[0], {"low", "high"}, ["expected  low and high, two tensors", "tensor(1.)"]),
        (ENDS, lambda x, group: (x[0], 3), {"high"}, ["expected  low and high, two tensors", ", 3)"]),
        (ENDS, changes, {"low", "high", "x stays"}, ["low = [1] on rank 0", "got       low = [2]"]),
    ],
    ids=["other-numbers", "no-history", "nothing", "one-of-two", "a-number", "changes-its-argument"],
)
def test_a_report_shows_what_ranks_were_given_and_what_one_returned(comparison, function, fails, lines):
    report = compared(comparison, function, *comparison.reference(Case(2, "two"), 0))
    assert {name for name, mark in report.marks.items() if mark == FAILED} == fails
    assert [line for line in lines if line not in report.reason] == []


def test_where_one_rank_returns_nothing_backward_is_left_out():
    """Its peers would wait for it in backward."""
    report = compared(SUM, lambda x, group: [None, Summed.apply(x, group)][group.rank()], "output")
    assert report.marks[RUNS] == PASSED
    assert report.marks["output"] == FAILED


@pytest.mark.slow
def test_the_command_checks_without_what_draws(tmp_path):
    drawing = "plotly", "IPython", "ipywidgets", "anywidget"
    source = "import runpy, sys\n" + "".join(f"sys.modules[{name!r}] = None\n" for name in drawing)
    file = tmp_path / "mine.py"
    file.write_text("def my_shard(n, rank, world_size):\n    return range(rank, n, world_size)\n")
    source += "runpy.run_module('shardlab.exercises', run_name='__main__', alter_sys=True)"
    command = [sys.executable, "-c", source, "check", "data_parallel.shard", str(file)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "data_parallel.shard: passed, 1 of 1 points" in found.stdout, found.stdout + found.stderr
