"""The decoder-only transformer that every chapter cuts up: GPT-2 style (Radford et al. 2019,
https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf)
or Llama style (Touvron et al. 2023, https://arxiv.org/abs/2302.13971;
Llama 3: https://arxiv.org/abs/2407.21783).

    tokens -> embedding -> blocks[0] -> ... -> blocks[L - 1] -> norm -> head -> logits

Shapes: B = batch, S = sequence, h = hidden_size, H = heads, K = key/value heads, e = numbers per
head, f = width of the feed-forward block, V = vocabulary; all tensors are whole here. There is no
dropout, so that two runs can be compared. L = layers.

A rank may hold tokens other than 0 to S - 1, and may need keys from other ranks: `replace` gives a
model that is already built another attention and other positions.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shardlab.model.details import DETAILS, Details, RotaryScaling
from shardlab.model.spec import TransformerSpec

from .mixture import GatedMLP, Mixture, Router, balance_loss

# Fields of a spec that `costs` counts and this model leaves at None, False or 0.
LAYERS = ("num_dense", "latent", "sinks", "output_gate", "recurrent", "gated", "blocks_at")
COUNTED_ONLY = ("position_style", "whole_norms", "post_norms", *LAYERS)
# q [B, H, S, e], k and v [B, K, S, e] -> [B, H, S, e]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
# tokens [B, S], or hidden states [B, S, h] -> positions [S] or [B, S]
Locate = Callable[[Tensor], Tensor]


class Transformer(nn.Module):
    """A decoder-only transformer, from tokens to logits or, with targets, to the loss in nats.

    A mixture that is balanced by a loss adds it while the model is in training mode.
    """

    def __init__(self, spec: TransformerSpec):
        super().__init__()
        check(spec)
        self.spec = spec
        self.embedding = Embedding(spec)
        self.blocks = nn.ModuleList(Block(spec) for _ in range(spec.num_layers))
        self.norm = make_norm(spec)
        self.head = nn.Linear(spec.hidden_size, spec.vocab_size, bias=False)
        if spec.tied:
            self.head.weight = self.embedding.tokens.weight
        self.loss: Callable[[Tensor, Tensor], Tensor] = loss  # replaced when the logits are cut
        self.initialize()

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:  # [B, S], int64
        x = self.embedding(tokens)                                    # [B, S, h]
        for block in self.blocks:
            x = block(x)                                              # [B, S, h]
        logits: Tensor = self.head(self.norm(x))                      # [B, S, V]
        if targets is None:
            return logits
        return add_balance_loss(self, self.loss(logits, targets))     # []

    @torch.no_grad()
    def initialize(self) -> None:
        """Draw weights with standard deviation 0.02, positions with 0.01; set biases to zero.

        So does the code of GPT-2 (see `model.details`). Each block adds to the residual stream twice; the
        weights of those 2 * num_layers projections are divided by sqrt(2 * num_layers) (GPT-2
        paper, section 2.3). Llama's initialization is not published; it gets the same one.
        """
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding | Router):
                module.weight.normal_(std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.zero_()
            if isinstance(module, nn.LayerNorm | nn.RMSNorm):
                module.reset_parameters()
        if self.embedding.positions is not None:
            self.embedding.positions.weight.normal_(std=0.01)
        shrink = math.sqrt(2 * len(self.blocks))
        for name, weight in self.named_parameters():
            if name.endswith(("attention.out.weight", "down.weight")):
                weight.div_(shrink)


class Embedding(nn.Module):
    """A learned vector per token; in GPT-2 style, plus a learned vector per position."""

    def __init__(self, spec: TransformerSpec):
        super().__init__()
        self.spec = spec
        self.locate: Locate = count_positions
        self.tokens = nn.Embedding(spec.vocab_size, spec.hidden_size)
        learned = spec.style == "gpt2"
        self.positions = nn.Embedding(spec.context_length, spec.hidden_size) if learned else None

    def forward(self, tokens: Tensor) -> Tensor:  # [B, S] -> [B, S, h]
        check_length(self.spec, tokens.shape[1])
        x: Tensor = self.tokens(tokens)                               # [B, S, h]
        if self.positions is not None:
            positions = self.locate(tokens)                           # [S] or [B, S]
            x = x + self.positions(positions)                         # [B, S, h]
        return x


class Block(nn.Module):
    """Attention, then the feed-forward block; each adds its result to the residual stream."""

    def __init__(self, spec: TransformerSpec):
        super().__init__()
        self.attention_norm = make_norm(spec)
        self.attention = Attention(spec)
        self.mlp_norm = make_norm(spec)
        self.mlp: Any = make_feed_forward(spec)

    def forward(self, x: Tensor) -> Tensor:  # [B, S, h] -> [B, S, h]
        x = x + self.attention(self.attention_norm(x))                # [B, S, h]
        y: Tensor = x + self.mlp(self.mlp_norm(x))                    # [B, S, h]
        return y


class Attention(nn.Module):
    """Causal self-attention, in which several query heads may share a key/value head.

    Grouped queries: https://arxiv.org/abs/2305.13245. The width of q, k and v gives the number of
    heads, so that a rank may hold only some of them.
    """

    def __init__(self, spec: TransformerSpec):
        super().__init__()
        self.head_size = spec.head_size
        self.rotary = spec.positions == "rotary"
        self.details = spec.details
        self.attend: Attend = causal_attention
        self.locate: Locate = count_positions
        bias = "qkv" in spec.biases
        self.q = nn.Linear(spec.hidden_size, spec.attention_size, bias)
        self.k = nn.Linear(spec.hidden_size, spec.kv_size, bias)
        self.v = nn.Linear(spec.hidden_size, spec.kv_size, bias)
        self.out = nn.Linear(spec.attention_size, spec.hidden_size, "out" in spec.biases)
        normed = spec.head_norms
        self.q_scale = make_norm(spec, spec.head_size) if normed else None
        self.k_scale = make_norm(spec, spec.head_size) if normed else None

    def forward(self, x: Tensor) -> Tensor:  # [B, S, h] -> [B, S, h]
        q = self.split(self.q(x))                                     # [B, H, S, e]
        k = self.split(self.k(x))                                     # [B, K, S, e]
        v = self.split(self.v(x))                                     # [B, K, S, e]
        if self.q_scale is not None and self.k_scale is not None:
            q = self.q_scale(q)                                       # [B, H, S, e]
            k = self.k_scale(k)                                       # [B, K, S, e]
        if self.rotary:
            positions = self.locate(x)                                # [S] or [B, S]
            q = rotate(q, positions, self.details)                    # [B, H, S, e]
            k = rotate(k, positions, self.details)                    # [B, K, S, e]
        y = self.attend(q, k, v)                                      # [B, H, S, e]
        y = y.transpose(1, 2).flatten(2)                              # [B, S, H*e]
        out: Tensor = self.out(y)                                     # [B, S, h]
        return out

    def split(self, x: Tensor) -> Tensor:
        """Split into heads: [B, S, H*e] -> [B, H, S, e]."""
        heads: Tensor = x.unflatten(-1, (-1, self.head_size))         # [B, S, H, e]
        return heads.transpose(1, 2)


class MLP(nn.Module):
    """GPT-2's feed-forward block: GELU (https://arxiv.org/abs/1606.08415), by default with tanh."""

    def __init__(self, spec: TransformerSpec):
        super().__init__()
        self.approximate = "none" if spec.details.exact_gelu else "tanh"
        bias = "ffn" in spec.biases
        self.up = nn.Linear(spec.hidden_size, spec.ffn, bias)
        self.down = nn.Linear(spec.ffn, spec.hidden_size, bias)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.gelu(self.up(x), approximate=self.approximate)      # [B, S, f]
        y: Tensor = self.down(inner)                                  # [B, S, h]
        return y


