"""Expert parallelism: ranks hold different experts, and each token travels to those that it chose.

Read `dispatch` first: a token travels once to every member of a group that has an expert for it,
and one row comes back. `engine` dispatches once, or twice: to nodes, and to ranks inside a node.
`learning` trains a mixture on text in one process and watches its load.

The plain file is `plain.expert_parallel`, in which a token travels once for each of its experts.
What this one adds: a token travels once to each rank, or once to each node, and the shared experts
compute while it does.
"""

from .engine import parallelize
from .learning import Learned, dense_twin, learn

__all__ = ["Learned", "dense_twin", "learn", "parallelize"]
