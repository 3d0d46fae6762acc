"""What it costs that parameters live elsewhere: step time of an offloaded model against a resident one, taking turns.

The "device" is memory of the same machine: bytes cross no PCIe but are copied from one place to another, at a rate that
is measured beside. It shows how the share of copying falls as a step has more tokens: predicted, as a resident step and
then the copies alone, and measured. Every round runs one forward and backward of every contender, each time in another
order; a ratio is formed within a round, and medians and quartiles are kept.
"""

import ctypes
import platform
import random
import statistics
import tempfile
import time
from typing import Any

import race
import record
import torch

from shardlab.files.terminal import no_arguments
from shardlab.model.spec import TransformerSpec
from shardlab.ranks import transformer
from shardlab.ranks.memory.offload import Offload

SPEC = TransformerSpec(vocab_size=256, context_length=512, hidden_size=512, num_layers=6, num_heads=8)
ROUNDS = {8: 16, 32: 12, 128: 8, 512: 5}  # by tokens in a step
WARM_UP = 2
RESIDENT, OFFLOADED, PREFETCHED, FROM_FILES = "resident", "offloaded", "offloaded, prefetched", "offloaded to files"


class Contender:
    """A model whose blocks live in one of these places."""

    def __init__(self, place: str, folder: str) -> None:
        torch.manual_seed(0)
        self.model, self.offload = transformer.Transformer(SPEC), None
        if place != RESIDENT:
            files = folder if place == FROM_FILES else None
            self.offload = Offload(self.model.blocks, prefetch=place == PREFETCHED, folder=files)

    def step(self, tokens: torch.Tensor) -> float:
        self.model.zero_grad()
        start = time.perf_counter()
        self.model(tokens[:, :-1], tokens[:, 1:]).backward()
        return time.perf_counter() - start


def copies_alone(homes: list[torch.Tensor], room: torch.Tensor) -> float:
    """Seconds of what a step copies: every block in for forward, in for backward, and its gradients out."""
    start = time.perf_counter()
    for home in homes + homes[::-1]:
        room.copy_(home)
    for home in homes[::-1]:
        home.copy_(room)
    return time.perf_counter() - start


def keep_freed_memory() -> None:
    """Let freed memory stay with the process, as it does in the caching allocator of a GPU; glibc only.

    Else every gradient that goes home frees its pages, and the next one pays the system for new ones.
    """
    if platform.libc_ver()[0] == "glibc":
        libc, mmap_max, trim_threshold = ctypes.CDLL("libc.so.6"), -4, -1  # mallopt(3)
        libc.mallopt(mmap_max, 0)
        libc.mallopt(trim_threshold, -1)


def take_turns(contenders: dict[str, Contender], num_tokens: int) -> dict[str, Any]:
    """One row: steps of so many tokens."""
    tokens = torch.randint(SPEC.vocab_size, (1, num_tokens + 1))
    blocks = contenders[RESIDENT].model.blocks
    homes = [torch.cat([p.detach().flatten() for p in block.parameters()]) for block in blocks]
    room, copies = torch.empty_like(homes[0]), []
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for _ in range(WARM_UP + ROUNDS[num_tokens]):
        random.shuffle(names)
        for name in names:
            seconds[name].append(contenders[name].step(tokens))
        copies.append(copies_alone(homes, room))
    copies, kept = copies[WARM_UP:], {name: times[WARM_UP:] for name, times in seconds.items()}
    moved = moved_bytes(contenders[OFFLOADED], tokens)
    return {
        "tokens": num_tokens,
        "rounds": ROUNDS[num_tokens],
        "bytes moved in a step": moved,
        "copy rate, GB/s": race.quartiles([moved / each / 1e9 for each in copies]),
        "seconds": {name: round(statistics.median(times), 6) for name, times in kept.items()},
        "offloaded / resident, predicted": race.ratio(
            [a + b for a, b in zip(kept[RESIDENT], copies, strict=True)], kept[RESIDENT]
        ),
        "measured / resident": {name: race.ratio(kept[name], kept[RESIDENT]) for name in kept if name != RESIDENT},
    }


def moved_bytes(contender: Contender, tokens: torch.Tensor) -> int:
    """Both ways, in one step."""
    assert contender.offload is not None
    before = sum(contender.offload.moved.values())
    contender.step(tokens)
    return sum(contender.offload.moved.values()) - before


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder:
        contenders = {name: Contender(name, folder) for name in (RESIDENT, OFFLOADED, PREFETCHED, FROM_FILES)}
        rows = []
        for num_tokens in ROUNDS:
            rows.append(take_turns(contenders, num_tokens))
            print(rows[-1], flush=True)
        slots = {name: c.offload.slots for name, c in contenders.items() if c.offload}
        resident = sum(p.nbytes for p in contenders[RESIDENT].model.blocks.parameters())
        result = {
            "model": {"hidden size": SPEC.hidden_size, "layers": SPEC.num_layers, "numbers": "fp32"},
            "bytes of blocks on the device": {RESIDENT: resident}
            | {name: sum(slot.nbytes for slot in each) for name, each in slots.items()},
            "threads": 1,
            "rows": rows,
        }
    print("written to", record.write("offload", result).name)


if __name__ == "__main__":
    no_arguments(__doc__)
    main()
