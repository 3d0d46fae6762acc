"""Redistributions: the tensor stays the same, and what each rank holds of it changes.

    forward         communicates        backward, its mirror
    I -> R          nothing             P -> I     all-reduce
    P -> I          all-reduce          I -> R     nothing
    P -> R          all-reduce          P -> R     all-reduce
    S(d) -> I       all-gather          I -> S(d)  nothing: each rank keeps its piece
    S(d) -> R       all-gather          P -> S(d)  reduce-scatter
    P -> S(d)       reduce-scatter      S(d) -> R  all-gather
    S(d) -> S(e)    all-to-all          S(e) -> S(d)  all-to-all
    R -> S(d)       nothing             S(d) -> P  nothing: zeros around the piece
    R -> P          nothing             R -> P     nothing: zeros on all ranks but the first

Each row is read backwards with the states of the gradients, so one table serves both directions.
The first two rows are Megatron-LM's f and g (https://arxiv.org/abs/1909.08053), and rows 5 and 6
are those of sequence parallelism (https://arxiv.org/abs/2205.05198).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from shardlab.files.arguments import Count, checked
from shardlab.trace import ring_bytes

from .states import MIRROR, Dim, Mesh, Sharding, Sizes, along, local_shape

_VERBS = {  # kinds of states -> what communicates; "" is nothing
    **{("I", "R"): "", ("I", "S"): "", ("R", "S"): "", ("R", "P"): "", ("S", "P"): ""},
    **{("P", "I"): "all_reduce", ("P", "R"): "all_reduce", ("P", "S"): "reduce_scatter"},
    **{("S", "I"): "all_gather", ("S", "R"): "all_gather", ("S", "S"): "all_to_all"},
}
_ARROW = re.compile(r"([IRP]|S\(\w+\)) *-> *([IRP]|S\(\w+\))")
_HOLDS = {  # kind of state -> what each rank has
    "I": "the whole of it already",
    "R": "the whole of it already, and one of {n} terms of its gradient",
    "P": "one of {n} terms",
    "S": "one of {n} pieces",
}


class Refused(ValueError):
    """A line that would be wrong: the axis, the states that met, and what would be computed."""

    def __init__(self, axis: str, states: Sequence[str], reason: str):
        """Take a reason in which {n} stands for the ranks along the axis."""
        super().__init__(f"{axis}: {' with '.join(states)}: {reason.format(n='n')}")
        self.axis = axis
        self.states = tuple(states)
        self.reason = reason


@dataclass(frozen=True)
@checked
class Redistribution:
    """A change of state along one axis, such as P -> S(h).

    Errors: ValueError for two states between which no redistribution leads.
    """

    axis: str
    source: str  # I, R, P or S(dim)
    target: str

    def __post_init__(self) -> None:
        arrow = f"{self.source} -> {self.target}"
        if not _ARROW.fullmatch(arrow) or (self.source[0], self.target[0]) not in _VERBS:
            known = ", ".join(" -> ".join(pair) for pair in _VERBS)
            raise ValueError(f"no redistribution {arrow!r}; use {known}, with S as S(dim)")
        if self.source == self.target:
            raise ValueError(f"{arrow} along {self.axis} changes nothing; remove it")

    def __str__(self) -> str:
        return f"{self.source} -> {self.target} @{self.axis}"

    @property
    def verb(self) -> str:
        """The collective that it needs, as in `comm`; "" where ranks do not communicate."""
        return _VERBS[self.source[0], self.target[0]]

    @property
    def mirror(self) -> "Redistribution":
        """What happens to the gradient in backward."""
        source, target = (MIRROR.get(state, state) for state in (self.target, self.source))
        return Redistribution(self.axis, source, target)


@checked
def redistribution(axis: str, arrow: str) -> Redistribution:
    """Read a redistribution such as "P -> S(h)". Errors: ValueError for any other text."""
    source, _, target = arrow.partition("->")
    return Redistribution(axis, source.strip(), target.strip())


@checked
def redistribute(sharding: Sharding, change: Redistribution) -> Sharding:
    """Return the type after a redistribution.

    A dim is cut further inside the pieces that there are, and gathered in the opposite order.
    Errors: Refused where the state is another one; ValueError where a dim is unknown, or cut by a
    later axis.
    """
    axis, state = change.axis, along(sharding, change.axis)
    alike = sharding.fixed and {state, change.source} == {"I", "R"}
    if state != change.source and not alike:
        reason = f"{change.source} -> {change.target} starts at {change.source}, but each rank has "
        raise Refused(axis, [state], reason + _HOLDS[state[0]])
    dims = []
    for dim in sharding.dims:
        if state == f"S({dim.name})":
            if dim.axes[-1] != axis:
                raise ValueError(
                    f"{axis} is not the last axis of {dim}; gather {dim.axes[-1]} first"
                )
            dim = Dim(dim.name, dim.axes[:-1])
        elif change.target == f"S({dim.name})":
            dim = Dim(dim.name, (*dim.axes, axis))
        dims.append(dim)
    if change.target[0] == "S" and change.target[2:-1] not in sharding.names:
        raise ValueError(f"{change.target}: {sharding} has no such dim")
    others = {"R": sharding.replicated, "P": sharding.partial}
    for name, axes in others.items():
        others[name] = tuple(each for each in axes if each != axis)
    if change.target in others:
        others[change.target] += (axis,)
    return replace(sharding, dims=tuple(dims), replicated=others["R"], partial=others["P"])


@checked
def possible(sharding: Sharding, axis: str) -> Iterator[Redistribution]:
    """Yield every redistribution of a tensor of this type along `axis`.

    Without a gradient R is no other state than I, and is left out as a target.
    """
    state = along(sharding, axis)
    if any(axis in dim.axes[:-1] for dim in sharding.dims):
        return  # another axis cuts its pieces
    for target in ("I", "R", "P", *(f"S({name})" for name in sharding.names)):
        source = "R" if sharding.fixed and (state, target) == ("I", "P") else state
        new = target != state and not (sharding.fixed and target == "R")
        if new and (source[0], target[0]) in _VERBS:
            yield Redistribution(axis, source, target)


@checked
def sent_bytes(
    sharding: Sharding, change: Redistribution, sizes: Sizes, mesh: Mesh, itemsize: Count = 2
) -> tuple[float, float]:
    """Compute the bytes that a rank sends in forward, and for the gradient in backward.

    itemsize: bytes of one number. Errors: as `redistribute` and `local_shape`.
    """
    ends = sharding, redistribute(sharding, change)
    payload = max(prod(local_shape(end, sizes, mesh)) for end in ends) * itemsize
    verbs = change.verb, "" if sharding.fixed else change.mirror.verb
    forward, backward = (
        ring_bytes(verb, payload, mesh[change.axis]) if verb else 0.0 for verb in verbs
    )
    return forward, backward
