"""The process of a handed-in file: it imports the file, runs its functions on ranks, and replies.

Nothing that happens here decides a verdict: `grader`, in another process, judges the replies, which
are plain data. Requests and replies are lines of JSON on a socket.
"""

import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any, NoReturn, TextIO

from . import attempts, find, homework, notebook
from .checker import Exercise

ANSWERS = "answers"  # the name of the file as a module
TAUGHT: dict[str, Exercise] = {}  # the exercises of a teacher's file, by name
Reply = dict[str, Any]


def serve(descriptor: int) -> NoReturn:
    """Reply to the grader's requests: a teacher's file if there is one, the file, exercises."""
    os.set_inheritable(descriptor, False)  # what the file starts shall not hold the socket
    channel, process = socket.socket(fileno=descriptor), os.getpid()
    requests: Queue[str] = Queue()
    Thread(target=_read, args=(channel.makefile(), requests), daemon=True).start()

    def reply(act: Callable[[Any], Reply]) -> None:
        text = json.dumps(_caught(act, json.loads(requests.get())))
        if os.getpid() != process:  # the file has forked, and the copy has returned from it
            os._exit(0)
        channel.sendall(text.encode() + b"\n")

    reply(_teach)
    attempts.limit_memory(attempts.MEMORY)
    reply(_import)
    while True:
        reply(_attempt)


def _read(channel: TextIO, requests: "Queue[str]") -> None:
    """Pass the requests on; when the grader has ended, end this process and its group."""
    with suppress(OSError):
        for request in channel:
            requests.put(request)
    os.killpg(0, signal.SIGKILL)


def _teach(taught: dict[str, Any] | None) -> Reply:
    """Read a teacher's file, which the grader has read before."""
    if taught:
        TAUGHT.update(homework.read(Path(taught["file"]), taught["seed"]).exercises)
    return {}


def _import(file: str) -> Reply:
    """Import the file; tell an error in one line."""
    try:
        notebook.load(Path(file), ANSWERS)
    except BaseException as error:
        return {"stopped": notebook.blame(file, error)}
    return {}


def _attempt(name: str) -> Reply:
    """Run the function of one exercise."""
    exercise = TAUGHT.get(name) or find(name)
    function = getattr(sys.modules[ANSWERS], exercise.function, None)
    return {"missing": True} if function is None else vars(attempts.observe(exercise, function))


def _caught(act: Callable[[Any], Reply], request: Any) -> Reply:
    """Act; an exception becomes a reply, too. All that was printed comes before it."""
    try:
        reply = act(request)
    except BaseException as error:
        story = traceback.format_exception(type(error), error, error.__traceback__, limit=-1)
        reply = {"stopped": "".join(story)}
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the file may have put anything in its place
            stream.flush()
    return reply
