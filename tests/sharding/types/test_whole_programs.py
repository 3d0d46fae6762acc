"""A repair of a line is the first step to a whole program: alone, or with the tracer's advice for later lines.

Each wrong text of the methods and of the bugs is refused at a line. Each repair that is offered there is made, and
the program is read on. A later redistribution that starts from another state than is there now has become needless.
"""

from collections import Counter
from contextlib import suppress

import pytest

from shardlab.sharding.types.bugs import BUGS
from shardlab.sharding.types.methods import METHODS
from shardlab.sharding.types.mutants import Altered, mutants
from shardlab.sharding.types.states import along
from shardlab.sharding.types.tracer import Refusal, Tracer

SIZES = dict.fromkeys("BSfHeTGEC", 4) | {"h": 8, "V": 8}
MOST = 4  # repairs of one program


class Repaired(Tracer):
    """Makes repairs before lines, by number, and leaves out arrows that start from another state."""

    def __init__(self, mesh, sizes, repairs):
        super().__init__(mesh, sizes)
        self.repairs = repairs
        self.number = self.needless = 0

    def _line(self, rule, operands):
        self.number += 1
        operands = list(operands)
        steps = self.repairs[self.number].steps if self.number in self.repairs else ()
        for place, change in steps:
            arrow = f"{change.source} -> {change.target}"
            operands[place] = super().redistribute(operands[place], change.axis, arrow)
        return super()._line(rule, operands)

    def redistribute(self, x, axis, arrow, again=False):
        if along(x, axis) != arrow.partition(" ->")[0]:
            self.needless += 1
            return x
        return super().redistribute(x, axis, arrow, again)


def fewest(read, make, repairs):
    """Find how many repairs, and needless redistributions, make a program whole; None if MOST are not enough."""
    on = make(repairs)
    try:
        read(on)
    except Refusal as refusal:
        if len(repairs) == MOST or on.number in repairs:
            return None
        found = [fewest(read, make, repairs | {on.number: each}) for each in refusal.repairs]
        return min(filter(None, found), default=None)
    return len(repairs), on.needless


def of_methods():
    """Read each mutant of each method."""
    for method in METHODS.values():
        mesh = {axis: 2 for x in method.types for axis in x.axes}
        for mutant in mutants(method, mesh, SIZES):
            yield mesh, SIZES, lambda on, method=method, mutant=mutant: method(Altered(on, mutant), *method.types)


def of_bugs():
    """Read each wrong program."""
    for bug in BUGS:
        texts = [text for text, _ in bug.wrong_inputs or bug.inputs]
        yield bug.mesh, bug.sizes, lambda on, bug=bug, texts=texts: bug.text(on, False, *map(on.given, texts))


def ways(programs):
    """Yield, for each repair of the line that is refused first, what makes the program whole."""
    for mesh, sizes, read in programs:

        def make(repairs, mesh=mesh, sizes=sizes):
            return Repaired(mesh, sizes, repairs)

        on = make({})
        try:
            read(Tracer(mesh, sizes))  # which refuses, with no repair, an arrow that starts from another state
        except Refusal as refusal:
            with suppress(Refusal):
                read(on)
            yield from (fewest(read, make, {on.number: each}) for each in refusal.repairs)
        except ValueError:
            continue


COUNTED = {  # repairs in all, and redistributions that they make needless -> of how many offers
    of_methods: {(1, 0): 134, (1, 1): 15, (2, 0): 70, (2, 1): 6, (3, 0): 9, (4, 0): 5},
    of_bugs: {(1, 0): 26, (1, 1): 16, (2, 0): 2},
}


@pytest.mark.parametrize("programs", COUNTED)
def test_each_repair_leads_to_a_program_that_is_accepted(programs):
    """None would be a repair after which no advice helps."""
    assert Counter(ways(programs())) == COUNTED[programs]
