"""All-reduce on two levels, in groups and across them, where only a part of the buffer crosses.

Cho et al. 2019, "BlueConnect",
https://proceedings.mlsys.org/paper_files/paper/2019/hash/0c8abcf158ed12d0dd94480681186fda-Abstract.html
"""

from shardlab.files.arguments import Count, checked

from .plan import Plan, placed, side_by_side
from .ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter


@checked
def hierarchical_all_reduce(n: Count, size: Count) -> Plan:
    """Plan a reduce-scatter in groups of `size` neighbours, an all-reduce across, an all-gather.

    Across the groups, the first ranks of all groups form a ring, the second ones another, and so
    on, each for its own 1/size of the buffer. Errors: ValueError for groups that do not fit.
    """
    if n % size:
        fitting = ", ".join(str(d) for d in range(1, n + 1) if n % d == 0)
        raise ValueError(f"{n} ranks do not split into groups of {size}; use groups of {fitting}")
    groups = n // size
    inside = [range(first, first + size) for first in range(0, n, size)]
    across = [range(place, n, size) for place in range(size)]
    scatter = ring_reduce_scatter(size)
    gather = ring_all_gather(size)
    ring = ring_all_reduce(groups)
    rings = [placed(ring, ranks, first=place * groups) for place, ranks in enumerate(across)]
    steps = [
        *side_by_side(placed(scatter, ranks, width=groups) for ranks in inside),
        *side_by_side(rings),
        *side_by_side(placed(gather, ranks, width=groups) for ranks in inside),
    ]
    name = f"two-level all-reduce in groups of {size}"
    return Plan(name=name, num_ranks=n, num_pieces=n, steps=steps)
