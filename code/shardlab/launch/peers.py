"""Note with which ranks a communication broke, so that a rank that lost a peer is known as such.

Gloo raises RuntimeError for a wrong argument and for a lost connection alike. So what counts is
where an error comes out: a collective checks its arguments when it starts, and meets its peers
while the rank waits for it. A message needs its connection when it starts, too.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from traceback import walk_tb
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

NOTE = "shardlab_awaited"  # name of an error's attribute: the ranks that were waited for
MESSAGES = ("send", "recv")  # the second argument is the other rank
AT_ONCE = (*MESSAGES, "recv_anysource", "monitored_barrier")  # these need a connection to start
TORCHS_OWN = tuple(  # here torch's C++ communicates by itself; DDP's all-reduces are an example
    str(Path(torch.__file__).parent / name) for name in ("distributed", "autograd", "nn/parallel")
)
Awaited = tuple[dist.ProcessGroup | None, int | None]  # a group, and one rank; None: all

_awaited: WeakKeyDictionary[dist.Work, Awaited] = WeakKeyDictionary()  # by what is in flight
_waits: dict[int, Awaited] = {}  # by thread, while it waits


def install(tell: Mapping[str, Callable[..., None]]) -> None:
    """Let each communication that Python starts in this process note its ranks on its errors.

    tell: what gets the arguments before anything is sent, by name of ProcessGroup's method.
    """
    for name, method in [*vars(dist.ProcessGroup).items()]:
        if name in AT_ONCE or "-> c10d::Work" in (method.__doc__ or ""):
            setattr(dist.ProcessGroup, name, starting(name, method, tell.get(name)))
    dist.Work.wait = waiting(dist.Work.wait)  # type: ignore[method-assign]


def starting(
    name: str, start: Callable[..., Any], tell: Callable[..., None] | None
) -> Callable[..., Any]:
    """Wrap a method of torch's ProcessGroup, which starts a communication."""

    @wraps(start)
    def started(group: dist.ProcessGroup, *args: Any, **options: Any) -> Any:
        given = (*args, *options.values())
        peer = given[1] if name in MESSAGES else None
        if name == "monitored_barrier" and group.rank():
            peer = 0  # which waits for all others
        if tell:
            tell(group, *given)
        try:
            with _known_as_waiting((group, peer)):
                work = start(group, *args, **options)
        except RuntimeError as error:
            if name in AT_ONCE:
                _note(error, (group, peer))
            raise
        if isinstance(work, dist.Work):
            _awaited[work] = group, peer
        return work

    return started


def waiting(wait: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the method of torch's Work that waits for what was started."""

    @wraps(wait)
    def waited(work: dist.Work, *args: Any, **options: Any) -> Any:
        awaited = _awaited.get(work, (None, None))
        try:
            with _known_as_waiting(awaited):
                return wait(work, *args, **options)
        except RuntimeError as error:
            _note(error, awaited)
            raise

    return waited


@contextmanager
def _known_as_waiting(awaited: Awaited) -> Iterator[None]:
    """Let `waits_for` say for whom this thread waits meanwhile."""
    thread = threading.get_ident()
    _waits[thread] = awaited
    try:
        yield
    finally:
        del _waits[thread]


def waits_for() -> list[int]:
    """List the ranks that the main thread waits for now: a group, or one; none if it does not."""
    awaited = _waits.get(threading.main_thread().ident or 0)
    return _ranks(awaited) if awaited else []


def _ranks(awaited: Awaited) -> list[int]:
    group, peer = awaited
    ranks: list[int] = dist.get_process_group_ranks(group)
    return ranks if peer is None else [ranks[peer]]


def _note(error: RuntimeError, awaited: Awaited) -> None:
    vars(error)[NOTE] = {*_ranks(awaited)}


# ---- when a rank has failed ----------------------------------------------------------------------


def awaited(error: BaseException) -> set[int]:
    """Return the ranks that this rank waited for when the error, or a cause of it, was raised.

    Without such a communication there are none.
    """
    return {rank for each in _causes(error) for rank in vars(each).get(NOTE, ())}


def in_torch(error: BaseException) -> bool:
    """Tell whether torch raised the error, or a cause, where it may have communicated by itself."""
    return any(isinstance(each, dist.DistError) or _inside_torch(each) for each in _causes(error))


def _inside_torch(error: BaseException) -> bool:
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    files = [frame.f_code.co_filename for frame in frames[-1:]]
    return type(error) is RuntimeError and any(file.startswith(TORCHS_OWN) for file in files)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """List an error, what it was raised from, and what was being handled then."""
    ahead, listed = [error], set[int]()
    while ahead:
        each = ahead.pop()
        if each is not None and id(each) not in listed:  # `raise error from error` is a circle
            listed.add(id(each))
            yield each
            ahead += [each.__cause__, each.__context__]
