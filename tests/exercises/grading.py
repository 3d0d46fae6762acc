"""What tests of a chapter's exercises share: starters fail, solutions pass, mistakes fail for their own reason.

    CHAPTER = Chapter("memory", solutions)

    class TestExercises(Graded):
        chapter = CHAPTER

    CHAPTER.changes({
        "keeps two inputs": Mistake("activation_bytes", {"what must fail"}, at="the smallest case",
            old="what stands in the solution", new="what stands there then"),
    })

    @CHAPTER.mistake("checkpoint", "what must fail", at="the smallest case", says="a word of the report")
    def forgets_backward(function, *inputs):
        ...  # another algorithm, to which no line of the solution is near

    @CHAPTER.right("checkpoint")
    def counts_in_numpy(function, *inputs):
        ...  # passes
"""

import functools
import inspect
import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from shardlab import comm, exercises, launch, plain
from shardlab.costs import units
from shardlab.exercises import attempts, checker, packing

from ..plain.lesson import changed

# What holds when nothing is done; None, with no layer on any stage, is an answer of pipeline.cut.
LEAVES = "stays? what|gets? no gradient|every layer is on one stage"


class Mistake(NamedTuple):
    """A solution with one place changed."""

    exercise: str
    fails: set[str]  # all else must hold
    at: str  # the smallest failing case
    old: str  # stands once in the exercise's function, or else once in its module
    new: str
    says: str = ""  # a word of the report


class Chapter:
    """The exercises of one chapter, their solutions, and the mistakes that its tests register."""

    def __init__(self, stem, solutions):
        self.stem, self.solutions, self.mistakes, self.rights = stem, solutions, [], []
        self.page = Path(__file__).parents[2] / "book" / f"{stem}.md"
        printed = Path(plain.__file__).with_name(f"{stem}.py")  # the page prints it whole
        self.plain = printed.read_text() if printed.exists() else ""
        self.names = [each.name for each in exercises.of_chapter(stem)]

    def changes(self, mistakes):
        """Registers solutions that differ in one place; mistakes: name -> Mistake."""
        for name, (exercise, fails, at, old, new, says) in mistakes.items():
            self._register(name, exercise, self._changed(exercise, old, new), fails, at, says)

    def mistake(self, exercise, *fails, at, says=""):
        """Registers a function that is not near the solution."""

        def register(function):
            self._register(function.__name__.replace("_", " "), exercise, function, set(fails), at, says)
            return function

        return register

    def right(self, exercise):
        """Registers an answer that is right, and not near the solution."""

        def register(function):
            named = f"{exercise}-{function.__name__.replace('_', ' ')}"
            self.rights.append(pytest.param((f"{self.stem}.{exercise}", function), id=named))
            return function

        return register

    def _register(self, name, exercise, *rest):
        self.mistakes.append(pytest.param((f"{self.stem}.{exercise}", *rest), id=f"{exercise}-{name}"))

    def _changed(self, exercise, old, new):
        """The exercise's function from its module run anew, with its own source or a helper's changed."""
        name = exercises.find(f"{self.stem}.{exercise}").function
        own, module = inspect.getsource(getattr(self.solutions, name)), inspect.getsource(self.solutions)
        names = {"__name__": "wrong"}  # no module that a rank could import, so that the function travels whole
        exec(changed(module, own, changed(own, old, new)) if old in own else changed(module, old, new), names)
        return names[name]

    def starter(self, name):
        names = {}
        exec(exercises.find(name).starter, names)
        return names[exercises.find(name).function]

    def reports(self):
        """What `check` says of all that run and fail, from one launch for each world size; or why one did not run."""
        functions = {("starter", name): self.starter(name) for name in self.names}
        functions |= {("nothing", name): does_nothing for name in self.names}
        functions |= {(function, name): function for name, function in (each.values[0] for each in self.rights)}
        for mistake in self.mistakes:
            name, function, fails, _, _ = mistake.values[0]
            if checker.RUNS not in fails:
                functions[function, name] = function
        asked = [exercises.find(name) for _, name in functions]
        replies = [{} for _ in functions]
        for size in sorted({checker.num_ranks(each, case) for each in asked for case in each.cases}):
            cases = [[case for case in each.cases if checker.num_ranks(each, case) == size] for each in asked]
            attempts = [(each.attempt, f, c) for each, f, c in zip(asked, functions.values(), cases, strict=True)]
            try:
                by_rank = launch.run(attempt_together, attempts, world_size=size, ranks="threads")
            except launch.RankError as error:  # each alone is then told by its name
                return {}, str(error)
            for mine, these, *ranks in zip(replies, cases, *by_rank, strict=True):
                mine |= zip(map(id, these), zip(*ranks, strict=True), strict=True)
        reports = {}
        for key, exercise, mine in zip(functions, asked, replies, strict=True):
            observed = checker.Attempted([mine[id(case)] for case in exercise.cases])
            reports[key] = checker.judge(exercise, observed)
        return reports, ""


