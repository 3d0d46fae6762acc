"""Exercise: bytes of parameters, gradients and optimizer states on one rank.

Rajbhandari et al. 2020, Figure 1 and Table 1, https://arxiv.org/abs/1910.02054.
"""

from shardlab.costs import memory
from shardlab.costs.facts.recipes import MIXED

from ..checker import Case, Exercise
from ..shared import formulas

PARTS = ("parameters", "gradients", "optimizer")


def states(num_parameters: float, dp: int, zero: int) -> dict[str, float]:
    """Compute the right answer."""
    return memory.model_states(num_parameters, MIXED, dp=dp, zero=zero)


def case(num_parameters: float, dp: int, zero: int) -> Case:
    """Make a case of these arguments."""
    title = f"ZeRO stage {zero}, {num_parameters:,.0f} parameter{'s' * (num_parameters > 1)}"
    given = {"num_parameters": num_parameters, "dp": dp, "zero": zero}
    return Case(world_size=dp, title=title, given=given)


EXERCISE = Exercise(
    name="memory.model_states",
    compare="shardlab.costs.memory.model_states",
    points=1,
    pure=True,
    cases=[
        case(1, 1, 0),
        *(case(10, 2, zero) for zero in range(4)),
        case(10, 3, 3),  # thirds, without padding
        *(case(7.5e9, 64, zero) for zero in range(4)),
    ],
    attempt=formulas.call,
    properties={
        "returns the bytes of three parts": formulas.has_parts(*PARTS),
        "parameters: 2 bytes each, cut with stage 3": formulas.is_part("parameters", states),
        "gradients: 2 bytes each, cut from stage 2 on": formulas.is_part("gradients", states),
        "optimizer states: three fp32 numbers each, cut from stage 1 on": (
            formulas.is_part("optimizer", states)
        ),
    },
)
