"""Bytes of linear attention over ranks, by hand. `tests/plain/test_linear_attention.py` counts them on ranks."""

from shardlab.costs.context_parallel import sent_by_states


def test_bytes_by_hand():
    assert sent_by_states(1, 1, ranks=1, batch=1, element=1) == 0
    assert sent_by_states(1, 1, ranks=2, batch=1, element=1) == 2 * 2 * 2  # ways, rounds, matrices
    assert sent_by_states(1, 1, ranks=5, batch=1, element=1) == 2 * 4 * 2
    assert sent_by_states(32, 128, ranks=8, batch=1, element=4) == 2 * 4 * 2 * 32 * 128**2 * 4
