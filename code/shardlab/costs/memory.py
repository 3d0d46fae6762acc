"""Bytes one rank keeps while it trains: the model's states and the activations, part by part.

States: Rajbhandari et al. 2020, "ZeRO" (https://arxiv.org/abs/1910.02054).
Activations: Korthikanti et al. 2022 (https://arxiv.org/abs/2205.05198).
"""

from dataclasses import dataclass

from shardlab.spec import TransformerSpec

ZERO_STAGES = {0: "everything on every rank", 1: "optimizer cut", 2: "+ gradients cut", 3: "+ parameters cut"}
ATTENTIONS = ("flash", "stored")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How numbers are kept: bytes for each parameter."""

    name: str
    parameters: int
    gradients: int
    optimizer: int  # Adam's momentum and variance, and the fp32 master copy where the parameters are 16-bit
    update_traffic: int  # bytes read and written by one step of Adam
    element: int  # bytes of one activation
    source: str

    @property
    def bytes_per_parameter(self) -> int:
        """Of all states together."""
        return self.parameters + self.gradients + self.optimizer


_ZERO = "Rajbhandari et al. 2020, section 3.1 (https://arxiv.org/abs/1910.02054)"
_MEGATRON = "https://docs.nvidia.com/megatron-core/developer-guide/latest/distrib_optimizer.html"

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
        Recipe(  # reads gradient, master, momentum, variance; writes the last three and the 16-bit parameter
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
    )
}
MIXED = RECIPES["mixed, 16-bit gradients"]


def recipe(name: str) -> Recipe:
    """The recipe of that name. Errors: ValueError that lists the known names."""
    if name not in RECIPES:
        raise ValueError(f"unknown recipe {name!r}; known: {', '.join(RECIPES)}")
    return RECIPES[name]


def model_states(
    num_parameters: float, recipe: Recipe = MIXED, *, dp: int = 1, zero: int = 0
) -> dict[str, float]:
    """Bytes on one rank for parameters, gradients and optimizer states.

    dp: ranks that hold replicas; plain data parallelism (zero=0) does not divide by it. zero: the ZeRO
    stage, 0 to 3, of which each cuts one more part into dp pieces. Source: ZeRO, section 5 and Figure 1.
    Errors: ValueError for dp below 1, an unknown stage, or a negative size.
    """
    if dp < 1 or num_parameters < 0:
        raise ValueError(f"{num_parameters} parameters on {dp} ranks is no layout; use at least 0 and 1")
    if zero not in ZERO_STAGES:
        raise ValueError(f"ZeRO has the stages {', '.join(map(str, ZERO_STAGES))}, not {zero}")
    pieces = {"parameters": 3, "gradients": 2, "optimizer": 1}  # the stage from which a part is cut
    return {
        part: getattr(recipe, part) * num_parameters / (dp if zero >= stage else 1)
        for part, stage in pieces.items()
    }


def activations(
    spec: TransformerSpec, *, batch: int, sequence: int, attention: str = "flash", element: int = 2
) -> dict[str, float]:
    """Bytes that the forward pass leaves for the backward pass, without recomputation.

    attention: "stored" keeps the [S, S] scores of every head, s*b*h*(34 + 5*a*s/h) bytes a layer for GPT
    (Korthikanti et al. 2022, equation 1); "flash" does not, 34*s*b*h, what their selective recomputation
    keeps (equation 6, t = 1). element: bytes of one activation; the paper's formulas are for 2.
    Errors: ValueError for no tokens, more than the context, or another attention.
    """
    if attention not in ATTENTIONS:
        raise ValueError(f"unknown attention {attention!r}; known: {', '.join(ATTENTIONS)}")
    tokens, h = spec.tokens(batch, sequence), spec.hidden_size
    dropout = spec.style == "gpt2"
    layer = tokens * (element * _stored_per_token(spec) + dropout * 2 * h)  # two masks of one byte an entry
    if attention == "stored":  # the softmax, and with dropout its mask and its output
        layer += batch * spec.num_heads * sequence**2 * (2 * element + 1 if dropout else element)
    return {
        "layers": float(spec.num_layers * layer),
        "embedding": float(tokens * h * dropout),  # the mask of its dropout
        "head": float(tokens * (2 * element * h + 4 * spec.vocab_size)),  # two inputs, fp32 logits
    }


def _stored_per_token(spec: TransformerSpec) -> int:
    """Numbers one layer keeps for each token, for the backward of norms, matrices, activations. GPT: 16 h."""
    h, kv, f = spec.hidden_size, spec.kv_size, spec.ffn
    norms = 2 * h
    attention = h + h + 2 * kv + h  # input, queries, keys and values, input of the output projection
    if spec.style == "gpt2":
        return norms + attention + h + 2 * f  # input, before and after GELU
    return norms + attention + h + 4 * f  # input, gate before and after SiLU, up, their product
