"""Make the groups of a layout; every rank finds its own by the names of the axes.

    mesh = Mesh(Layout(dp=2, tp=2, pp=2), group)     # every rank of the group
    comm.all_reduce(x, mesh.tp)                      # the ranks that share this rank's layers
    mesh.place                                       # {"tp": 1, "cp": 0, "dp": 0, "pp": 1}

Narayanan et al. 2021 (https://arxiv.org/abs/2104.04473). A mesh is an object: there may be several.
"""

from collections.abc import Sequence

from shardlab import comm
from shardlab.sharding.layout import AXES, Layout, coordinates, together

Groups = dict[tuple[int, ...], comm.Group]
# the groups of a mesh, and the axes along which the ranks of each differ
GROUPS = {
    **{axis: (axis,) for axis in (*AXES, "edp")},
    "replicas": ("cp", "dp"),
    "expert_replicas": ("cp", "edp"),
    "model": ("tp", "pp"),
}


class Mesh:
    """This rank's place in a layout, and the groups it communicates in.

    tp, cp, dp, pp  the ranks that differ from this one along that axis only, in that order
    ep              the ranks that hold different experts, and together all of them: of dp, and of
                    tp as well with whole experts
    edp             the ranks of dp that hold the same experts
    replicas        the ranks of cp and dp, which hold the same parameters and average gradients
    expert_replicas the ranks of cp and dp that hold the same experts
    model           the ranks of tp and pp: together they hold the model once
    world           all ranks

    order  of the axes; the ranks along the first axis are neighbours
    known  groups that exist already, by their ranks in `group`; the mesh adds those that it makes,
           so that many meshes of the same ranks share a few groups

    Errors: ValueError unless the layout is for as many ranks as the group has.
    """

    tp: comm.Group
    cp: comm.Group
    dp: comm.Group
    pp: comm.Group
    ep: comm.Group
    replicas: comm.Group
    expert_replicas: comm.Group
    model: comm.Group

    def __init__(
        self,
        layout: Layout,
        group: comm.Group,
        *,
        order: Sequence[str] = AXES,
        known: Groups | None = None,
    ) -> None:
        if layout.ranks != group.size():
            raise ValueError(_explain(layout, group.size()))
        self.layout = layout
        self.order = tuple(order)
        self.world = group
        self.place = coordinates(group.rank(), layout, order)
        self._known = {} if known is None else known
        experts = ("tp", "ep") if layout.whole_experts else ("ep",)
        for name, axes in {**GROUPS, "ep": experts}.items():
            setattr(self, name, self._group(axes))

    def _group(self, axes: Sequence[str]) -> comm.Group:
        """Return this rank's group along the axes.

        Either all ranks find theirs in `known`, or none does and all make theirs together.
        """
        found = together(self.layout, axes, self.order)
        mine = next(ranks for ranks in found if self.world.rank() in ranks)
        if len(mine) == self.world.size():
            return self.world
        if mine not in self._known:
            self._known[mine] = comm.subgroup(self.world, mine)
        return self._known[mine]

    def __repr__(self) -> str:
        places = []
        for axis in self.order:
            degree = getattr(self.layout, axis)
            if degree > 1:
                places.append(f"{axis} {self.place[axis]} of {degree}")
        return f"rank {self.world.rank()}: {', '.join(places) or 'alone'}"


def _explain(layout: Layout, size: int) -> str:
    """Say why the layout does not suit `size` ranks, and what would work."""
    degrees = {axis: getattr(layout, axis) for axis in AXES}
    name = " x ".join(f"{axis}={degree}" for axis, degree in degrees.items() if degree > 1)
    works = f"start {layout.ranks} ranks"
    dp, remainder = divmod(size, layout.ranks // layout.dp)
    if dp and not remainder:
        works += f", or use dp={dp}"
    layout_name = f"a layout of {name or 'dp=1'}"
    return f"{layout_name} is for {layout.ranks} ranks, but there are {size}; {works}"
