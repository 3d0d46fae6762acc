"""Schedules that split the backward on a straight pipeline.

Qi et al. 2023, https://arxiv.org/abs/2401.10241.

The stage before waits only for the gradient of the input (I). The gradients of the weights (W) need
nothing but their I, and only the optimizer needs them: they fill what would be bubble.
"""

from collections import deque

from shardlab.files.arguments import Count, checked, within

from .action import Action


@checked
def zb_h1(stage: int, num_stages: Count, num_microbatches: Count) -> list[Action]:
    """Order one stage of ZB-H1 (section 2.1): the memory of 1F1B and a third of its bubble.

    That is its bubble when F, I and W take equally long.

    3 stages, 4 microbatches:

        stage 0: F0 F1 F2       I0 W0 F3 I1 W1 I2 W2 I3 W3
        stage 1:    F0 F1    I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
        stage 2:       F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3
    """
    return handmade(stage, num_stages, num_microbatches, depth=1)


@checked
def zb_h2(stage: int, num_stages: Count, num_microbatches: Count) -> list[Action]:
    """Order one stage of ZB-H2 (section 2.2): no stage ever waits, for nearly twice the memory.

    That holds when F, I and W take equally long. The stages begin and end one after the other, so
    the bubble is gone only where the first stages may begin the next batch while the last ones
    still end this one: no flush.

    3 stages, 5 microbatches:

        stage 0: F0 F1 F2 F3 F4 I0 W0 I1 W1 I2 W2 I3 W3 I4 W4
        stage 1:    F0 F1 F2 I0 F3 I1 F4 I2 W0 I3 W1 I4 W2 W3 W4
        stage 2:       F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 W1 W2 W3 W4
    """
    return handmade(stage, num_stages, num_microbatches, depth=2)


@checked
def handmade(stage: int, num_stages: Count, num_microbatches: Count, depth: int) -> list[Action]:
    """Order one stage of a handmade schedule of the paper.

    A stage runs `depth` forwards ahead for each stage after it, and `depth` W late for each stage
    before it.
    """
    within("stage", stage, num_stages)
    ahead = depth * (num_stages - 1 - stage)
    late = depth * stage
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
