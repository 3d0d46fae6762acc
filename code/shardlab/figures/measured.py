"""Evidence on a page: claims with the tests that prove them, and benches as folded tables."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

from IPython.display import HTML

from .table import breakable, table


def claims(chapter: str, rows: Sequence[Sequence[Any]]) -> HTML:
    """Show rows of `shardlab.files.measured.proofs`, with the test below its claim."""
    (first, *names, _), *body = rows
    shown = [[_claim(claim, test), *values] for claim, *values, test in body]
    caption = "Claims, each with the test that proves it"
    return _folded(chapter, [table([[first, *names], *shown], caption)], unfolded=True)


def bench(title: str, tables: Mapping[str, Sequence[Sequence[Any]]]) -> HTML:
    """Show all tables of one file of results, with their captions."""
    return _folded(
        title, [table(rows, caption) for caption, rows in tables.items()], unfolded=False
    )


def by_size(
    names: Sequence[str],
    errors: Mapping[Sequence[str], Mapping[str, float]],
    caption: str,
    *,
    signs: str = "+",
) -> HTML:
    """Show errors, in percent, by what `names` call the keys and by class of size.

    signs: "-" writes a sign only where an error is below zero.
    """
    # The fullest row has all classes, in order.
    sizes = max(map(list, errors.values()), key=len)
    rows: list[list[str]] = [[*names, *sizes]]
    for key, row in errors.items():
        shown = (f"{round(100 * row[size]):{signs}d}" if size in row else "" for size in sizes)
        rows += [[*key, *shown]]
    return table(rows, caption)


def _folded(title: str, tables: Sequence[HTML], *, unfolded: bool) -> HTML:
    inside = "".join(f'<div class="wide">{each.data}</div>' for each in tables)
    line = f"<summary><strong>{html.escape(title)}</strong></summary>"
    return HTML(f"<details{' open' if unfolded else ''}>{line}{inside}</details>")


def _claim(words: str, test: str) -> HTML:
    return HTML(f"{html.escape(words)}<br><small><code>{breakable(test)}</code></small>")
