"""Compare what ranks are about to send each other, before anything is sent.

Gloo and NCCL send what they are told to. A receive of another size, or a sum on one rank that is a
maximum on the next, crashes ranks or leaves wrong numbers. So each rank first writes down its call
where all ranks can read it, and then reads its peers' calls with the same number. Of two ranks that
disagree at least the second to write sees both calls, and raises before it sends.
"""

import os
import sys
import zlib
from collections import Counter
from pathlib import Path

from torch import Tensor

from .. import comm

FOLDER = "SHARDLAB_MESSAGES"  # environment: a folder that all ranks see; empty: compare nothing
SLOTS = 16  # calls of a rank that are kept
SIZE = 256  # bytes of a call
CHECK, NUMBER = 4, 8  # bytes of its checksum and its number, at its start
ANY_SHAPE = ("all_to_all",)
TOOLS = __file__, comm.__file__


class Contracts:
    """The calls of this rank in a folder, and a look at those of its peers."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.files: dict[str, int] = {}  # descriptors by name
        self.counts: Counter[str] = Counter()  # calls so far, by the name of their file

    def announce(self, group: comm.Group, verb: str, x: Tensor, peer: int | None) -> None:
        """Write down a call; `peer` is the other rank of a message, None for a collective.

        Errors: ValueError when a peer has another call under the same number.
        """
        rank, file = group.rank(), group.group_name.replace(os.sep, "_")
        dtype = str(x.dtype).removeprefix("torch.")
        if peer is None:
            shape = "" if verb in ANY_SHAPE else list(x.shape)
            contract = f"{verb} of {dtype}{shape}"
            self._compare(file, "collective", list(range(group.size())), rank, contract)
        else:
            ends = [rank, peer] if verb == "send" else [peer, rank]
            what = "message from rank {} to rank {}".format(*ends)
            file = "{}.{}.{}".format(file, *ends)
            row = int(verb == "receive")
            self._compare(file, what, ends, row, f"{x.numel()} numbers of {dtype}")

    def _compare(self, file: str, what: str, ranks: list[int], row: int, contract: str) -> None:
        """Write down the contract in this rank's row; raise if another row has another one."""
        number = self.counts[file] = self.counts[file] + 1
        descriptor = self.files.get(file) or self._open(file)
        start = number % SLOTS * len(ranks) * SIZE
        os.pwrite(descriptor, _call(number, contract), start + row * SIZE)
        calls = os.pread(descriptor, len(ranks) * SIZE, start)
        found = {}
        for other, rank in enumerate(ranks):
            text = _text(calls[other * SIZE : (other + 1) * SIZE], number)
            if text:
                found[rank] = text
        if any(text.partition("\n")[0] != contract for text in found.values()):
            said = [f"\n  rank {rank}: {', '.join(found[rank].split(chr(10)))}" for rank in found]
            raise ValueError(f"the ranks disagree about {what} number {number}:{''.join(said)}")

    def _open(self, file: str) -> int:
        self.files[file] = os.open(self.folder / f"calls-{file}", os.O_RDWR | os.O_CREAT)
        return self.files[file]


def _call(number: int, contract: str) -> bytes:
    """Return the bytes of a call, with the line that made it."""
    frame = sys._getframe()
    while frame.f_code.co_filename in TOOLS and frame.f_back:
        frame = frame.f_back
    text = f'{contract}\nFile "{frame.f_code.co_filename}", line {frame.f_lineno}'
    content = number.to_bytes(NUMBER, "little") + text.encode()
    content = content[: SIZE - CHECK].ljust(SIZE - CHECK, b"\0")
    return zlib.crc32(content).to_bytes(CHECK, "little") + content


def _text(call: bytes, number: int) -> str:
    """Return what `_call` wrote; nothing for another number, or half of a call."""
    content = call[CHECK:]
    if zlib.crc32(content).to_bytes(CHECK, "little") != call[:CHECK]:
        return ""
    if int.from_bytes(content[:NUMBER], "little") != number:
        return ""
    return content[NUMBER:].rstrip(b"\0").decode(errors="replace")


def install(folder: str) -> None:
    """Let `comm` announce what this rank does; not where `folder` is empty."""
    if folder:
        comm.announce = Contracts(folder).announce
