"""Context parallelism: every rank holds a part of each sequence, and attention goes beyond it.

Read `tiles` first: attention in blocks, whose softmax is merged online. `ring` lets keys and values
travel; `heads` gathers them, or exchanges parts of sequences for heads (Ulysses). `engine` puts
these into a model: one way, or Ulysses inside and a ring across.

The plain files are `plain.context_parallel` and `plain.ring_attention`. What this one adds: the
next block travels while this one is used, keys do not take the last step home, tiles that no query
sees are never computed, and ranks need not divide the length or the key/value heads. Torch's own
(`torch.distributed.tensor.experimental`) has no operation for CPUs in its table, so that the two
are not raced here.
"""

from .engine import RING, ContextParallel, ContextStrategy, parallelize

__all__ = ["RING", "ContextParallel", "ContextStrategy", "parallelize"]
