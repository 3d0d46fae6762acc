"""A layout's ranks as a mesh: every rank finds its groups by the names of the axes.

    mesh = Mesh(Layout(dp=2, tp=2, pp=2), group)     # every rank of the group
    comm.all_reduce(x, mesh.tp)                      # the ranks that share this rank's layers
    mesh.place                                       # {"tp": 1, "dp": 0, "pp": 1}: where this rank is

Narayanan et al. 2021 (https://arxiv.org/abs/2104.04473). A mesh is an object: several may live side by side.
"""

from collections.abc import Sequence

from ..layout import AXES, Layout, coordinates, together
from . import comm

Groups = dict[tuple[int, ...], comm.Group]


class Mesh:
    """This rank's place in a layout, and the groups it talks to.

    tp, dp, pp  the ranks that differ from this one along that axis only; a group's ranks are in order of their places
    model       those of tp and pp: together they hold the model once
    world       all

    order: of the axes; the ranks along the first one are neighbours. known: groups by their ranks in `group`. A mesh
    takes from it what is there and adds what it makes, so that many meshes of the same ranks need few groups.
    Errors: ValueError unless the layout is for as many ranks as the group has.
    """

    def __init__(
        self, layout: Layout, group: comm.Group, *, order: Sequence[str] = AXES, known: Groups | None = None
    ) -> None:
        if layout.ranks != group.size():
            raise ValueError(_explain(layout, group.size()))
        self.layout, self.order, self.world = layout, tuple(order), group
        self.place = coordinates(group.rank(), layout, order)
        self._known = {} if known is None else known
        self.tp, self.dp, self.pp, self.model = (self._group(axes) for axes in (["tp"], ["dp"], ["pp"], ["tp", "pp"]))

    def _group(self, axes: Sequence[str]) -> comm.Group:
        """This rank's group along the axes. All ranks find theirs in `known`, or none does: groups are alike."""
        found = together(self.layout, axes, self.order)
        mine = next(ranks for ranks in found if self.world.rank() in ranks)
        if len(mine) == self.world.size():
            return self.world
        if mine not in self._known:
            self._known[mine] = comm.subgroup(self.world, mine)
        return self._known[mine]

    def __repr__(self) -> str:
        place = ", ".join(f"{axis} {self.place[axis]} of {getattr(self.layout, axis)}" for axis in self.order)
        return f"rank {self.world.rank()}: {place}"


def _explain(layout: Layout, size: int) -> str:
    """What is wrong with the number of ranks, and what would work."""
    degrees = " x ".join(f"{axis}={getattr(layout, axis)}" for axis in (*AXES, "cp") if getattr(layout, axis) > 1)
    rest, more = divmod(size, layout.ranks // layout.dp)
    works = f"start {layout.ranks} ranks"
    if rest and not more:
        works += f", or use dp={rest}"
    return f"a layout of {degrees or 'dp=1'} is for {layout.ranks} ranks, and here are {size}; {works}"
