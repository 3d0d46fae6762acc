"""Exercise: bytes of parameters, gradients and optimizer states on one of many ranks (ZeRO's Figure 1 and Table 1)."""

from shardlab.costs import memory
from shardlab.costs.facts.recipes import MIXED

from .. import evidence
from ..checker import Case, Exercise

PARTS = ("parameters", "gradients", "optimizer")
STARTER = '''\
def my_model_states(num_parameters, dp, zero):
    """Bytes on one of dp ranks: 16-bit parameters and gradients, Adam in fp32.

    zero=0: every rank holds everything. From 1 on the optimizer's part is cut
    into dp pieces, from 2 on the gradients too, with 3 the parameters too.
    """
    return {"parameters": 2 * num_parameters, "gradients": 0, "optimizer": 0}
'''


def states(num_parameters: float, dp: int, zero: int) -> dict[str, float]:
    return memory.model_states(num_parameters, MIXED, dp=dp, zero=zero)


def case(num_parameters: float, dp: int, zero: int) -> Case:
    title = f"ZeRO stage {zero}, {num_parameters:,.0f} parameter{'s' * (num_parameters > 1)}"
    return Case(world_size=dp, title=title, given={"num_parameters": num_parameters, "dp": dp, "zero": zero})


EXERCISE = Exercise(
    name="memory.model_states",
    prompt="Say how many bytes of parameters, gradients and optimizer states one rank holds, with ZeRO and without.",
    starter=STARTER,
    hint=(
        "Adam keeps a momentum and a variance for each parameter, in fp32; and with 16-bit parameters the optimizer "
        "keeps a third fp32 number, the weight itself, because a short step would vanish in 16 bits."
    ),
    points=1,
    pure=True,
    cases=[case(1, 1, 0), *(case(10, 2, zero) for zero in range(4)), *(case(7.5e9, 64, zero) for zero in range(4))],
    attempt=evidence.call,
    properties={
        "returns the bytes of three parts": evidence.has_parts(*PARTS),
        "parameters are cut with stage 3": evidence.is_part("parameters", states),
        "gradients are cut from stage 2 on": evidence.is_part("gradients", states),
        "the optimizer holds three fp32 numbers, cut from stage 1 on": evidence.is_part("optimizer", states),
    },
)
