"""Buckets: which parameters share one, and how gradients move into it."""

import pytest
import torch
from torch import nn

from shardlab.ranks.data_parallel import buckets


def parameters(*sizes, dtype=torch.float32):
    return [nn.Parameter(torch.randn(size, dtype=dtype)) for size in sizes]


@pytest.mark.parametrize(
    ("bucket_bytes", "expected"),
    [
        (0, [[1], [2], [3], [4]]),
        (4, [[1], [2], [3], [4]]),
        (5, [[1, 2], [3], [4]]),  # 4 bytes are not yet 5; 12 are
        (12, [[1, 2], [3], [4]]),
        (24, [[1, 2, 3], [4]]),
        (10**9, [[1, 2, 3, 4]]),
    ],
)
def test_a_bucket_closes_once_it_holds_enough(bucket_bytes, expected):
    dealt = buckets.assign(parameters(1, 2, 3, 4), bucket_bytes, scale=1.0)
    assert [[len(p) for p in bucket.parameters] for bucket in dealt] == expected
    assert [len(bucket.buffer) for bucket in dealt] == [sum(sizes) for sizes in expected]


def test_every_dtype_has_its_own_buckets():
    single, double = parameters(1, 2), parameters(3, 4, dtype=torch.float64)
    dealt = buckets.assign([single[0], double[0], single[1], double[1]], 12, scale=1.0)
    assert [(bucket.buffer.dtype, len(bucket.buffer)) for bucket in dealt] == [
        (torch.float64, 3),  # closes first: 24 bytes
        (torch.float32, 3),
        (torch.float64, 4),
    ]


def test_gradients_move_into_the_buffer_in_place_and_scaled():
    bucket = buckets.Bucket(parameters(2, 3), scale=0.5)
    bucket.buffer.fill_(9)  # what the last step left
    first, second = bucket.parameters
    second.grad = torch.tensor([2.0, 4.0, 6.0])
    bucket.fill(1)
    assert bucket.missing == {0}
    bucket.fill_accumulated()
    assert bucket.missing == {0}
    bucket.zero_missing()
    assert bucket.missing == set()
    assert bucket.buffer.tolist() == [0, 0, 1, 2, 3]
    assert first.grad is None
    bucket.buffer.add_(1)  # what an all-reduce does
    assert second.grad.tolist() == [2, 3, 4]


def test_gradients_of_earlier_microbatches_fill_the_bucket_too():
    bucket = buckets.Bucket(parameters(2, 1), scale=0.5)
    first, _ = bucket.parameters
    first.grad = torch.tensor([2.0, 4.0])
    bucket.fill_accumulated()
    assert bucket.missing == {1}
    assert bucket.buffer.tolist() == [1, 2, 0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_third_is_as_exact_as_the_dtype_allows(dtype):
    (parameter,) = parameters(1000, dtype=dtype)
    bucket = buckets.Bucket([parameter], scale=1 / 3)
    parameter.grad = gradient = torch.randn(1000, dtype=dtype)
    bucket.fill(0)
    error = (bucket.buffer.double() / (gradient.double() / 3) - 1).abs().max().item()
    assert error <= torch.finfo(dtype).eps


def test_dividing_before_the_sum_avoids_overflow_and_loses_tiny_gradients():
    """Two ranks in fp16: 40,000 + 40,000 overflows at 65,504, and half of 6e-8 becomes zero."""
    (parameter,) = parameters(2, dtype=torch.float16)
    bucket = buckets.Bucket([parameter], scale=1 / 2)
    parameter.grad = gradient = torch.tensor([40_000.0, 6e-8], dtype=torch.float16)
    bucket.fill(0)
    assert (bucket.buffer + bucket.buffer).tolist() == [40_000, 0]
    summed_first = (gradient + gradient) / 2
    assert summed_first[0].isinf()
    assert summed_first[1] == gradient[1] > 0
