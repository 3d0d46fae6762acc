"""End ranks of torchrun or mpiexec before the threads that torch leaves behind abort them.

On Python 3.10 and 3.11 the threads of torch 2.13 may abort a process that is being taken down
("terminate called without an active exception"), after right results, and torchrun calls the
program failed. The fault is torch's: `init_process_group`, DDP, `all_gather_object` and
`destroy_process_group` are enough. Try again without this file from torch 2.14 on.
"""

import atexit
import dis
import gc
import io
import os
import sys
import threading
from types import FrameType
from typing import Any

RETURNS = ("RETURN_VALUE", "RETURN_CONST")


def leave_at_the_end(groups: dict[int, Any]) -> None:
    """Release all groups, with `groups`, at the end of the program; leave at once if it returned.

    A program that raised, or called `sys.exit`, ends as Python ends it: a handler of atexit cannot
    know its status.
    """
    atexit.register(_release, groups, _Last(_program()))


def returned(program: FrameType) -> bool:
    """Tell whether a frame has come to its return, and not to an exception."""
    last = program.f_code.co_code[program.f_lasti]
    return dis.opname[last] in RETURNS


class _Last:
    """What atexit lets go of when every handler has run, also those that were registered before."""

    def __init__(self, program: FrameType) -> None:
        self.program = program

    def __del__(self) -> None:
        if returned(self.program):
            finalize_mpi()
            _flush()
            os._exit(0)


def _release(groups: dict[int, Any], _: _Last) -> None:
    """Release every group; one that still exists when the interpreter ends aborts the process."""
    import torch.distributed as dist

    groups.clear()
    if dist.is_initialized():
        dist.destroy_process_group()


def _program() -> FrameType:
    """Return the first frame of the main thread: the script, or what `python -m` runs it with."""
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    while frame.f_back is not None:
        frame = frame.f_back
    return frame


def finalize_mpi() -> None:
    """Say goodbye to MPI, which would call this rank lost."""
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.Finalize()


def _flush() -> None:
    """Write out what open files still hold, as the end of the interpreter would."""
    for file in gc.get_objects():
        if issubclass(type(file), io.IOBase) and not file.closed:
            file.flush()
