"""A chapter's questions can be asked: every seed gives a sheet, and only the teacher's has the answers."""

import re
import sys
from random import Random

import pytest

from shardlab.exercises import __main__ as command
from shardlab.exercises import questions
from shardlab.exercises.questions import reading

SEEDS = range(20)
FEW = SEEDS[:3]
BY_HAND = [  # a question, what is drawn, and what a hand computes from that
    ("memory.states", (7, 72), "18 bytes per parameter: 126 GB, and at most 4 billion"),
    ("memory.two_peaks", (48, 4), "the peak is 52 GB with one, and 48 GB do not depend on the texts: at most 3"),
    ("memory.recomputation", (32, 4096), "together 537 MB"),  # 32 layers, 2 bytes, 2,048 tokens, width 4,096
    ("memory.scores", (32, 2048), "327,680 per token, beside 34 bytes per unit of width, 139,264. That is 70 %"),
    ("compute.days", (7, 512, 2, 0.42), "4.57 days"),  # 8.4e22 FLOPs, at 512 times 0.42 times 989e12
    ("compute.thin", (8192, 64), "the intensity stays below 63.5 FLOP/byte"),  # 8192 * 64 / 8256
    ("compute.recomputing", (44, 8), "its MFU is 39 %. B's MFU is its HFU, 44 %. B is 1.13 times as fast"),
    ("collectives.idle", (8,), "carries 7 buffers against 1.75: 4 times as many. The time is 8 times as long"),
    ("collectives.two_levels", (4, 2), "Inside 7/8 of the buffer twice, 3.5 GB. Between servers"),
    ("collectives.two_levels", (4, 2), "an eighth: 375 MB."),  # 2 * 3/4 of 250 MB
    ("collectives.more_ranks", (8, 16, 8), "300 ms, and 321 ms on 128 ranks"),  # 15 GB / 50 GB/s, 30 steps
    ("data_parallel.sent", (3, 4, 4), "18 GB, and 21 GB on 8 ranks. With 4 averages it is 72 GB."),
    ("data_parallel.means", ((7, 2, 1), 3), "the batch's gradient is 4.4. The factors are 3 n / 10: 2.1, 0.6, 0.3"),
    ("data_parallel.shrinks", (4, 32), "activations fall to an eighth, 4 GB: 96 GB on 8, 68 GB on 64, which fits"),
    ("zero.stages", (8, 64, 50), "128 GB, 33.5 GB, 17.8 GB, 2 GB. Stage 2"),  # 4 + 12/64 and 2 + 14/64 bytes
    ("zero.floor", (30, 44), "so 11 GPUs"),  # 480 / 44
    ("zero.hybrid", (8, 16), "16 P / 8: 16 GB. Between servers each GPU all-reduces its eighth of the gradients"),
    ("interconnects.units", ("NVLink 4", 400, 4), "450 GB/s. The network counts bits in one direction: 200 GB/s for"),
    ("interconnects.rings", ("DGX H100",), "cross the cards once: 400 GB/s."),
    ("interconnects.message", ("DGX H100", 100), "50 GB/s, so 2.01 ms."),
    ("memory.stuck", (-4, 3e-4), "neighbours are 0.00049 apart, and steps below half of that, 0.00024"),
    ("composition.place", (2, 11), "tp 3, dp 0, pp 1. Its groups: tp [8, 9, 10, 11], dp [11, 15], pp [3, 11, 19, 27]"),
    ("composition.norm", (2, 2, 5, 4, 2), "so the norm is 5.66. All ranks' squares give 9.38"),  # roots of 32 and 88
    ("composition.fits", (70, 128, 20), "pp = 4, where states take 15.3 GB"),  # 35 / 4 + 6.56; with two stages 24.1
    ("composition.sends", (2, 8, 16), "301 GB."),  # 16 * 40 * 7 * 4,096 * 8,192 * 2 bytes
    ("planner.least", (70, 80, 2048), "at least 15 GPUs. Batch: at most 512 replicas, so at least 4"),
    ("planner.stays", (1024, 128, (16, 4)), "94 % of the computing time, so 1.94 times the bare"),  # 15 / 16
    ("planner.stays", (1024, 128, (16, 4)), "75 %, but a third more arithmetic: 2.33."),  # 3 / 4, and 4/3 of 1.75
    ("planner.chunks", ((8, 16),), "= 63, and v must divide 12: v = 4, with 10 %. It is 30 % with one"),  # 7/71, 7/23
    ("planner.larger", (4, 8, 4, 1.5), "= 2.00 times as many tokens, at 1.5 times the rate: it takes 1.33 times"),
    ("failures.rarely", (2048, 16, 60, 40), "36 hours; 73,728 hours for one GPU; 192 days on 16"),  # 128 times 36 h
    ("failures.blame", (140, 100, 2, 10), "the others 100 ms and then wait 40 ms. A step has 150 ms."),
    ("failures.paired", (10, 4, 3), "Rank 1 makes 27 all-reduces and ends; the others wait in number 28"),  # 9 times 3
    ("failures.missed", (2, 6400), "0.250: about 1,600 samples"),
    ("operations.often", (2048, 45, 40_000, 300), "19.5 hours, so a save comes every 41.9 minutes, and 4 % is lost"),
    ("operations.behind", (60, 2, 2, 300), "Before: every 930 s, 17.1 % lost."),  # twice the root of 1/240, and 1/24
    ("operations.disk", (405, 64, 50, 60), "4.86 TB, 75.9 GB per node. 81 GB/s for 60 s."),  # 12 * 405e9 bytes
    ("sharding.moves", ("P -> S(S)", 4096, 8192, 8), "Forward: reduce_scatter, 58.7 MB. The gradient goes S(S) -> R"),
    ("sharding.mean", (2, 6, 12, 4), "8 in place of 6."),  # (12 + 4) / 2 and (24 + 24) / 8
    ("sharding.squares", (2, 3, 12), "17.49 in place of 12.73."),  # roots of 2 * (9 + 144) and 18 + 144
    ("tensor_parallel.sums", (4096, 8), "as many: 3.76 GB. Recomputing repeats the two of forward: 5.64 GB"),
    ("tensor_parallel.slices", (4096, 4), "Only 24 are divided by 4: 134 MB"),  # 16 of 34
    ("tensor_parallel.words", (8192, 4, 32_000), "times (t - 1) / t, 786 MB. Cut: three numbers per token"),
    ("pipeline.replicas", (8, 128), "(p - 1) / (m + p - 1) is 30.4 % and 27.3 %"),  # 7/23 and 3/11
    ("pipeline.chunks", (4, 2, 2), "27.3 % becomes 15.8 %. Crossings: p v - 1 = 7 in place of 3. Held: p + (p - 1) /"),
    ("pipeline.slowest", (32, 6, 3), "27 + 31 x 9 = 306. The best cut has stages of 6, 7, 7, 7 units, in some"),
    ("context_parallel.merge", (2, 8, (10, 50)), "y = 42, log-sum-exp ln 10. The mean is 30"),
    ("context_parallel.hiding", (400, 100, (32, 8)), "F/β = 2,000 tokens; without a mask twice the work, so half"),
    ("context_parallel.ways", (32, 4096, (8, 4)), "A rank's keys are 8.39 MB. The ring sends"),
    ("context_parallel.ways", (32, 4096, (8, 4)), "2.33 times as much, Ulysses only 1.17 times."),  # 7/3 and 7/6
    ("context_parallel.waits", (4, 0.6), "attention takes 1.75 times as long, and the step 1.45 times"),  # 7/4
    ("expert_parallel.held", (192, 6, 64, 8), "6 + 192 / 8 = 30 billion parameters: 480 GB"),
    ("expert_parallel.load", (32, 24), "Ranks have 56, 20, 14, 10 %, the even share is 25: 2.24 times."),
    ("expert_parallel.load", (32, 24), "beside it: 1.44. An expert takes at most 15.625 %, so 24.75 % are dropped."),
    ("expert_parallel.narrowest", (4, 40, 300), "= 3,750. With one byte there, 3 bytes travel in place of 4: 2,812"),
    ("replay.meeting", ((2, 5, 4), 200, 3), "rank 2 goes on at 16.028 ms and has waited for 12.028 ms"),
    ("replay.cards", (2, 64), "Ring: 2 (N - 1)/N of the buffer, 120 MB, at least 3 ms. Two levels"),
    ("placement.numbers", ((4, 4, 2), 13), "[12, 13, 14, 15]; groups lie on 1 (tp), 2 (dp) and 2 (pp) servers. pp"),
    ("placement.numbers", ((4, 4, 2), 13), "[5, 13, 21, 29]; groups lie on 4 (tp), 1 (dp) and 1 (pp) servers."),
    ("placement.teams", ((8, 32, 4096), 16_384), "128 times: 30.1 GB, so it waits for 752 ms. With 1,907 tokens"),
    ("placement.bend", ((0.5, 0.3), 0.6), "5 % longer is 0.025 s that show, so sending may take 0.325 s: 0.74 Tb/s"),
    ("placement.passes", (4, 0.5, 0.2), "0.375 s per sequence, and the knee is at 0.77 Tb/s. In one pass"),
    ("placement.exchange", (4, 8, 256), "48 MB. All-to-all: the share for other servers, 192 MB, 4 times"),
    ("tensor_parallel.slices", (4096, 2), "All 34 on one rank: 285 MB. Only 24 are divided by 2: 185 MB."),
]


