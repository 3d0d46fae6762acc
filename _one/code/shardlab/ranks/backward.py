"""The backward that autograd is running: whether there is one, and a call at its end.

No other file uses autograd's private names. Torch uses the same two itself: the number of a
backward in torch.utils.checkpoint, the call at its end in
torch/distributed/fsdp/_fully_shard/_fsdp_state.py.
"""

from collections.abc import Callable

import torch
from torch.autograd import Variable

NONE = -1  # the number of the backward when autograd runs none


def is_running() -> bool:
    """Tell whether autograd is running a backward in this thread."""
    return torch._C._current_graph_task_id() != NONE


def when_it_ends(call: Callable[[], None]) -> None:
    """Run `call` at the end of the backward that is running; never, if that backward fails."""
    Variable._execution_engine.queue_callback(call)


class Once:
    """Runs a call at the end of each backward, however many hooks of that backward ask for it."""

    def __init__(self) -> None:
        self._task = NONE  # autograd's number of the last backward

    def begins(self, at_the_end: Callable[[], None]) -> bool:
        """Tell whether this is a backward's first call; if so, run `at_the_end` when it ends."""
        task = torch._C._current_graph_task_id()
        if task == self._task:
            return False
        self._task = task
        when_it_ends(at_the_end)
        return True
