"""Every sample is read once, by one rank, and counts as much as any other."""

import pytest
import torch

from shardlab.ranks.data_parallel import sampler


def test_four_ranks_read_4000_samples_side_by_side():
    assert [sampler.shard(4000, rank, 4) for rank in range(4)] == [
        range(0, 1000), range(1000, 2000), range(2000, 3000), range(3000, 4000),
    ]  # fmt: skip


@pytest.mark.parametrize("world_size", range(1, 9))
@pytest.mark.parametrize("num_samples", [8, 9, 15, 16, 127, 128])
def test_shards_cover_all_samples_once_and_differ_by_at_most_one(num_samples, world_size):
    shards = [sampler.shard(num_samples, rank, world_size) for rank in range(world_size)]
    assert [sample for part in shards for sample in part] == list(range(num_samples))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


def test_weights_make_the_average_of_means_the_mean():
    values = torch.randn(11, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    parts = [values[list(sampler.shard(11, rank, 4))] for rank in range(4)]
    weighted = sum(part.mean() * sampler.weight(len(part), 11, 4) for part in parts) / 4
    torch.testing.assert_close(weighted, values.mean(), rtol=0, atol=1e-15)
    assert not torch.isclose(sum(part.mean() for part in parts) / 4, values.mean())


@pytest.mark.parametrize(
    ("num_samples", "sizes"),
    [(128, [64, 64]), (130, [64, 66]), (132, [64, 64, 4]), (67, [67]), (7, [7])],
)
def test_an_epoch_has_every_sample_once(num_samples, sizes):
    """Leftover samples, fewer than ranks, join the batch before: every rank needs some."""
    epochs = [sampler.epoch(num_samples, 64, rank, 4) for rank in range(4)]
    assert [sum(len(indices) for indices, _ in step) for step in zip(*epochs, strict=True)] == sizes
    dealt = torch.cat([indices for epoch in epochs for indices, _ in epoch])
    assert sorted(dealt.tolist()) == list(range(num_samples))
    for step, size in zip(zip(*epochs, strict=True), sizes, strict=True):
        assert [weight for _, weight in step] == [len(indices) * 4 / size for indices, _ in step]


def test_order_depends_only_on_epoch_and_seed():
    def order(**options):
        torch.rand(1)  # the global generator moves; the order must not
        return torch.cat(
            [indices for indices, _ in sampler.epoch(100, 10, 0, 1, **options)]
        ).tolist()

    assert order() == order() == order(number=0, seed=0)
    different = [order(number=number, seed=seed) for number in range(3) for seed in range(3)]
    assert len(set(map(tuple, different))) == 9


def test_the_union_of_a_step_does_not_depend_on_the_number_of_ranks():
    def steps(world_size):
        parts = [sampler.epoch(100, 16, rank, world_size) for rank in range(world_size)]
        return [
            torch.cat([indices for indices, _ in step]).tolist()
            for step in zip(*parts, strict=True)
        ]

    assert steps(1) == steps(2) == steps(4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: sampler.shard(3, 0, 4),
            "3 samples leave some of 4 ranks without any; use at most 3 ranks",
        ),
        (lambda: sampler.shard(8, 4, 4), "rank 4 of 4 ranks does not exist; ranks are 0 to 3"),
        (
            lambda: sampler.shard(4, 0, 0),
            "world_size=0 leaves nobody to read 4 samples; use at least 1 rank",
        ),
        (
            lambda: sampler.weight(0, 0, 4),
            "0 of 0 samples have no mean to weigh; give the rank 1 sample or more",
        ),
        (lambda: sampler.weight(0, 8, 4), "0 of 8 samples have no mean"),
        (
            lambda: sampler.weight(9, 8, 4),
            "9 of 8 samples .* count in num_total those of all ranks",
        ),
        (lambda: sampler.shard(8, -1, 4), "rank -1 of 4 ranks does not exist"),
        (
            lambda: sampler.epoch(100, 3, 0, 4),
            "batch_size=3 leaves some of 4 ranks without a sample; use at least 4",
        ),
        (lambda: sampler.epoch(3, 64, 0, 4), "3 samples leave some of 4 ranks without any"),
    ],
)
def test_errors_say_what_to_do(call, message):
    with pytest.raises(ValueError, match=message):
        call()
