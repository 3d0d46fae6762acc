"""What recomputation saves and what it costs: bytes kept for backward against step time, policies taking turns.

Two ways to attend: with stored scores, one number for each head and pair of tokens, or with torch's flash kernel, which
computes scores again by itself. Every round runs one step of every contender, each time in another order; a ratio is
formed within a round, and medians and quartiles over rounds are kept. Everything runs on one thread, and its processor
time is measured: what else the machine does costs caches, but no waiting.
"""

import functools
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import race
import record
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import checkpoint as torchs
from torch.utils.flop_counter import FlopCounterMode

from shardlab.files.terminal import no_arguments
from shardlab.model.spec import TransformerSpec
from shardlab.ranks import transformer
from shardlab.ranks.memory import recompute
from shardlab.ranks.observe.saved_tensors import SavedTensors

# 5 * heads * sequence / hidden is 80, as in GPT-3 (Korthikanti et al. 2022, section 5): scores weigh as much there
SPEC = TransformerSpec(vocab_size=256, context_length=512, hidden_size=256, num_layers=6, num_heads=8)
ROUNDS, WARM_UP = 9, 1
ATTENTIONS = {"stored": SDPBackend.MATH, "flash": SDPBackend.FLASH_ATTENTION}


def by_torch(blocks: nn.ModuleList) -> None:
    for block in blocks:
        block.forward = functools.partial(torchs.checkpoint, block.forward, use_reentrant=False)


POLICIES: dict[str, Callable[[nn.ModuleList], Any]] = {
    "nothing": lambda blocks: None,
    "attention": recompute.wrap_attention,
    "every second block": lambda blocks: recompute.wrap(blocks[::2]),
    "every block": recompute.wrap,
    "every block, by torch": by_torch,
}


def pairs_of_blocks(model: transformer.Transformer) -> None:
    """Keep the input of every second block only, and compute two again at a time."""
    blocks = list(model.blocks)
    model.blocks = nn.ModuleList(nn.Sequential(*pair) for pair in zip(blocks[::2], blocks[1::2], strict=True))
    recompute.wrap(model.blocks)


class Contender:
    """A model under one policy and one kind of attention."""

    def __init__(self, policy: str, attention: str) -> None:
        torch.manual_seed(0)
        self.model, self.attention = transformer.Transformer(SPEC), ATTENTIONS[attention]
        if policy == "pairs of blocks":
            pairs_of_blocks(self.model)
        else:
            POLICIES[policy](self.model.blocks)
        self.tokens = torch.randint(SPEC.vocab_size, (1, SPEC.context_length + 1))
        self.seconds: list[float] = []

    def step(self) -> None:
        self.model.zero_grad()
        with sdpa_kernel(self.attention):
            start = time.thread_time()
            self.model(self.tokens[:, :-1], self.tokens[:, 1:]).backward()
            self.seconds.append(time.thread_time() - start)

    def count(self) -> dict[str, int]:
        """Bytes that forward leaves, the most at any time, and FLOPs."""
        parameters = list(self.model.parameters())
        with sdpa_kernel(self.attention), SavedTensors(without=[*parameters, self.tokens]) as saved:
            loss = self.model(self.tokens[:, :-1], self.tokens[:, 1:])
            left = saved.nbytes
            loss.backward()
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as work:  # of flash it has no formula on CPUs
            self.model(self.tokens[:, :-1], self.tokens[:, 1:]).backward()
        return {"kept bytes": left, "peak bytes": saved.peak, "FLOPs": work.get_total_flops()}


def main() -> None:
    torch.set_num_threads(1)
    names = [*POLICIES, "pairs of blocks"]
    contenders = {(attention, policy): Contender(policy, attention) for attention in ATTENTIONS for policy in names}
    order = list(contenders.values())
    for _ in range(WARM_UP + ROUNDS):
        random.shuffle(order)
        for contender in order:
            contender.step()
    seconds = {name: contender.seconds[WARM_UP:] for name, contender in contenders.items()}
    rows = []
    for (attention, policy), contender in contenders.items():
        counts, base = contender.count(), contenders[attention, "nothing"].count()
        if policy == "every block, by torch":
            del counts["peak bytes"]  # what torch's version computes again it keeps in a way of its own
        row: dict[str, Any] = {"attention": attention, "policy": policy, **counts}
        row["seconds"] = round(statistics.median(seconds[attention, policy]), 6)
        row |= {f"{name} / nothing": round(counts[name] / base[name], 4) for name in counts}
        row["time / nothing"] = race.ratio(seconds[attention, policy], seconds[attention, "nothing"])
        rows.append(row)
        print(row, flush=True)
    result = {
        "model": {"hidden size": 256, "layers": 6, "heads": 8, "sequence": 512, "batch": 1, "numbers": "fp32"},
        "rounds": ROUNDS,
        "threads": 1,
        "ours / torch's checkpoint": {
            kind: race.ratio(seconds[kind, "every block"], seconds[kind, "every block, by torch"])
            for kind in ATTENTIONS
        },
        "flash / stored": race.ratio(seconds["flash", "nothing"], seconds["stored", "nothing"]),
        "rows": rows,
    }
    print(result["ours / torch's checkpoint"], result["flash / stored"])
    print("written to", record.write("recompute", result).name)


if __name__ == "__main__":
    no_arguments(__doc__)
    main()
