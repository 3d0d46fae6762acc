"""Context parallelism, predicted: one layer's attention over sequences that ranks share.

Read `strategies` first: bytes, messages, memory and balance of each strategy. `waiting` prices one
for the planner: what a rank waits for, and what it holds for a moment. `states` counts the bytes of
attention without softmax.
"""

from .states import sent_by_states
from .strategies import (
    STRATEGIES,
    SplitAttention,
    attention,
    balance,
    flops,
    messages,
    pairs,
    resident,
    sent_bytes,
    turns,
)
from .waiting import (
    PROGRAMS,
    at_work,
    exposed_seconds,
    held,
    hiding_tokens,
    of,
    ring_seconds,
    ring_steps,
)

__all__ = [
    "PROGRAMS",
    "STRATEGIES",
    "SplitAttention",
    "at_work",
    "attention",
    "balance",
    "exposed_seconds",
    "flops",
    "held",
    "hiding_tokens",
    "messages",
    "of",
    "pairs",
    "resident",
    "ring_seconds",
    "ring_steps",
    "sent_by_states",
    "sent_bytes",
    "turns",
]
