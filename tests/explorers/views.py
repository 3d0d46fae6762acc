"""Read back what an explorer shows: its table, its quantities, and whether its controls change anything."""

import re


def number(text):
    """The value of '12.3 ms', '4 GB', '1,410 s' in base units."""
    found = re.fullmatch(r"([\d.,]+) ([nµmkMGT]?)(s|B)", text)
    prefixes = {"n": 1e-9, "µ": 1e-6, "m": 1e-3, "": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
    return float(found[1].replace(",", "")) * prefixes[found[2]]


def table(view):
    """The rows of a view's table, below its head: first column -> the others."""
    return {row[0]: row[1:] for row in view.table[1:]}


def idle(explorer, shown=lambda view: view.sentence):
    """The controls of which two values show the same, all others at their default."""
    found = []
    for control in explorer.controls:
        views = (explorer.view(**{**explorer.default(), control.name: value}) for value in control.values)
        if len(set(map(shown, views))) < len(control.values):
            found.append(control.name)
    return found


def sentence_and_table(view):
    """What to compare where a sentence alone does not name all values."""
    return view.sentence, str(view.table)
