"""One training step of any layout on any cluster, predicted part by part.

Read `run` first, which defines what is predicted, then `breakdown`, which adds up a step, and
`pipeline`, how stages wait for each other. Below them, `layer_time` adds up one layer of operations
(`compute.kernels`), `axes` finds the link of each axis, and `exposed` and `replicas` compute how
long a rank waits for messages, given what its program (`costs.program`) overlaps. `trace` writes
a step event by event, for `traces.replay` to play.
"""

from .breakdown import COMMUNICATION, SUMMARY, Step, holdings, step, tied_seconds, update_seconds
from .pipeline import (
    StageLayers,
    pipeline_seconds,
    send_seconds,
    sending_seconds,
    stages_of,
)
from .run import MicrobatchTime, Run, microbatch
from .trace import trace

__all__ = [
    "COMMUNICATION",
    "SUMMARY",
    "MicrobatchTime",
    "Run",
    "StageLayers",
    "Step",
    "holdings",
    "microbatch",
    "pipeline_seconds",
    "send_seconds",
    "sending_seconds",
    "stages_of",
    "step",
    "tied_seconds",
    "trace",
    "update_seconds",
]
