"""One training step of any layout on any cluster, predicted part by part.

Read `breakdown` first, which adds up a step. Its terms: `kernels` times single operations and `layer_time` a layer of
them, `axes` finds the links of each axis, and `exposed` what of their messages a rank waits for, under the habits of
the `engines`.
"""

from .breakdown import (
    COMMUNICATION,
    SUMMARY,
    Micro,
    Run,
    Stages,
    Step,
    holdings,
    layers_of_stages,
    microbatch,
    pipeline_seconds,
    send_seconds,
    sending_seconds,
    stages_of,
    step,
    tied_seconds,
    update_seconds,
)

__all__ = [
    "COMMUNICATION",
    "SUMMARY",
    "Micro",
    "Run",
    "Stages",
    "Step",
    "holdings",
    "layers_of_stages",
    "microbatch",
    "pipeline_seconds",
    "send_seconds",
    "sending_seconds",
    "stages_of",
    "step",
    "tied_seconds",
    "update_seconds",
]
