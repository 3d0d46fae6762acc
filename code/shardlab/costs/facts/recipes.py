"""Recipes: bytes that a training keeps for each parameter, its gradient and its optimizer state.

Mixed precision: Micikevicius et al. 2018 (https://arxiv.org/abs/1710.03740).
"""

from dataclasses import dataclass

from shardlab.files.arguments import Count, checked

from . import names


@dataclass(frozen=True, kw_only=True)
@checked
class Recipe:
    """The format of a training's numbers: bytes for each parameter."""

    name: str
    parameters: Count
    gradients: Count
    optimizer: float  # its memory, and an fp32 master copy where parameters are 16-bit
    update_traffic: int  # bytes read and written by one step of the optimizer
    element: Count  # bytes of one activation
    source: str

    @property
    def bytes_per_parameter(self) -> float:
        """Bytes of all states together."""
        return self.parameters + self.gradients + self.optimizer


_ZERO = "Rajbhandari et al. 2020, section 3.1 (https://arxiv.org/abs/1910.02054)"
_MEGATRON = "https://docs.nvidia.com/megatron-core/developer-guide/latest/distrib_optimizer.html"
_SGD = "https://docs.pytorch.org/docs/stable/generated/torch.optim.SGD.html"
_EIGHT_BIT = "Dettmers et al. 2022, section 2 (https://arxiv.org/abs/2110.02861)"
_AUTOCAST = "https://docs.pytorch.org/docs/stable/amp.html (its 16-bit copies of the weights are not counted)"
_MUON = "Liu et al. 2025, section 2.3 (https://arxiv.org/abs/2502.16982)"
_BLOCK = 2048  # numbers that share one fp32 scale in 8-bit Adam; there are two such states

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(  # reads gradient, parameter, momentum, variance; writes the last three
            name="fp32 Adam",
            parameters=4,
            gradients=4,
            optimizer=8,
            update_traffic=4 + 2 * (4 + 8),
            element=4,
            source=_MEGATRON,
        ),
        Recipe(
            name="fp32 SGD with momentum",
            parameters=4,
            gradients=4,
            optimizer=4,
            update_traffic=4 + 2 * (4 + 4),
            element=4,
            source=_SGD,
        ),
        Recipe(
            name="fp32 SGD",
            parameters=4,
            gradients=4,
            optimizer=0,
            update_traffic=4 + 2 * 4,
            element=4,
            source=_SGD,
        ),
        # Like "fp32 Adam", but products are computed, and their inputs kept, in 16 bits.
        Recipe(
            name="autocast, fp32 Adam",
            parameters=4,
            gradients=4,
            optimizer=8,
            update_traffic=4 + 2 * (4 + 8),
            element=2,
            source=_AUTOCAST,
        ),
        # Reads gradient, master, momentum, variance; writes the last three and the 16-bit
        # parameter.
        Recipe(
            name="mixed, 16-bit gradients",
            parameters=2,
            gradients=2,
            optimizer=12,
            update_traffic=2 + 2 * 12 + 2,
            element=2,
            source=_ZERO,
        ),
        Recipe(
            name="mixed, fp32 gradients",
            parameters=2,
            gradients=4,
            optimizer=12,
            update_traffic=4 + 2 * 12 + 2,
            element=2,
            source=_MEGATRON,
        ),
        Recipe(  # like mixed with 16-bit gradients, but momentum and variance take one byte each
            name="mixed, 8-bit Adam",
            parameters=2,
            gradients=2,
            optimizer=4 + 2 * (1 + 4 / _BLOCK),
            update_traffic=2 + 2 * 6 + 2,
            element=2,
            source=_EIGHT_BIT,
        ),
        # One momentum for each matrix; embeddings, norms and head, which keep Adam, count alike.
        Recipe(
            name="mixed, Muon",
            parameters=2,
            gradients=2,
            optimizer=4 + 4,
            update_traffic=2 + 2 * 8 + 2,
            element=2,
            source=_MUON,
        ),
    )
}
MIXED = RECIPES["mixed, 16-bit gradients"]
FP32_GRADIENTS = RECIPES["mixed, fp32 gradients"]  # Megatron-LM's and FSDP2's with bf16


@checked
def recipe(name: str) -> Recipe:
    """Return the recipe called `name`. Errors: ValueError that lists the known names."""
    if name not in RECIPES:
        raise names.unknown("recipe", name, dict.fromkeys(RECIPES, ""))
    return RECIPES[name]
