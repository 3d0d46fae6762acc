"""A layout's ranks as a mesh: every rank finds its groups by the names of the axes.

    mesh = Mesh(Layout(dp=2, tp=2, pp=2), group)     # every rank of the group
    comm.all_reduce(x, mesh.tp)                      # the ranks that share this rank's layers
    mesh.place                                       # {"tp": 1, "cp": 0, "dp": 0, "pp": 1}: where this rank is

Narayanan et al. 2021 (https://arxiv.org/abs/2104.04473). A mesh is an object: several may live side by side.
"""

from collections.abc import Sequence

from ..layout import AXES, Layout, coordinates, together
from . import comm

Groups = dict[tuple[int, ...], comm.Group]
# What a mesh calls its groups, and the axes along which the ranks of each differ.
GROUPS = {
    **{axis: (axis,) for axis in (*AXES, "ep", "edp")},
    "replicas": ("cp", "dp"),
    "model": ("tp", "pp"),
}


class Mesh:
    """This rank's place in a layout, and the groups it communicates in.

    tp, cp, dp, pp  the ranks that differ from this one along that axis only, in order of their places
    ep              the ranks of dp that hold different experts, and together all of them
    edp             the ranks of dp that hold the same experts
    replicas        the ranks of cp and dp: they hold the same parameters and average their gradients
    model           the ranks of tp and pp: together they hold the model once
    world           all ranks

    order: of the axes; the ranks along the first one are neighbours. known: groups by their ranks in `group`. A mesh
    takes from it what is there and adds what it makes, so that many meshes of the same ranks need few groups.
    Errors: ValueError unless the layout is for as many ranks as the group has.
    """

    tp: comm.Group
    cp: comm.Group
    dp: comm.Group
    pp: comm.Group
    ep: comm.Group
    edp: comm.Group
    replicas: comm.Group
    model: comm.Group

    def __init__(
        self, layout: Layout, group: comm.Group, *, order: Sequence[str] = AXES, known: Groups | None = None
    ) -> None:
        if layout.ranks != group.size():
            raise ValueError(_explain(layout, group.size()))
        self.layout, self.order, self.world = layout, tuple(order), group
        self.place = coordinates(group.rank(), layout, order)
        self._known = {} if known is None else known
        for name, axes in GROUPS.items():
            setattr(self, name, self._group(axes))

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
        cut = [axis for axis in self.order if getattr(self.layout, axis) > 1]
        place = ", ".join(f"{axis} {self.place[axis]} of {getattr(self.layout, axis)}" for axis in cut)
        return f"rank {self.world.rank()}: {place or 'alone'}"


def _explain(layout: Layout, size: int) -> str:
    """What is wrong with the number of ranks, and what would work."""
    degrees = " x ".join(f"{axis}={getattr(layout, axis)}" for axis in AXES if getattr(layout, axis) > 1)
    rest, more = divmod(size, layout.ranks // layout.dp)
    works = f"start {layout.ranks} ranks"
    if rest and not more:
        works += f", or use dp={rest}"
    return f"a layout of {degrees or 'dp=1'} is for {layout.ranks} ranks, and here are {size}; {works}"
