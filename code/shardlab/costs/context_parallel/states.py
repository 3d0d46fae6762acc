"""Linear attention over ranks: what they send does not depend on the length of the text."""

from shardlab.files.arguments import Count, checked

MAPS = 2  # matrices of a head: what becomes of the state, and what is added to it


@checked
def sent_by_states(heads: Count, size: Count, *, ranks: Count, batch: Count, element: Count) -> int:
    """Return the bytes that a rank sends for one layer, forward and backward, by doubling.

    size: e, of a head, whose state is [e, e]. element: bytes of a number. Each round sends the map
    of a rank, and one more passes the result on; in backward the gradients go back.
    """
    if ranks == 1:
        return 0
    rounds = (ranks - 1).bit_length() + 1
    return 2 * rounds * MAPS * batch * heads * size * size * element
