"""The sizes and rules of a mixture of experts: how tokens find their experts, and how many fit.

A router gives every expert a score for every token, and the token goes to the `per_token` experts
with the highest scores: Shazeer et al. 2017 (https://arxiv.org/abs/1701.06538). The rules come from

    capacity             GShard (https://arxiv.org/abs/2006.16668), Switch (https://arxiv.org/abs/2101.03961)
    softmax after        Mixtral (https://arxiv.org/abs/2401.04088), section 2.1
    sigmoid, shared      DeepSeek-V3 (https://arxiv.org/abs/2412.19437), section 2.1.2
    a bias, not a loss   Wang et al. 2024 (https://arxiv.org/abs/2408.15664)
"""

from dataclasses import dataclass
from math import ceil, comb

from shardlab.files.arguments import Count, checked

CHOICES = ("softmax before", "softmax after", "sigmoid")
BALANCES = ("none", "loss", "bias")


@dataclass(frozen=True, kw_only=True)
@checked
class Experts:
    """The mixture that stands in place of every feed-forward block; each expert is a SwiGLU block.

    choose    what a token's weights for its experts are made of
        "softmax before"  the choice: shares of a softmax over all experts, which add up to
                          less than 1 (Switch)
        "softmax after"   the choice: a softmax over the chosen experts alone (Mixtral)
        "sigmoid"         of each score, divided by the sum over the chosen experts (DeepSeek-V3)
    capacity  None: every expert takes all tokens that choose it. Otherwise its slots, as a multiple
              of what it takes when the load is even; tokens that find no slot skip the expert
    balance   what evens out the load
        "none"  nothing
        "loss"  `loss_weight` times the balance loss of Switch, which is 1 when the load is even, is
                added per layer
        "bias"  is added to each score for the choice alone, and changes by `bias_step` after every
                step

    Errors: ValueError for more experts per token than there are, for a capacity below 1 and for an
    unknown rule.
    """

    num_experts: Count
    per_token: Count  # experts that each token chooses
    expert_size: Count  # width of the hidden layer of one expert
    num_shared: int = 0  # experts of the same width that every token uses
    shared_gate: bool = False  # whether each token weights what the shared experts give
    choose: str = "softmax after"
    capacity: float | None = None
    balance: str = "none"
    loss_weight: float = 0.01  # Switch, section 2.2
    bias_step: float = 0.001  # DeepSeek-V3, section 4.2

    def __post_init__(self) -> None:
        if self.per_token > self.num_experts:
            raise ValueError(
                f"a token cannot use per_token={self.per_token} of "
                f"num_experts={self.num_experts} experts; use per_token = 1 to {self.num_experts}"
            )
        if self.capacity is not None and self.capacity < 1:
            raise ValueError(
                f"capacity={self.capacity} drops tokens even when the load is even; "
                f"use 1 or more, or None to drop none"
            )
        for name, value, known in (
            ("choose", self.choose, CHOICES),
            ("balance", self.balance, BALANCES),
        ):
            if value not in known:
                raise ValueError(f"unknown {name}={value!r}; known: {', '.join(known)}")

    @property
    def shared_size(self) -> int:
        """The width of all shared experts together, which are computed as one block."""
        return self.num_shared * self.expert_size

    def slots(self, tokens: Count) -> int:
        """Count the tokens of a batch that one expert can take; without a capacity, all of them."""
        if self.capacity is None:
            return tokens
        return min(tokens, ceil(self.capacity * tokens * self.per_token / self.num_experts))


@checked
def distinct(groups: Count, size: Count, chosen: Count) -> float:
    """Count the groups that hold at least one of `chosen` items, on average over all choices.

    A group of `size` items has none of them in C(n - size, chosen) of C(n, chosen) choices, where
    n = groups * size. Errors: ValueError for more chosen items than there are.
    """
    items = groups * size
    if chosen > items:
        raise ValueError(f"chosen={chosen} is more than {groups} groups of size={size} have")
    return groups * (1 - comb(items - size, chosen) / comb(items, chosen))
