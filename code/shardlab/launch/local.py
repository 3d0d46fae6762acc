"""The launcher's side of its processes: the helper that starts ranks, and the ranks themselves."""

import os
import pickle
import select
import signal
import socket
import subprocess
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from . import surroundings
from .helper import SIZE, start_python
from .job import Job
from .modules import in_use
from .rank import ON_LINUX
from .state import Call, Failure, Message, Raised, Whereabouts

CHUNK = 1 << 16  # bytes, the capacity of a pipe on Linux
LAST_MOMENT = 1.0  # s in which a helper that has closed its channel ends
MAX_CHUNKS = 16  # to read from a pipe whose capacity was raised
MAX_LINE = 1 << 22  # bytes after which a line is shown before its end
MAX_MESSAGE = 1 << 28  # bytes of a message beside a result; more is no message
GARBLED = "OSError: something that is no message came from the rank; has it used our descriptor?"


class Helper:
    """The launcher's end of the helper process."""

    current: "Helper | None" = None

    def __init__(self) -> None:
        surroundings.open_standard_streams()
        self.owner = os.getpid()
        self.channel, theirs = socket.socketpair()
        fork = ON_LINUX and os.environ.get("SHARDLAB_FORK") != "0"
        serve = f"helper.serve({theirs.fileno()}, {fork}, {self.owner})"
        self.process = start_python(serve, [theirs.fileno()])
        theirs.close()

    @classmethod
    def running(cls) -> "Helper":
        """Return the helper of this process; start a new one if there is none."""
        if cls.current is None or not cls.current.serves_us():
            cls.drop()
            cls.current = cls()
        return cls.current

    def serves_us(self) -> bool:
        """Tell whether the helper runs, and was started by this process, not by its parent."""
        return self.owner == os.getpid() and self.process.poll() is None

    @classmethod
    def drop(cls) -> None:
        """Close the channel; the helper notices, kills its ranks and exits."""
        if cls.current is not None:
            cls.current.channel.close()
            cls.current = None

    def start(self, ranks: list["Rank"]) -> None:
        """Let the helper start these ranks."""
        theirs = [end.fileno() for rank in ranks for end in (rank.their_channel, rank.their_output)]
        names = " ".join(in_use()).encode()
        with suppress(ConnectionError):  # the helper has just died; the watch sees every rank lost
            message = [len(names).to_bytes(SIZE, "big"), names]
            socket.send_fds(self.channel, message, theirs)
        for rank in ranks:
            rank.close_their_ends()

    def end(self, patience: float | None = None) -> list[int | None] | str:
        """Kill the ranks; return the exit codes of the helper, or why not all could be started.

        Also says so when the helper has not answered after `patience` seconds.
        """
        try:
            self.channel.sendall(bytes(SIZE))
            if select.select([self.channel], [], [], patience)[0]:
                codes: list[int | None] | str = pickle.loads(self.channel.recv(CHUNK))
                return codes
        except (OSError, EOFError):
            pass
        except BaseException:  # a second Ctrl-C
            self.drop()
            raise
        self.drop()
        end = self._how_it_ended()
        return f"The helper process {end}, and the ranks with it. The next run starts anew."

    def _how_it_ended(self) -> str:
        """Say how the helper ended."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(LAST_MOMENT)
        code = self.process.returncode
        if code == -signal.SIGKILL:
            return "died (out of memory?)"
        return "gave no answer" if code is None else f"ended with exit code {code}"


class Rank:
    """What the launcher knows about one rank, and its ends of the rank's channel and output."""

    def __init__(self, number: int, label: str) -> None:
        self.number, self.label = number, label  # label: stands before each line that it prints
        mine, self.their_channel = socket.socketpair()
        self.channel = Connection(mine.detach())
        output, their_output = os.pipe()
        self.output = os.fdopen(output, "rb", 0)
        self.their_output = os.fdopen(their_output, "wb", 0)
        self.text = bytearray()  # printed and not yet shown
        self.result: bytes | None = None
        self.calls: list[Call] = []
        self.refusal: Failure | None = None
        self.failure: Failure | None = None
        self.lost = False
        self.at_work = False
        self.asked: set[Message] = set()
        self.answers: dict[Message, Any] = {}

    @property
    def settled(self) -> bool:
        """Whether the rank will send neither a result nor a failure any more."""
        return self.result is not None or self.failure is not self.refusal or self.lost

    @property
    def silent(self) -> bool:
        """Whether the rank has neither said where it is nor why it failed, and yet lives."""
        return not (self.lost or self.failure or Message.WHERE in self.answers)

    @property
    def where(self) -> dict[int, Whereabouts | None]:
        """What the process has answered, by rank; before the function, a line is not the user's."""
        answer: dict[int, Whereabouts] = self.answers.get(Message.WHERE, {self.number: None})
        if self.at_work or None in answer.values():
            return {**answer}
        return {number: each._replace(places=[]) for number, each in answer.items()}

    def ask(self, question: Message) -> None:
        """Ask, unless the last answer is still missing: unread questions would fill the channel."""
        if question not in self.asked:
            self.asked.add(question)
            self.send(question)

    def send(self, message: Message | Job) -> None:
        """Send a question or the job; note when the rank is lost."""
        try:
            self.channel.send(message)
        except OSError:
            self.lost = True

    def receive(self) -> None:
        """Receive one message and keep what it brings; note when there is none, or no rank."""
        try:
            message, content = pickle.loads(self.channel.recv_bytes(MAX_MESSAGE))
            if message is Message.DONE:
                self.calls = content
                self.result = self.channel.recv_bytes()
            elif message is Message.FAILED:
                self.failure = content.after(self.refusal)
            elif message is Message.REFUSED:
                self.failure = self.refusal = content  # whatever the function does about it
            elif message is Message.AT_WORK:
                self.at_work = True
            else:
                self.answers[message] = content
                self.asked.discard(message)
        except (EOFError, ConnectionError):
            self.lost = True
        except Exception:  # the function has written to descriptors that it had not opened
            self.failure = Failure([Raised([], GARBLED)], set(), False)
            self.lost = True

    def read(self) -> bool:
        """Read some of what the rank has printed; False at the end."""
        some = self.output.read(CHUNK) or b""
        self.text += some
        return bool(some)

    def lines(self, everything: bool = False) -> list[str]:
        """Return the complete lines printed since the last call, as a terminal would show them.

        everything: return the last line, too, although it may not be complete. A very long line is
        returned in parts.
        """
        everything = everything or len(self.text) > MAX_LINE
        end = len(self.text) if everything else self.text.rfind(b"\n") + 1
        if end == 0:
            return []
        text = self.text[:end].decode(errors="replace").removesuffix("\n")
        del self.text[:end]
        return [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]

    def close_their_ends(self) -> None:
        """Close our copies of the rank's ends."""
        self.their_channel.close()
        self.their_output.close()

    def close(self) -> None:
        """Close the channel of a dead rank, and read the rest of what it printed."""
        self.close_their_ends()
        self.channel.close()
        # A process that the rank has started may still hold the other end.
        os.set_blocking(self.output.fileno(), False)
        for _ in range(MAX_CHUNKS):
            if not self.read():
                break
        self.output.close()
