"""Options and random states come back from JSON and tensors as they were, and wrong ones are refused."""

import json
import random

import pytest
import torch

from shardlab.ranks.checkpoint import extras

WEIGHT = torch.zeros(2)


def adam(**options):
    return torch.optim.AdamW([WEIGHT], **options)


def from_json(options):
    return json.loads(json.dumps(options))


def test_options_come_back_with_their_types():
    before = adam(lr=3e-4, betas=(0.8, 0.9), foreach=True)
    after = adam()
    extras.restore_options(after, from_json(extras.options_of(before)), "step-1")
    assert extras.options_of(after) == extras.options_of(before)
    assert isinstance(after.param_groups[0]["betas"], tuple)
    assert after.param_groups[0]["params"] == [WEIGHT]


@pytest.mark.parametrize("wrong", [None, [], {}, [{}, {}], ["lr"], [{"lr": "fast"}], [{"lr": None}], [{"lr": True}]])
def test_wrong_options_are_refused(wrong):
    with pytest.raises(ValueError, match=r"step-1 is damaged: .*option.*; use an earlier checkpoint"):
        extras.restore_options(adam(), wrong, "step-1")


@pytest.mark.parametrize("betas", [None, 0.9, [0.9], ["a", "b"], {"0": 0.9, "1": 0.9}])
def test_wrong_tuples_are_refused(betas):
    with pytest.raises(ValueError, match=r"the option betas is .* there, and .* here; use an earlier"):
        extras.restore_options(adam(), [{"betas": betas}], "step-1")


def test_an_option_of_another_optimizer_is_refused():
    with pytest.raises(ValueError, match=r"the option betas is .* there, and None here; use an earlier"):
        extras.restore_options(torch.optim.SGD([WEIGHT], lr=0.1), from_json(extras.options_of(adam())), "step-1")


def draw():
    return torch.rand(3).tolist(), random.random(), random.gauss(0, 1), random.getrandbits(70)


def test_random_states_come_back():
    random.gauss(0, 1)  # Python keeps the second number of a pair
    states = extras.random_states()
    drawn = [draw() for _ in range(2)]
    plain = from_json({name: x for name, x in states.items() if not isinstance(x, torch.Tensor)})
    extras.restore_random_states({**states, **plain}, "step-1")
    assert [draw() for _ in range(2)] == drawn


@pytest.mark.parametrize("name", ["torch", "python", "version", "gauss"])
@pytest.mark.parametrize("wrong", ["x", [0.0], torch.zeros(3), torch.zeros(3, dtype=torch.uint8)], ids=str)
def test_wrong_random_states_are_refused(name, wrong):
    with pytest.raises(ValueError, match=r"step-1 is damaged: its random states .*; use an earlier checkpoint"):
        extras.restore_random_states({**extras.random_states(), name: wrong}, "step-1")


@pytest.mark.parametrize("name", ["torch", "python", "version", "gauss"])
def test_missing_random_states_are_refused(name):
    states = extras.random_states()
    del states[name]
    with pytest.raises(ValueError, match=r"step-1 is damaged: its random states .*; use an earlier checkpoint"):
        extras.restore_random_states(states, "step-1")
