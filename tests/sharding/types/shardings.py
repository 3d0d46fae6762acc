"""Random types of tensors on a mesh of dp and tp, for hypothesis."""

from hypothesis import strategies as st

from shardlab.sharding.types.states import Dim, Sharding

MESH = {"dp": 2, "tp": 2}


@st.composite
def shardings(draw, names=("B", "S", "h", "f"), axes=tuple(MESH)):
    """Draw dims, and a state along each axis."""
    dims = {name: [] for name in draw(st.lists(st.sampled_from(names), unique=True))}
    others = {"I": [], "R": [], "P": []}
    for axis in draw(st.permutations(axes)):
        state = draw(st.sampled_from([*others, *dims]))
        (others | dims)[state].append(axis)
    cut = tuple(Dim(name, tuple(axes)) for name, axes in dims.items())
    return Sharding(cut, tuple(others["R"]), tuple(others["P"]), draw(st.booleans()))
