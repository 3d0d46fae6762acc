"""Each exercise's prompt, starter and hints stand once, in its chapter's page; what a page lacks is told by name."""

import re

import pytest

from shardlab import exercises
from shardlab.exercises import pages
from shardlab.files import project

HINTS = ["How many?", "Deal them.\n\n```python\nrange(2)\n```", "1. Divide.\n2. Deal."]
FENCES = ["```", "````", "```"]  # one more around code
BLOCKS = [
    f"{fence}{{admonition}} Hint: {title}\n:class: dropdown\n\n{hint}\n{fence}\n\n"
    for fence, title, hint in zip(FENCES, pages.TITLES, HINTS, strict=True)
]
PROMPT = "**1.** Deal samples. (1 point, 5 minutes)\n\n"
STARTER = "def my_shard(n):\n    return range(n)\n"
CELL = f'```{{code-cell}} python\n{STARTER}\ncheck("week.shard", my_shard)\n```\n\n'
BEGIN = "# Week\n\n```{code-cell} python\nimport torch\n```\n\n"
PAGE = f"{BEGIN}{PROMPT}Read on.\n\n{CELL}{''.join(BLOCKS)}## Sources\n"
NEEDS = "one paragraph such as '**1.** What to write. (2 points)' has to stand before its cell, and not"
HAS = "the hints a nudge, the idea, the way have to stand below its cell, each with a text, and not"
SHORT = {  # what is lost of the page, what stands in its place -> what is said
    (PROMPT, ""): f"{NEEDS} 0",
    (PROMPT, 2 * PROMPT): f"{NEEDS} 2",
    (BLOCKS[1], ""): f"{HAS} a nudge, the way",
    ("".join(BLOCKS), ""): f"{HAS} none",
    ("How many?\n", ""): f"{HAS} a nudge, the idea, the way",
    (CELL, 2 * CELL): f"{HAS} none",
    (PROMPT, PAGE): "a second cell checks it",
}


@pytest.fixture
def page(tmp_path):
    """Writes a page: text -> its path."""

    def write(text):
        (tmp_path / "week.md").write_text(text)
        return tmp_path / "week.md"

    return write


def test_a_page_has_the_prompt_the_starter_and_hints_with_code(page):
    assert pages.read(page(PAGE)) == {"week.shard": ("Deal samples.", STARTER, tuple(HINTS))}


@pytest.mark.parametrize(("change", "says"), SHORT.items(), ids=range(len(SHORT)))
def test_what_a_page_lacks_is_told_with_page_and_exercise(page, change, says):
    path = page(PAGE.replace(*change))
    with pytest.raises(ValueError, match=re.escape(f"{path}, exercise week.shard: {says}")):
        pages.read(path)


def test_a_page_without_the_cell_of_an_exercise_is_told():
    says = 'zero.md, exercise zero.none: no cell ends with an empty line and check("zero.none", my_function)'
    with pytest.raises(ValueError, match=re.escape(says)):
        pages.texts("zero.none")


@pytest.mark.parametrize("chapter", exercises.CHAPTERS)
def test_a_page_has_the_exercises_of_its_chapter_in_their_order(chapter):
    listed = [each.name for each in exercises.of_chapter(chapter)]
    assert [*pages.read(project.BOOK / f"{chapter}.md")] == listed
