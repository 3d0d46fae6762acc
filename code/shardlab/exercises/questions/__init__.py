"""Questions for an exam: ten written and two oral ones for a chapter, with numbers from a seed.

`python -m shardlab.exercises questions CHAPTER` prints them; with `--answers` for the teacher.
A chapter's questions are Markdown: read one, then `reading`, which says what its parts mean.
"""

from pathlib import Path

from shardlab.files.given import instead

from .. import CHAPTERS
from . import bank, reading

FILES = {chapter: Path(__file__).parent / f"{chapter}.md" for chapter in CHAPTERS}
ASKED = tuple(chapter for chapter, path in FILES.items() if path.is_file())  # with questions


def page(chapter: str, seed: int = 0, *, answers: bool = False) -> str:
    """Return a chapter's sheet as Markdown: the students', or with `answers` the teacher's.

    chapter  its name, or a file of a teacher's own that ends in .md; the cells in it are run

    Errors: ValueError for a chapter without questions, and for a fault in the file, with its line.
    """
    own = chapter.endswith(".md")
    if not own and chapter not in ASKED:
        raise ValueError(
            f"no questions for {chapter!r}, and no .md file; {instead(chapter, ASKED)}"
        )
    found = reading.read(Path(chapter) if own else FILES[chapter])
    parts = {part: [each.drawn(seed) for each in entries] for part, entries in found.parts.items()}
    return bank.sheet(found.title, seed, parts, answers=answers)
