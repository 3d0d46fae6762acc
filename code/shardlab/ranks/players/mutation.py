"""The mutation score: what share of wrong redistributions a tracer refuses."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shardlab.sharding.types.altered import Altered, Mutant
from shardlab.sharding.types.methods.method import Method
from shardlab.sharding.types.mutants import mutants
from shardlab.sharding.types.states import Mesh, Sharding, Sizes, gradient
from shardlab.sharding.types.tracer import Tracer

from .players import Players
from .spread import assemble


@dataclass(frozen=True)
class MutationScore:
    """How many mutants of a method are refused, and what became of the others."""

    refused: int = 0  # at this line or a later one
    harmless: int = 0  # accepted, and no number changes: the same tensors, in another layout
    escaped: tuple[str, ...] = ()  # accepted, and a number changes


def trace(method: Method, mesh: Mesh, sizes: Sizes, *changes: Mutant) -> list[Sharding]:
    """Return the types of the results. Errors: ValueError where the tracer refuses a line."""
    tracer = Tracer(mesh, sizes)
    return method(Altered(tracer, *changes), *method.types)


def play(method: Method, mesh: Mesh, wholes: Sequence[Tensor], *changes: Mutant) -> list[Tensor]:
    """Play a method on whole inputs; return its whole results, and the gradients of its inputs.

    Errors: ValueError where the tracer refuses a line, or ranks differ against their type.
    """
    sizes: dict[str, int] = {}
    for x, whole in zip(method.types, wholes, strict=True):
        sizes |= zip(x.names, whole.shape, strict=True)
    types = trace(method, mesh, sizes, *changes)
    players = Players(mesh)
    inputs = [players.given(*each) for each in zip(wholes, method.types, strict=True)]
    results = method(Altered(players, *changes), *inputs)
    pairs = [(result.held, x) for result, x in zip(results, types, strict=True)]
    for played, x in zip(inputs, method.types, strict=True):
        if not x.fixed:
            pairs.append((played.held.grad, gradient(x)))
    return [assemble(held, x, mesh) for held, x in pairs]


def mutation_score(method: Method, mesh: Mesh, sizes: Sizes) -> MutationScore:
    """Trace every mutant of a method, and play those that are accepted, on random numbers."""
    wholes = inputs(method, sizes)
    expected = play(method, mesh, wholes)
    score = MutationScore()
    for mutant in mutants(method, mesh, sizes):
        try:
            trace(method, mesh, sizes, mutant)
        except ValueError:
            score = replace(score, refused=score.refused + 1)
        else:
            why = _changed(method, mesh, wholes, mutant, expected)
            if why:
                score = replace(score, escaped=(*score.escaped, f"{mutant}: {why}"))
            else:
                score = replace(score, harmless=score.harmless + 1)
    return score


def _changed(
    method: Method,
    mesh: Mesh,
    wholes: Sequence[Tensor],
    mutant: Mutant,
    expected: Sequence[Tensor],
) -> str:
    """Say what a mutant changes; "" for nothing."""
    try:
        found = play(method, mesh, wholes, mutant)
    except ValueError as error:
        return str(error)
    pairs = zip(found, expected, strict=True)
    same = all(torch.allclose(one, other) for one, other in pairs)
    return "" if same else "other numbers"


def inputs(method: Method, sizes: Sizes) -> list[Tensor]:
    """Draw a whole tensor for each input; without a gradient 1 or 2, so that counts are not 0."""
    wholes = []
    for x in method.types:
        shape = [sizes[name] for name in x.names]
        whole = torch.randn(shape, dtype=torch.double)
        if x.fixed:
            whole = torch.randint(1, 3, shape).double()
        wholes.append(whole)
    return wholes
