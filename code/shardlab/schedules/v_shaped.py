"""Schedules in the shape of a V: a microbatch goes down the stages and comes back with chunk 1.

The first stage has both ends of the model, so its loss turns back at once, and tied embeddings stay
on one rank.
"""

import re
from collections import Counter

from shardlab.files.arguments import Count, checked, within

from .action import Action


@checked
class Draft:
    """An order while it is written; each chunk takes its microbatches by rising number."""

    def __init__(self) -> None:
        self.order: list[Action] = []
        self.count: Counter[tuple[bool, int]] = Counter()  # (forward or not, chunk) -> written
        self.due: list[Action] = []  # W whose I is written, oldest first

    def write(self, words: str, times: int = 1) -> None:
        """Append `words` such as "F0 I1 W &B1", `times` times.

        A word is a kind and a chunk. W alone is the oldest W that is due; & joins a word to the one
        before it. Errors: ValueError for another word, and for a W that is not due.
        """
        for word in words.split() * times:
            if re.fullmatch("W[01]?", word):
                self._settle(chunk=word[1:])
            elif re.fullmatch("&?[FBI][01]", word):
                self._add(kind=word[-2], chunk=int(word[-1]), joined=word.startswith("&"))
            else:
                raise ValueError(f"words={words!r} has {word!r}; write words like F0, &B1, W or W0")

    def _settle(self, chunk: str) -> None:
        """Append the oldest W that is due; of `chunk`, unless that is empty."""
        for place, action in enumerate(self.due):
            if chunk in ("", str(action.chunk)):
                self.order.append(self.due.pop(place))
                return
        raise ValueError(f"no W{chunk} is due after {self.order}; write its I first")

    def _add(self, kind: str, chunk: int, joined: bool) -> None:
        counted = kind == "F", chunk
        microbatch = self.count[counted]
        self.count[counted] += 1
        self.order.append(Action(kind, microbatch, chunk, joined))
        if kind == "I":
            self.due.append(Action("W", microbatch, chunk))

    def first(self, num_microbatches: int) -> list[Action]:
        """Return the order of the first `num_microbatches` only: it can run if the whole can."""
        kept: list[Action] = []
        before: Action | None = None
        for action in self.order:
            if action.microbatch < num_microbatches:
                joined = action.joined and before in kept[-1:]
                kept.append(action._replace(joined=joined))
            before = action
        return kept


@checked
def zb_v(stage: int, num_stages: Count, num_microbatches: Count) -> list[Action]:
    """Order one stage of ZB-V: like ZB-H2, with the memory of 1F1B.

    Qi et al. 2023, https://arxiv.org/abs/2401.10241, section 6.

    2 stages, 3 microbatches:

        stage 0: F0   F1   F2   F0.1 I0.1 W0.1 F1.1 I1.1 W1.1 I0   W0   F2.1 I2.1 W2.1 I1   W1   I2   W2
        stage 1:      F0   F0.1 F1   F1.1 I0.1 W0.1 F2   I0   W0   F2.1 I1.1 W1.1 I1   I2.1 I2   W1   W2.1 W2
    """
    within("stage", stage, num_stages)
    before = stage
    after = num_stages - 1 - stage
    total = max(num_microbatches, 2 * num_stages - 1)
    draft = Draft()
    draft.write("F0", 2 * after + 1)
    draft.write("F1 F0", before)
    draft.write("F1 I1 W1", after + 1)
    draft.write("F0 I0 W0 F1 I1 W1", total - num_stages - after)
    draft.write("I0 W0 F1 I1 W1", after)
    draft.write("I0 I1", before)
    draft.write("I0 W0", after + 1)
    draft.write("W", 2 * before)
    return draft.first(num_microbatches)


@checked
def dualpipe_v(stage: int, num_stages: Count, num_microbatches: Count) -> list[Action]:
    """Order one stage of DualPipe-V: DualPipe cut in half by Sea AI Lab.

    DeepSeek-AI 2024, https://arxiv.org/abs/2412.19437; the cut: https://hackmd.io/@ufotalent/r1lVXsa9Jg;
    the program: https://github.com/deepseek-ai/DualPipe.

    A forward and a backward run at the same time, so that the messages of one hide behind the
    matrix products of the other.

    2 stages, 3 microbatches (from 4 on, there are pairs in the middle of every stage):

        stage 0: F0   F1   F2   F0.1 I0.1 W0.1 F1.1 B1.1      F2.1 &B0  B2.1 B1        I2   W2
        stage 1:      F0   F0.1 F1   F1.1 F2   B0.1 F2.1 &B0  B1.1 B1        B2.1 B2
    """
    within("stage", stage, num_stages)
    before = stage
    after = num_stages - 1 - stage
    total = max(num_microbatches, 2 * num_stages)
    draft = Draft()
    draft.write("F0", 2 * after)
    draft.write("F0 F1", before + 1)
    draft.write("I1 W F1", after)
    steady = total - num_stages - after
    if after == 0:  # the turning point: a joined pair here would only delay what all wait for
        draft.write("F0 B1 F1 &B0")
        steady -= 1
    draft.write("F0 &B1 F1 &B0", steady)
    draft.write("B1 F1 &B0", after)
    last = ["B1", "B0"] * (before + 1)
    whole = " ".join(last[: before + 1])
    split = " ".join(last[before + 1 :]).replace("B", "I")
    draft.write(whole)
    draft.write(split)
    draft.write("W I0", after)
    draft.write("W", before + 1)
    return draft.first(num_microbatches)
