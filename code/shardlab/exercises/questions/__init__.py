"""Questions for an exam: ten written and two oral ones for a chapter, with numbers from a seed.

`python -m shardlab.exercises questions CHAPTER` prints them; with `--answers` for the teacher.
Read `bank`, which says what a question is, then a chapter.
"""

import importlib
import pkgutil

from .. import CHAPTERS
from . import bank

_FOUND = {module.name for module in pkgutil.iter_modules(__path__)}
ASKED = tuple(chapter for chapter in CHAPTERS if chapter in _FOUND)  # chapters with questions


def page(chapter: str, seed: int = 0, *, answers: bool = False) -> str:
    """Return a chapter's sheet as Markdown: the students', or with `answers` the teacher's.

    Errors: ValueError for a chapter without questions.
    """
    if chapter not in ASKED:
        raise ValueError(f"no questions for {chapter!r}; choose from {', '.join(ASKED)}")
    module = importlib.import_module(f"{__name__}.{chapter}")
    title = (module.__doc__ or chapter).partition(":")[0]  # "Questions on memory"
    paragraphs = (bank.key if answers else bank.sheet)(title, module.WRITTEN, module.ORAL, seed)
    return "\n\n".join(paragraphs)
