from dataclasses import replace

import pytest

from shardlab.costs import data_parallel, hardware, models
from shardlab.costs.data_parallel import Run
from shardlab.costs.planning import fitting
from shardlab.costs.planning.fitting import Change

SMALL = Run(
    spec=models.published("GPT-2 XL").spec,
    chip=hardware.chip("H100 SXM 80 GB"),
    link=hardware.link("NVLink 4"),
    ranks=8,
    batch_per_rank=4,
    sequence=1024,
)
LARGE = replace(SMALL, spec=models.published("Llama 2 7B").spec)


def test_what_fits_needs_no_change():
    way = fitting.smallest_change(SMALL)
    held = data_parallel.memory_per_rank(SMALL)
    assert way == Change(ranks=8, zero=0, at_a_time=4, nbytes=sum(held.values()))
    assert fitting.verdict(SMALL) == "fits: 36.5 GB of 80 GB"


def test_smaller_pieces_come_before_cutting():
    crowded = replace(SMALL, batch_per_rank=64)
    way = fitting.smallest_change(crowded)
    assert (way.ranks, way.zero, way.at_a_time) == (8, 0, 16)
    assert "; computing 16 sequences at a time would fit: 71.2 GB" in fitting.verdict(crowded)
    assert "cutting" not in fitting.verdict(crowded)


def test_states_that_do_not_fit_are_cut_over_the_ranks():
    """7B parameters at 16 bytes: 108 GB in 80 GB. ZeRO-1 leaves 4 + 12/8 bytes."""
    way = fitting.smallest_change(LARGE)
    assert (way.ranks, way.zero) == (8, 1)
    words = fitting.verdict(LARGE)
    assert words.startswith("does not fit: 108 GB of states and ")
    assert "cutting the optimizer states over the ranks (ZeRO-1) would fit: " in words


def test_one_rank_alone_has_nobody_to_cut_with():
    way = fitting.smallest_change(replace(LARGE, ranks=1, batch_per_rank=1))
    assert (way.ranks, way.zero) == (2, 1)
    assert "; on 2 ranks, cutting the optimizer states" in fitting.verdict(replace(LARGE, ranks=1, batch_per_rank=1))


def test_three_changes_are_listed():
    crowded = replace(LARGE, ranks=1, batch_per_rank=64)
    words = fitting.verdict(crowded)
    assert "; on 2 ranks, cutting the optimizer states over the ranks (ZeRO-1) and computing 2 sequences" in words


def test_some_models_need_their_layers_cut():
    huge = replace(SMALL, spec=models.published("Megatron 1008B").spec, batch_per_rank=1)
    assert fitting.smallest_change(huge) is None
    assert fitting.verdict(huge).endswith("the layers themselves must be cut")


@pytest.mark.parametrize("name", ["GPT-2 small", "Llama 3 8B", "Llama 3 70B"])
@pytest.mark.parametrize("ranks", [1, 8, 64])
def test_every_way_fits_and_the_one_before_does_not(name, ranks):
    run = replace(SMALL, spec=models.published(name).spec, ranks=ranks, batch_per_rank=16)
    way = fitting.smallest_change(run)
    changed = replace(run, ranks=way.ranks, num_microbatches=16 // way.at_a_time)

    def held(zero):
        return sum(data_parallel.memory_per_rank(changed, zero=zero).values())

    assert way.nbytes == held(way.zero) <= run.chip.memory
    assert way.zero == 0 or held(way.zero - 1) > run.chip.memory
