"""A repair is offered only if the line is accepted with it, and the one with fewest bytes comes first."""

from hypothesis import given
from hypothesis import strategies as st

from shardlab.sharding.types import rules
from shardlab.sharding.types.redistribution import redistribute
from shardlab.sharding.types.repairs import repairs
from shardlab.sharding.types.states import parse

from .shardings import MESH, shardings

SIZES = {"B": 4, "S": 4, "h": 8, "f": 4}


def sum_of_products(operands):
    return rules.product("", operands)


def found(*texts):
    return [str(each) for each in repairs(sum_of_products, list(map(parse, texts)), SIZES, MESH)]


def test_one_redistribution_is_enough_or_two_are_tried():
    assert found("[h] R@tp", "[h]") == ["operand 2: I -> R @tp (16 bytes)"]
    assert found("[h] P@tp", "[h] P@tp") == ["operand 1: P -> R @tp (32 bytes)", "operand 2: P -> R @tp (32 bytes)"]
    assert found("[h] R@dp", "[h] R@tp") == ["operand 1: I -> R @tp and operand 2: I -> R @dp (32 bytes)"]


@given(st.lists(shardings(), min_size=1, max_size=2))
def test_every_repair_is_accepted(operands):
    offered = repairs(sum_of_products, operands, SIZES, MESH)
    assert [each.nbytes for each in offered] == sorted(each.nbytes for each in offered)
    for repair in offered:
        changed = list(operands)
        for place, change in repair.steps:
            changed[place] = redistribute(changed[place], change)
        sum_of_products(changed)
