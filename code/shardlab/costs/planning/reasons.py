"""Why degrees cannot be: in words, with the numbers and those that would do."""

from collections.abc import Callable, Mapping

from shardlab.files.arguments import Count, checked
from shardlab.model.spec import TransformerSpec
from shardlab.sharding.hybrids import unlike, unshared
from shardlab.sharding.layout import divisors, expert_degrees, listed, tensor_degrees

from ..facts.network import Cluster
from ..step import axes


@checked
def text(
    reason: str,
    spec: TransformerSpec,
    cluster: Cluster,
    *,
    batch: Count,
    length: Count,
    degrees: Mapping[str, Count],
    num_microbatches: int = 0,
    whole_experts: bool = False,
) -> str:
    """Explain one of `plans.REASONS` but "memory". Errors: ValueError for an unknown one.

    batch: sequences of one step; length: tokens of a sequence; degrees: axis -> ranks;
    whole_experts: whether tp was to deal them.
    """
    tp, cp, pp, dp, ep = (degrees.get(axis, 1) for axis in ("tp", "cp", "pp", "dp", "ep"))
    works = [each for each in tensor_degrees(spec) if axes.fits_nodes(cluster, each)]
    gpus = cluster.node.gpus
    texts: dict[str, Callable[[], str]] = {
        "heads": lambda: f"{spec.num_heads} heads do not split over tp={tp}; use {listed(works)}",
        "node size": lambda: (
            f"tp={tp} does not share nodes of {gpus} GPUs evenly; use {listed(works)}"
        ),
        "layers": lambda: f"{spec.num_layers} layers leave some of {pp} stages empty",
        "kinds": lambda: unlike(spec),
        "states": lambda: unshared(spec),
        "batch": lambda: f"a batch of {batch} does not split over dp={dp} replicas",
        "experts": lambda: _experts(spec, dp, ep, tp if whole_experts else 1),
        "sequence": lambda: f"{length} tokens do not split over {cp * tp} ranks",
        "microbatches": lambda: (
            f"{num_microbatches} microbatches do not interleave over {pp} stages; use a multiple"
        ),
    }
    if reason not in texts:
        raise ValueError(f"unknown reason {reason!r}; known: {listed([*texts, 'memory'])}")
    return texts[reason]()


def _experts(spec: TransformerSpec, dp: int, ep: int, slices: int) -> str:
    if spec.experts is None:
        return f"a model without experts has none for ep={ep} ranks; use ep = 1"
    works = listed(expert_degrees(spec, dp))
    if ep not in divisors(spec.experts.num_experts):
        return f"{spec.experts.num_experts} experts do not split over ep={ep}; use {works}"
    if dp % ep == 0:
        text = f"{spec.experts.num_experts} whole experts do not split over ep={ep} x tp={slices}"
        return f"{text}; use fewer ranks, or whole_experts=(False,)"
    return f"dp={dp} replicas do not split into groups of ep={ep}; use {works}"
