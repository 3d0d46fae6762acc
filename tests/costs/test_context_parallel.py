"""Bytes, messages and memory of ranks that share sequences: formulas of the papers, and laws that they must keep."""

import dataclasses

import pytest

from shardlab.costs import context_parallel as costs

SIZES = costs.Attention(length=4096, ranks=4, heads=32, kv_heads=8, head_size=128)
MANY = dataclasses.replace(SIZES, kv_heads=32)


def test_ring_and_gathering_send_the_same_in_forward_and_the_ring_keys_again_in_backward():
    """Liu et al. 2023, section 3: a hop sends 4bcd bytes in 16 bits, for b sequences of c tokens in hidden size d."""
    hop = 4 * 1 * 1024 * 32 * 128
    assert costs.sent_bytes(MANY, "ring") == {"forward": 3 * hop, "backward": 2 * 3 * hop}
    assert costs.sent_bytes(MANY, "gathered") == {"forward": 3 * hop, "backward": 3 * hop}


def test_ulysses_sends_what_its_paper_says():
    """Jacobs et al. 2023, section 3.2: 4Nh/P numbers on each link in a layer's forward, for large P."""
    numbers = costs.sent_bytes(MANY, "ulysses")["forward"] / 2
    assert numbers == 4 * 4096 * 32 * 128 / 4 * 3 / 4
    assert costs.sent_bytes(MANY, "ulysses")["backward"] == 2 * numbers


def test_grouped_heads_send_less_and_few_of_them_are_repeated_for_ulysses():
    assert costs.sent_bytes(SIZES, "ring")["forward"] * 4 == costs.sent_bytes(MANY, "ring")["forward"]
    assert [costs.copies(dataclasses.replace(SIZES, ranks=n)) for n in (1, 2, 8, 16, 32)] == [1, 1, 1, 2, 4]
    assert costs.copies(dataclasses.replace(SIZES, heads=12, kv_heads=6, ranks=4)) == 2


@pytest.mark.parametrize("way", costs.WAYS)
def test_one_rank_sends_nothing(way):
    alone = dataclasses.replace(SIZES, ranks=1)
    assert set(costs.sent_bytes(alone, way).values()) == {0}
    assert set(costs.messages(alone, way).values()) == {0}


def test_what_cannot_be_shared_is_refused():
    with pytest.raises(ValueError, match="32 heads do not split over cp=5 in Ulysses; use cp = 1, 2, 4, 8, 16, 32"):
        costs.sent_bytes(dataclasses.replace(SIZES, ranks=5), "ulysses")
    with pytest.raises(ValueError, match="3 tokens leave some of 4 ranks without any; use 1 to 3 ranks"):
        dataclasses.replace(SIZES, length=3)
    with pytest.raises(ValueError, match="unknown way 'star'; known: gathered, ring, ulysses"):
        costs.messages(SIZES, "star")
