"""Buckets and messages are those counted by hand, lose no byte, and overlap never costs time."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlab.costs.data_parallel import overlap
from shardlab.costs.data_parallel.overlap import ModelPart
from shardlab.costs.facts import models
from shardlab.spec import TransformerSpec

PARTS = [ModelPart(parameters=10, work=20), ModelPart(parameters=30, work=60), ModelPart(parameters=20, work=0)]
NAMES = ["GPT-2 small", "Llama 3 8B", "Llama 3.2 1B"]


def test_buckets_by_hand():
    """60 gradients of 2 bytes in buckets of 50: 25 of them, 25 more, the last 10."""
    buckets = overlap.cut(PARTS, bucket_bytes=50, bytes_per_parameter=2)
    assert buckets == [(50, (20 + 60 / 2) / 80), (50, 1.0), (20, 1.0)]


def test_messages_by_hand():
    """An all-reduce takes a tenth of a second a byte; backward 8 s: it ends while the first bucket travels."""
    buckets = overlap.cut(PARTS, bucket_bytes=50, bytes_per_parameter=2)
    sent = overlap.send(buckets, lambda nbytes: nbytes / 10, backward=8.0)
    assert [(m.ready, m.start, m.end) for m in sent] == [(5, 5, 10), (8, 10, 15), (8, 15, 17)]
    late = overlap.send(buckets, lambda nbytes: nbytes / 10, backward=8.0, overlap=False)
    assert [(m.ready, m.start, m.end) for m in late] == [(8, 8, 13), (8, 13, 18), (8, 18, 20)]
    fast = overlap.send(buckets, lambda nbytes: nbytes / 100, backward=8.0)
    assert [(m.start, m.end) for m in fast] == [(5, 5.5), (8, 8.5), (8.5, 8.7)]


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 9)), min_size=1, max_size=6).filter(
        lambda parts: any(work for _, work in parts)
    ),
    st.integers(1, 120),
)
def test_cutting_loses_nothing_and_is_ready_when_a_count_says_so(shapes, bucket):
    """The reference: hand out each gradient's share of the work one by one."""
    parts = [ModelPart(parameters=size, work=work) for size, work in shapes]
    buckets = overlap.cut(parts, bucket_bytes=bucket, bytes_per_parameter=1)
    flat = [work / size for size, work in shapes for _ in range(size)]
    total = sum(flat)
    assert sum(nbytes for nbytes, _ in buckets) == len(flat)
    assert all(nbytes == bucket for nbytes, _ in buckets[:-1])
    for i, (_, share) in enumerate(buckets):
        assert share == pytest.approx(sum(flat[: (i + 1) * bucket]) / total)


@given(
    st.lists(st.tuples(st.floats(0, 9), st.floats(0, 1)), min_size=1, max_size=8),
    st.floats(0.01, 10),
)
def test_overlap_never_loses_and_one_message_at_a_time(buckets, backward):
    buckets = sorted(buckets, key=lambda bucket: bucket[1])
    sent = overlap.send(buckets, lambda nbytes: nbytes, backward=backward)
    late = overlap.send(buckets, lambda nbytes: nbytes, backward=backward, overlap=False)
    assert sent[-1].end <= late[-1].end + 1e-9
    assert all(m.start >= m.ready for m in sent)
    assert all(one.end <= two.start for one, two in pairwise(sent))


@pytest.mark.parametrize("name", NAMES)
def test_the_parts_are_the_whole_model(name):
    spec = models.published(name).spec
    parts = overlap.backward_parts(spec, batch=2, sequence=128)
    assert sum(part.parameters for part in parts) == models.num_parameters(spec)
    assert len(parts) == spec.num_layers + 2


def test_a_tied_head_is_ready_last():
    """Its gradient is complete when the embedding's is; an untied head's comes first."""
    shape = {
        "vocab_size": 1000, "context_length": 64, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "style": "llama",
    }  # fmt: skip
    tied, untied = (TransformerSpec(**shape, tied_head=choice) for choice in (True, False))
    first, *_, last = overlap.backward_parts(tied, batch=1, sequence=64)
    assert (first.parameters, last.parameters, last.work) == (16, 16_000, 0)
    first, *_, last = overlap.backward_parts(untied, batch=1, sequence=64)
    assert (first.parameters, last.parameters) == (16_016, 16_000)
    assert first.work > 0


def test_a_bucket_of_nothing_is_refused():
    with pytest.raises(ValueError, match="bucket_bytes=0 must be a finite number above 0"):
        overlap.cut(PARTS, bucket_bytes=0, bytes_per_parameter=2)
