"""Exercise: bytes of parameters, gradients and optimizer states on one rank.

Rajbhandari et al. 2020, Figure 1 and Table 1, https://arxiv.org/abs/1910.02054.
"""

from shardlab.costs import memory
from shardlab.costs.facts.recipes import MIXED

from ..checker import Case, Exercise
from ..shared import formulas

PARTS = ("parameters", "gradients", "optimizer")
STARTER = '''\
def my_model_states(num_parameters, dp, zero):
    """Return bytes on one of dp ranks: 16-bit parameters and gradients, Adam in fp32.

    zero=0: every rank holds everything. From stage 1 on the optimizer states are cut
    into dp pieces, from stage 2 on the gradients too, in stage 3 the parameters too.
    """
    return {"parameters": 2 * num_parameters, "gradients": 0, "optimizer": 0}
'''


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
    prompt=(
        "Say how many bytes of parameters, gradients and optimizer states one rank holds, with "
        "ZeRO and without."
    ),
    starter=STARTER,
    hints=(
        (
            "Which numbers does Adam read and write in a step, besides a parameter and its "
            "gradient? Ask again for a parameter in 16 bits."
        ),
        (
            "A 16-bit number is too coarse to add up many short steps. Whatever must add up has to "
            "be kept in fp32, beside the parameter."
        ),
        (
            "Adam keeps a momentum and a variance for each parameter, in fp32; with 16-bit "
            "parameters the optimizer keeps a third fp32 number, the weight itself, because a "
            "short step would vanish in 16 bits."
        ),
    ),
    compare="shardlab.costs.memory.model_states",
    points=1,
    pure=True,
    cases=[
        case(1, 1, 0),
        *(case(10, 2, zero) for zero in range(4)),
        *(case(7.5e9, 64, zero) for zero in range(4)),
    ],
    attempt=formulas.call,
    properties={
        "returns the bytes of three parts": formulas.has_parts(*PARTS),
        "parameters are cut with stage 3": formulas.is_part("parameters", states),
        "gradients are cut from stage 2 on": formulas.is_part("gradients", states),
        "the optimizer holds three fp32 numbers, cut from stage 1 on": (
            formulas.is_part("optimizer", states)
        ),
    },
)
