"""Exercise: activation checkpointing, with a budget: after forward only inputs and result are there.

Numbers are float64 and the reference is the function itself, without a checkpoint. Random numbers are drawn between
forward and backward, as a model's other layers would.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shardlab.ranks import comm

from .. import evidence
from ..checker import Case, Exercise, Finding, Judge

SIZE, SLACK = 64, 8 * 1024  # rows and columns of an input; bytes for the state of the random numbers
STARTER = '''\
import torch

def my_checkpoint(function, *inputs):
    """function(*inputs), keeping only the inputs for backward.

    The inputs are tensors, the result is one tensor; `function` may use
    parameters of its own, and dropout. At least one input needs a gradient.
    """
    return function(*inputs)  # keeps everything: mend it
'''


@dataclass(frozen=True)
class Given:
    """A function to checkpoint, and what it gets."""

    make: Callable[[], nn.Module]
    needs: tuple[bool, ...] = (True,)  # which inputs need a gradient
    times: int = 1  # checkpoints in a row, each with the result of the one before

    def build(self) -> tuple[nn.Module, list[Tensor]]:
        """The same every time."""
        torch.manual_seed(0)
        inputs = [torch.randn(SIZE, SIZE, dtype=torch.float64).requires_grad_(need) for need in self.needs]
        return self.make().double(), inputs


class Waves(nn.Module):
    """Several steps between the inputs and the result, without parameters."""

    def forward(self, *inputs: Tensor) -> Tensor:
        return torch.stack([x.sin().exp().tanh() for x in inputs]).prod(dim=0)


class Dropped(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x.sin(), 0.5).exp()


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Linear(SIZE, SIZE), nn.Tanh())


@dataclass(frozen=True)
class Seen:
    """What came of one checkpoint, or of none."""

    result: Tensor | None
    gradients: evidence.Named  # of the inputs, in their order
    parameters: evidence.Named
    held: int  # bytes, after forward
    calls: int  # of the function
    next_random: Tensor  # drawn after backward


def attempt(function: Callable[..., Any], group: comm.Group | None, case: Case, rank: int) -> Seen:
    """Forward, other random numbers, backward; the inputs are used outside of the checkpoint, too."""
    (module, inputs), calls = case.given.build(), []

    def counted(*tensors: Tensor) -> Tensor:
        calls.append(1)
        result: Tensor = module(*tensors)
        return result

    with evidence.Held() as held:
        result = function(counted, *inputs)
        for _ in range(case.given.times - 1):
            result = function(counted, result) if isinstance(result, Tensor) else None
        nbytes = held.nbytes
    torch.rand(1)
    if isinstance(result, Tensor) and result.requires_grad:
        outside = sum((x.square().sum() for x in inputs if x.requires_grad), torch.zeros(()))
        ((result * torch.arange(1.0, SIZE + 1)).sum() + outside).backward()
    gradients = {f"input {place}": x.grad for place, x in enumerate(inputs)}
    shown = result.detach() if isinstance(result, Tensor) else None
    return Seen(shown, gradients, evidence.gradients(module), nbytes, len(calls), torch.rand(1))


@cache
def plain(case: Case) -> Seen:
    """The same without a checkpoint, and without touching the learner's random numbers: judges sit in their process."""
    with torch.random.fork_rng(devices=[]):
        return attempt(lambda function, *inputs: function(*inputs), None, case, 0)


def same(part: Callable[[Seen], evidence.Named]) -> Judge:
    """Each of these tensors is what it is without a checkpoint."""

    def judge(case: Case, seen: list[Seen]) -> Finding | None:
        got = part(seen[0])
        for name, expected in part(plain(case)).items():
            mine = got.get(name)
            if expected is None and mine is None:
                continue
            place = 0 if expected is None else evidence.first_difference(expected, mine)
            if place is not None:
                right, wrong = evidence.show(expected, place), evidence.show(mine, place)
                return Finding(case.title, f"{name}: {right}", f"{name}: {wrong}")
        return None

    return judge


def holds_inputs_and_result(case: Case, seen: list[Seen]) -> Finding | None:
    budget = case.given.times * SIZE * SIZE * 8 + SLACK
    if seen[0].held <= budget:
        return None
    given = f"inputs of {SIZE * SIZE * 8:,} bytes each, {case.given.times} result(s) of as many"
    return Finding(given, f"at most {budget:,} bytes more after forward", f"{seen[0].held:,} bytes")


def runs_twice(case: Case, seen: list[Seen]) -> Finding | None:
    right = 2 * case.given.times
    if seen[0].calls == right:
        return None
    return Finding(case.title, f"{right} calls of the function, half of them in backward", f"{seen[0].calls} calls")


EXERCISE = Exercise(
    name="memory.checkpoint",
    prompt="Compute a function without keeping what backward needs of it: backward computes it once more.",
    starter=STARTER,
    hint=(
        "Write a torch.autograd.Function. Its forward runs without recording; keep the inputs with "
        "ctx.save_for_backward, and torch.get_rng_state(). In backward detach the inputs, call the function again "
        "under torch.enable_grad(), and call backward on what it returns. torch.random.fork_rng(devices=[]) puts the "
        "random numbers back afterwards."
    ),
    points=4,
    pure=True,
    cases=[
        Case(world_size=1, title="one input", given=Given(Waves)),
        Case(world_size=1, title="two inputs", given=Given(Waves, (True, True))),
        Case(world_size=1, title="an input that needs no gradient", given=Given(Waves, (False, True))),
        Case(world_size=1, title="layers with parameters", given=Given(layers)),
        Case(world_size=1, title="dropout", given=Given(Dropped)),
        Case(world_size=1, title="two with dropout in a row", given=Given(Dropped, times=2)),
    ],
    attempt=attempt,
    properties={
        "the result is that of the function": same(lambda seen: {"result": seen.result}),
        "inputs get the same gradients": same(lambda seen: seen.gradients),
        "parameters get the same gradients": same(lambda seen: seen.parameters),
        "after forward only inputs and result are there": holds_inputs_and_result,
        "the function runs once in forward and once in backward": runs_twice,
        "random numbers go on as without": same(lambda seen: {"the next random number": seen.next_random}),
    },
)
