"""What exercises on the hand-over share: the boxes that ranks have and want, number by number."""

from collections.abc import Iterable
from itertools import product
from typing import Any

from shardlab.model.spec import TransformerSpec
from shardlab.sharding.layout import Layout
from shardlab.sharding.places import Place, places

Ranks = list[list[Place]]  # the places of each rank
SPEC = TransformerSpec(
    vocab_size=5, context_length=4, hidden_size=4, num_layers=2, num_heads=2, ffn_size=4,
    style="llama",
)  # fmt: skip


def engines(trainer: Layout, generator: Layout, *, apart: bool = True) -> tuple[Ranks, Ranks]:
    """Return what each rank has and wants; apart: those that want come after those that have."""
    have, want = places(SPEC, trainer), places(SPEC, generator)
    empty: list[Place] = []
    return (have + [empty] * len(want), [empty] * len(have) + want) if apart else (have, want)


def numbers(held: Iterable[tuple[str, Any]]) -> set[tuple[str, tuple[int, ...]]]:
    """Return every number of some boxes, by its parameter and its indices."""
    return {(name, place) for name, box in held for place in product(*box)}


def show(name: str, have: Ranks, want: Ranks) -> str:
    """List the boxes of one parameter: who has them, and who wants them."""
    shown = []
    for verb, ranks in (("has", have), ("wants", want)):
        for rank, held in enumerate(ranks):
            found = [_slices(box) for each, box in held if each == name]
            shown += [f"rank {rank} {verb} {' and '.join(found)}"] * bool(found)
    return f"{name}: {', '.join(shown)}"


def _slices(box: tuple[range, ...]) -> str:
    return f"[{', '.join(f'{numbers.start}:{numbers.stop}' for numbers in box)}]"
