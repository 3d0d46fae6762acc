"""Compare what ranks are about to send each other, before anything is sent.

Gloo and NCCL send what they are told to. A receive of another size, or a sum on one rank that is a
maximum on the next, crashes ranks or leaves wrong numbers. So each rank first writes down its call
where all ranks can read it, and then reads its peers' calls with the same number. Of two ranks that
disagree at least the second to write sees both calls, and raises before it sends.

A refused call is told the launcher before it raises, and all later ones raise the same.

Calls are seen where Python hands them to torch's ProcessGroup. What C++ calls by itself, such as
DDP's all-reduces, is not compared.
"""

import os
import sys
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from shardlab import comm

FOLDER = "SHARDLAB_MESSAGES"  # environment: a folder that all ranks see; empty: compare nothing
SLOTS = 16  # calls of a rank that are kept
SIZE = 256  # bytes of a call
CHECK, NUMBER = 4, 8  # bytes of its checksum and its number, at its start
COLLECTIVES = {  # names of ProcessGroup's methods -> the usual ones
    "allreduce": "all_reduce",
    "reduce": "reduce",
    "broadcast": "broadcast",
    "allgather": "all_gather",
    "all_gather_single": "all_gather",  # torch 2.13 renamed these three
    "_allgather_base": "all_gather",
    "reduce_scatter_single": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "alltoall_base": "all_to_all",
    "barrier": "barrier",
}
Tell = Callable[[str], None]
ANY_SHAPE = ("all_to_all",)
PASSED_SECOND = ("all_gather", "reduce_scatter")  # after one tensor for the result
TOOLS = (str(Path(__file__).parent), comm.__file__, str(Path(torch.__file__).parent) + os.sep)


class Contracts:
    """The calls of this rank in a folder, and a look at those of its peers."""

    def __init__(self, folder: str | Path, tell: Tell) -> None:
        self.folder = Path(folder)
        self.tell = tell
        self.refusal = ""
        self.files: dict[str, int] = {}  # descriptors by name
        self.counts: Counter[str] = Counter()  # calls so far, by the name of their file
        self.unordered: set[str] = set()  # groups in which a receive took what came first

    def collective(self, verb: str, group: comm.Group, *given: Any) -> None:
        """Write down a collective. Errors: ValueError when a peer has another call."""
        x = given[0] if given else None
        if verb in PASSED_SECOND and isinstance(x, torch.Tensor):
            x = given[1]
        while isinstance(x, list):
            x = x[0]
        contract = verb + "".join(map(_option, given))
        if isinstance(x, torch.Tensor):
            contract += f" of {_dtype(x)}{'' if verb in ANY_SHAPE else list(x.shape)}"
        self._compare(_name(group), "collective", [*range(group.size())], group.rank(), contract)

    def message(self, group: comm.Group, x: torch.Tensor, source: int, to: int, tag: int) -> None:
        """Write down one end of a message. Errors: as above."""
        if _name(group) in self.unordered:
            return
        name, row = f"{_name(group)}.{source}.{to}.{tag}", int(group.rank() == to)
        what = f"message from rank {source} to rank {to}"
        self._compare(name, what, [source, to], row, f"{x.numel()} numbers of {_dtype(x)}")

    def _compare(self, name: str, what: str, ranks: list[int], row: int, contract: str) -> None:
        """Write down the contract in this rank's row; raise if another row has another one."""
        if self.refusal:
            raise ValueError(self.refusal)
        number = self.counts[name] = self.counts[name] + 1
        found = self._exchange(name, ranks, row, f"{contract}\n{_line()}")
        if any(text.partition("\n")[0] != contract for text in found.values()):
            said = [f"\n  rank {rank}: {', '.join(found[rank].split(chr(10)))}" for rank in found]
            self.refusal = f"the ranks disagree about {what} number {number}:{''.join(said)}"
            self.tell(self.refusal)
            raise ValueError(self.refusal)

    def _exchange(self, name: str, ranks: list[int], row: int, call: str) -> dict[int, str]:
        """Write down a call, and return the calls with its number that are there, by rank."""
        number = self.counts[name]
        file = self.files.get(name) or self._open(name)
        start = number % SLOTS * len(ranks) * SIZE
        os.pwrite(file, _packed(number, call), start + row * SIZE)
        calls = os.pread(file, len(ranks) * SIZE, start)
        rows = (_text(calls[first : first + SIZE], number) for first in range(0, len(calls), SIZE))
        return {rank: text for rank, text in zip(ranks, rows, strict=False) if text}

    def _open(self, name: str) -> int:
        self.files[name] = os.open(self.folder / f"calls-{name}", os.O_RDWR | os.O_CREAT)
        return self.files[name]


def _option(given: Any) -> str:
    """Name what all ranks must give alike: the operation of a reduction, the source of a copy."""
    if hasattr(given, "reduceOp"):
        return f" ({given.reduceOp.op.name.lower()})"
    return f" from rank {given.rootRank}" if hasattr(given, "rootRank") else ""


def _name(group: comm.Group) -> str:
    return group.group_name.replace(os.sep, "_")


def _dtype(x: torch.Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def _line() -> str:
    """Name the line that made a call."""
    frame = sys._getframe()
    while frame.f_code.co_filename.startswith(TOOLS) and frame.f_back:
        frame = frame.f_back
    return f'File "{frame.f_code.co_filename}", line {frame.f_lineno}'


def _packed(number: int, call: str) -> bytes:
    """Return the bytes of a call."""
    content = number.to_bytes(NUMBER, "little") + call.encode()
    content = content[: SIZE - CHECK].ljust(SIZE - CHECK, b"\0")
    return zlib.crc32(content).to_bytes(CHECK, "little") + content


def _text(call: bytes, number: int) -> str:
    """Return what `_packed` wrote; nothing for another number, or half of a call."""
    content = call[CHECK:]
    if zlib.crc32(content).to_bytes(CHECK, "little") != call[:CHECK]:
        return ""
    if int.from_bytes(content[:NUMBER], "little") != number:
        return ""
    return content[NUMBER:].rstrip(b"\0").decode(errors="replace")


def comparisons(folder: str, tell: Tell = lambda _: None) -> dict[str, Callable[..., None]]:
    """Return what writes down and compares a call, by the name of ProcessGroup's method.

    Nothing where `folder` is empty. tell: gets a refusal before it is raised.
    """
    if not folder:
        return {}
    mine = Contracts(folder, tell)
    return by_method(lambda: mine)


def by_method(mine: Callable[[], Contracts]) -> dict[str, Callable[..., None]]:
    """Return what compares a call with `mine()`, by the name of ProcessGroup's method."""

    def collective(verb: str) -> Callable[..., None]:
        return lambda *call: mine().collective(verb, *call)

    return {
        **{method: collective(verb) for method, verb in COLLECTIVES.items()},
        "send": lambda group, x, to, tag=0: mine().message(group, x[0], group.rank(), to, tag),
        "recv": lambda group, x, by, tag=0: mine().message(group, x[0], by, group.rank(), tag),
        "recv_anysource": lambda group, *_: mine().unordered.add(_name(group)),
    }
