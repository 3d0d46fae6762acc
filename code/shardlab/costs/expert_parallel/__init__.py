"""Expert parallelism, predicted: bytes, load and time of a mixture of experts.

Read `exchange` first, what a token sends, and `routed`, the same to the byte; `with_tensor`, with
ranks of tensor parallelism; then `load`, who waits for the fullest expert; `mixture`, whole models;
and `timing`, one layer on a machine.
"""

from .exchange import (
    Exchange,
    copies,
    hiding_width,
    sent_bytes,
)
from .load import (
    arrivals,
    chosen,
    expected_imbalance,
    favours,
    imbalance,
    loads,
)
from .mixture import flops, gpu_hours
from .routed import landed, messages, rows
from .timing import MACHINES, Machine, exchange, layer, machine, travelling
from .with_tensor import tensor_ways

__all__ = [
    "MACHINES",
    "Exchange",
    "Machine",
    "arrivals",
    "chosen",
    "copies",
    "exchange",
    "expected_imbalance",
    "favours",
    "flops",
    "gpu_hours",
    "hiding_width",
    "imbalance",
    "landed",
    "layer",
    "loads",
    "machine",
    "messages",
    "rows",
    "sent_bytes",
    "tensor_ways",
    "travelling",
]
