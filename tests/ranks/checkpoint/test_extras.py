"""Options and random states come back from JSON and tensors as they were, and wrong ones are refused."""

import json
import random
from dataclasses import replace

import pytest
import torch

from shardlab.ranks.checkpoint import extras
from shardlab.ranks.checkpoint.index import SavedTensor

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


DAMAGED = [
    *(None, {}, ["lr"], [{"lr": "fast"}], [{"lr": None}], [{"lr": True}], [{"lr": [0.1]}], [{"lr": 10**400}]),
    *([{"lr": float(each)}] for each in ("nan", "inf", "-inf", "-1")),
    *([{"betas": each}] for each in (None, 0.9, [0.9], ["a", "b"], [5, 5], [0.9, float("nan")], {"0": 0.9})),
    *([{"weight_decay": -0.1}], [{"foreach": True, "fused": True}], [{"eps": -1}]),
]
ANOTHER = [
    *([], [{}, {}], [{"lr": 0.1, "params": []}], [{"momentum": 0.9}], [{"defaults": 1}], [{"amsgrad": "yes"}]),
    *([{"amsgrad": None}], [{"amsgrad": True}], [{"maximize": 0}], [{"foreach": "x"}], [{"fused": 3}]),
]


@pytest.mark.parametrize("wrong", DAMAGED, ids=repr)
def test_wrong_options_are_refused_and_change_nothing(wrong):
    optimizer = adam()
    before = dict(optimizer.param_groups[0])
    with pytest.raises(ValueError, match=r"step-1 is damaged: .*option.*; use an earlier checkpoint"):
        extras.restore_options(optimizer, wrong, "step-1")
    assert optimizer.param_groups == [before]


OTHER = r"step-1 was saved with another optimizer: .* there, and .* here; build the model and the optimizer that were"


@pytest.mark.parametrize("wrong", ANOTHER, ids=repr)
def test_options_that_the_optimizer_does_not_have_are_those_of_another(wrong):
    optimizer = adam()
    before = dict(optimizer.param_groups[0])
    with pytest.raises(ValueError, match=OTHER):
        extras.restore_options(optimizer, wrong, "step-1")
    assert optimizer.param_groups == [before]


OPTIMIZERS = {
    each.__name__: each
    for each in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.RMSprop)
}
OPTIMIZERS |= {"momentum": lambda p, **lr: torch.optim.SGD(p, momentum=0.9, **lr)}
OPTIMIZERS |= {"amsgrad": lambda p, **lr: torch.optim.AdamW(p, amsgrad=True, **lr)}


def stepped(make, dtype=torch.float32):
    """An optimizer after a step, and its states as a checkpoint lists them."""
    weight = torch.zeros(3, dtype=dtype)
    weight.grad = torch.ones(3, dtype=dtype)
    optimizer = make([weight], lr=0.1)
    optimizer.step()
    states = {}
    for name, value in optimizer.state[weight].items():
        states[f"{name}/w"] = SavedTensor(dtype=value.dtype, shape=tuple(value.shape), boxes=[])
    return optimizer, {"weights/w": SavedTensor(dtype=dtype, shape=(3,), boxes=[]), **states}


def restore(optimizer, saved, states):
    extras.restore_options(optimizer, from_json(extras.options_of(saved)), "step-1")
    extras.check_states(optimizer, states, {"w": (3,)}, "step-1")


@pytest.mark.parametrize("there", OPTIMIZERS)
@pytest.mark.parametrize("here", OPTIMIZERS)
def test_a_checkpoint_of_another_optimizer_is_called_so(there, here):
    """Momentum is a number: it is restored as the learning rate is."""
    saved, states = stepped(OPTIMIZERS[there])
    optimizer = OPTIMIZERS[here]([torch.zeros(3)], lr=0.2)
    if there == here or {there, here} == {"SGD", "momentum"}:
        restore(optimizer, saved, states)
        assert extras.options_of(optimizer) == extras.options_of(saved)
    else:
        with pytest.raises(ValueError, match=OTHER):
            restore(optimizer, saved, states)


@pytest.mark.parametrize("name", ["exp_avg/w", "step/w"])
@pytest.mark.parametrize("change", [{"shape": (0,)}, {"shape": (4,)}, {"dtype": torch.bool}, None], ids=repr)
def test_states_that_a_step_would_not_make_are_refused(name, change):
    optimizer, states = stepped(torch.optim.AdamW)
    restore(optimizer, optimizer, states)
    held = states.pop(name)
    if change is not None:
        states[name] = replace(held, **change)
    with pytest.raises(ValueError, match=OTHER):
        restore(optimizer, optimizer, states)


def test_states_in_another_dtype_are_refused():
    saved, states = stepped(torch.optim.AdamW, torch.float64)
    with pytest.raises(ValueError, match=r"'exp_avg': 'float64 \[3\]'.* there, and .*'exp_avg': 'float32 \[3\]'"):
        restore(torch.optim.AdamW([torch.zeros(3)]), saved, states)


class Scaled(torch.optim.SGD):
    """An optimizer of a learner, which takes more than its options."""

    def __init__(self, params, scale):
        super().__init__(params, lr=scale)


def test_an_optimizer_that_takes_more_than_its_options_is_restored():
    saved, states = stepped(lambda params, lr: Scaled(params, scale=lr))
    optimizer = Scaled([torch.zeros(3)], scale=0.3)
    restore(optimizer, saved, states)
    assert optimizer.param_groups[0]["lr"] == 0.1


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
