"""Layout: how many ways a run is cut along each axis, which cuts a model allows, and the groups.

The axes are those of Megatron-LM (Narayanan et al. 2021, https://arxiv.org/abs/2104.04473), ZeRO
(Rajbhandari et al. 2020, https://arxiv.org/abs/1910.02054), and the context and expert axes of
Llama 3 (https://arxiv.org/abs/2407.21783) and GShard (https://arxiv.org/abs/2006.16668).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import gcd, isqrt, prod

from shardlab.files.arguments import Count, checked, within
from shardlab.model.spec import TransformerSpec

from .deal import deal
from .hybrids import alike, unlike, unshared

ZERO_STAGES = {
    0: "everything on every rank",
    1: "optimizer cut",
    2: "+ gradients cut",
    3: "+ parameters cut",
}
AXES = ("tp", "cp", "dp", "pp")  # of the mesh, in Megatron-LM's order: tp ranks are neighbours
AXES_3D = ("tp", "dp", "pp")  # an order for layouts without context parallelism
# The mesh has an axis inside dp, too. ep neighbours along dp hold different experts; edp, "expert
# data parallel" in Megatron-LM, joins the dp / ep ranks that hold the same ones.
PARTS = {"dp": ("ep", "edp")}


@dataclass(frozen=True, kw_only=True)
@checked
class Layout:
    """How many ways a run is cut along each axis of the mesh, as plain numbers."""

    dp: Count = 1  # data parallel: ranks that see different sequences
    tp: Count = 1  # tensor parallel: ranks that share each layer's matrices
    pp: Count = 1  # pipeline parallel: stages that hold different layers
    cp: Count = 1  # context parallel: ranks that share each sequence
    ep: Count = 1  # expert parallel: ranks of dp that hold different experts
    zero: int = 0  # the ZeRO stage, over dp * cp ranks: see ZERO_STAGES
    sequence_parallel: bool = False  # whether tp ranks also share what lies between the matrices
    whole_experts: bool = False  # whether tp ranks hold different experts, not a part of each one

    def __post_init__(self) -> None:
        if self.zero not in ZERO_STAGES:
            raise ValueError(f"ZeRO has the stages {listed(ZERO_STAGES)}, not {self.zero}")
        if self.dp % self.ep:
            raise ValueError(
                f"the ep={self.ep} ranks that hold different experts are taken from the "
                f"dp={self.dp} ranks; use ep = {listed(divisors(self.dp))}"
            )
        if self.whole_experts and self.tp > 1 and not self.sequence_parallel:
            raise ValueError(
                f"with whole_experts=True each of tp={self.tp} ranks sends the tokens of its slice "
                "to their experts; use sequence_parallel=True, which makes the slices"
            )

    @property
    def ranks(self) -> int:
        """The number of ranks of the run. The ranks of ep are among the ranks of dp."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def replicas(self) -> int:
        """The number of ranks that hold the same states, or share them under ZeRO."""
        return self.dp * self.cp

    @property
    def expert_ranks(self) -> int:
        """The number of ranks that hold different experts: of ep, and of tp if experts stay whole.

        Megatron-LM calls it expert_model_parallel_size.
        """
        return self.ep * (self.tp // self.expert_tp)

    @property
    def expert_tp(self) -> int:
        """The number of ranks that share each expert, Megatron's expert_tensor_parallel_size."""
        return 1 if self.whole_experts else self.tp

    def check(self, spec: TransformerSpec) -> None:
        """Raise ValueError, with the degrees that work, unless the layout splits `spec` evenly."""
        if not _cuts_evenly(spec, self.tp):
            width = f"expert_size={spec.experts.expert_size}" if spec.experts else f"ffn={spec.ffn}"
            if spec.recurrent:
                width += f", and {spec.recurrent.key_heads} heads of keys of {spec.recurrent.rule},"
            raise ValueError(
                f"{spec.num_heads} heads, {spec.kv_heads} key/value heads and {width} "
                f"do not split over tp={self.tp}; use tp = {listed(tensor_degrees(spec))}"
            )
        if self.cp > 1 and spec.recurrent:
            raise ValueError(f"cp={self.cp}: {unshared(spec)}")
        if self.pp > 1 and not alike(spec, self.pp):
            raise ValueError(f"pp={self.pp}: {unlike(spec)}")
        if self.pp > spec.num_layers:
            raise ValueError(
                f"{spec.num_layers} layers leave some of pp={self.pp} stages empty; "
                f"use pp = {spec.num_layers} or less"
            )
        works = expert_degrees(spec, self.dp)
        has = f"{spec.experts.num_experts} of them" if spec.experts else "none"
        if self.ep not in works:
            raise ValueError(
                f"ep={self.ep} splits experts, and this model has {has}; use ep = {listed(works)}"
            )
        spare = spec.experts.num_experts % self.expert_ranks if spec.experts else 1
        if self.whole_experts and spare:
            raise ValueError(
                f"ep={self.ep} x tp={self.tp} ranks hold whole experts, and this model has {has}; "
                "use whole_experts=False, which cuts each over tp"
            )

    def kv_heads(self, spec: TransformerSpec) -> int:
        """Count the key/value heads on each tp rank; ranks share one where heads are fewer."""
        return max(1, spec.kv_heads // self.tp)


ONE_RANK = Layout()


@checked
def tensor_degrees(spec: TransformerSpec) -> list[int]:
    """List every tp that cuts heads and feed-forward block, or each expert, evenly.

    A degree that divides the heads divides the width of attention too; nothing else cuts the hidden
    size.
    """
    return [tp for tp in divisors(spec.num_heads) if _cuts_evenly(spec, tp)]


def _cuts_evenly(spec: TransformerSpec, tp: int) -> bool:
    width, keys = spec.experts.expert_size if spec.experts else spec.ffn, spec.kv_heads
    if spec.num_heads % tp or width % tp:
        return False
    if spec.recurrent and spec.recurrent.key_heads % tp:  # with all heads of values that they serve
        return False
    # equally many key/value heads for each rank, or equally many ranks for each head
    return not keys % tp or not tp % keys


@checked
def expert_degrees(spec: TransformerSpec, dp: Count) -> list[int]:
    """List every ep that divides both the experts and the ranks of `dp`."""
    return divisors(gcd(spec.experts.num_experts, dp)) if spec.experts else [1]


@checked
def stages(num_layers: Count, pp: Count, chunks: Count = 1) -> list[range]:
    """Deal the layers to `pp` pipeline stages.

    Where several chunks come out even only if embedding and head each take the place of a layer,
    they do, as in Llama 3 (https://arxiv.org/abs/2407.21783, section 3.3.2); a stage's layers are
    counted as if they were contiguous. Errors: ValueError where a stage would be empty.
    """
    if not 1 <= pp <= num_layers:
        raise ValueError(
            f"{num_layers} layers do not fill pp={pp} stages; use pp = 1 to {num_layers}"
        )
    return [layers_of_stage(num_layers, pp, stage, chunks) for stage in range(pp)]


@checked
def layers_of_stage(num_layers: Count, pp: Count, stage: int, chunks: Count = 1) -> range:
    """Return the layers of one of `stages`. Errors: ValueError for a stage that does not exist."""
    within("stage", stage, pp)
    ends = chunks > 1 and num_layers % (pp * chunks) > 0  # embedding and head count as layers
    dealt = next(deal(num_layers + 2 * ends, pp, stage))
    return range(max(0, dealt.start - ends), min(num_layers, dealt.stop - ends))


@checked
def strides(layout: Layout, order: Sequence[str] = AXES) -> dict[str, int]:
    """Return how far apart two neighbours along each axis are.

    Ranks are numbered along the axes of `order`, the first one fastest. With ("tp", "cp", "dp",
    "pp") the ranks of a tensor-parallel group are neighbours, and share a node if the group is no
    larger (Narayanan et al. 2021, section 4). An order may leave out axes of one rank.
    Errors: ValueError for an order that names an axis twice or an unknown one, or leaves out one
    that is cut.
    """
    needed = {axis for axis in AXES if getattr(layout, axis) > 1}
    named = set(order)
    if len(named) < len(order) or not needed <= named <= set(AXES):
        raise ValueError(
            f"{list(order)} is not an order of the axes {listed(AXES)}; name each once "
            "(an axis of degree 1 may be left out)"
        )
    sizes = [getattr(layout, axis) for axis in order]
    return {axis: prod(sizes[:index]) for index, axis in enumerate(order)}


@checked
def coordinates(rank: int, layout: Layout, order: Sequence[str] = AXES) -> dict[str, int]:
    """Return the place of `rank` along each axis, those of `order` first; see `strides`."""
    within("rank", rank, layout.ranks)
    far = strides(layout, order).items()
    place = {axis: rank // stride % getattr(layout, axis) for axis, stride in far}
    return place | {axis: 0 for axis in AXES if axis not in place}


@checked
def groups(layout: Layout, order: Sequence[str] = AXES) -> dict[str, list[tuple[int, ...]]]:
    """List, for each axis of `order`, the groups of ranks that differ along that axis only.

    The groups of an axis are in the order of their first ranks.
    """
    return {axis: together(layout, (axis,), order) for axis in order}


@checked
def together(
    layout: Layout, axes: Sequence[str], order: Sequence[str] = AXES
) -> list[tuple[int, ...]]:
    """List the groups of ranks that differ along `axes` only.

    With ("tp", "pp") the ranks of a group hold one model between them.
    axes: of AXES, or "ep" and "edp", the parts of dp.
    """
    varied = {part for axis in axes for part in PARTS.get(axis, (axis,))}
    found: dict[tuple[int, ...], list[int]] = {}
    for rank in range(layout.ranks):
        place = coordinates(rank, layout, order)
        place["edp"], place["ep"] = divmod(place.pop("dp"), layout.ep)
        shared = tuple(place[axis] for axis in sorted(place) if axis not in varied)
        found.setdefault(shared, []).append(rank)
    return [tuple(group) for group in found.values()]


@checked
def divisors(number: Count) -> list[int]:
    """List every whole number that divides `number`, smallest first."""
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


@checked
def listed(things: Iterable[object]) -> str:
    """Join numbers or names as an error message shows them."""
    return ", ".join(map(str, things))