def make_feed_forward(spec: TransformerSpec) -> nn.Module:
    """Make the feed-forward block of the style, or a mixture of experts in its place."""
    if spec.experts:
        return Mixture(spec.hidden_size, spec.experts)
    if spec.style == "gpt2":
        return MLP(spec)
    return GatedMLP(spec.hidden_size, spec.ffn, "ffn" in spec.biases)


def check(spec: TransformerSpec) -> None:
    """Raise ValueError, with its fields, for a spec that this model cannot be."""
    fields = {name: getattr(spec, name) for name in COUNTED_ONLY}
    given = [f"{name}={value!r}" for name, value in fields.items() if value not in (None, False)]
    if given:
        raise ValueError(
            f"the reference model does not build {', '.join(given)}; count and plan this spec with "
            "`shardlab.costs`, or leave these fields out"
        )
    if spec.experts and "ffn" in spec.biases:
        raise ValueError(
            f"bias_places={spec.bias_places} asks for biases of experts and routers, which the "
            "reference model does not build; leave 'ffn' out"
        )
    if spec.details.exact_gelu and spec.has_gate:
        raise ValueError("exact_gelu=True has no meaning in a block with SiLU; leave it out")


def check_length(spec: TransformerSpec, length: int) -> None:
    """Raise ValueError for a sequence that is longer than the context or the attention's window."""
    if length > spec.context_length:
        raise ValueError(
            f"{length} tokens do not fit context_length={spec.context_length}; "
            f"pass at most {spec.context_length}, or build the model with a longer context"
        )
    window = spec.details.window
    if window is not None and length > window:
        raise ValueError(
            f"{length} tokens are more than window={window}, beyond which the origin of this model "
            f"does not attend and the reference model would; pass at most {window}"
        )


