"""Exercise: activation checkpointing, which keeps only the inputs between forward and backward.

Numbers are float64, and the reference is the function itself, without a checkpoint. Random numbers
are drawn between forward and backward, as a model's other layers would.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shardlab import comm

from .. import evidence
from ..checker import Case, Dependent, Exercise, Finding, Judge, on_each_rank

SIZE = 64  # rows and columns of an input
SLACK = 8 * 1024  # bytes, for the state of the random numbers


@dataclass(frozen=True)
class Given:
    """A function to checkpoint, and its inputs."""

    make: Callable[[], nn.Module]
    needs: tuple[bool | None, ...] = (True,)  # a gradient; None: whole numbers, which have none
    times: int = 1  # checkpoints in a row, each with the result of the one before

    def build(self) -> tuple[nn.Module, list[Tensor]]:
        """Make the module and its inputs, the same every time."""
        torch.manual_seed(0)
        return self.make().double(), [drawn(need) for need in self.needs]


def drawn(need: bool | None) -> Tensor:
    """Draw an input that needs a gradient or not; None: whole numbers below SIZE."""
    if need is None:
        return torch.randint(SIZE, (SIZE, SIZE))
    return torch.randn(SIZE, SIZE, dtype=torch.float64).requires_grad_(need)


class Waves(nn.Module):
    """Several steps between the inputs and the result, without parameters."""

    def forward(self, *inputs: Tensor) -> Tensor:
        """Multiply what comes of each input."""
        return torch.stack([x.sin().exp().tanh() for x in inputs]).prod(dim=0)


class Looked(nn.Module):
    """A step that looks rows up, as an embedding does."""

    def forward(self, rows: Tensor, x: Tensor) -> Tensor:
        """Take for each place the number in the row that is asked for."""
        return x.sin().gather(0, rows).exp()


class Dropped(nn.Module):
    """A step with dropout."""

    def forward(self, x: Tensor) -> Tensor:
        """Drop half of the numbers."""
        return F.dropout(x.sin(), 0.5).exp()


def layers() -> nn.Module:
    """Make two layers with parameters."""
    return nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Linear(SIZE, SIZE), nn.Tanh())


@dataclass(frozen=True, kw_only=True)
class Checkpointed(evidence.Seen):
    """What came of forward and backward, with a checkpoint or without; `result` is the output."""

    gradients: evidence.Named  # of the inputs, in their order
    parameters: evidence.Named  # their gradients
    held: int  # bytes, after forward
    calls: int  # of the function
    next_random: Tensor  # drawn after backward


def attempt(
    function: Callable[..., Any], group: comm.Group | None, case: Case, rank: int
) -> Checkpointed:
    """Run forward, draw a number, run backward; the inputs have a use beside the checkpoint."""
    module, inputs = case.given.build()
    calls = []

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
        squares = [x.square().sum() for x in inputs if x.requires_grad]
        weighted = (result * torch.arange(1.0, SIZE + 1)).sum()
        (weighted + torch.stack(squares).sum()).backward()
    return Checkpointed(
        result=result.detach() if isinstance(result, Tensor) else None,
        gradients={f"input {place}": x.grad for place, x in enumerate(inputs)},
        parameters=evidence.gradients(module),
        held=nbytes,
        calls=len(calls),
        next_random=torch.rand(1),
    )


@cache
def plain(case: Case) -> Checkpointed:
    """Run the same without a checkpoint.

    Judges run in the learner's process, so the state of its random numbers is restored.
    """
    with torch.random.fork_rng(devices=[]):
        return attempt(lambda function, *inputs: function(*inputs), None, case, 0)


def same(part: Callable[[Checkpointed], evidence.Named]) -> Judge:
    """Compare tensors of a checkpointed run with the same tensors of a run without a checkpoint."""

    def judge(case: Case, observed: list[Checkpointed]) -> Finding | None:
        got = part(observed[0])
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


@Dependent
@on_each_rank
def holds_inputs_and_result(case: Case, rank: int, seen: Checkpointed) -> Finding | None:
    """Ask that forward leaves the inputs and the result, and no more."""
    one = SIZE * SIZE * evidence.NUMBER
    budget = case.given.times * one + SLACK
    if seen.held <= budget:
        return None
    given = f"inputs of {one:,} bytes each, {case.given.times} result(s) of as many"
    expected = f"at most {budget:,} bytes more after forward"
    return Finding(given, expected, f"{seen.held:,} bytes")


@on_each_rank
def runs_twice(case: Case, rank: int, seen: Checkpointed) -> Finding | None:
    """Ask that the function runs once in forward and once in backward."""
    right = 2 * case.given.times
    if seen.calls == right:
        return None
    expected = f"{right} calls of the function, half of them in backward"
    return Finding(case.title, expected, f"{seen.calls} calls")


EXERCISE = Exercise(
    name="memory.checkpoint",
    compare="shardlab.ranks.memory.recompute.checkpoint",
    points=4,
    pure=True,
    cases=[
        Case(world_size=1, title=title, given=given)
        for title, given in {
            "one input": Given(Waves),
            "two inputs": Given(Waves, (True, True)),
            "an input that needs no gradient": Given(Waves, (False, True)),
            "an input of whole numbers": Given(Looked, (None, True)),
            "layers with parameters": Given(layers),
            "dropout": Given(Dropped),
            "two with dropout in a row": Given(Dropped, times=2),
        }.items()
    ],
    attempt=attempt,
    properties={
        "the result is that of the function": same(lambda seen: {"result": seen.result}),
        "inputs get the same gradients": same(lambda seen: seen.gradients),
        "parameters get the same gradients": same(lambda seen: seen.parameters),
        "after forward only inputs and result are there": holds_inputs_and_result,
        "the function runs once in forward and once in backward": runs_twice,
        "random numbers go on as without": same(
            lambda seen: {"the next random number": seen.next_random}
        ),
    },
)
