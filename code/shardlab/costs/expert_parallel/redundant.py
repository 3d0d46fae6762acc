"""Redundant experts: spare copies of the hottest experts, so that the fullest rank is lighter.

DeepSeek-V3 serves its experts this way (https://arxiv.org/abs/2412.19437, section 3.4). In training
each copy also needs the weights after every step, and its gradient is summed with the owner's.
"""

from collections.abc import Sequence

from shardlab.files.arguments import Count, checked, within
from shardlab.sharding.layout import divisors, listed


@checked
def replicated(loads: Sequence[float], ranks: Count, spare: int) -> list[list[int]]:
    """Place experts and copies of the hottest on ranks; list the experts of each rank.

    loads: tokens of each of E experts. Each rank has E / ranks + spare slots. A spare slot goes to
    the expert with the most tokens per copy. Copies are then dealt in rounds, heaviest first: each
    goes to the lightest rank that has none of this round, nor of this expert. Errors: ValueError
    for ranks that do not divide the experts, and for more slots on a rank than experts.
    """
    count = len(loads)
    if count % ranks:
        works = listed(divisors(count))
        raise ValueError(f"{count} experts do not split over ranks={ranks}; use ranks = {works}")
    most = count - count // ranks
    if not 0 <= spare <= most:
        raise ValueError(f"spare={spare} slots must be from 0 to {most}, all experts on a rank")
    shares = _shares(loads, ranks, spare)
    heaviest_first = sorted(range(count), key=lambda expert: -shares[expert][0])
    waiting = [expert for expert in heaviest_first for _ in shares[expert]]
    placement: list[list[int]] = [[] for _ in range(ranks)]
    held = [0.0] * ranks
    for place, expert in enumerate(waiting):
        free = (r for r in range(ranks) if len(placement[r]) == place // ranks)
        rank = min((r for r in free if expert not in placement[r]), key=held.__getitem__)
        placement[rank].append(expert)
        held[rank] += shares[expert][0]
    return [sorted(experts) for experts in placement]


def _shares(loads: Sequence[float], ranks: int, spare: int) -> list[list[float]]:
    """Hand out the spare slots, at most one copy for each rank: the load of every copy."""
    copies = [1] * len(loads)
    for _ in range(ranks * spare):
        open_to = (expert for expert, count in enumerate(copies) if count < ranks)
        copies[max(open_to, key=lambda expert: loads[expert] / copies[expert])] += 1
    return [[load / count] * count for load, count in zip(loads, copies, strict=True)]


@checked
def rank_loads(loads: Sequence[float], placement: Sequence[Sequence[int]]) -> list[float]:
    """Sum the tokens of each rank, where the copies of an expert share its tokens equally.

    Errors: ValueError for an expert that is on no rank, or does not exist.
    """
    for expert in {each for experts in placement for each in experts}:
        within("placement", expert, len(loads))
    copies = [sum(experts.count(each) for experts in placement) for each in range(len(loads))]
    if 0 in copies:
        raise ValueError(f"expert {copies.index(0)} is on no rank; place every expert")
    return [sum(loads[each] / copies[each] for each in experts) for experts in placement]
