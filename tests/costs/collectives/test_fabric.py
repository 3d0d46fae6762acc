"""Behind the cards: a full fat tree costs nothing, and what passes no spine costs nothing anywhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlab.costs.collectives import fabric


@given(st.integers(0, 6), st.integers(0, 6), st.booleans())
def test_full_bisection_is_as_good_as_a_point(pods, size, neighbours):
    share = fabric.crossing(2 ** (pods + size + 1), 2**size, neighbours=neighbours)
    assert 0 < share <= 1
    assert fabric.card_rate(50e9, share, 1) == 50e9


def test_inside_a_pod_no_byte_passes_a_spine():
    assert fabric.crossing(32, 32, neighbours=False) == 0
    assert fabric.card_rate(50e9, 0, 7) == 50e9


def test_pairs_are_counted_one_by_one():
    nodes, pod = 12, 4
    pairs = [(a, b) for a in range(nodes) for b in range(nodes) if a != b]
    far = [(a, b) for a, b in pairs if a // pod != b // pod]
    assert fabric.crossing(nodes, pod, neighbours=False) == pytest.approx(len(far) / len(pairs))
    ring = [(a, (a + 1) % nodes) for a in range(nodes)]
    far = [(a, b) for a, b in ring if a // pod != b // pod]
    assert fabric.crossing(nodes, pod, neighbours=True) == pytest.approx(len(far) / len(ring))


def test_a_seventh_of_the_cables_leaves_a_seventh_of_the_rate():
    assert fabric.card_rate(50e9, 1.0, 7) == pytest.approx(50e9 / 7)


@pytest.mark.parametrize(("nodes", "pod"), [(1, 1), (4, 0), (5, 4)])
def test_nodes_that_fill_no_pod_are_refused(nodes, pod):
    with pytest.raises(ValueError, match=r"fill their pods|pod=0 must be"):
        fabric.crossing(nodes, pod, neighbours=True)