def make_norm(spec: TransformerSpec, width: int | None = None) -> nn.Module:
    """Make the norm of the style, which acts on `width` numbers; None: on each token's.

    LayerNorm: https://arxiv.org/abs/1607.06450; RMSNorm: https://arxiv.org/abs/1910.07467.
    """
    norm = nn.LayerNorm if spec.style == "gpt2" else nn.RMSNorm
    return norm(width or spec.hidden_size, eps=spec.details.epsilon)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Let every token attend to itself and to those before it.

    q: [B, H, S, e], k and v: [B, K, S, e] -> [B, H, S, e].
    """
    shared = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=shared)


def count_positions(x: Tensor) -> Tensor:
    """Number the tokens of a sequence from 0: [B, S, ...] -> [S]."""
    return torch.arange(x.shape[1], device=x.device)


def add_balance_loss(model: nn.Module, loss: Tensor) -> Tensor:
    """Add the balance losses of the mixtures in a model, if it has any: [] -> []."""
    extra = balance_loss(model)
    return loss if extra is None else loss + extra


def replace(
    model: nn.Module, *, attend: Attend | None = None, locate: Locate | None = None
) -> None:
    """Replace the attention or the positions of a model, or of a part of it; None keeps them.

    attend  maps q, k and v to the weighted sum of values, as `causal_attention` does
    locate  maps tokens or hidden states to positions, as `count_positions` does
    """
    for module in model.modules():
        if isinstance(module, Attention) and attend is not None:
            module.attend = attend
        if isinstance(module, Attention | Embedding) and locate is not None:
            module.locate = locate


def rotate(x: Tensor, positions: Tensor, details: Details = DETAILS) -> Tensor:
    """Encode positions by rotation: [..., S, e] -> [..., S, e].

    positions: [S], or [B, S] for x of [B, H, S, e]. Rotates the i-th pair of the first r numbers of
    a head, by default all of them, by position * base**(-2i/r), so that the product of a query and
    a key depends on their distance alone. RoFormer (https://arxiv.org/abs/2104.09864), equation 34.
    """
    width = details.turned_size(x.shape[-1])                          # r
    x, rest = x[..., :width], x[..., width:]
    exact = torch.promote_types(x.dtype, torch.float32)
    pairs = torch.arange(0, width, 2, device=x.device, dtype=exact)   # [r/2], 2i
    turns = details.rotary_base ** (-pairs / width)                   # [r/2], radians per position
    if details.scaling is not None:
        turns = slowed(turns, details.scaling)
    angles = positions.to(exact).unsqueeze(-1) * turns                # [S, r/2] or [B, S, r/2]
    if positions.dim() > 1:
        angles = angles.unsqueeze(1)                                  # [B, 1, S, r/2]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    halves = details.pairs == "halves"
    first, second = x.chunk(2, dim=-1) if halves else (x[..., 0::2], x[..., 1::2])  # [..., S, r/2]
    turned = first * cos - second * sin, first * sin + second * cos
    y = torch.cat(turned, -1) if halves else torch.stack(turned, -1).flatten(-2)  # [..., S, r]
    return torch.cat((y, rest), dim=-1) if rest.shape[-1] else y


def slowed(turns: Tensor, scaling: RotaryScaling) -> Tensor:
    """Slow the rotations that turn seldom in the original context: [r/2] -> [r/2]."""
    rounds = scaling.original * turns / (2 * math.pi)                 # [r/2], in that context
    kept = ((rounds - scaling.low) / (scaling.high - scaling.low)).clamp(0, 1)
    return kept * turns + (1 - kept) * turns / scaling.factor


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats per token: [B, S, V] and [B, S] -> []."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
