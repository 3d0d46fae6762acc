"""The hand-over, plainly: ranks that generate get the numbers of ranks that train.

No rank gathers a parameter. Ranks that hold numbers send them to the ranks that want them, by a
plan that is made once: Lequn Chen 2025, https://le.qun.ch/en/blog/2025/09/07/rl-weight-transfer.

    of a matrix, ranks 0 and 1     ranks 2 and 3           so four boxes
    have half of the rows each     want half of each row   are sent:

    0 0 0 0                        2 2 3 3                 a a b b    a: 0 to 2, b: 0 to 3
    1 1 1 1                        2 2 3 3                 c c d d    c: 1 to 2, d: 1 to 3

    have = places(spec, Layout(dp=2, zero=3)) + [[], []]  # ranks 0 and 1 train
    want = [[], []] + places(spec, Layout(tp=2))      # ranks 2 and 3 generate
    copies = hand_over.plan(have, want)               # the same list on every rank
    mine = hand_over.views(have[group.rank()], trained)
    theirs = hand_over.views(want[group.rank()], generating)
    for bucket in hand_over.buckets(copies, 10_000):  # after each step of training
        hand_over.send(bucket, mine, theirs, group, torch.bfloat16)

n = numbers in a box. A box is a part of a whole parameter: a range for each dim. `sharding.places`
lists those of each rank. `trained` and `generating` have this rank's tensors by name: pieces of
`zero.ZeRO3`, or parameters that `tensor_parallel` has cut.
"""

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from shardlab import comm

Box = tuple[range, ...]
Place = tuple[str, Box]                       # a parameter's name, and a box of it


class PlannedCopy(NamedTuple):
    """A box that one rank sends to another; or copies, where both are the same."""

    source: int
    to: int
    name: str
    box: Box


def plan(have: list[list[Place]], want: list[list[Place]]) -> list[PlannedCopy]:
    """List the copies that give all ranks what they want; have, want: the places of each rank.

    A rank copies what it has. What several others have is sent by the one that has sent least so
    far. Errors: ValueError for numbers that no rank has, or that ranks have in unequal boxes.
    """
    copies = []
    sent = [0] * len(have)                    # numbers that each rank has sent
    for name in dict.fromkeys(name for places in want for name, _ in places):
        holders: dict[Box, list[int]] = {}
        for rank, box in boxes_of(name, have):
            holders.setdefault(box, []).append(rank)
        for to, wanted in boxes_of(name, want):
            parts = {held: box for held in holders if size(box := overlap(held, wanted))}
            boxes = list(parts.values())
            found = sum(map(size, boxes))
            twice = any(size(overlap(a, b)) for at, a in enumerate(boxes) for b in boxes[:at])
            if twice or found != size(wanted):
                raise ValueError(
                    f"rank {to} wants {size(wanted)} numbers of {name}, and unequal boxes have "
                    f"{found} of them; let boxes cover the parameter, and unequal ones not overlap"
                )
            for held, box in parts.items():
                ranks = holders[held]
                source = to if to in ranks else min(ranks, key=lambda rank: sent[rank])
                copies.append(PlannedCopy(source, to, name, box))
                sent[source] += size(box) if source != to else 0
    return copies


def send(
    copies: list[PlannedCopy],
    mine: dict[Place, Tensor],
    theirs: dict[Place, Tensor],
    group: comm.Group,
    wire: torch.dtype,
) -> None:
    """Fill `theirs` with the numbers of `mine`, in one exchange of all ranks.

    Every rank passes the same copies. wire: the dtype in which numbers are sent.
    """
    rank, ranks = group.rank(), range(group.size())
    leaving = [c for to in ranks for c in copies if (c.source, c.to) == (rank, to)]
    arriving = [c for source in ranks for c in copies if (c.source, c.to) == (source, rank)]
    buffer = [torch.empty(0, dtype=wire, device=comm.device(group))]
    for copy in leaving:
        buffer.append(part(mine, copy).to(wire).flatten())  # [n]
    sends = [sum(size(c.box) for c in leaving if c.to == other) for other in ranks]
    receives = [sum(size(c.box) for c in arriving if c.source == other) for other in ranks]
    received = comm.all_to_all(torch.cat(buffer), group, sends, receives)
    for copy in arriving:
        target = part(theirs, copy)
        numbers, received = received[: size(copy.box)], received[size(copy.box) :]
        target.copy_(numbers.view_as(target))


def buckets(copies: list[PlannedCopy], limit: int) -> Iterator[list[PlannedCopy]]:
    """Split a plan, so that a bucket has at most `limit` numbers, or a single copy."""
    bucket: list[PlannedCopy] = []
    count = 0
    for copy in copies:
        if bucket and count + size(copy.box) > limit:
            yield bucket
            bucket, count = [], 0
        bucket.append(copy)
        count += size(copy.box)
    yield bucket


def views(places: list[Place], tensors: dict[str, Tensor]) -> dict[Place, Tensor]:
    """Show a rank's tensors, which may be flat and padded, as the boxes in them."""
    rest = {name: x.detach().view(-1) for name, x in tensors.items()}
    found = {}
    for name, box in places:                  # a parameter's boxes come in its order
        n = size(box)
        found[name, box] = rest[name][:n].view([len(numbers) for numbers in box])
        rest[name] = rest[name][n:]
    return found


def part(tensors: dict[Place, Tensor], copy: PlannedCopy) -> Tensor:
    """Return the view of a copy's box in the tensor that contains it."""
    for (name, held), x in tensors.items():
        if name == copy.name and overlap(held, copy.box) == copy.box:
            for dim, (inner, outer) in enumerate(zip(copy.box, held, strict=True)):
                x = x.narrow(dim, inner.start - outer.start, len(inner))
            return x
    raise ValueError(f"no tensor of this rank contains {copy.box} of {copy.name}; plan it again")


def boxes_of(name: str, places: list[list[Place]]) -> list[tuple[int, Box]]:
    """List the boxes of one parameter, each with its rank."""
    return [(rank, box) for rank, each in enumerate(places) for other, box in each if other == name]


def overlap(a: Box, b: Box) -> Box:
    """Return what is in both boxes; some range of it is empty if nothing is."""
    pairs = zip(a, b, strict=True)
    return tuple(range(max(x.start, y.start), min(x.stop, y.stop)) for x, y in pairs)


def size(box: Box) -> int:
    """Count the numbers in a box."""
    return prod(map(len, box))
