"""Layout: how many ways a run is cut along each axis, which cuts a model allows, and which ranks talk to each other.

The axes are those of Megatron-LM (Narayanan et al. 2021, https://arxiv.org/abs/2104.04473), ZeRO (Rajbhandari et
al. 2020, https://arxiv.org/abs/1910.02054), and the context and expert axes of Llama 3 (https://arxiv.org/abs/2407.21783)
and GShard (https://arxiv.org/abs/2006.16668).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt, prod
from typing import NamedTuple

from shardlab.spec import TransformerSpec

ZERO_STAGES = {0: "everything on every rank", 1: "optimizer cut", 2: "+ gradients cut", 3: "+ parameters cut"}
DEGREES = ("dp", "tp", "pp", "cp", "ep")
AXES = ("tp", "cp", "dp", "pp")  # of the mesh, in Megatron-LM's order: the ranks of tp are neighbours
AXES_3D = ("tp", "dp", "pp")  # an order for layouts without context parallelism
# A mesh has an axis inside dp, too: ep neighbours along dp hold different experts; edp, "expert data parallel" in
# Megatron-LM, joins the dp / ep ranks that hold the same ones.
PARTS = {"dp": ("ep", "edp")}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How many ways a run is cut along each axis of the mesh, as plain numbers."""

    dp: int = 1  # data parallel: ranks that see different sequences
    tp: int = 1  # tensor parallel: ranks that share each layer's matrices
    pp: int = 1  # pipeline parallel: stages that hold different layers
    cp: int = 1  # context parallel: ranks that share each sequence
    ep: int = 1  # expert parallel: ranks, taken from those of dp, that hold different experts
    zero: int = 0  # the ZeRO stage, over dp * cp ranks: see ZERO_STAGES
    sequence_parallel: bool = False  # whether the tp ranks also share what lies between the matrices (Megatron)

    def __post_init__(self) -> None:
        for name in DEGREES:
            degree = getattr(self, name)
            if isinstance(degree, bool) or not isinstance(degree, int) or degree < 1:
                raise ValueError(f"{name}={degree!r} is not a number of ranks; use a whole number of at least 1")
        if self.zero not in ZERO_STAGES:
            raise ValueError(f"ZeRO has the stages {listed(ZERO_STAGES)}, not {self.zero}")
        if self.dp % self.ep:
            raise ValueError(
                f"the ep={self.ep} ranks that hold different experts are taken from the dp={self.dp} ranks; "
                f"use ep = {listed(divisors(self.dp))}"
            )

    @property
    def ranks(self) -> int:
        """How many ranks the run has. Those of ep are among those of dp."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def replicas(self) -> int:
        """How many ranks hold the same states, or share them under ZeRO."""
        return self.dp * self.cp

    def check(self, spec: TransformerSpec) -> None:
        """Errors: ValueError with the degrees that would work, where the model does not split this way."""
        if self.tp not in (works := tensor_degrees(spec)):
            raise ValueError(
                f"{spec.num_heads} heads, {spec.kv_heads} key/value heads and ffn={spec.ffn} do not split over "
                f"tp={self.tp}; use tp = {listed(works)}"
            )
        if self.pp > spec.num_layers:
            raise ValueError(
                f"{spec.num_layers} layers leave some of pp={self.pp} stages empty; use pp = {spec.num_layers} or less"
            )
        if self.ep > 1:
            raise ValueError(f"ep={self.ep} splits experts, and this model has none; use ep = 1")

    def kv_heads(self, spec: TransformerSpec) -> int:
        """Key/value heads on each tp rank; where tp is larger than their number, several ranks hold the same one."""
        return max(1, spec.kv_heads // self.tp)


ONE_RANK = Layout()


def tensor_degrees(spec: TransformerSpec) -> list[int]:
    """Every tp that cuts heads and feed-forward block evenly; a degree that divides the heads divides the width too."""
    return [tp for tp in divisors(spec.num_heads) if spec.ffn % tp == 0 and _even(spec.kv_heads, tp)]


def _even(kv_heads: int, tp: int) -> bool:
    return kv_heads % tp == 0 or tp % kv_heads == 0


def stages(num_layers: int, pp: int) -> list[range]:
    """The layers of each pipeline stage, in order; where they do not divide, the first stages take one more.

    Errors: ValueError where a stage would be empty.
    """
    if not 1 <= pp <= num_layers:
        raise ValueError(f"{num_layers} layers do not fill pp={pp} stages; use pp = 1 to {num_layers}")
    share, more = divmod(num_layers, pp)
    starts = [stage * share + min(stage, more) for stage in range(pp + 1)]
    return [range(start, end) for start, end in pairwise(starts)]


def strides(layout: Layout, order: Sequence[str] = AXES) -> dict[str, int]:
    """How far apart two neighbours along each axis are: ranks are numbered along the axes, the first one fastest.

    With ("tp", "cp", "dp", "pp") the ranks of a tensor-parallel group are neighbours, and share a node if the group is
    no larger (Narayanan et al. 2021, section 4). An order may leave out axes of one rank.
    Errors: ValueError for an order that names an axis twice, an unknown one, or leaves out one that is cut.
    """
    needed = {axis for axis in AXES if getattr(layout, axis) > 1}
    if len(set(order)) < len(order) or not needed <= set(order) <= set(AXES):
        raise ValueError(
            f"{list(order)} is no order of the axes {listed(AXES)}; name each once, those of degree 1 if you like"
        )
    sizes = [getattr(layout, axis) for axis in order]
    return {axis: prod(sizes[:index]) for index, axis in enumerate(order)}


def coordinates(rank: int, layout: Layout, order: Sequence[str] = AXES) -> dict[str, int]:
    """The place of a rank along each axis, those of `order` first; numbered as `strides` says, with its errors."""
    place = {axis: rank // step % getattr(layout, axis) for axis, step in strides(layout, order).items()}
    return place | {axis: 0 for axis in AXES if axis not in place}


def groups(layout: Layout, order: Sequence[str] = AXES) -> dict[str, list[tuple[int, ...]]]:
    """For each axis of `order` the groups of ranks that differ in that axis only, in order of their first ranks."""
    return {axis: together(layout, (axis,), order) for axis in order}


def together(layout: Layout, axes: Sequence[str], order: Sequence[str] = AXES) -> list[tuple[int, ...]]:
    """The groups of ranks that differ in these axes only: with ("tp", "pp") those that hold one model between them.

    axes: of AXES, or "ep" and "edp", the parts of dp.
    """
    varied = {part for axis in axes for part in PARTS.get(axis, (axis,))}
    found: dict[tuple[int, ...], list[int]] = {}
    for rank in range(layout.ranks):
        place = coordinates(rank, layout, order)
        place["edp"], place["ep"] = divmod(place.pop("dp"), layout.ep)
        found.setdefault(tuple(place[axis] for axis in sorted(place) if axis not in varied), []).append(rank)
    return [tuple(group) for group in found.values()]


class Holding(NamedTuple):
    """What a rank holds, as shares of the whole model: a rectangle, and what of its states the rank steps."""

    replica: int
    width: tuple[float, float]  # of every layer, from where to where: cut by tp
    depth: tuple[float, float]  # of the layers: cut by pp
    states: tuple[float, float]  # of what lies in this rectangle: cut by ZeRO


def holdings(layout: Layout, num_layers: int, order: Sequence[str] = AXES) -> list[Holding]:
    """What each rank holds, in order of the ranks. The ranks of cp hold the same states, as those of dp do."""
    found, cut = [], stages(num_layers, layout.pp)
    for rank in range(layout.ranks):
        place = coordinates(rank, layout, order)
        held, replica = cut[place["pp"]], place["dp"] * layout.cp + place["cp"]
        width = place["tp"] / layout.tp, (place["tp"] + 1) / layout.tp
        depth = held.start / num_layers, held.stop / num_layers
        share = replica / layout.replicas, (replica + 1) / layout.replicas
        found.append(Holding(replica, width, depth, share if layout.zero else (0.0, 1.0)))
    return found


def divisors(number: int) -> list[int]:
    """Every whole number that divides it, smallest first."""
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def listed(things: Iterable[object]) -> str:
    """Numbers or names as an error message shows them."""
    return ", ".join(map(str, things))