class Given(Random):
    """Draws what a test says."""

    def __init__(self, *values):
        super().__init__()
        self.values = list(values)

    def choice(self, seq):
        value = self.values.pop(0)
        assert value in seq
        return value


CHAPTERS = {chapter: reading.read(questions.FILES[chapter]) for chapter in questions.ASKED}


def entries(chapter):
    return [entry for part in CHAPTERS[chapter].parts.values() for entry in part]


def has_numbers(entry):
    return bool(str(entry.cells))


def flat(text):
    return " ".join(text.split())


def test_every_chapter_has_questions():
    assert questions.ASKED == command.CHAPTERS


@pytest.mark.parametrize("chapter", questions.ASKED)
def test_a_chapter_has_ten_written_and_two_oral_questions_of_all_levels(chapter):
    parts = CHAPTERS[chapter].parts
    assert {part: len(each) for part, each in parts.items()} == {"Written": 10, "Oral": 2}
    every = [entry.drawn(0) for entry in entries(chapter)]
    assert len({each.ask for each in every}) == 12
    assert {each.level for each in every} == {1, 2, 3}
    assert [bool(each.then) for each in every] == [False] * 10 + [True] * 2
    assert sum(has_numbers(entry) for entry in parts["Written"]) >= 5


@pytest.mark.parametrize("chapter", questions.ASKED)
def test_a_seed_decides_the_numbers(chapter):
    for entry in entries(chapter):
        drawn = [entry.drawn(seed) for seed in SEEDS]
        assert drawn[: len(FEW)] == [entry.drawn(seed) for seed in FEW]
        variants = 3 if has_numbers(entry) else 1
        assert min(len({each.ask for each in drawn}), 3) == variants
        assert min(len({each.answer for each in drawn}), 3) == variants
        for each in drawn:
            for text in (each.ask, each.answer, each.wrong, *(what for _, what in each.marks)):
                assert text.strip()
                assert not {"nan", "inf", "None"} & set(text.split())
            assert all(points > 0 for points, _ in each.marks)
            assert 2 <= each.points <= 5


