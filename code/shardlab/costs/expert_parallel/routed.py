"""What the engine sends, to the byte, given the experts that every token chose.

A token travels once to each member of a group that has an expert for it, a rank or a node, with its
k weights and the numbers of its k experts; one row comes back. `exchange` counts the same as a mean
over all choices.
"""

from collections.abc import Sequence

from shardlab.arguments import Count, Positive, checked
from shardlab.sharding.layout import listed

from ..program import BF16

CHOICE = 4  # bytes of the number of an expert
NUMBER = 8  # and of the number of rows that follow

Routes = Sequence[Sequence[Sequence[int]]]  # of each member of a group, its tokens' experts


@checked
def rows(routes: Routes, span: Count, first: int = 0) -> list[list[int]]:
    """Count the rows that each member sends to each: a token once to whoever has its experts.

    Behind member m are `span` experts, from the number first + m * span on. A token for its own
    member does not travel and is not counted.
    """
    found = [[0] * len(routes) for _ in routes]
    for member, tokens in enumerate(routes):
        for token in tokens:
            for other in _members(token, span, first, len(routes)) - {member}:
                found[member][other] += 1
    return found


@checked
def landed(routes: Routes, span: Count, first: int = 0) -> list[list[Sequence[int]]]:
    """List the tokens that each member has after the hop, its own among them, by their experts."""
    found: list[list[Sequence[int]]] = [[] for _ in routes]
    for tokens in routes:
        for token in tokens:
            for member in _members(token, span, first, len(routes)):
                found[member].append(token)
    return found


def _members(token: Sequence[int], span: int, first: int, size: int) -> set[int]:
    return {(expert - first) // span for expert in token} & set(range(size))


@checked
def messages(
    sent: Sequence[Sequence[int]],
    *,
    hidden_size: Count,
    per_token: Count,
    element: Positive = BF16,
) -> list[dict[str, float]]:
    """Count the bytes that each member sends in a hop, by message, forward and backward.

    sent: of `rows`. Weights travel with the tokens, and their gradients back. Errors: ValueError
    unless every member has a number for each.
    """
    lengths = {len(to) for to in sent}
    if lengths - {len(sent)}:
        raise ValueError(
            f"sent has rows of {listed(sorted(lengths))} numbers for {len(sent)} members; "
            "give each member a number for every member"
        )
    found = []
    for member, to in enumerate(sent):
        there = sum(to)
        back = sum(each[member] for each in sent)
        row = hidden_size * element
        weighted = row + per_token * element
        found.append(
            {
                "counts": float(NUMBER * (len(sent) - 1)),
                "choices": float(CHOICE * per_token * there),
                "dispatch": weighted * there,
                "combine": row * back,
                "backward of combine": row * there,
                "backward of dispatch": weighted * back,
            }
        )
    return found
