"""Expert parallelism, predicted: bytes and load of a mixture of experts.

Read `dispatch` first, what a token sends; then `load`, who waits for the fullest expert, and
`redundant`, spare copies of it. The time of a layer is in `step.experts`.
"""

from .dispatch import (
    TokenTraffic,
    copies,
    hiding_width,
    sent_bytes,
    travelling,
)
from .load import (
    arrivals,
    chosen,
    expected_imbalance,
    favours,
    imbalance,
    loads,
)
from .redundant import (
    rank_loads,
    replicated,
)

__all__ = [
    "TokenTraffic",
    "arrivals",
    "chosen",
    "copies",
    "expected_imbalance",
    "favours",
    "hiding_width",
    "imbalance",
    "loads",
    "rank_loads",
    "replicated",
    "sent_bytes",
    "travelling",
]
