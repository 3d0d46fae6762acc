"""The parts in sequence compute what the model computes, with the model's own modules."""

import re

import pytest
import torch

from shardlab.model.spec import TransformerSpec
from shardlab.ranks import transformer
from shardlab.ranks.pipeline import partition
from shardlab.schedules import make


def model(style="gpt2"):
    torch.manual_seed(0)
    spec = TransformerSpec(
        vocab_size=11, context_length=5, hidden_size=8, num_layers=5, num_heads=2, style=style
    )
    return transformer.Transformer(spec)


def parts_of(whole, schedule, layers=None):
    """Cut all parts, in the model's order."""
    found = {}
    for stage, numbers in enumerate(schedule.parts):
        found |= dict(zip(numbers, partition.split(whole, schedule, stage, layers), strict=True))
    return [found[number] for number in sorted(found)]


@pytest.mark.parametrize("style", ["gpt2", "llama"])
@pytest.mark.parametrize("name", ["1F1B", "interleaved", "ZB-V"])
@pytest.mark.parametrize("p", [1, 2])
def test_the_parts_are_the_model(style, name, p):
    whole, tokens = model(style), torch.randint(11, (3, 5))
    parts = parts_of(whole, make(name, p, 2))
    x = tokens
    for part in parts[:-1]:
        x = part(x)
    assert torch.equal(parts[-1](x), whole(tokens))
    assert torch.equal(parts[-1](x, tokens), whole(tokens, tokens))


def test_every_parameter_is_that_of_the_model_by_name_and_by_identity():
    whole = model("llama")
    found = [
        pair
        for part in parts_of(whole, make("interleaved", 2, 2))
        for pair in part.named_parameters()
    ]
    mine = dict(whole.named_parameters())
    assert [name for name, _ in found] == list(mine)
    assert all(parameter is mine[name] for name, parameter in found)


def test_the_ends_share_the_embeddings_where_the_head_is_tied():
    whole = model("gpt2")
    first, middle, last = parts_of(whole, make("1F1B", 3, 2))
    assert first.shared[0] is last.shared[0] is whole.embedding.tokens.weight
    assert middle.shared == []
    assert [part.shared for part in parts_of(model("llama"), make("1F1B", 3, 2))] == [[], [], []]
    assert [part.shared for part in parts_of(whole, make("1F1B", 1, 2))] == [[]]


def test_layers_are_as_equal_as_possible_or_as_asked():
    whole, schedule = model(), make("1F1B", 3, 2)
    assert [list(part.blocks) for part in parts_of(whole, schedule)] == [
        ["0", "1"],
        ["2", "3"],
        ["4"],
    ]
    asked = [range(0), range(0, 1), range(1, 5)]
    assert [list(part.blocks) for part in parts_of(whole, schedule, asked)] == [
        [],
        ["0"],
        ["1", "2", "3", "4"],
    ]


WRONG = [[range(2), range(3, 5)], [range(2), range(2, 4)], [range(2), range(1, 5)], [range(5)]]


@pytest.mark.parametrize("layers", WRONG)
def test_layers_that_are_not_the_models_are_refused(layers):
    message = (
        f"{layers} does not cut 5 layers into 2 parts; "
        "give 2 ranges that follow each other from 0 to 5"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        partition.split(model(), make("1F1B", 2, 2), 0, layers)


def test_more_parts_than_layers_are_refused():
    with pytest.raises(ValueError, match="5 layers do not fill pp=8 stages"):
        partition.split(model(), make("interleaved", 4, 2), 0)
