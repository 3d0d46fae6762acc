"""What each rank holds of a tensor, and the tensor that the ranks hold together."""

import torch
from torch import Tensor

from shardlab.sharding.types.states import Mesh, Sharding, along


def spread(whole: Tensor, sharding: Sharding, mesh: Mesh) -> Tensor:
    """Give each rank what it holds of a tensor: [*dims] -> [*mesh, *local].

    Random integers make the terms of a partial sum.
    """
    x = whole
    done: list[str] = []
    for axis in _order(sharding, mesh):
        ranks = mesh[axis]
        state = along(sharding, axis)
        if state == "P":
            parts = _terms(x, ranks)
        elif state in "IR":
            parts = [x] * ranks
        else:
            place = sharding.names.index(state[2:-1])
            parts = list(x.chunk(ranks, len(done) + place))
        x = torch.stack(parts)
        done.insert(0, axis)
    places = [done.index(axis) for axis in mesh]
    own = range(len(done), x.dim())
    return x.permute(*places, *own)


def assemble(held: Tensor, sharding: Sharding, mesh: Mesh) -> Tensor:
    """Put together what the ranks hold, as the type says: [*mesh, *local] -> [*dims].

    Errors: ValueError where ranks differ along an axis that is I or R.
    """
    x = held
    left = list(mesh)
    for axis in reversed(_order(sharding, mesh)):
        state = along(sharding, axis)
        parts = x.unbind(left.index(axis))
        left.remove(axis)
        if state == "P":
            x = torch.stack(parts).sum(0)
        elif state in "IR":
            x = parts[0]
            if not all(torch.allclose(x, part) for part in parts):
                raise ValueError(f"ranks hold different numbers along {axis}, which is {state}")
        else:
            place = sharding.names.index(state[2:-1])
            x = torch.cat(parts, len(left) + place)
    return x


def _order(sharding: Sharding, mesh: Mesh) -> list[str]:
    """List the axes: first terms are made, then pieces of them, and then copies of the pieces."""
    order = list(sharding.partial)
    for dim in sharding.dims:
        order += dim.axes
    return order + [axis for axis in mesh if axis not in order]


def _terms(x: Tensor, ranks: int) -> list[Tensor]:
    terms = [torch.randint(-3, 4, x.shape).to(x) for _ in range(ranks - 1)]
    return [*terms, x - sum(terms)]
