"""ZeRO: ranks share a module's states, by stages, instead of each keeping all of them.

Read in this order. `flat` puts parameters into a buffer of which every rank keeps a piece,
`gradients` averages them into such pieces, `gathering` makes parameters whole while they compute,
and `sharding` puts the three together. `units` decides which parameters share a buffer; `full`
converts between pieces and whole states.
"""

from .flat import Flat
from .sharding import Zero, shard

__all__ = ["Flat", "Zero", "shard"]
