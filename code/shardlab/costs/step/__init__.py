"""One training step of any layout on any cluster, predicted part by part.

Read `run` first, which says what is predicted, then `breakdown`, which adds up a step, and `pipeline`, how stages wait
for each other. Their terms: `kernels` times single operations and `layer_time` a layer of them, `axes` finds the links
of each axis, and `exposed` what of their messages a rank waits for, under the habits of the `engines`.
"""

from .breakdown import COMMUNICATION, SUMMARY, Step, holdings, step, tied_seconds, update_seconds
from .pipeline import Stages, layers_of_stages, pipeline_seconds, send_seconds, sending_seconds, stages_of
from .run import Micro, Run, microbatch

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