@pytest.mark.parametrize("chapter", questions.ASKED)
def test_only_the_teachers_sheet_has_the_answers(chapter):
    for seed in FEW:
        students = questions.page(chapter, seed)
        teachers = questions.page(chapter, seed, answers=True)
        assert not {"*Answer,", "*Usual", "*Ask"} & set(students.split())
        assert {"*Answer,", "*Usual", "*Ask"} <= set(teachers.split())
        drawn = [entry.drawn(seed) for entry in entries(chapter)]
        for number, each in enumerate(drawn, 1):
            asked = f"**{number}.** ({each.points} points) {each.ask}"
            assert asked in students
            assert asked in teachers
            for text in (each.answer, each.wrong, each.then, *(what for _, what in each.marks)):
                assert text in teachers
                assert not text or text not in students
        assert f"## Written, {sum(each.points for each in drawn[:10])} points" in students


@pytest.mark.parametrize(("question", "values", "says"), BY_HAND, ids=[name for name, *_ in BY_HAND])
def test_answers_are_those_computed_by_hand(question, values, says):
    chapter, _, name = question.partition(".")
    (entry,) = (each for each in entries(chapter) if each.source.question == name)
    assert says in flat(entry.filled(Given(*values)).answer)


def test_the_command_prints_sheets_and_knows_its_chapters(monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["exercises", "questions", *arguments])
        return command.main(), *capsys.readouterr()

    assert call("memory", "--seed", "7") == (0, questions.page("memory", 7) + "\n", "")
    assert call("memory", "--answers") == (0, questions.page("memory", answers=True) + "\n", "")
    status, printed, told = call("memory", "poetry")
    assert (status, printed) == (2, "")
    assert told.startswith("no questions for 'poetry', and no .md file; choose from memory, compute, ")


