"""Things are dealt whole, in order, and evenly."""

from hypothesis import given
from hypothesis import strategies as st

from shardlab.sharding.deal import deal


@given(n=st.integers(0, 130), k=st.integers(1, 140))
def test_all_things_are_dealt_in_order_and_the_first_holders_have_at_most_one_more(n, k):
    assert list(deal(7, 3)) == [range(3), range(3, 5), range(5, 7)]
    sizes = [len(part) for part in deal(n, k)]
    assert len(sizes) == k
    assert [thing for part in deal(n, k) for thing in part] == list(range(n))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1
