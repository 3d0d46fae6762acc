"""How many parameters a rank holds of a model that is cut by tensor and pipeline parallelism.

The cuts are those of `shardlab.cuts` (Megatron-LM, Shoeybi et al. 2019,
https://arxiv.org/abs/1909.08053).
"""

from collections import Counter
from functools import cache
from math import ceil, prod

from shardlab import cuts
from shardlab.arguments import checked, within
from shardlab.layout import Layout, stages
from shardlab.spec import TransformerSpec

from ..facts import models


@checked
def parameters(spec: TransformerSpec, layout: Layout, stage: int = 0) -> dict[str, int]:
    """Count the parameters of each part on a rank of the stage, padding of the vocabulary included.

    A tied head is a copy of the embedding on the last of several stages. Errors: ValueError for a
    layout that does not suit the model, or a stage that does not exist.
    """
    layout.check(spec)
    within("stage", stage, layout.pp)
    first = stage == 0
    last = stage == layout.pp - 1
    layers = len(stages(spec.num_layers, layout.pp)[stage])
    layer = _layer(spec, layout.tp)
    ends = _ends(spec, layout.tp)
    head = ends["token embedding"] if spec.tied and layout.pp > 1 else ends["head"]
    return {
        "token embedding": first * ends["token embedding"],
        "position embedding": first * ends["position embedding"],
        "attention": layers * layer["attention"],
        "feed-forward": layers * layer["feed-forward"],
        "norms": layers * layer["norms"] + last * ends["norms"],
        "head": last * head,
    }


@checked
def layer_parameters(spec: TransformerSpec, layout: Layout) -> int:
    """Count the parameters of one layer on one rank."""
    return sum(_layer(spec, layout.tp).values())


@checked
def held_again(spec: TransformerSpec, layout: Layout) -> dict[str, int]:
    """Count the parameters that all ranks of pp and tp together hold beyond the model's own.

    They are copies, or padding.
    """
    h = spec.hidden_size
    more = layout.tp - 1
    biased = spec.style == "gpt2"
    copied_heads = layout.tp * layout.kv_heads(spec) - spec.kv_heads
    vocabularies = 1 if spec.tied and layout.pp == 1 else 2
    padding = layout.tp * ceil(spec.vocab_size / layout.tp) - spec.vocab_size
    return {
        "tied head": spec.tied * (layout.pp > 1) * spec.vocab_size * h,
        "position embedding": more * biased * spec.context_length * h,
        "norms": more * (2 * spec.num_layers + 1) * models.norm_parameters(spec),
        "biases after a sum": more * biased * spec.num_layers * 2 * h,
        "key/value heads": spec.num_layers * 2 * copied_heads * spec.head_size * (h + biased),
        "padding of the vocabulary": vocabularies * padding * h,
    }


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
