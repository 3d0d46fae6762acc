"""Schedules that split the backward on a straight pipeline: Qi et al. 2023 (https://arxiv.org/abs/2401.10241).

The stage before waits only for the gradient of the input (I). The gradients of the weights (W) need nothing but their
I, and nobody needs them before the optimizer: they fill what would be bubble.
"""

from collections import deque

from .action import Action


def zb_h1(stage: int, num_stages: int, num_microbatches: int) -> list[Action]:
    """ZB-H1 (section 2.1): the memory of 1F1B and a third of its bubble, when F, I and W take equally long.

    3 stages, 4 microbatches:

        stage 0: F0 F1 F2       I0 W0 F3 I1 W1 I2 W2 I3 W3
        stage 1:    F0 F1    I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
        stage 2:       F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3
    """
    return handmade(stage, num_stages, num_microbatches, depth=1)


def zb_h2(stage: int, num_stages: int, num_microbatches: int) -> list[Action]:
    """ZB-H2 (section 2.2): no stage ever waits, when F, I and W take equally long, for nearly twice the memory.

    The stages begin and end one after the other. So there is no bubble only where the first stages may begin the next
    batch while the last ones still end this one: no flush.

    3 stages, 5 microbatches:

        stage 0: F0 F1 F2 F3 F4 I0 W0 I1 W1 I2 W2 I3 W3 I4 W4
        stage 1:    F0 F1 F2 I0 F3 I1 F4 I2 W0 I3 W1 I4 W2 W3 W4
        stage 2:       F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 W1 W2 W3 W4
    """
    return handmade(stage, num_stages, num_microbatches, depth=2)


def handmade(stage: int, num_stages: int, num_microbatches: int, depth: int) -> list[Action]:
    """For each stage after this one `depth` forwards ahead; for each stage before it every W late by `depth`."""
    ahead, late = depth * (num_stages - 1 - stage), depth * stage
    order = [Action("F", m) for m in range(min(ahead, num_microbatches))]
    waiting: deque[int] = deque()
    for m in range(num_microbatches):
        if m + ahead < num_microbatches:
            order.append(Action("F", m + ahead))
        order.append(Action("I", m))
        waiting.append(m)
        if len(waiting) > late:
            order.append(Action("W", waiting.popleft()))
    return order + [Action("W", m) for m in waiting]
