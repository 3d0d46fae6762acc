"""Bytes that ranks read from a published checkpoint at their start, and the host's memory meanwhile.

Each rank reads what it keeps, as `ranks.checkpoint.hugging_face` does. Programs that load the whole
model on every rank, and cut it then, fill the memory of the host: 8 x 160 GB in
https://github.com/huggingface/transformers/pull/25107.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from shardlab.files.arguments import Count, checked
from shardlab.model.spec import TransformerSpec
from shardlab.sharding import cuts
from shardlab.sharding.layout import Layout, coordinates, layers_of_stage

from ..facts import models


@dataclass(frozen=True, kw_only=True)
@checked
class Reading:
    """Bytes that one rank reads."""

    total: float
    largest: int  # of the largest piece of a tensor, which is in the host's memory while it is read


@checked
def reading(spec: TransformerSpec, layout: Layout, width: Count = 2) -> list[Reading]:
    """Count the bytes that each rank reads, in the order of the ranks.

    width: bytes of a number in the files. Without ZeRO every replica reads all of its pieces. With
    any stage of ZeRO the replicas share them: `total` is then the mean of these ranks, exact in
    their sum, and `largest` is a limit. Padding is in no file. A tied head is read on the first and
    on the last stage.
    """
    layout.check(spec)
    plan = cuts.model(spec, layout.tp, whole_experts=layout.whole_experts)
    layers = [layers_of_stage(spec.num_layers, layout.pp, stage) for stage in range(layout.pp)]
    known: dict[tuple[int, int], Reading] = {}
    found = []
    for rank in range(layout.ranks):
        place = coordinates(rank, layout)
        tp, stage = place["tp"], place["pp"]
        if (tp, stage) not in known:
            sizes = list(_pieces(spec, layout, plan, layers[stage], tp, stage))
            total = width * sum(size / sharers for size, sharers in sizes)
            largest = width * max(size for size, _ in sizes)
            known[tp, stage] = Reading(total=total, largest=largest)
        found.append(known[tp, stage])
    return found


@checked
def host(
    spec: TransformerSpec, layout: Layout, per_host: Count, width: Count = 2
) -> dict[str, int]:
    """Count the bytes of model in a host's memory while its ranks load, as way to load -> bytes.

    Ranks fill the hosts in order, `per_host` in each, and train on devices with a memory of their
    own; where they have none, add what they keep (`parts.states`). "every rank the whole": each
    loads the model before it cuts it. "every rank its own": each has its largest piece here, on
    its way to the device, on the host whose ranks have the largest.
    """
    ranks = [each.largest for each in reading(spec, layout, width)]
    hosts = [ranks[first : first + per_host] for first in range(0, len(ranks), per_host)]
    whole = width * sum(models.parameters(spec).values())
    return {
        "every rank the whole": min(per_host, layout.ranks) * whole,
        "every rank its own": max(map(sum, hosts)),
    }


def _pieces(
    spec: TransformerSpec,
    layout: Layout,
    plan: Mapping[str, cuts.Cut],
    layers: range,
    tp: int,
    stage: int,
) -> Iterator[tuple[int, int]]:
    """List the numbers of each piece that a rank holds, and how many ranks share their reading."""
    first, last = stage == 0, stage == layout.pp - 1
    for name, cut in plan.items():
        parts = name.split(".")
        sharers = layout.replicas
        if parts[0] == "blocks":
            here = int(parts[1]) in layers
        else:
            tied = spec.tied and name == "embedding.tokens.weight"
            here = (first or (tied and last)) if parts[0] == "embedding" else last
        if spec.experts and parts[2:4] == ["mlp", "experts"]:
            held = spec.experts.num_experts // layout.expert_ranks
            here = here and int(parts[4]) < held  # as large as those of any rank
            sharers //= layout.ep
        if here:
            yield _numbers(cut, tp), sharers if layout.zero else 1


def _numbers(cut: cuts.Cut, tp: int) -> int:
    """Count the numbers of a rank's piece without padding."""
    shape = list(cut.shape)
    if cut.dim is not None:
        shape[cut.dim] = len(cut.held(tp))
    return prod(shape)
