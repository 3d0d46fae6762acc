"""The methods of the book as texts: read `method`, then `layers` and `steps`.

A pipeline has no text here: a border sends one tensor from one rank to the next, which changes no
state, and its stages run different programs.
"""

from .layers import LAYERS
from .steps import STEPS

METHODS = {method.name: method for method in LAYERS + STEPS}

__all__ = ["METHODS"]
