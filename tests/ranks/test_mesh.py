"""A mesh's groups are those of its layout, by name, in every order; many meshes share a few groups."""

from itertools import permutations

import pytest
import torch

from shardlab import comm
from shardlab.launch import RankError, run
from shardlab.ranks.mesh import Mesh
from shardlab.sharding.layout import AXES, Layout, coordinates, groups, together

LAYOUTS = [Layout(dp=4, ep=2), Layout(tp=2, pp=2), Layout(dp=2, tp=2), Layout(dp=2, pp=2), Layout(cp=2, dp=2, ep=2)]
LAYOUTS += [Layout(dp=2, ep=2, tp=2, sequence_parallel=True, whole_experts=True)]
CASES = [(layout, order) for layout in LAYOUTS for order in permutations(AXES)]
TOGETHER = {"model": ("tp", "pp"), "replicas": ("cp", "dp"), "ep": ("ep",), "world": AXES}
TOGETHER["expert_replicas"] = ("cp", "edp")
NAMES = (*AXES, *TOGETHER)


def members(group, rank):
    return tuple(comm.all_gather(torch.tensor([rank]), group).tolist())


def seen(group):
    """Return the members of each group of each mesh, this rank's place, and the number of groups made."""
    known = {}
    meshes = [Mesh(layout, group, order=order, known=known) for layout, order in CASES]
    found = [({name: members(getattr(mesh, name), group.rank()) for name in NAMES}, mesh.place) for mesh in meshes]
    return found, len(known), repr(meshes[len(list(permutations(AXES)))])


@pytest.fixture(scope="module")
def ranks():
    return run(seen, world_size=4)


def test_every_rank_is_in_the_groups_of_its_place(ranks):
    for rank, (found, _, _) in enumerate(ranks):
        for (layout, order), (by_name, place) in zip(CASES, found, strict=True):
            assert place == coordinates(rank, layout, order)
            for axis, every in groups(layout, order).items():
                assert by_name[axis] == next(each for each in every if rank in each)
                assert by_name[axis][place[axis]] == rank
            for name, axes in TOGETHER.items():
                axes = ("tp", "ep") if name == "ep" and layout.whole_experts else axes
                assert by_name[name] == next(each for each in together(layout, axes, order) if rank in each)


def test_meshes_share_their_groups(ranks):
    """144 meshes share three groups: one rank, two neighbours, two at a distance; all four are the world."""
    assert [count for _, count, _ in ranks] == [3] * 4


def test_a_mesh_says_where_it_is(ranks):
    assert [text for _, _, text in ranks] == [
        f"rank {rank}: tp {rank % 2} of 2, pp {rank // 2} of 2" for rank in range(4)
    ]


@pytest.mark.parametrize(
    ("layout", "order", "said"),
    [
        (Layout(dp=2, tp=2, pp=2), AXES, "pp=2 is for 8 ranks, but there are 4; start 8 ranks, or use dp=1"),
        (Layout(tp=3), AXES, "tp=3 is for 3 ranks, but there are 4; start 3 ranks$"),
        (Layout(), AXES, "dp=1 is for 1 ranks, but there are 4; start 1 ranks, or use dp=4"),
        (Layout(dp=4), ("tp", "pp"), "is not an order of the axes tp, cp, dp, pp; name each once"),
    ],
)
def test_what_is_no_mesh_is_refused(layout, order, said):
    with pytest.raises(RankError, match=said):
        run(lambda group: Mesh(layout, group, order=order), world_size=4)