MINE = """# Week 1
For a small class.

```{code-cell} python
import math
```

## Schriftlich

### bytes, level 1

```{code-cell} python
# not a heading
billions = draw.choice((2, 3, 5))
```

How many bytes have {billions} billion weights in {{fp32}}?

```python
# shown: {billions}
```

**Answer.** {4 * billions:,.1f} GB, \\pi = {math.pi:.2f}, "so"

**Rubric.**

- 2: {4 * billions} GB

- 1: the unit

**Usual wrong answer.** {2 * billions} GB

### words, level 3

Why `{}`?

**Answer.** As it {stands}.
**Rubric.**
- 1: that
**Usual wrong answer.** None.
**Ask next.** And {this}?
"""


def test_a_teachers_own_file_is_a_sheet(tmp_path):
    """A part has any name; only a text with a cell has braces that are filled in."""
    file = tmp_path / "week.md"
    file.write_text(MINE, encoding="utf-8")
    bytes_, words = reading.read(file).parts["Schriftlich"]
    drawn = bytes_.filled(Given(5))
    assert drawn.ask == "How many bytes have 5 billion weights in {fp32}?\n\n```python\n# shown: 5\n```"
    assert drawn.answer == '20.0 GB, \\pi = 3.14, "so"'
    assert drawn.marks == [(2, "20 GB"), (1, "the unit")]
    assert words.drawn(0) == words.drawn(1)
    assert (words.drawn(0).ask, words.drawn(0).then) == ("Why `{}`?", "And {this}?")
    for seed in SEEDS:
        billions = Random(f"{seed} week bytes").choice((2, 3, 5))
        begin = f"# Week 1 (seed {seed})\n\n## Schriftlich, 4 points\n\n**1.** (3 points) How many bytes have"
        assert questions.page(str(file), seed).startswith(f"{begin} {billions} billion")


FAULTS = [  # what is changed in MINE, into what, and what is said about which line
    ("# Week 1\n", "Week 1\n", "line 1: a file of questions begins with '# ' and its title"),
    ("import math", "import maths", "line 5: ModuleNotFoundError: No module named 'maths'"),
    ("import math", "import math as", "line 5: SyntaxError: invalid syntax"),
    ("draw.choice((2", "draw.chose((2", "line 14, question bytes: AttributeError: "),
    ("{2 * billions}", "{2 * billion}", "line 31, question bytes: NameError: name 'billion' is not defined"),
    ("{billions} billion", "{billions", "line 17, question bytes: SyntaxError: "),
    ("- 1: the unit", "- the unit", "line 25, question bytes: '- the unit' is no line of a rubric; write '- 2: what"),
    ("- 1: that", "- 0: that", "question words: '- 0: that' is no line of a rubric"),
    ("**Usual wrong answer.** None.\n", "", "line 33, question words: it needs a text after **Usual wrong answer.**"),
    ("Why `{}`?", "", "line 33, question words: it needs a text that asks"),
    ("**Ask next.**", "**Answer.**", "line 41, question words: **Answer.** stands here twice"),
    ("words, level 3", "bytes, level 3", "line 33: 'bytes, level 3' is no new question; write '###"),
    ("words, level 3", "words", "line 33: 'words' is no new question"),
    ("## Schriftlich\n", "", "line 9: '### bytes, level 1' begins neither a new part"),
    ("## Schriftlich\n", "## Schriftlich\nAnswer all.\n", "line 8: '## Schriftlich' begins neither a new part"),
    ("### words", "## Oral\n### words", None),
    ("5))\n```", "5))", "line 12: this code has no end: a line with ``` alone"),
    ("this}?\n", "this}?\n```", "line 42: this code has no end"),
    ("### words", "## Oral\n## Schriftlich\n### words", "line 34: '## Schriftlich' begins neither a new part"),
    ("this}?\n", "this}?\n## Oral\n", "line 42: each part needs a question"),
]


@pytest.mark.parametrize(("old", "new", "says"), FAULTS, ids=[says for *_, says in FAULTS])
def test_a_fault_in_a_file_is_told_with_its_place(tmp_path, old, new, says):
    file = tmp_path / "week.md"
    file.write_text(MINE.replace(old, new, 1), encoding="utf-8")
    assert file.read_text(encoding="utf-8") != MINE

    def fill():
        for part in reading.read(file).parts.values():
            for entry in part:
                entry.filled(Given(5))

    if says is None:
        return fill()
    with pytest.raises(ValueError, match=f"^{re.escape(f'{file}, {says}')}" if says[0] == "l" else re.escape(says)):
        fill()