def spoil(reply):
    """Put what is not a number in the place of each number with a fraction that a rank observed, tensors apart."""
    return json.dumps(json.loads(reply, parse_float=lambda _: float("nan")))


def does_nothing(*arguments):
    """What a learner hands in who has written no line."""


def attempt_together(group, attempts):
    """As `check` does on ranks of their own; returns for each function this rank's reply in each of its cases.

    Errors: ValueError when a function leaves a message behind, which the next one would receive.
    """
    parts = {None: group}
    replies = []
    for attempt, function, cases in attempts:
        mine = []
        for case in cases:
            if case.group_size not in parts:
                parts[case.group_size] = comm.split(group, case.group_size)
            mine.append(packing.pack(attempt(function, parts[case.group_size], case, group.rank())))
        for part in parts.values():
            check_empty(part, function)
        replies.append(mine)
    return replies


def check_empty(group, function):
    """Exchange a number with every other rank; a message that the function left behind comes before it."""
    others = [rank for rank in range(group.size()) if rank != group.rank()]
    mark, arrived = torch.tensor([float("inf")]), [torch.zeros(1) for _ in others]
    for wait in comm.start_messages([(mark, rank) for rank in others], list(zip(arrived, others, strict=True)), group):
        wait()
    if any(each != mark for each in arrived):
        raise ValueError(f"{function.__name__} has left a message")


class Graded:
    """The tests that every chapter's exercises pass."""

    chapter: Chapter

    def pytest_generate_tests(self, metafunc):
        chapter = metafunc.cls.chapter
        for argument, values in (("name", chapter.names), ("mistake", chapter.mistakes), ("right", chapter.rights)):
            if argument in metafunc.fixturenames:
                metafunc.parametrize(argument, values)

    @pytest.fixture(scope="class")
    @classmethod
    def together(cls):
        return cls.chapter.reports()

    @pytest.fixture
    def reported(self, together, monkeypatch):
        """The report from the shared launches; of one that was not in them, from launches of its own, on threads."""
        reports, _ = together
        monkeypatch.setattr(attempts.launch, "run", functools.partial(launch.run, ranks="threads"))

        def report(key, name, function):
            return reports[key, name] if (key, name) in reports else exercises.check(name, function)

        return report

    def test_functions_that_run_to_their_end_do_so_together(self, together):
        _, failed = together
        assert not failed, failed

    def test_the_solution_passes_unless_its_numbers_are_none(self, name):
        exercise = exercises.find(name)
        attempted = attempts.observe(exercise, getattr(self.chapter.solutions, exercise.function))
        report = checker.judge(exercise, attempted)
        assert report, report
        spoilt = [[spoil(reply) for reply in ranks] for ranks in attempted.replies]
        assert spoilt == attempted.replies or not checker.judge(exercise, checker.Attempted(spoilt))

    def test_the_starter_runs_and_fails(self, name, reported):
        report = reported("starter", name, self.chapter.starter(name))
        assert not report
        assert report.marks[checker.RUNS] == checker.PASSED

    def test_what_does_nothing_passes_for_nothing_but_what_it_leaves_alone(self, name, reported):
        marks = reported("nothing", name, does_nothing).marks
        passed = {each for each, mark in marks.items() if mark == checker.PASSED}
        assert {each for each in passed if not re.search(LEAVES, each)} == {checker.RUNS}

    def test_the_page_asks_for_the_points_that_count_and_has_no_solution(self, name):
        exercise, text = exercises.find(name), self.chapter.page.read_text() + self.chapter.plain
        assert f'check("{name}", {exercise.function})' in text
        points = units.counted(exercise.points, "point")
        assert re.search(rf"{re.escape(exercise.prompt)} \({points}(, \d+ minutes)?\)\n", text)
        assert not re.search(r"\$|\]\(", exercise.prompt), "a shell prints it"
        solution = Path(self.chapter.solutions.__file__).read_text()
        body = re.search(rf"^def {exercise.function}\(.*?\n((?:    .*\n)+)", solution, re.MULTILINE)
        assert body[1] not in text

    def test_cases_grow_from_one_rank(self, name):
        """To four, where ranks talk; so that the smallest failing case is the first one."""
        exercise = exercises.find(name)
        sizes = [case.world_size for case in exercise.cases]
        assert sizes == sorted(sizes)
        assert exercise.pure or set(sizes) in ({1}, {1, 2, 4}, {1, 2, 3, 4})

    def test_a_mistake_fails_for_its_own_reason(self, mistake, reported):
        name, function, fails, at, says = mistake
        report = reported(function, name, function)
        assert {each for each, mark in report.marks.items() if mark == checker.FAILED} == fails
        assert f"Smallest failing case: {at}" in report.reason, report.reason
        assert says in report.reason
        assert not report

    def test_an_unusual_right_answer_passes(self, right, reported):
        name, function = right
        report = reported(function, name, function)
        assert report, report

    def test_every_exercise_has_three_mistakes(self):
        exercise_of = [parameter.values[0][0] for parameter in self.chapter.mistakes]
        assert all(exercise_of.count(name) >= 3 for name in self.chapter.names)
