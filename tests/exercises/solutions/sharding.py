"""Solutions of the exercises on sharding as types."""

from itertools import product
from math import prod

ARROWS = ["IR", "IS", "RS", "RP", "SP", "PI", "PR", "PS", "SI", "SR", "SS"]


def state_of(line, known):
    """The state of a line's result, or None where its operands do not fit together."""
    operation, states = line["operation"], [state for state, _ in known]
    if operation == "input":
        return line["state"]
    if operation == "redistribute":
        source, target = line["arrow"].split(" -> ")
        return target if states == [source] else None
    if operation == "function":
        return None if states == ["P"] else states[0]
    if operation == "close":
        return states[0] if states[0] in "IP" else None
    cuts = [state for state in states if state[0] == "S"]
    if not cuts:
        return without_cut(operation, states)
    cut, dim = cuts[0], cuts[0][2:-1]
    if any(state != ("R" if dim not in dims else cut) for state, dims in known):
        return None
    return cut if dim in line["dims"] else "P"


def without_cut(operation, states):
    if operation == "product" and states.count("P") == 1 and "I" not in states:
        return "P"
    alike = len({*states}) == 1 and (operation == "add" or states[0] != "P")
    return states[0] if alike else None


def my_states(program):
    known = []
    for line in program:
        state = state_of(line, [known[i] for i in line["of"]])
        if state is None:
            break
        known.append((state, line["dims"]))
    return [state for state, _ in known]


def my_moves(source, target, nbytes, ranks):
    mirrored = {"R": "P", "P": "R"}
    back = mirrored.get(target, target), mirrored.get(source, source)
    verb, forward = verb_and_bytes(source, target, nbytes, ranks)
    _, backward = verb_and_bytes(*back, nbytes, ranks)
    return verb, " -> ".join(back), forward, backward


def verb_and_bytes(source, target, nbytes, ranks):
    ring = nbytes * (ranks - 1) / ranks
    if source == "P":
        return ("reduce_scatter", ring) if target[0] == "S" else ("all_reduce", 2 * ring)
    if source[0] == "S" and target != "P":
        return ("all_to_all", ring / ranks) if target[0] == "S" else ("all_gather", ring)
    return "", 0


def my_missing_sum(program):
    known = my_states(program)
    line = len(known)
    for operand in program[line]["of"]:
        state, dims = known[operand], program[operand]["dims"]
        for target in ["I", "R", "P", *(f"S({dim})" for dim in dims)]:
            known_arrow = target != state and state[0] + target[0] in ARROWS
            if known_arrow and runs_through(program, line, operand, target):
                return line, operand, f"{state} -> {target}"
    return None


def runs_through(program, line, operand, target):
    known = [(state, each["dims"]) for state, each in zip(my_states(program), program, strict=False)]
    for i in range(line, len(program)):
        changed = {operand: (target, program[operand]["dims"])} if i == line else {}
        state = state_of(program[i], [changed.get(each, known[each]) for each in program[i]["of"]])
        if state is None:
            return False
        known.append((state, program[i]["dims"]))
    return True


def my_cheapest(tokens, widths, ends, prices):
    plans = product(["columns", "rows", "gathered"], repeat=len(widths) - 1)
    return min(plans, key=lambda plan: price_of(plan, tokens, widths, ends, prices))


def price_of(plan, tokens, widths, ends, prices):
    state, total = way(plan, tokens, widths, ends, prices)
    return total + change(state, ends, prices) * tokens * widths[-1]


def way(plan, tokens, widths, ends, prices):
    """The state behind the last matrix, and the price as far as there."""
    state, total = ends, 0
    for i, kind in enumerate(plan):
        takes = {"columns": "R", "rows": "S(width)", "gathered": "S(tokens)"}[kind]
        total += change(state, takes, prices) * tokens * widths[i]
        if kind == "gathered":
            total += prices["S -> R"] * widths[i] * widths[i + 1]
        state = {"columns": "S(width)", "rows": "P", "gathered": "S(tokens)"}[kind]
    return state, total


def change(state, target, prices):
    return 0 if state == target else prices[f"{state[0]} -> {target[0]}"]


def my_reducer(dims, x, y, tokens, degrees):
    cut = [axis for axis in degrees if any(each[axis][0] == "S" and each[axis][2:-1] not in dims for each in (x, y))]
    terms = [axis for axis in degrees if y[axis] == "R"]
    apart = prod(degrees[axis] for axis in degrees if tokens[axis][0] == "S")
    return cut + [axis for axis in terms if axis not in cut], 1 / apart
