"""The options of all programs for one plan."""

from math import ceil

from shardlab.files.arguments import Positive, checked

from ..plans import Question, TrainingPlan, training_of
from .deepspeed import deepspeed
from .megatron import megatron
from .options import Flags
from .torchtitan import torchtitan


@checked
def every(question: Question, plan: TrainingPlan, tokens: Positive) -> list[Flags]:
    """Return the options of each program for a plan, and for a training on this many tokens.

    Errors: ValueError for a plan without a microbatch size.
    """
    training = training_of(question, plan)
    steps = ceil(tokens / (question.batch * question.length))
    return [program(question, training, steps) for program in (torchtitan, megatron, deepspeed)]
