"""JSON values of the same shape as one tree, with a column of values at each leaf.

What does not change is written once:

    [{"x": 1, "name": "ring"}, {"x": 2, "name": "ring"}]
    -> {"keys": {"x": {"each": [1, 2]}, "name": {"same": "ring"}}}

A page with hundreds of states takes half the bytes of gzipped states one after another. explorer.js
reads a state back.
"""

from collections.abc import Sequence
from typing import Any


def join(values: Sequence[Any]) -> dict[str, Any]:
    """Join JSON values into a tree.

    Where dicts have different keys or key orders, or types differ, a column holds whole values.
    """
    first = values[0]
    types = {type(value) for value in values}
    if types == {dict} and all([*value] == [*first] for value in values):
        branches = {key: join([value[key] for value in values]) for key in first}
        same = all("same" in branch for branch in branches.values())
        return {"same": first} if same else {"keys": branches}
    if types == {list}:
        lengths = join([len(value) for value in values])
        items = [_item(values, place) for place in range(max(map(len, values)))]
        same = all("same" in branch for branch in [lengths, *items])
        return {"same": first} if same else {"items": items, "lengths": lengths}
    # By repr, 1, 1.0 and True differ, and 0.0 and -0.0.
    same = all(repr(value) == repr(first) for value in values)
    return {"same": first} if same else {"each": [*values]}


def at(tree: dict[str, Any], index: int) -> Any:
    """Return value `index` of those that were joined."""
    if "same" in tree:
        return tree["same"]
    if "each" in tree:
        return tree["each"][index]
    if "keys" in tree:
        return {key: at(branch, index) for key, branch in tree["keys"].items()}
    return [at(branch, index) for branch in tree["items"][: at(tree["lengths"], index)]]


def _item(lists: Sequence[list[Any]], place: int) -> dict[str, Any]:
    """Join the values at `place`.

    Where a list is too short, the value before it fills the column; `at` cuts it off.
    """
    last = next(values[place] for values in lists if len(values) > place)
    column = []
    for values in lists:
        last = values[place] if len(values) > place else last
        column.append(last)
    return join(column)
