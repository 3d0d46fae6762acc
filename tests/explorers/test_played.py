"""The numbers that the explorer of a missing sum shows are those that players hold."""

import pytest
import torch

from shardlab.explorers.played import WRONG_BY
from shardlab.explorers.sharding import RESULTS, SMALL, quantities, small_mesh
from shardlab.ranks.players.players import Players
from shardlab.sharding.types.altered import Altered
from shardlab.sharding.types.methods import METHODS
from shardlab.sharding.types.mutants import mutants
from shardlab.sharding.types.states import gradient
from shardlab.sharding.types.tracer import Tracer


class Closing(Players):
    """Players that keep the loss of which they start backward."""

    def close(self, loss):
        self.loss = loss.held.detach().clone()
        return super().close(loss)


def numbers(sharding, place):
    """A whole input: waves; where it has no gradient, ones and twos."""
    shape = [SMALL[name] for name in sharding.names]
    count = torch.Size(shape).numel()
    k = torch.arange(count, dtype=torch.double)
    whole = 1 + (k // 3) % 2 if sharding.fixed else torch.sin(1.7 * k * k + place)
    return whole.reshape(shape)


def held(method, *changes):
    """What the ranks hold of each quantity; of a gradient that is partial, the sum."""
    mesh = small_mesh(method)
    players = Closing(mesh)
    inputs = [players.given(numbers(each, place), each) for place, each in enumerate(method.types)]
    results = method(Altered(players, *changes), *inputs)
    found = [players.loss]
    if method.name in RESULTS:
        found += [each.held.detach() for each in results]
    for played, sharding in zip(inputs, method.types, strict=True):
        if not sharding.fixed:
            places = [list(mesh).index(axis) for axis in gradient(sharding).partial]
            grad = played.held.grad
            found.append(grad.sum(places, keepdim=True) if places else grad)
    return found


def accepted(method, mutant):
    try:
        method(Altered(Tracer(small_mesh(method), SMALL), mutant), *method.types)
    except ValueError:
        return False
    return True


def wrong_by(method):
    """Number of a redistribution without which the ranks still run, with wrong numbers -> by how much."""
    right = held(method)
    shares = {}
    for mutant in mutants(method, small_mesh(method), SMALL):
        if mutant.what == "removed" and not accepted(method, mutant):
            try:
                wrong = held(method, mutant)
            except RuntimeError:  # shapes do not fit, which nobody overlooks
                continue
            pairs = zip(wrong, right, strict=True)
            found = [float((one - other).norm() / other.norm()) for one, other in pairs]
            if max(found) > 1e-9:
                shares[mutant.number] = [round(share, 3) for share in found]
    return shares


@pytest.mark.parametrize("name", METHODS)
def test_what_is_wrong_without_a_redistribution_is_what_players_hold(name):
    found = wrong_by(METHODS[name])
    recorded = WRONG_BY.get(name, {})
    assert found.keys() == recorded.keys()
    for number, shares in found.items():
        assert len(shares) == len(quantities(METHODS[name]))
        assert list(recorded[number]) == pytest.approx(shares, abs=0.002)
