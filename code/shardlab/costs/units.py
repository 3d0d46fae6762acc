"""Names for powers of ten and of two, for spans of time, and quantities as text.

The library computes in bytes, seconds and FLOP/s; these names are for its inputs and outputs. GB is
10^9 bytes, GiB is 2^30 bytes: IEC 80000-13 (https://physics.nist.gov/cuu/Units/binary.html).
"""

import math

from shardlab.files.arguments import checked

MB, GB, TB = 1e6, 1e9, 1e12
MiB, GiB, TiB = 2**20, 2**30, 2**40
Gbit = 1e9 / 8  # bytes: network links are sold in bits per second
GFLOP, TFLOP = 1e9, 1e12
us = 1e-6
HOUR, DAY = 3600.0, 86_400.0  # seconds
MWh = 3.6e9  # joules

_PREFIXES = {-9: "n", -6: "µ", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}


@checked
def text(value: float, unit: str) -> str:
    """Format a quantity in three digits: text(2.49e8, "B") is "249 MB". Powers of ten, never GiB.

    Errors: ValueError for a negative or infinite value.
    """
    if not 0 <= value < math.inf:
        raise ValueError(f"{value} {unit} has no prefix; give a finite number of at least 0")
    rounded = float(f"{value:.3g}")  # first, so that 999.9 MB becomes 1 GB
    exponent = 3 * math.floor(math.log10(rounded) / 3) if rounded else 0
    exponent = min(max(exponent, -9 if unit == "s" else 0), 0 if unit == "s" else 18)
    scaled = rounded / 10.0**exponent
    beyond_prefixes = scaled >= 1000  # noqa: PLR2004
    number = f"{scaled:,.0f}" if beyond_prefixes else f"{scaled:.3g}"
    return f"{number} {_PREFIXES[exponent]}{unit}".rstrip()


@checked
def percent(share: float) -> str:
    """Format a share: percent(0.249) is "25 %", percent(0.001) is "under 1 %"."""
    return "under 1 %" if 0 < share < 0.01 else f"{100 * share:.0f} %"  # noqa: PLR2004


@checked
def counted(number: int, noun: str) -> str:
    """Write a regular noun behind its number: "1 rank", "2 batches", "1,000 steps"."""
    plural = "es" if noun.endswith("ch") else "s"
    return f"{number:,} {noun}{plural * (number != 1)}"
