"""Ranks on this machine, as the launcher sees them: the helper process that starts them, and each rank's two lines."""

import os
import pickle
import select
import socket
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from .helper import END, RUN, SIZE, start_python
from .modules import in_use
from .rank import ON_LINUX, Job
from .state import Call, Failure

CHUNK = 1 << 16  # bytes; a pipe of Linux holds as much
MOST_CHUNKS = 16  # in a pipe that somebody has made larger


class Helper:
    """The launcher's end of the helper process."""

    current: "Helper | None" = None

    def __init__(self) -> None:
        self.owner, (self.channel, theirs) = os.getpid(), socket.socketpair()
        fork = ON_LINUX and os.environ.get("SHARDLAB_FORK") != "0"
        self.process = start_python(f"helper.serve({theirs.fileno()}, {fork}, {self.owner})", [theirs.fileno()])
        theirs.close()

    @classmethod
    def running(cls) -> "Helper":
        """The helper of this process, started anew if it is gone."""
        if cls.current is None or cls.current.owner != os.getpid() or cls.current.process.poll() is not None:
            cls.drop()
            cls.current = cls()
        return cls.current

    @classmethod
    def drop(cls) -> None:
        """Hang up; the helper notices, kills its ranks and leaves."""
        if cls.current is not None:
            cls.current.channel.close()
            cls.current = None

    def start(self, ranks: list["Rank"]) -> None:
        """Have these ranks started."""
        theirs = [end.fileno() for rank in ranks for end in (rank.talk, rank.write)]
        names = " ".join(in_use()).encode()
        with suppress(ConnectionError):  # the helper has just died: then every rank is lost, and the watch sees it
            socket.send_fds(self.channel, [RUN, len(names).to_bytes(SIZE, "big"), names], theirs)
        for rank in ranks:
            rank.let_go()

    def end(self, patience: float | None = None) -> list[int]:
        """Kill the ranks and return their exit codes; none when the helper does not answer in `patience` seconds."""
        try:
            self.channel.sendall(END)
            if select.select([self.channel], [], [], patience)[0]:
                codes: list[int] = pickle.loads(self.channel.recv(CHUNK))
                return codes
        except (OSError, EOFError):
            pass
        except BaseException:  # a second Ctrl-C
            self.drop()
            raise
        self.drop()
        return []


class Rank:
    """What the launcher knows of one rank."""

    def __init__(self, number: int) -> None:
        self.number = number
        mine, self.talk = socket.socketpair()
        self.channel = Connection(mine.detach())
        output, write = os.pipe()
        self.output, self.write = os.fdopen(output, "rb", 0), os.fdopen(write, "wb", 0)
        self.text, self.searched = bytearray(), 0  # what it has printed and nobody has seen; so much has no newline
        self.result: bytes | None = None
        self.calls: list[Call] = []
        self.failure: list[Failure] | None = None
        self.lost = self.at_work = False
        self.asked: set[str] = set()
        self.answers: dict[str, Any] = {}

    @property
    def settled(self) -> bool:
        return self.result is not None or self.failure is not None or self.lost

    def ask(self, question: str) -> None:
        """Ask, once until it is answered: what a rank does not read would fill the line, and then block us."""
        if question not in self.asked:
            self.asked.add(question)
            self.tell(question)

    def tell(self, message: "str | Job") -> None:
        try:
            self.channel.send(message)
        except OSError:
            self.lost = True

    def hear(self) -> None:
        """Take one message."""
        try:
            kind, content = self.channel.recv()
            if kind == "done":
                self.result, self.calls = self.channel.recv_bytes(), content
            elif kind == "failed":
                self.failure = content
            elif kind == "at work":
                self.at_work = True
            else:
                self.answers[kind] = content
                self.asked.discard(kind)
        except (EOFError, OSError):
            self.lost = True

    def read(self) -> bool:
        """Take some of what the rank has printed; False at the end."""
        some = self.output.read(CHUNK) or b""
        self.text += some
        return bool(some)

    def lines(self, everything: bool = False) -> list[str]:
        """The complete lines printed since the last call, each as a terminal shows it in the end."""
        end = len(self.text) if everything else self.text.rfind(b"\n", self.searched) + 1
        self.searched = len(self.text) - end
        if end == 0:
            return []
        text = self.text[:end].decode(errors="replace").removesuffix("\n")
        del self.text[:end]
        return [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]

    def let_go(self) -> None:
        """Close our copies of the rank's ends."""
        self.talk.close()
        self.write.close()

    def close(self) -> None:
        """Hang up on a rank that is dead, and take the last of what it printed."""
        self.let_go()
        self.channel.close()
        os.set_blocking(self.output.fileno(), False)  # a process that the rank has started may still hold the other end
        for _ in range(MOST_CHUNKS):
            if not self.read():
                break
        self.output.close()
