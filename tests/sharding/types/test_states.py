"""A type says what each rank holds of a tensor and of its gradient, in three notations."""

import pytest
from hypothesis import given
from torch.distributed.tensor import Partial, Replicate, Shard

from shardlab.sharding.types import states
from shardlab.sharding.types.states import MIRROR, along, gradient, local_shape, parse, partition_spec, placements

from .shardings import MESH, shardings

SIZES = {"B": 8, "S": 6, "h": 4}


def test_a_type_has_one_state_along_each_axis():
    x = parse("[B/dp, S, h/tp] R@ep P@cp")
    found = {axis: along(x, axis) for axis in ("dp", "tp", "ep", "cp", "pp")}
    assert found == {"dp": "S(B)", "tp": "S(h)", "ep": "R", "cp": "P", "pp": "I"}
    assert local_shape(x, SIZES, {"dp": 2, "tp": 4, "ep": 3, "cp": 3}) == (4, 6, 1)


def test_the_gradient_of_a_copy_is_a_sum_of_terms_and_the_other_way_round():
    assert str(gradient(parse("[B/dp, h] R@tp P@cp"))) == "[B/dp, h] R@cp P@tp"


@given(shardings())
def test_what_is_printed_is_read_again(x):
    assert parse(str(x)) == x
    assert gradient(gradient(x)) == x
    for axis in MESH:
        state = along(x, axis)
        assert along(gradient(x), axis) == MIRROR.get(state, state)


@given(shardings())
def test_placements_are_those_of_torch(x):
    """A cut and a sum say the same; Replicate hides whether a copy is invariant or replicated."""
    dims = {dim.axes for dim in x.dims}
    if ("tp", "dp") in dims:
        with pytest.raises(ValueError, match="in the order of the mesh, dp, tp"):
            placements(x, MESH)
        return
    read = [eval(text, {"Shard": Shard, "Partial": Partial, "Replicate": Replicate}) for text in placements(x, MESH)]
    assert [each.is_partial() for each in read] == [axis in x.partial for axis in MESH]
    for name, place in zip(x.names, range(len(x.dims)), strict=True):
        axes = [axis for axis, each in zip(MESH, read, strict=True) if each.is_shard(place)]
        assert [axis for axis in MESH if along(x, axis) == f"S({name})"] == axes


def test_a_spec_lists_dims_and_names_no_invariant_axis():
    assert partition_spec(parse("[B/dp/cp, S, h/tp]")) == "P(('dp', 'cp'), None, 'tp')"
    assert partition_spec(parse("[h] R@tp P@cp")) == "P(None, reduced={'tp'}, unreduced={'cp'})"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[B, Z]", r"unknown dim Z in \[B, Z\]; use B, S, h"),
        ("[B] P@cp", r"unknown axis cp in \[B\] P@cp; use dp, tp"),
        ("[B/dp, h/dp]", "axis dp occurs twice"),
        ("[B/dp] P@dp", "axis dp occurs twice"),
        ("[B, B]", "dim B occurs twice"),
        ("[S/dp/tp]", "S=6 does not split over 4 ranks of dp/tp; use a multiple of 4"),
        ("B/dp, S", r"write it as '\[B/dp, S, h/tp\] R@ep P@cp fixed'"),
    ],
)
def test_bad_input_gets_one_line_and_the_way_out(text, message):
    with pytest.raises(ValueError, match=message) as error:
        states.local_shape(parse(text), SIZES, MESH)
    assert "\n" not in str(error.value)
