"""ZeRO: shard the states of a module over ranks, by stages. Read in the order flat, gradients, gathering, sharding."""

from .flat import Flat
from .sharding import Zero, shard

__all__ = ["Flat", "Zero", "shard"]
