"""Expert parallelism of a whole model: `parallelize` deals the experts of its mixtures to ranks.

    parallelize(model, mesh.ep, mesh.dp)               # from a model that is whole on every rank
    model(tokens, targets).backward()                  # this rank's samples
    # then average experts' gradients over mesh.expert_replicas, all others over mesh.replicas

GShard (Lepikhin et al. 2020, https://arxiv.org/abs/2006.16668).

Shapes: T tokens of this rank, h numbers each, k chosen experts.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from shardlab import comm
from shardlab.sharding.layout import divisors, listed

from ..mixture import Compute, Mixture, mixtures
from .dispatch import Inner, TokenDispatcher


def parallelize(
    model: nn.Module,
    ep: comm.Group,
    group: comm.Group | None = None,
    *,
    nodes: int = 1,
    slices: int = 1,
) -> None:
    """Keep this rank's experts of every mixture; all ranks pass the same model, which is changed.

    ep     the ranks that hold different experts; rank r holds the r-th part of them
    group  all ranks that see different samples: the load counts the tokens of all of them. None:
           the ranks of `ep`, if these see different samples
    nodes  over how many nodes the ranks of `ep` lie, in order, as many on each. With several, a
           token travels once to each node, to the rank with this one's place there, which hands it
           on inside
    slices how many ranks of `ep` have slices of the same samples: with whole experts all of tp,
           see `tensor_parallel.parallelize`

    An expert sees tokens of all ranks of `ep`, and each `slices` of them have the mean loss of
    their own samples. Its gradient is divided by the number of these means, so that it is to be
    averaged over the ranks that hold the same expert, and nobody else. Errors: ValueError for ranks
    that do not divide the experts, and for nodes or slices that do not divide the ranks.
    """
    size = ep.size()
    if nodes < 1 or size % nodes:
        raise ValueError(
            f"ep={size} ranks do not lie evenly on {nodes} nodes; use nodes = "
            f"{listed(divisors(size))}"
        )
    if slices < 1 or size % slices:
        raise ValueError(
            f"ep={size} ranks do not have slices={slices} of the same samples; use slices = "
            f"{listed(divisors(size))}"
        )
    if slices > 1 and group is None:
        raise ValueError(
            f"slices={slices} of the same samples would be counted {slices} times; pass the ranks "
            "with different samples as `group`"
        )
    for mixture in mixtures(model):
        mixture.group = group or ep
        if size > 1:
            keep(mixture, ep, size // slices)
    if size > 1:
        travel = route(ep, nodes)
        for mixture in mixtures(model):
            mixture.compute = travel(mixture.rules.num_experts)


def keep(mixture: Mixture, ep: comm.Group, losses: int) -> None:
    """Drop the experts of other ranks; let backward divide the gradients of those that stay.

    losses: of how many means of a loss the ranks send tokens to an expert.
    """
    count, size = len(mixture.experts), ep.size()
    if count % size:
        raise ValueError(
            f"{count} experts do not split over ep={size}; use ep = {listed(divisors(count))}"
        )
    for number in range(count):
        if number // (count // size) != ep.rank():
            del mixture.experts[str(number)]
    for parameter in mixture.experts.parameters():
        if parameter.requires_grad:
            parameter.register_hook(lambda grad: grad / losses)


def route(ep: comm.Group, nodes: int) -> Callable[[int], Compute]:
    """Make the groups of one dispatch or two; return what takes tokens to a number of experts."""
    if nodes in (1, ep.size()):  # one rank on each node: nothing is handed on
        size = ep.size()
        return lambda count: partial(
            through, TokenDispatcher(group=ep, first=0, span=count // size)
        )
    inside = comm.split(ep, ep.size() // nodes)
    across = comm.across(ep, ep.size() // nodes)
    node = across.rank()

    def make(experts: int) -> Compute:
        there = experts // nodes
        to_node = TokenDispatcher(group=across, first=0, span=there)
        inside_node = TokenDispatcher(group=inside, first=node * there, span=there // inside.size())
        return partial(through, to_node, inside=inside_node)

    return make


def through(
    dispatch: TokenDispatcher,
    mixture: Mixture,
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    *,
    inside: TokenDispatcher | None = None,
) -> Tensor:
    """Add up the experts that tokens chose, and the shared ones: [T, h], [T, k], [T, k] -> [T, h].

    inside: dispatches inside a node, after the dispatch to it. Shared experts compute meanwhile.
    """
    inner: Inner = mixture.experts
    if inside is not None:
        inner = partial(_sums, inside, inner=inner)
    shared = mixture.shared
    y, others = dispatch(x, chosen, weights, inner, lambda: None if shared is None else shared(x))
    return y if others is None else y + others


def _sums(
    dispatch: TokenDispatcher, x: Tensor, chosen: Tensor, weights: Tensor, *, inner: Inner
) -> Tensor:
    y, _ = dispatch(x, chosen, weights, inner)
    return y
