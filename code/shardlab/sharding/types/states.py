"""What each rank holds of a tensor: one state along each axis of the mesh.

    state                values along the axis         gradients along the axis
    I      invariant     equal                         I: equal, each of them whole
    R      replicated    equal                         P: each rank has a term of their sum
    S(d)   sharded       pieces of dim d, rank order   S(d)
    P      partial       terms of a sum                R: equal

All ranks do the same with an invariant tensor, so each computes its whole gradient. Each rank does
something else with a replicated one, so the gradient is a sum that has not happened yet.

    [B/dp, S, h/tp] P@cp      B is cut by dp and h by tp; along cp each rank has a term
    [B/dp/cp, S] fixed        dp varies slowest; fixed: without a gradient, so that I means R
    [h] R@tp                  replicated along tp, and invariant along all axes not named

The states are those of JAX (https://docs.jax.dev/en/latest/301/sharding-ad.html) and of
spmd_types (https://github.com/meta-pytorch/spmd_types).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from shardlab.files.arguments import Count, checked

Mesh = Mapping[str, Count]  # axis -> ranks, the slowest axis first
Sizes = Mapping[str, Count]  # dim -> size of the whole tensor
MIRROR = {"I": "I", "R": "P", "P": "R"}  # the state of a value -> that of its gradient
_NAME = r"[A-Za-z_]\w*"
_DIM = rf"{_NAME}(?:/{_NAME})*"
_SHARDING = re.compile(rf"\[((?:{_DIM}(?:, *{_DIM})*)?)\]((?: +[RP]@{_NAME})*)( +fixed)?")


@dataclass(frozen=True)
@checked
class Dim:
    """A named dim of a tensor, and the axes that cut it, the slowest first."""

    name: str
    axes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "/".join((self.name, *self.axes))


@dataclass(frozen=True)
@checked
class Sharding:
    """The type of a tensor: its dims, and its state along each axis.

    since: axis -> the line of a text that set the state; an input has none.
    Errors: ValueError for a dim or an axis that occurs twice.
    """

    dims: tuple[Dim, ...]
    replicated: tuple[str, ...] = ()
    partial: tuple[str, ...] = ()
    fixed: bool = False  # without a gradient: tokens, masks, counts
    since: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        for what, names in {"dim": self.names, "axis": self.axes}.items():
            twice = [name for name in names if names.count(name) > 1]
            if twice:
                raise ValueError(f"{what} {twice[0]} occurs twice in {self}; name it once")
        object.__setattr__(self, "replicated", tuple(sorted(self.replicated)))
        object.__setattr__(self, "partial", tuple(sorted(self.partial)))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the dims."""
        return tuple(dim.name for dim in self.dims)

    @property
    def axes(self) -> tuple[str, ...]:
        """All axes that it names."""
        cuts = tuple(axis for dim in self.dims for axis in dim.axes)
        return cuts + tuple(self.replicated) + tuple(self.partial)

    def __str__(self) -> str:
        others = [f" R@{axis}" for axis in self.replicated]
        others += [f" P@{axis}" for axis in self.partial]
        dims = ", ".join(map(str, self.dims))
        return f"[{dims}]{''.join(others)}{' fixed' if self.fixed else ''}"


@checked
def parse(text: str) -> Sharding:
    """Read a type as it is printed. Errors: ValueError for any other text."""
    found = _SHARDING.fullmatch(text.strip())
    if not found:
        raise ValueError(f"cannot read {text!r}; write it as '[B/dp, S, h/tp] R@ep P@cp fixed'")
    dims, others, fixed = found.groups()
    parts = [part.strip().split("/") for part in dims.split(",") if part]
    axes: dict[str, list[str]] = {"R": [], "P": []}
    for other in others.split():
        state, axis = other.split("@")
        axes[state].append(axis)
    named = tuple(Dim(name, tuple(cuts)) for name, *cuts in parts)
    return Sharding(named, tuple(axes["R"]), tuple(axes["P"]), bool(fixed))


@checked
def along(sharding: Sharding, axis: str) -> str:
    """Return the state along `axis`: "I", "R", "P", or "S(dim)"."""
    for dim in sharding.dims:
        if axis in dim.axes:
            return f"S({dim.name})"
    if axis in sharding.partial:
        return "P"
    return "R" if axis in sharding.replicated else "I"


@checked
def gradient(sharding: Sharding) -> Sharding:
    """Return the type of the gradient: R and P change places."""
    return Sharding(sharding.dims, sharding.partial, sharding.replicated, sharding.fixed)


@checked
def local_shape(sharding: Sharding, sizes: Sizes, mesh: Mesh) -> tuple[int, ...]:
    """Return the shape of what one rank holds.

    Errors: ValueError for an unknown dim or axis, and for a size that an axis does not divide.
    """
    for what, names, known in [("dim", sharding.names, sizes), ("axis", sharding.axes, mesh)]:
        unknown = [name for name in names if name not in known]
        if unknown:
            raise ValueError(f"unknown {what} {unknown[0]} in {sharding}; use {', '.join(known)}")
    shape = []
    for dim in sharding.dims:
        ranks = prod(mesh[axis] for axis in dim.axes)
        if sizes[dim.name] % ranks:
            raise ValueError(
                f"{dim.name}={sizes[dim.name]} does not split over {ranks} ranks of "
                f"{'/'.join(dim.axes)}; use a multiple of {ranks}"
            )
        shape.append(sizes[dim.name] // ranks)
    return tuple(shape)


@checked
def partition_spec(sharding: Sharding) -> str:
    """Write the type as JAX's `PartitionSpec`, which is imported as P.

    JAX calls R reduced and P unreduced, and does not name an axis that is invariant.
    """
    entries = [_entry(dim.axes) for dim in sharding.dims]
    for name, axes in {"reduced": sharding.replicated, "unreduced": sharding.partial}.items():
        if axes:
            entries.append(f"{name}={{{', '.join(map(repr, axes))}}}")
    return f"P({', '.join(entries)})"


def _entry(axes: Sequence[str]) -> str:
    return repr(tuple(axes) if len(axes) > 1 else axes[0] if axes else None)


@checked
def placements(sharding: Sharding, mesh: Mesh) -> list[str]:
    """Write the type as placements of torch's DTensor, one for each axis of the mesh.

    I and R are both `Replicate()`: DTensor tells them apart in the placement of the gradient only.
    Errors: ValueError for two axes on one dim that are not in the order of the mesh.
    """
    order = list(mesh)
    for dim in sharding.dims:
        if list(dim.axes) != sorted(dim.axes, key=order.index):
            raise ValueError(
                f"placements cannot say {dim}: Shard cuts in the order of the mesh, "
                f"{', '.join(order)}; give the mesh in the order {', '.join(dim.axes)}"
            )
    return [_placement(sharding, axis) for axis in mesh]


def _placement(sharding: Sharding, axis: str) -> str:
    state = along(sharding, axis)
    if state.startswith("S"):
        return f"Shard({sharding.names.index(state[2:-1])})"
    return "Partial()" if state == "P" else "Replicate()"
