"""Columns give back what was joined, and are shorter than what they join."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlab.explorers import columns

SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.text("ab", max_size=2)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner), max_leaves=6
)


def exactly(value: object) -> str:
    """As text, in which 1, 1.0 and True differ."""
    return json.dumps(value)


@given(st.lists(VALUES, min_size=1, max_size=5))
def test_every_value_comes_back(values: list[object]) -> None:
    tree = json.loads(json.dumps(columns.join(values)))
    assert [exactly(columns.at(tree, index)) for index in range(len(values))] == [exactly(value) for value in values]


@pytest.mark.parametrize(
    ("values", "tree"),
    [
        ([7, 7], {"same": 7}),
        ([1, True], {"each": [1, True]}),
        ([{"x": 1, "y": "r"}, {"x": 2, "y": "r"}], {"keys": {"x": {"each": [1, 2]}, "y": {"same": "r"}}}),
        ([[5], [5, 6]], {"items": [{"same": 5}, {"same": 6}], "lengths": {"each": [1, 2]}}),
        ([{"x": 1}, {"y": 1}], {"each": [{"x": 1}, {"y": 1}]}),
        ([{"x": 1, "y": 2}, {"y": 2, "x": 1}], {"each": [{"x": 1, "y": 2}, {"y": 2, "x": 1}]}),
        ([0.0, -0.0], {"each": [0.0, -0.0]}),
        ([{"x": [3]}, {"x": [3]}], {"same": {"x": [3]}}),
    ],
)
def test_what_does_not_change_is_written_once(values: list[object], tree: dict[str, object]) -> None:
    assert columns.join(values) == tree
