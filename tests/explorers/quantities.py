"""Reads quantities back from the words an explorer writes."""

import re


def number(text):
    """The value of '12.3 ms', '4 GB', '1,410 s' in base units."""
    found = re.fullmatch(r"([\d.,]+) ([nµmkMGT]?)(s|B)", text)
    prefixes = {"n": 1e-9, "µ": 1e-6, "m": 1e-3, "": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
    return float(found[1].replace(",", "")) * prefixes[found[2]]
