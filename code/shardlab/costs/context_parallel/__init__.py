"""Context parallelism, predicted: one layer's attention over sequences that ranks share.

Read `ways` first: bytes, messages, memory and balance of each way to let every query see every key.
`waiting` prices a way for the planner: what a rank waits for, and what it holds for a moment.
"""

from .waiting import (
    PROGRAMS,
    at_work,
    exposed_seconds,
    hiding_tokens,
    of,
    ring_seconds,
    ring_steps,
)
from .ways import (
    WAYS,
    SplitAttention,
    attention,
    balance,
    flops,
    held,
    messages,
    pairs,
    resident,
    sent_bytes,
    turns,
)

__all__ = [
    "PROGRAMS",
    "WAYS",
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
    "sent_bytes",
    "turns",
]
