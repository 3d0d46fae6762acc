"""The state of a rank, as it reports it: where it is, what it called, what failed, if it moves."""

import os
import pickle
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from . import waiting

# bytes acknowledged and received, in struct tcp_info of Linux 4.1 and later, <linux/tcp.h>
TCP_BYTES = struct.Struct("120xQQ")
MAX_TEXT = 10_000  # characters of an exception's text that are worth sending
Place = tuple[str, int, str]  # file, line, function


class Message(Enum):
    """What the launcher and a rank send each other, after the launcher has sent the job."""

    AT_WORK = auto()  # from the rank: it calls the function now
    DONE = auto()  # from the rank: its collectives, and then its result as bytes
    REFUSED = auto()  # from the rank: a call that disagrees with its peers', as a failure
    FAILED = auto()  # from the rank: its exceptions
    SIGNS = auto()  # a question, and its answer: signs of life
    WHERE = auto()  # a question, and its answer: whereabouts


class Raised(NamedTuple):
    """One exception."""

    places: list[Place]
    text: str


class Failure(NamedTuple):
    """Why the function ended on a rank."""

    chain: list[Raised]  # the exception and its causes, first cause first
    awaited: set[int]  # the ranks of the communication that broke; none: an error of its own
    in_torch: bool  # torch may have communicated by itself, with ranks that are not known

    def after(self, refusal: "Failure | None") -> "Failure":
        """Put a refused call first, or where it was raised again; what follows is its result."""
        if refusal is None:
            return self
        (first,) = refusal.chain
        chain = [first if each.text == first.text else each for each in self.chain]
        return refusal._replace(chain=chain if first in chain else [first, *chain])


@dataclass(frozen=True, kw_only=True)
class Call:
    """One collective, as torch's flight recorder saw it."""

    group: str
    number: int  # counts the group's collectives from 1
    op: str
    shapes: str
    place: Place | None


class Whereabouts(NamedTuple):
    """What a rank is doing: the line it has reached, and the collectives it has called so far."""

    finished: bool
    places: list[Place]
    calls: list[Call]
    waits_for: list[int]  # the ranks of the group, or the one rank, that it communicates with
    raised: str  # the class of the exception whose text is being made; empty: none


class Signs(NamedTuple):
    """Signs of life of a rank that waits; two of them tell whether the rank moved in between."""

    moves: int  # context switches of the main thread, or minus its waits in the store
    moved: int  # bytes sent and received over the TCP connections that are open
    used: float  # s of processor time, all threads
    clock: float  # s, when they were read

    def unmoved_since(self, earlier: "Signs") -> bool:
        """Tell whether the main thread has not run since `earlier`, and no message has moved.

        Other threads may wake now and then, as gloo's do, 100 times a second.
        """
        slept = self.used - earlier.used < 0.1 * (self.clock - earlier.clock)
        return self[:2] == earlier[:2] and slept  # moves and moved


# ---- where it is -------------------------------------------------------------------------------


def where(finished: bool, raised: str) -> Whereabouts:
    """Report where this rank is. raised: the class of the exception that it is about to report."""
    peers = sys.modules.get(f"{__package__}.peers")
    waits_for = peers.waits_for() if peers else []
    return Whereabouts(finished, places(waiting.main_frame()), calls(), waits_for, raised)


def places(frame: FrameType | None) -> list[Place]:
    """List the user's own lines on the stack, outermost first.

    Lines of the launcher, of threading, of torch and of what `comm.INTERNAL` lists are left out.
    """
    return _own_lines(_as_places(traceback.extract_stack(frame)) if frame else [])


def _as_places(stack: traceback.StackSummary) -> list[Place]:
    return [(each.filename, each.lineno or 0, each.name) for each in stack]


def _own_lines(stack: list[Place]) -> list[Place]:
    """Leave out the lines of our tools, and those of torch unless no other line is left."""
    launcher = Path(__file__).parent
    comm = sys.modules.get(f"{__package__.rpartition('.')[0]}.comm")  # it imports torch
    tools = *getattr(comm, "INTERNAL", ()), threading.__file__
    hidden = (str(launcher) + os.sep, *tools, "<frozen ")
    boot = ("<string>", "<module>")  # the line with which an interpreter was started (`python -c`)
    shown = [
        (file, line, function)
        for file, line, function in stack
        if not file.startswith(hidden) and (file, function) != boot
    ]
    if "torch" not in sys.modules:
        return shown
    torch = str(Path(sys.modules["torch"].__file__ or "").parent) + os.sep
    return [place for place in shown if not place[0].startswith(torch)] or shown


def failure(error: BaseException) -> Failure:
    """Report the exception with which the function ended."""
    if "torch.distributed" not in sys.modules:
        return Failure(_chain(error), set(), False)
    from . import peers

    return Failure(_chain(error), peers.awaited(error), peers.in_torch(error))


def _chain(error: BaseException) -> list[Raised]:
    chain: list[Raised] = []
    each: traceback.TracebackException | None = traceback.TracebackException.from_exception(error)
    while each is not None:
        chain.insert(0, _raised(each))
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    return chain


def _raised(error: traceback.TracebackException) -> Raised:
    stack = _as_places(error.stack)
    text = "".join(error.format_exception_only()).rstrip()
    if len(text) > MAX_TEXT:
        text = f"{text[:MAX_TEXT]} ... ({len(text)} characters)"
    return Raised(_own_lines(stack), text)


# ---- what it has called ------------------------------------------------------------------------


def calls(with_places: bool = True) -> list[Call]:
    """List the collectives that this rank has called, oldest first.

    Torch's flight recorder keeps them, for gloo and NCCL.
    """
    from torch._C import _distributed_c10d

    dump: Callable[..., bytes] | None = getattr(_distributed_c10d, "_dump_fr_trace", None)
    if dump is None:
        return []
    entries = pickle.loads(dump(includeStackTraces=with_places)).get("entries", [])
    return [_call(entry) for entry in entries if not entry["is_p2p"]]


def _call(entry: dict[str, Any]) -> Call:
    inputs = zip(entry["input_sizes"], entry["input_dtypes"], strict=False)
    stack = [(f["filename"], f["line"], f["name"]) for f in entry.get("frames", [])]
    own = _own_lines(stack)  # innermost first
    return Call(
        group=entry["process_group"][0],
        number=entry["collective_seq_id"],
        op=entry["profiling_name"].split(":")[-1],
        shapes=", ".join(f"{dtype}{list(shape)}" for shape, dtype in inputs),
        place=own[0] if own else None,
    )


# ---- whether it moves --------------------------------------------------------------------------


def signs(finished: bool) -> Signs | None:
    """Report signs of life; None if this rank may go on by itself, or where that is not shown."""
    try:
        if not waiting.for_ranks_alone(finished):
            return None
        # a rank that looks into the store wakes often; it moves when it has found something
        moves = -waiting.ended_in_store if waiting.in_store() else _switches()
        return Signs(moves, _moved(), time.process_time(), time.monotonic())
    except OSError:  # not Linux, or a thread that has just ended
        return None


def _switches() -> int:
    lines = Path(f"/proc/self/task/{os.getpid()}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)


def _moved() -> int:
    """Add up the bytes that TCP connections of this process have received, and got acknowledged."""
    moved = 0
    for each in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed by now, or not TCP
            if not os.readlink(f"/proc/self/fd/{each}").startswith("socket:"):
                continue
            with socket.fromfd(int(each), socket.AF_INET, socket.SOCK_STREAM) as copy:
                told = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_BYTES.size)
            moved += sum(TCP_BYTES.unpack(told))
    return moved
