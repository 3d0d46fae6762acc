"""The process of a handed-in file: it imports the file, runs its functions on ranks, and replies.

Nothing that happens here decides a verdict: `grader`, in another process, judges the replies, which
are plain data. Requests and replies are lines of JSON on a socket.
"""

import json
import linecache
import os
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import cloudpickle

from . import attempts, find, notebook

ANSWERS = "answers"  # the name of the file as a module
Reply = dict[str, Any]


def serve(descriptor: int) -> NoReturn:
    """Reply to the grader's requests: first a file to import, then names of exercises."""
    os.set_inheritable(descriptor, False)  # what the file starts shall not hold the socket
    with socket.socket(fileno=descriptor) as channel, channel.makefile() as requests:

        def send(reply: Reply) -> None:
            channel.sendall(json.dumps(reply).encode() + b"\n")

        send({})
        file = json.loads(requests.readline())
        attempts.limit_memory(attempts.MEMORY)
        send(_caught(_import, file))
        for request in requests:
            send(_caught(_attempt, json.loads(request)))
    os._exit(0)


def _import(file: str) -> Reply:
    """Import the file; tell an error in one line, with the last line of the file that it passed."""
    try:
        load(Path(file))
    except BaseException as error:
        path, frames = os.path.abspath(file), traceback.walk_tb(error.__traceback__)
        passed = [line for frame, line in frames if frame.f_code.co_filename == path]
        where = f"line {passed[-1]}: " if passed else ""
        return {"trouble": " ".join(f"{where}{type(error).__name__}: {error}".split())}
    return {}


def _attempt(name: str) -> Reply:
    """Run the function of one exercise."""
    try:
        exercise = find(name)
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


def load(file: Path) -> ModuleType:
    """Load the file as a module whose functions are sent to the ranks by value."""
    if file.suffix not in (".py", ".ipynb"):
        raise ValueError("not a Python file or a notebook; its name must end with .py or .ipynb")
    sys.path.insert(0, str(file.resolve().parent))
    text, path = notebook.source(file), os.path.abspath(file)
    linecache.cache[path] = len(text), None, text.splitlines(keepends=True), path
    module = sys.modules[ANSWERS] = ModuleType(ANSWERS)
    module.__file__ = path
    exec(compile(text, path, "exec"), module.__dict__)
    cloudpickle.register_pickle_by_value(module)
    return module
