"""What a rank can say about itself: where it is, what it has called, what went wrong, whether it moves at all."""

import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

MAX_TEXT = 10_000  # characters of an exception's text that are worth sending
STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep
WAKEABLE = ("futex", "do_epoll_wait", "ep_poll")  # where in the kernel a thread sleeps until another wakes it
Place = tuple[str, int, str]  # file, line, function


class Failure(NamedTuple):
    """One exception of a chain, first cause first."""

    places: list[Place]
    text: str


class Call(NamedTuple):
    """One collective as torch's flight recorder saw it."""

    group: str
    number: int  # counts the group's collectives from 1
    op: str
    shapes: str
    place: Place | None


class Whereabouts(NamedTuple):
    """What a rank is doing: the line it has come to, and the collectives it has called so far."""

    finished: bool
    places: list[Place]
    calls: list[Call]


class Signs(NamedTuple):
    """Signs of life of a rank that waits; two looks apart they tell whether it has moved in between."""

    switches: int  # how often its main thread has gone to sleep or was put to sleep
    used: float  # s of processor time, all threads
    clock: float  # s, when this was so

    def still_those_of(self, earlier: "Signs") -> bool:
        """Whether the main thread never ran. The others may wake now and then, as gloo's do, 100 times a second."""
        return self.switches == earlier.switches and self.used - earlier.used < 0.1 * (self.clock - earlier.clock)


# ---- where it is -----------------------------------------------------------------------------------------------------


def where(finished: bool) -> Whereabouts:
    return Whereabouts(finished, places(_main_frame()), calls())


def _main_frame() -> FrameType | None:
    return sys._current_frames().get(threading.main_thread().ident or 0)


def places(frame: FrameType | None) -> list[Place]:
    """The stack, outermost first: the reader's own lines, not those of the launcher, comm, the ledger or torch."""
    return _theirs([(f.filename, f.lineno or 0, f.name) for f in traceback.extract_stack(frame)] if frame else [])


def _theirs(stack: list[Place]) -> list[Place]:
    ours = Path(__file__).parent
    tools = (str(ours.parent / name) for name in ("comm.py", "observe/ledger.py"))
    hidden = (str(ours) + os.sep, *tools, "<frozen ")
    stack = [place for place in stack if not place[0].startswith(hidden) and place[::2] != ("<string>", "<module>")]
    torch = str(Path(sys.modules["torch"].__file__ or "").parent) + os.sep if "torch" in sys.modules else "<none>"
    return [place for place in stack if not place[0].startswith(torch)] or stack


def chain(error: BaseException) -> list[Failure]:
    """The exception and what caused it, first cause first."""
    failures: list[Failure] = []
    told: set[int] = set()
    seen: BaseException | None = error
    while seen is not None and id(seen) not in told:  # `raise error from error` makes a circle
        told.add(id(seen))
        stack = [(f.filename, f.lineno or 0, f.name) for f in traceback.extract_tb(seen.__traceback__)]
        text = "".join(traceback.format_exception_only(seen)).rstrip()
        if len(text) > MAX_TEXT:
            text = f"{text[:MAX_TEXT]} ... ({len(text)} characters)"
        failures.insert(0, Failure(_theirs(stack), text))
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return failures


# ---- what it has called ----------------------------------------------------------------------------------------------


def calls(with_places: bool = True) -> list[Call]:
    """The collectives this rank has called, oldest first, as torch's flight recorder keeps them (gloo and NCCL)."""
    from torch._C import _distributed_c10d

    dump: Callable[..., bytes] | None = getattr(_distributed_c10d, "_dump_fr_trace", None)
    if dump is None:
        return []
    entries = pickle.loads(dump(includeStackTraces=with_places)).get("entries", [])
    return [_call(entry) for entry in entries if not entry["is_p2p"]]


def _call(entry: dict[str, Any]) -> Call:
    inputs = zip(entry["input_sizes"], entry["input_dtypes"], strict=False)
    shapes = ", ".join(f"{dtype}{list(shape)}" for shape, dtype in inputs)
    frames = [(f["filename"], f["line"], f["name"]) for f in entry.get("frames", [])]
    theirs = _theirs(frames)  # innermost first
    op = entry["profiling_name"].split(":")[-1]
    return Call(entry["process_group"][0], entry["collective_seq_id"], op, shapes, theirs[0] if theirs else None)


# ---- whether it moves ------------------------------------------------------------------------------------------------


def signs(finished: bool) -> Signs | None:
    """Signs of life, or None when this rank does not only wait for others (or where that cannot be seen)."""
    try:
        waits = finished or (_waits_in_torch() and _threads_sleep())
        return Signs(_switches(), time.process_time(), time.monotonic()) if waits else None
    except OSError:  # not Linux, or a thread that has just ended
        return None


def _waits_in_torch() -> bool:
    """Python's own waits (a queue, an event, a child, asyncio) may have a time-out, or wait for no other rank."""
    frame = _main_frame()
    file = frame.f_code.co_filename if frame else STANDARD_LIBRARY
    return not file.startswith(STANDARD_LIBRARY) or f"{os.sep}site-packages{os.sep}" in file


def _threads_sleep() -> bool:
    """Whether the main thread sleeps until another wakes it, and no other thread waits for a clock, disk or child."""
    threads = {int(thread): _sleeps_in(thread) for thread in os.listdir("/proc/self/task")}
    threads.pop(threading.get_native_id())
    main = threads.pop(os.getpid())
    return main.startswith("futex") and all(each == "0" or each.startswith(WAKEABLE) for each in threads.values())


def _sleeps_in(thread: str) -> str:
    """The kernel function in which a thread sleeps; "0" while it runs."""
    return Path(f"/proc/self/task/{thread}/wchan").read_text()


def _switches() -> int:
    lines = Path(f"/proc/self/task/{os.getpid()}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)
