"""Programs of which each line has a type along one axis, as plain data: drawn, and read by rules.

A line is a dict: its operation, the numbers of the lines that it works `of`, the dims of its
result, the state of an input, the arrow of a redistribution.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from random import Random
from typing import Any

from shardlab.sharding.types import redistribution, rules
from shardlab.sharding.types.states import Sharding, along, parse

from ..checker import Case

AXIS = "tp"
Line = dict[str, Any]
Program = list[Line]


def words(found: Any, count: int) -> list[str] | None:
    """List words that were returned in any iterable; None for anything but `count` of them."""
    if isinstance(found, str) or not isinstance(found, Iterable):
        return None
    listed = [*islice(found, count + 1)]
    fit = len(listed) == count and all(isinstance(each, str) for each in listed)
    return [str(each) for each in listed] if fit else None


def typed(dims: Sequence[str], state: str) -> Sharding:
    """Return the type of a tensor that is in this state along the axis."""
    cut = state[2:-1]
    names = [f"{dim}/{AXIS}" if dim == cut else dim for dim in dims]
    other = f" {state}@{AXIS}" if state in ("R", "P") else ""
    return parse(f"[{', '.join(names)}]{other}")


def result(line: Line, operands: Sequence[Sharding]) -> Sharding:
    """Return the type of a line's result. Errors: ValueError where the rules refuse the line."""
    operation = line["operation"]
    if operation == "input":
        return typed(line["dims"], line["state"])
    if operation == "product":
        return rules.product(" ".join(line["dims"]), operands)
    if operation == "add":
        return rules.add(*operands)
    if operation == "function":
        return rules.function(operands[0])
    if operation == "close":
        return rules.close(operands[0])
    change = redistribution.redistribution(AXIS, line["arrow"])
    return redistribution.redistribute(operands[0], change)


def types(program: Program) -> list[Sharding]:
    """Return the type of each line, as far as the first one that the rules refuse."""
    found: list[Sharding] = []
    for line in program:
        try:
            found.append(result(line, [found[number] for number in line["of"]]))
        except ValueError:
            break
    return found


def states(program: Program) -> list[str]:
    """Return the state of each line, as far as the first one that the rules refuse."""
    return [along(each, AXIS) for each in types(program)]


def repaired(program: Program, number: int, operand: int, arrow: str) -> Program:
    """Redistribute an operand of a line, before that line and for it alone."""
    extra = {"operation": "redistribute", "of": [operand], "arrow": arrow}
    before = [*program[:number], {**extra, "dims": program[operand]["dims"]}]
    for line in program[number:]:
        of = [each + (each >= number) for each in line["of"]]
        before.append({**line, "of": of})
    of = before[number + 1]["of"]
    before[number + 1]["of"] = [number if each == operand else each for each in of]
    return before


def cases(programs: Iterable[Program]) -> list[Case]:
    """Return a case for each program, the shortest first."""
    return [
        Case(world_size=1, title=f"a program of {len(each)} lines", given=each)
        for each in sorted(programs, key=len)
    ]


def show(program: Program, number: int) -> str:
    """Describe a line, and what it works on with the states that these have."""
    line = program[number]
    known = states(program[:number])
    operands = [f"line {each} {_dims(program[each])} {known[each]}" for each in line["of"]]
    words = [line["operation"], line.get("arrow"), line.get("state")]
    what = " ".join(word for word in words if word)
    of = f" of {' and '.join(operands)}" if operands else ""
    return f"line {number}, {what}{of}, result {_dims(line)}"


def _dims(line: Line) -> str:
    return f"[{', '.join(line['dims'])}]"


# ---- programs that are right -----------------------------------------------------------------


class ProgramWriter:
    """A program as it is written; each method adds a line, and returns its number."""

    def __init__(self) -> None:
        """Start with no line."""
        self.program: Program = []

    def input(self, dims: str, state: str) -> int:
        """Add an input."""
        return self._line("input", dims, state=state)

    def product(self, dims: str, *of: int) -> int:
        """Add a product that keeps some dims."""
        return self._line("product", dims, *of)

    def add(self, x: int, y: int) -> int:
        """Add a sum of two lines, of which the first has all dims."""
        return self._line("add", self._dims(x), x, y)

    def function(self, x: int) -> int:
        """Add a function of each number that is not linear."""
        return self._line("function", self._dims(x), x)

    def redistribute(self, x: int, arrow: str) -> int:
        """Add a redistribution."""
        return self._line("redistribute", self._dims(x), x, arrow=arrow)

    def close(self, x: int) -> None:
        """Sum all squares, and let backward start."""
        loss = self.product("", self.function(x))
        self._line("close", "", loss)

    def _dims(self, x: int) -> str:
        return " ".join(self.program[x]["dims"])

    def _line(self, operation: str, dims: str, *of: int, **more: str) -> int:
        line = {"operation": operation, "of": list(of), "dims": dims.split(), **more}
        self.program.append(line)
        return len(self.program) - 1


