"""The process of a handed-in file: it imports the file, runs its functions on ranks, and replies.

Nothing that happens here decides a verdict: `grader`, in another process, judges the replies, which
are plain data. Requests and replies are lines of JSON on a socket.
"""

import json
import os
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from . import attempts, find, homework, notebook
from .checker import Exercise

ANSWERS = "answers"  # the name of the file as a module
TAUGHT: dict[str, Exercise] = {}  # the exercises of a teacher's file, by name
Reply = dict[str, Any]


def serve(descriptor: int) -> NoReturn:
    """Reply to the grader's requests: a teacher's file if there is one, the file, exercises.

    An exercise in the first request is tried without the file: can its ranks start?
    """
    os.set_inheritable(descriptor, False)  # what the file starts shall not hold the socket
    with socket.socket(fileno=descriptor) as channel, channel.makefile() as requests:

        def send(reply: Reply) -> None:
            channel.sendall(json.dumps(reply).encode() + b"\n")

        first = json.loads(requests.readline())
        if taught := first["homework"]:
            TAUGHT.update(homework.read(Path(taught["file"]), taught["seed"]).exercises)
        send(_caught(_ready, first["exercise"]) if first["exercise"] else {})
        file = json.loads(requests.readline())
        attempts.limit_memory(attempts.MEMORY)
        send(_caught(_import, file))
        for request in requests:
            send(_caught(_attempt, json.loads(request)))
    os._exit(0)


def _import(file: str) -> Reply:
    """Import the file; tell an error in one line."""
    try:
        notebook.load(Path(file), ANSWERS)
    except BaseException as error:
        return {"trouble": notebook.blame(file, error)}
    return {}


def _ready(name: str) -> Reply:
    """Tell why no function could be tried, if something is in the way."""
    return {"broken": attempts.unready(TAUGHT.get(name) or find(name))}


def _attempt(name: str) -> Reply:
    """Run the function of one exercise."""
    try:
        exercise = TAUGHT.get(name) or find(name)
    except Exception as error:
        return {"broken": f"  cause     the exercise cannot be imported: {error}"}
    function = getattr(sys.modules[ANSWERS], exercise.function, None)
    if function is None:
        return {"missing": True}
    attempted = attempts.observe(exercise, function)
    return vars(attempted)


def _caught(act: Callable[[str], Reply], request: str) -> Reply:
    """Act; an exception becomes a reply, too. All that was printed comes before it."""
    try:
        reply = act(request)
    except BaseException as error:
        story = traceback.format_exception(type(error), error, error.__traceback__, limit=-1)
        reply = {"trouble": "".join(story)}
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the file may have put anything in its place
            stream.flush()
    return reply
