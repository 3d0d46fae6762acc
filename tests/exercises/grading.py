"""What tests of a chapter's exercises share: starters fail, solutions pass, mistakes fail for their own reason.

    CHAPTER = Chapter("memory", solutions)

    class TestExercises(Graded):
        chapter = CHAPTER

    @CHAPTER.mistake("checkpoint", "what must fail", at="the smallest case", says="a word of the report")
    def forgets_backward(function, *inputs):
        ...
"""

import re
from pathlib import Path

import pytest

from shardlab import exercises
from shardlab.exercises import checker
from shardlab.ranks import plain


class Chapter:
    """The exercises of one chapter, their solutions, and the mistakes that its tests register."""

    def __init__(self, stem, solutions):
        self.stem, self.solutions, self.mistakes = stem, solutions, []
        self.page = Path(__file__).parents[2] / "book" / f"{stem}.md"
        printed = Path(plain.__file__).with_name(f"{stem}.py")  # the page prints it whole
        self.plain = printed.read_text() if printed.exists() else ""
        self.names = [each.name for each in exercises.of_chapter(stem)]

    def mistake(self, exercise, *fails, at, says=""):
        """Registers a function: what must fail (all else must hold), the smallest case, and a word of the report."""

        def register(function):
            arguments = (f"{self.stem}.{exercise}", function, set(fails), at, says)
            self.mistakes.append(pytest.param(arguments, id=f"{exercise}-{function.__name__}"))
            return function

        return register


class Graded:
    """The tests that every chapter's exercises pass."""

    chapter: Chapter

    def pytest_generate_tests(self, metafunc):
        for argument, values in (("name", metafunc.cls.chapter.names), ("mistake", metafunc.cls.chapter.mistakes)):
            if argument in metafunc.fixturenames:
                metafunc.parametrize(argument, values)

    def test_the_solution_passes(self, name):
        report = exercises.check(name, getattr(self.chapter.solutions, exercises.find(name).function))
        assert report, report

    def test_the_starter_runs_and_fails(self, name):
        exercise, names = exercises.find(name), {}
        exec(exercise.starter, names)
        report = exercises.check(name, names[exercise.function])
        assert not report
        assert report.marks[checker.RUNS] == checker.PASSED

    def test_the_page_shows_the_starter_and_not_the_solution(self, name):
        if not self.chapter.page.exists():
            pytest.skip(f"the chapter {self.chapter.stem} is not written")
        exercise, text = exercises.find(name), self.chapter.page.read_text() + self.chapter.plain
        assert exercise.starter in text
        assert f'check("{name}", {exercise.function})' in text
        solution = Path(self.chapter.solutions.__file__).read_text()
        body = re.search(rf"^def {exercise.function}\(.*?\n((?:    .*\n)+)", solution, re.MULTILINE)
        assert body[1] not in text

    def test_cases_grow_from_one_rank(self, name):
        """To four, where ranks talk; so that the smallest failing case is the first one."""
        exercise = exercises.find(name)
        sizes = [case.world_size for case in exercise.cases]
        assert sizes == sorted(sizes)
        assert exercise.pure or set(sizes) in ({1}, {1, 2, 4}, {1, 2, 3, 4})

    def test_a_mistake_fails_for_its_own_reason(self, mistake):
        name, function, fails, at, says = mistake
        report = exercises.check(name, function)
        assert {each for each, mark in report.marks.items() if mark == checker.FAILED} == fails
        assert f"Smallest failing case: {at}" in report.reason
        assert says in report.reason
        assert not report

    def test_every_exercise_has_three_mistakes(self):
        exercise_of = [parameter.values[0][0] for parameter in self.chapter.mistakes]
        assert all(exercise_of.count(name) >= 3 for name in self.chapter.names)
