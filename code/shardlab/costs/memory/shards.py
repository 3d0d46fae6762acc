"""How many parameters a rank holds of a model that is cut by tensor and pipeline parallelism.

The cuts are those of `shardlab.sharding.cuts` (Megatron-LM, Shoeybi et al. 2019,
https://arxiv.org/abs/1909.08053).
"""

from collections import Counter
from functools import cache
from math import ceil, prod
from operator import add

from shardlab.files.arguments import Count, checked
from shardlab.model.spec import TransformerSpec
from shardlab.sharding import cuts
from shardlab.sharding.layout import Layout, layers_of_stage

from ..facts import models


@checked
def parameters(
    spec: TransformerSpec, layout: Layout, stage: int = 0, chunks: Count = 1
) -> dict[str, int]:
    """Count the parameters of each part on a rank of the stage, padding of the vocabulary included.

    A tied head is a copy of the embedding on the last of several stages. Errors: ValueError for a
    layout that does not suit the model, or a stage that does not exist.
    """
    layout.check(spec)
    first = stage == 0
    last = stage == layout.pp - 1
    layers = len(layers_of_stage(spec.num_layers, layout.pp, stage, chunks))
    layer = _layer(spec, layout.tp)
    sparse = sparse_layers(spec, layout, stage, chunks)
    whole = Counter({part: layers * count for part, count in layer.items()})
    if spec.layer_kinds:
        whole = Counter({part: _exactly(layers, spec, layout, part) for part in layer})
    blocks = whole["feed-forward"]
    if sparse < layers:
        dense = _layer(spec.dense, layout.tp)["feed-forward"]
        blocks += (layers - sparse) * (dense - layer["feed-forward"])
    ends = _ends(spec, layout.tp)
    head = ends["token embedding"] if spec.tied and layout.pp > 1 else ends["head"]
    return {
        "token embedding": first * ends["token embedding"],
        "position embedding": first * ends["position embedding"],
        "attention": whole["attention"],
        "feed-forward": blocks - _mixtures(spec, sparse) * _away(spec, layout),
        "norms": whole["norms"] + last * ends["norms"],
        "head": last * head,
    }


@checked
def embedding_and_head(
    spec: TransformerSpec, layout: Layout, stage: int = 0, chunks: Count = 1
) -> tuple[int, int]:
    """Count the parameters of embedding and head that ZeRO can gather by themselves on a stage.

    Where one stage has both and they are tied, there are none.
    """
    held = parameters(spec, layout, stage, chunks)
    apart = not (spec.tied and layout.pp == 1)
    return apart * held["token embedding"], apart * held["head"]


@checked
def routed(spec: TransformerSpec, layout: Layout, stage: int = 0, chunks: Count = 1) -> int:
    """Count the parameters of the routed experts on a rank of the stage: 1/ep of all."""
    sparse = sparse_layers(spec, layout, stage, chunks)
    return _mixtures(spec, sparse) * _held_experts(spec, layout)


@checked
def layer_routed(spec: TransformerSpec, layout: Layout) -> int:
    """Count the parameters of one layer's routed experts on a rank; 0 without experts.

    Of a hybrid it is the mean of all layers, rounded up.
    """
    return ceil(_held_experts(spec, layout) * spec.num_blocks / spec.num_layers)


def _mixtures(spec: TransformerSpec, layers: int) -> int:
    """Count the blocks in a stage's layers, of which each stage has an equal share."""
    return layers * spec.num_blocks // spec.num_layers


def _held_experts(spec: TransformerSpec, layout: Layout) -> int:
    """Count a mixture's routed experts on a rank: whole ones as many as parts of tp times as many.

    There are none without experts.
    """
    if spec.experts is None:
        return 0
    held = spec.experts.num_experts // layout.expert_ranks
    return held * _expert(spec, layout.expert_tp)


def _expert(spec: TransformerSpec, tp: int) -> int:
    """Count a rank's part of one expert; the bias after its sum stays whole."""
    whole = spec.hidden_size * ("ffn" in spec.biases)
    return (models.expert_parameters(spec) - whole) // tp + whole


def _away(spec: TransformerSpec, layout: Layout) -> int:
    """Count what ranks with other experts hold of a layer that tp alone would leave here."""
    if spec.experts is None:
        return 0
    return spec.experts.num_experts * _expert(spec, layout.tp) - _held_experts(spec, layout)


@checked
def sparse_layers(spec: TransformerSpec, layout: Layout, stage: int = 0, chunks: Count = 1) -> int:
    """Count the layers of a stage but for a mixture's dense ones, which come first."""
    layers = layers_of_stage(spec.num_layers, layout.pp, stage, chunks)
    return len(layers) - max(0, min(layers.stop, spec.num_dense) - layers.start)


@checked
def layer_parameters(spec: TransformerSpec, layout: Layout) -> int:
    """Count the parameters of one layer on one rank; of a mixture, one with experts.

    Of a hybrid it is the mean of all layers, rounded up.
    """
    parts = _layer(spec, layout.tp)
    if not spec.layer_kinds:
        return sum(parts.values()) - _away(spec, layout)
    whole = sum(_exactly(spec.num_layers, spec, layout, part) for part in parts)
    whole -= spec.num_blocks * _away(spec, layout)
    return ceil(whole / spec.num_layers)


@checked
def largest(spec: TransformerSpec, layout: Layout) -> tuple[int, int]:
    """Count the parameters on a rank of its largest layer, and of the largest two in a row.

    They differ from the mean in a hybrid. Of a mixture's dense layers nothing is counted, although
    they are larger where ep leaves few experts on a rank.
    """
    if not spec.layer_kinds:
        layer = layer_parameters(spec, layout)
        return layer, 2 * layer
    held = {
        (kind.states_only is not None, kind.blocks_only): layer_parameters(kind, layout)
        for _, kind in spec.layer_kinds
    }
    states = spec.recurrent.layers if spec.recurrent else ()
    blocks = spec.blocks_at or ()
    row = [held[n in states, n in blocks] for n in range(spec.num_layers)]
    return max(row), max(map(add, row, row[1:]))


def _exactly(layers: int, spec: TransformerSpec, layout: Layout, part: str) -> int:
    """Count a part of a stage's layers, of which it has as large a share of each kind as all."""
    return sum(
        round(share * layers) * _layer(kind, layout.tp)[part] for share, kind in spec.layer_kinds
    )


@cache
def _layer(spec: TransformerSpec, tp: int) -> Counter[str]:
    return _by_part(cuts.block(spec, tp))


@cache
def _ends(spec: TransformerSpec, tp: int) -> Counter[str]:
    return _by_part(cuts.ends(spec, tp))


def _by_part(held: dict[str, cuts.Cut]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for name, cut in held.items():
        counts[_part(name)] += prod(cut.local_shape)
    return counts


def _part(name: str) -> str:
    """Return the part of `models.parameters` to which a named parameter belongs."""
    if "norm" in name:
        return "norms"
    parts = {"attention": "attention", "mlp": "feed-forward", "head": "head"}
    return parts.get(name.partition(".")[0], f"{name.split('.')[1].removesuffix('s')} embedding")
