"""Read what stands once, in a chapter's page: the prompt, the starter and the hints of an exercise.

    **1.** Deal samples to ranks, in equal shares. (1 point)

    ```{code-cell} python
    def my_shard(num_samples, rank, world_size):
        return range(num_samples)  # fix it

    check("data_parallel.shard", my_shard)
    ```

    ```{admonition} Hint: a nudge
    :class: dropdown

    How many does each rank get?
    ```

`Hint: the idea` and `Hint: the way` follow. The cell without its last lines is the starter, and the
numbered paragraph before it is the prompt. A hint with code between fences begins with ````.
"""

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from shardlab.files import given, project

TITLES = ("a nudge", "the idea", "the way")  # of hints
PROMPT = re.compile(r"^\*\*\d+\.\*\* (.+) \(\d+ points?(?:, \d+ minutes)?\)$", re.MULTILINE)
CELL = re.compile(
    r'^```\{code-cell\} python\n((?:(?!```).*\n)*?)\ncheck\("([\w.]+)", \w+\)\n```$', re.MULTILINE
)
HINT = re.compile(
    r"^(`{3,})\{admonition\} Hint: (.+)\n:class: dropdown\n\n((?:.*\n)*?)\1$", re.MULTILINE
)


class Texts(NamedTuple):
    """What a page says of an exercise."""

    prompt: str
    starter: str
    hints: tuple[str, str, str]


def texts(name: str) -> Texts:
    """Return the texts of an exercise. Errors: ValueError with the page and what it lacks."""
    page = project.BOOK / f"{name.partition('.')[0]}.md"
    if name not in (found := read(page)):
        said = f'no cell ends with an empty line and check("{name}", my_function)'
        raise ValueError(f"{given.line(str(page))}, exercise {name}: {said}")
    return found[name]


@cache
def read(page: Path) -> dict[str, Texts]:
    """Return the texts of all exercises of a page, by name. Errors: ValueError as above."""
    found: dict[str, Texts] = {}
    before, *parts = CELL.split(given.read(page))
    for starter, name, after in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        here = f"{given.line(str(page))}, exercise {name}"
        prompts = PROMPT.findall(before)
        hints = {title: text.strip("\n") for _, title, text in HINT.findall(after)}
        if name in found:
            raise ValueError(f"{here}: a second cell checks it")
        if len(prompts) != 1:
            said = "one paragraph such as '**1.** What to write. (2 points)' has to stand before"
            raise ValueError(f"{here}: {said} its cell, and not {len(prompts)}")
        if (*hints,) != TITLES or not all(hints.values()):
            said = f"the hints {', '.join(TITLES)} have to stand below its cell, each with a text"
            raise ValueError(f"{here}: {said}, and not {', '.join(hints) or 'none'}")
        nudge, idea, way = hints.values()
        found[name] = Texts(prompts[0], starter, (nudge, idea, way))
        before = after
    return found
