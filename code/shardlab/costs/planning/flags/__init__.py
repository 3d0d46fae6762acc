"""A plan as the options of three programs: torchtitan, Megatron-LM and DeepSpeed.

Each program has plans that it cannot run; the answer then says which part of the plan it is. A test
holds every name to a list of the names that the program publishes.
"""

from .every import every
from .options import Flags

__all__ = ["Flags", "every"]
