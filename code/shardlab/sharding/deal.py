"""Deal n things to k holders: layers to stages, tokens to ranks, numbers to pieces."""

from collections.abc import Iterator

from shardlab.files.arguments import Count, checked


@checked
def deal(n: int, k: Count, first: int = 0) -> Iterator[range]:
    """Deal range(n) to `k` holders, the first ones get one more; yield from holder `first`."""
    share, more = divmod(n, k)
    for holder in range(first, k):
        start = holder * share + min(holder, more)
        yield range(start, start + share + (holder < more))
