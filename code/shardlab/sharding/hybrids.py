"""Hybrids, some of whose layers keep states: their layers, stages alike, and what is not cut."""

from collections import Counter

from shardlab.files.arguments import Count, checked
from shardlab.model.spec import TransformerSpec


@checked
def by_layer(spec: TransformerSpec) -> list[TransformerSpec]:
    """List for each layer, of any model, the model that has such layers alone."""
    states, blocks = spec.recurrent.layers if spec.recurrent else (), spec.blocks_at or ()
    kinds = {(kind.states_only is not None, kind.blocks_only): kind for _, kind in spec.layer_kinds}
    places = range(spec.num_layers)
    layers = [kinds.get((place in states, place in blocks), spec) for place in places]
    return [kind.dense for kind in layers[: spec.num_dense]] + layers[spec.num_dense :]


@checked
def alike(spec: TransformerSpec, pieces: Count) -> bool:
    """Tell whether `pieces` in a row, stages or chunks of them, have as many layers of each kind.

    Where all layers are of one kind, any pieces do.
    """
    if not spec.layer_kinds:
        return True
    size, rest = divmod(spec.num_layers, pieces)
    named = [spec.recurrent.layers if spec.recurrent else (), spec.blocks_at or ()]
    counts = [Counter(place // size for place in places) for places in named if places and not rest]
    return bool(counts) and all(
        len(count) == pieces and len(set(count.values())) == 1 for count in counts
    )


@checked
def unlike(spec: TransformerSpec) -> str:
    """Say which numbers of stages, times chunks, are `alike` in a hybrid."""
    rule = spec.recurrent.rule if spec.recurrent else ""
    works = [str(pieces) for pieces in range(1, spec.num_layers + 1) if alike(spec, pieces)]
    return (
        f"only stages or chunks that have as many layers of {rule or 'each kind'} each, and of "
        "every other kind, are counted here; "
        f"use {', '.join(works)} in all"
    )


@checked
def unshared(spec: TransformerSpec) -> str:
    """Say why ranks of cp do not share the sequences of a model with states."""
    rule = spec.recurrent.rule if spec.recurrent else ""
    more = ", and costs.context_parallel.sent_by_states for the bytes of one layer"
    if spec.recurrent and not spec.recurrent.corrects:
        more = ""  # it counts a delta rule's maps of states, and decays are one number
    return (
        f"ranks that share a sequence pass on states in layers of {rule}, which is not timed here; "
        f"use cp = 1{more}"
    )
