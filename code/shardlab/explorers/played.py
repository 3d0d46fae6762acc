"""What was played of methods that lack a redistribution, for pages that build without torch.

The programs are those of `sharding.types.methods` that still run without it; the numbers are those
of `ranks.players` with two ranks along each axis, and a test plays them again.
"""

from collections.abc import Mapping, Sequence

# method -> number of the redistribution -> size of the error as a share of the size of what is
# right, for each of `sharding.quantities`
WRONG_BY: Mapping[str, Mapping[int, Sequence[float]]] = {
    "tensor parallel mlp": {
        1: (0.0, 0.693, 0.0, 0.0),
        2: (0.537, 0.146, 0.111, 0.139),
    },
    "tensor parallel attention": {
        1: (0.0, 0.63, 0.0, 0.0, 0.0, 0.0),
        2: (0.639, 0.437, 0.657, 0.513, 0.463, 0.45),
    },
    "sequence parallel mlp": {
        3: (0.344, 0.262, 0.171, 0.226, 0.385),
        1: (0.0, 0.0, 0.521, 0.0, 0.0),
        2: (0.479, 0.784, 0.555, 0.561, 0.521),
    },
    "vocabulary parallel embedding": {
        1: (0.707, 0.0),
    },
    "vocabulary parallel loss": {
        3: (1.006, 1.003, 1.002),
        1: (0.059, 0.059, 0.1),
        4: (0.0, 0.5, 0.0),
        2: (0.45, 0.45, 0.0),
    },
    "data parallel step": {
        3: (0.0, 0.0, 0.515, 0.0),
        1: (0.96, 1.014, 0.979, 0.986),
        2: (0.0, 0.535, 0.0, 0.0),
    },
    "zero 1": {
        5: (0.0, 0.0, 0.515, 0.0),
        1: (0.96, 1.014, 0.979, 0.986),
    },
    "zero 3": {
        3: (0.0, 0.0, 0.515, 0.0),
        2: (0.96, 1.014, 0.979, 0.986),
    },
    "normalized step": {
        3: (0.0, 0.307, 0.069, 0.325, 0.0, 0.0, 0.0),
        1: (0.0, 0.356, 0.064, 0.307, 0.66, 0.537, 0.0),
        6: (0.0, 0.219, 0.035, 0.322, 0.0, 0.0, 0.0),
        4: (0.0, 0.094, 0.071, 0.095, 0.0, 0.0, 0.0),
        7: (0.0, 1.277, 0.191, 0.474, 0.0, 0.0, 0.0),
    },
}
