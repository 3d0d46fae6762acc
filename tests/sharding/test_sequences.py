"""Which tokens each rank holds, and which tiles they make: every pair that a query sees, once."""

import itertools

import pytest

from shardlab.sharding import sequences


def numbers(runs):
    return [token for run in runs for token in run]


@pytest.mark.parametrize("placement", sequences.PLACEMENTS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("length", [8, 23, 48])
def test_every_token_is_on_one_rank(placement, ranks, length):
    places = sequences.place(length, ranks, placement)
    assert sorted(token for runs in places for token in numbers(runs)) == list(range(length))
    sizes = [sequences.count(runs) for runs in places]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 2


def test_the_two_placements_of_a_small_sequence():
    assert [numbers(runs) for runs in sequences.place(7, 2, "contiguous")] == [[0, 1, 2, 3], [4, 5, 6]]
    assert [numbers(runs) for runs in sequences.place(8, 2)] == [[0, 1, 6, 7], [2, 3, 4, 5]]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("largest", [None, 3])
@pytest.mark.parametrize("placement", sequences.PLACEMENTS)
def test_tiles_are_the_pairs_that_queries_see(causal, largest, placement):
    texts = sequences.documents(23, [5, 1, 10, 7])
    document = {token: text for text in texts for token in text}
    places, seen = sequences.place(23, 3, placement), []
    for mine, theirs in itertools.product(places, repeat=2):
        for tile in sequences.tiles(mine, theirs, texts, causal=causal, largest=largest):
            rows, columns = numbers(mine)[tile.row :], numbers(theirs)[tile.column :]
            assert rows[: len(tile.queries)] == list(tile.queries)
            assert columns[: len(tile.keys)] == list(tile.keys)
            assert max(len(tile.queries), len(tile.keys)) <= (largest or 23)
            pairs = itertools.product(tile.queries, tile.keys)
            seen += [(q, k) for q, k in pairs if not tile.masked or k <= q]
            assert not tile.masked or tile.queries == tile.keys
    expected = [(q, k) for q, k in itertools.product(range(23), repeat=2) if document[q] == document[k]]
    assert sorted(seen) == [(q, k) for q, k in expected if k <= q or not causal]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sequences.place(3, 4), "3 tokens leave some of cp=4 ranks without any; use cp = 1 to 3"),
        (lambda: sequences.place(8, 2, "striped"), "unknown placement 'striped'; known: contiguous, zig-zag"),
        (lambda: sequences.documents(8, [3, 4]), "have 7 tokens, and the sequence has 8; give documents of 8 tokens"),
        (lambda: sequences.documents(8, [8, 0]), r"lengths=\[8, 0\] must be a list or a tuple"),
        (lambda: sequences.copies(12, 4, 5), "12 heads do not split over 5 ranks of Ulysses; use 1, 2, 3, 4, 6, 12"),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_key_heads_are_repeated_until_ranks_divide_them():
    assert [sequences.copies(32, 8, ranks) for ranks in (1, 2, 8, 16, 32)] == [1, 1, 1, 2, 4]
    assert sequences.copies(12, 6, 4) == 2
