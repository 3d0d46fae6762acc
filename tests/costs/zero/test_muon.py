"""Muon over ranks: FLOPs by hand, who waits, what is sent. `tests/plain/test_muon.py` counts on ranks."""

import pytest

from shardlab.costs.zero import muon

SHAPES = [(4, 6)] * 3 + [(8, 2)]


def test_flops_by_hand():
    assert muon.flops((3, 3)) == 5 * 3 * 2 * 27  # three products of 3 x 3 in each of five rounds
    assert muon.flops((4, 6)) == muon.flops((6, 4)) == 5 * (2 * 4 * 4 * 6 * 2 + 2 * 64)


def test_work_and_idle_time():
    total = sum(map(muon.flops, SHAPES))
    assert [muon.work(SHAPES, ranks=2, way=way) for way in muon.WAYS[:2]] == [total, total]
    assert muon.work(SHAPES, ranks=2, way="owned") == 2 * muon.flops((4, 6))
    assert muon.work(SHAPES, ranks=2, way="all-to-all") == 2 * muon.flops((4, 6)) + muon.flops((8, 2))
    assert muon.idle(SHAPES, ranks=2, way="gathered") == 0.5
    assert muon.idle(SHAPES, ranks=1, way="owned") == muon.idle([], ranks=2, way="owned") == 0


def test_momentum_and_bytes():
    assert [muon.momentum(SHAPES, ranks=2, way=way) for way in muon.WAYS] == [88, 44, 48, 44]
    assert [muon.sent(SHAPES, ranks=2, way=way) for way in muon.WAYS] == [88, 88, 132, 88 + 64]
    assert muon.sent([(8, 8)] * 8, ranks=8, way="all-to-all") == 7 / 8 * (2 + 2 / 8) * 512


def test_an_unknown_way_is_refused():
    for ask in (muon.work, muon.idle, muon.momentum, muon.sent):
        with pytest.raises(ValueError, match="way='mine' must be one of redundant, gathered, owned, all-to-all"):
            ask(SHAPES, ranks=2, way="mine")
