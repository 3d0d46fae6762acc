"""The pieces are the whole model; and the best cut is the one that was published."""

from dataclasses import replace

import pytest

from shardlab.costs.compute import flops
from shardlab.costs.facts import models
from shardlab.costs.memory import activations
from shardlab.costs.pipeline import balance, stage_costs, timeline
from shardlab.costs.training import Training
from shardlab.schedules import make


@pytest.mark.parametrize("name", ["Llama 3 8B", "GPT-2 XL"])
def test_the_pieces_are_the_whole(name):
    training = Training(spec=models.published(name).spec, microbatch=2, sequence=512)
    found, spec = stage_costs.pieces(training, 1e12), training.spec
    assert len(found) == len(stage_costs.names(training)) == spec.num_layers + 2
    work = flops.training_step(spec, batch=2, sequence=512)
    total = sum(sum(half.values()) for half in work.values())
    assert sum(piece.seconds for piece in found) == pytest.approx(total / 1e12)
    twice = spec.vocab_size * spec.hidden_size if spec.tied else 0  # the head's copy of the embedding
    states = training.recipe.bytes_per_parameter * (models.num_parameters(spec) + twice)
    assert sum(piece.states for piece in found) == states
    layers = [activations.layer(training)] * spec.num_layers
    parts = [activations.embedding(training), *layers, activations.head(training)]
    assert sum(piece.activations for piece in found) == pytest.approx(sum(sum(part.values()) for part in parts))


def test_what_is_recomputed_takes_its_time():
    """A layer that runs forward twice takes four thirds as long; the head runs once (Narayanan et al. 2021, eq. 3)."""
    training = Training(spec=models.published("GPT-3 175B").spec)
    kept, again = (
        stage_costs.pieces(replace(training, recomputation=way), 1e15) for way in ("none", "full")
    )
    assert again[1].seconds == pytest.approx(4 / 3 * kept[1].seconds)
    assert (again[0].seconds, again[-1].seconds) == (kept[0].seconds, kept[-1].seconds)


def test_the_best_cut_of_llama_3_405b_is_that_of_its_authors():
    """One layer less on the first and on the last of 16 stages: 126 layers, Llama Team 2024, section 3.3.2."""
    training = Training(spec=models.published("Llama 3 405B").spec, sequence=8192)
    in_flight = timeline.play(make("1F1B", 16, 32)).peaks()
    found = balance.cut(stage_costs.pieces(training, 1e15), in_flight)
    ends = [1, *[0] * 14, 1]
    assert [len(stage) - end for stage, end in zip(found.stages, ends, strict=True)] == [7, *[8] * 14, 7]


def test_a_large_vocabulary_makes_the_head_as_slow_as_layers():
    found = stage_costs.pieces(Training(spec=models.published("Llama 3 8B").spec, sequence=8192), 1e15)
    assert found[-1].seconds / found[1].seconds == pytest.approx(1.84, abs=0.01)