def _same(on: ProgramWriter, x: int) -> int:
    """Do the same on all ranks."""
    gain = on.input("h", "I")
    x = on.function(x)
    return on.product("B S h", x, gain)


def _hidden(on: ProgramWriter, x: int) -> int:
    """Go through columns of one matrix and rows of the next, to a sum that has not happened."""
    up = on.input("h f", "S(f)")
    down = on.input("f h", "S(f)")
    hidden = on.function(on.product("B S f", x, up))
    return on.product("B S h", hidden, down)


def _columns_and_rows(on: ProgramWriter, x: int) -> int:
    """Cut a block as tensor parallelism does, beside its residual branch."""
    copies = on.redistribute(x, "I -> R")
    y = _hidden(on, copies)
    return on.add(x, on.redistribute(y, "P -> I"))


def _two_branches(on: ProgramWriter, x: int) -> int:
    """Add two branches before their one sum over ranks."""
    copies = on.redistribute(x, "I -> R")
    both = on.add(_hidden(on, copies), _hidden(on, copies))
    return on.redistribute(both, "P -> I")


def _bias_inside(on: ProgramWriter, x: int) -> int:
    """Add a bias before the sum over ranks, on one rank alone."""
    bias = on.input("h", "R")
    once = on.redistribute(bias, "R -> P")
    copies = on.redistribute(x, "I -> R")
    y = on.add(_hidden(on, copies), once)
    return on.redistribute(y, "P -> I")


def _pieces(on: ProgramWriter, x: int) -> int:
    """Cut the sequence before and after the matrices."""
    piece = on.redistribute(x, "I -> S(S)")
    copies = on.redistribute(on.function(piece), "S(S) -> R")
    y = on.redistribute(_hidden(on, copies), "P -> S(S)")
    return on.redistribute(on.add(piece, y), "S(S) -> I")


def _linear_in_between(on: ProgramWriter, x: int) -> int:
    """Multiply a sum that has not happened with a whole matrix."""
    copies = on.redistribute(x, "I -> R")
    last = on.input("h k", "R")
    y = on.product("B S k", _hidden(on, copies), last)
    back = on.input("k h", "I")
    return on.product("B S h", on.redistribute(y, "P -> I"), back)


def _shared_key(on: ProgramWriter, x: int) -> int:
    """Let heads that are cut share one key that all ranks have."""
    copies = on.redistribute(x, "I -> R")
    key = on.product("B S e", copies, on.input("h e", "R"))
    query = on.product("B S H e", copies, on.input("h H e", "S(H)"))
    y = on.product("B S H e", query, key)
    y = on.product("B S h", y, on.input("H e h", "S(H)"))
    return on.redistribute(y, "P -> I")


BLOCKS = (
    _same,
    _columns_and_rows,
    _two_branches,
    _bias_inside,
    _pieces,
    _linear_in_between,
    _shared_key,
)


def right(seed: int, blocks: int) -> Program:
    """Draw a program that is right, of some blocks one after the other."""
    on = ProgramWriter()
    x = on.input("B S h", "I")
    for block in Random(seed).sample(BLOCKS, blocks):
        x = block(on, x)
    on.close(x)
    return on.program


# ---- programs with one mistake ---------------------------------------------------------------


def mistakes(program: Program) -> Iterator[Program]:
    """Yield the program without each of its redistributions, and with gathered copies that are I.

    Only what one redistribution repairs, before the line that the rules refuse.
    """
    for number, line in enumerate(program):
        if line["operation"] != "redistribute":
            continue
        tries = [_without(program, number)]
        if line["arrow"] == "S(S) -> R":
            turned = {**line, "arrow": "S(S) -> I"}
            tries.append([*program[:number], turned, *program[number + 1 :]])
        yield from (wrong for wrong in tries if any(repairs(wrong)))


def _without(program: Program, number: int) -> Program:
    (operand,) = program[number]["of"]
    shorter = program[:number]
    for line in program[number + 1 :]:
        of = [operand if each == number else each - (each > number) for each in line["of"]]
        shorter.append({**line, "of": of})
    return shorter


def repairs(program: Program) -> Iterator[tuple[int, int, str]]:
    """Yield each line, operand and arrow with which a program that is refused is right."""
    known = types(program)
    number = len(known)
    if number == len(program):
        return
    for operand in program[number]["of"]:
        for change in redistribution.possible(known[operand], AXIS):
            arrow = f"{change.source} -> {change.target}"
            again = repaired(program, number, operand, arrow)
            if len(types(again)) == len(again):
                yield number, operand, arrow
