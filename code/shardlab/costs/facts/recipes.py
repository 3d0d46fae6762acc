"""Recipes: bytes that a training keeps for each parameter, its gradient and its optimizer state.

They are the rows of `recipes.csv`. Mixed precision: Micikevicius et al. 2018
(https://arxiv.org/abs/1710.03740).
"""

from dataclasses import dataclass

from shardlab.files.arguments import Count, checked

from . import names, tables


@dataclass(frozen=True, kw_only=True)
@checked
class Recipe:
    """The format of a training's numbers: bytes for each parameter."""

    name: str
    parameters: Count
    gradients: Count
    optimizer: int | float  # its memory, and an fp32 master copy where parameters are 16-bit
    update_traffic: int  # bytes read and written by one step of the optimizer
    element: Count  # bytes of one activation
    source: str

    @property
    def bytes_per_parameter(self) -> float:
        """Bytes of all states together."""
        return self.parameters + self.gradients + self.optimizer


RECIPES = {each.name: each for each in tables.rows("recipes", Recipe)}
MIXED = RECIPES["mixed, 16-bit gradients"]
FP32_GRADIENTS = RECIPES["mixed, fp32 gradients"]  # Megatron-LM's and FSDP2's with bf16


@checked
def recipe(name: str) -> Recipe:
    """Return the recipe called `name`. Errors: ValueError that lists the known names."""
    if name not in RECIPES:
        raise names.unknown("recipe", name, dict.fromkeys(RECIPES, ""))
    return RECIPES[name]
