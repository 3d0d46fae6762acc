"""What teachers plan with: minutes, points, and the files that a module takes along."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from shardlab import exercises
from shardlab.exercises import course
from shardlab.ranks import zero
from shardlab.ranks.data_parallel import engine
from shardlab.ranks.memory import recompute

PAGE = """---
kernelspec: {name: python3}
---

# Two words

```{code-cell} python
:tags: [hide-input]
not read at all
```

(target)=
Three more words $a + b$ with {cite:t}`somebody2020` [a link](https://an.address/of/many/words).

$$
a + b = c
$$

```{figure} images/picture.svg
:alt: nobody reads this aloud

A caption of five words.
```

````{admonition} Fold
:class: dropdown

Inside it two more.

```python
code()
```
````

```
a listing, not read
```

The end {cite}`somebody2020`.
"""
READ = (
    "Two words Three more words x with x [a link]. A caption of five words. Fold Inside it two more. The end ."
)


def test_what_is_read_and_what_is_not() -> None:
    text, codes = course.prose(PAGE)
    assert text.replace("#", "").split() == READ.split()
    assert codes == 3


@pytest.mark.parametrize(
    ("words", "cells", "minutes"), [(1, 0, 1), (220, 0, 1), (221, 0, 2), (220, 2, 2), (2200, 1, 15)]
)
def test_minutes(tmp_path: Path, words: int, cells: int, minutes: int) -> None:
    page = tmp_path / "page.md"
    page.write_text("word " * words + "\n" + "```{code-cell}\nx\n```\n" * cells)
    assert course.reading_minutes(page) == minutes


def test_points_of_the_chapters_are_all_points() -> None:
    assert sum(map(course.points, exercises.CHAPTERS)) == sum(each.points for each in exercises.every().values())
    assert course.points("data_parallel") == 10


def test_files_that_a_module_takes() -> None:
    names = [path.relative_to(course.PACKAGE).as_posix() for path in course.files(engine)]
    taken = ["ranks/agreement.py", "ranks/backward.py", "ranks/comm.py", "ranks/data_parallel/buckets.py"]
    assert names == ["ranks/data_parallel/engine.py", *taken]
    assert course.files(recompute) == [Path(recompute.__file__)]
    assert course.PACKAGE / "ranks" / "zero" / "gathering.py" in course.files(zero)


def test_the_files_are_enough(tmp_path: Path) -> None:
    """Copied to an empty folder they can be imported, and nothing else of the package is."""
    taken = course.files(importlib.import_module("shardlab.ranks.tensor_parallel"))
    for path in taken:
        copy = tmp_path / "shardlab" / path.relative_to(course.PACKAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        for folder in (copy.parent, tmp_path / "shardlab"):
            (folder / "__init__.py").touch()
        copy.write_text(path.read_text())
    code = "import shardlab.ranks.tensor_parallel as m; print(m.__file__)"
    line = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"]
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=True)
    assert done.stdout.startswith(str(tmp_path))


@pytest.mark.parametrize("method", ["data_parallel", "zero", "pipeline", "tensor_parallel"])
def test_a_plain_method_is_two_files_and_few_lines(method):
    """Tensor parallelism brings one file more: its pairs of operations."""
    found = course.files(importlib.import_module(f"shardlab.ranks.plain.{method}"))
    names = [path.name for path in found]
    assert names[:2] == [f"{method}.py", "comm.py"]
    assert names[2:] == ["conjugates.py"] * (method == "tensor_parallel")
    assert sum(path.read_text().count("\n") for path in found[:2]) <= 350
