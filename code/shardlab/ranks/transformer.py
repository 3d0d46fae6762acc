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

from shardlab.model.spec import TransformerSpec

from .mixture import GatedMLP, Mixture, Router, balance_loss

# in every norm: https://github.com/openai/gpt-2/blob/master/src/model.py; Llama 3 has the same
EPSILON = 1e-5
ROTARY_BASE = 500_000.0  # Llama 3, section 3.2 (RoFormer and Llama 1 have 10,000)
# Fields of a spec that `costs` counts and this model leaves at None, False or 0.
NORMS = ("head_norms", "whole_norms", "post_norms")
LAYERS = ("num_dense", "latent", "sinks", "output_gate", "recurrent", "gated", "blocks_at")
COUNTED_ONLY = ("head_dim", "position_style", "bias_places", *LAYERS, *NORMS)
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

        So does the code of GPT-2 (see EPSILON). Each block adds to the residual stream twice; the
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
        self.context_length = spec.context_length
        self.locate: Locate = count_positions
        self.tokens = nn.Embedding(spec.vocab_size, spec.hidden_size)
        learned = spec.style == "gpt2"
        self.positions = nn.Embedding(spec.context_length, spec.hidden_size) if learned else None

    def forward(self, tokens: Tensor) -> Tensor:  # [B, S] -> [B, S, h]
        length = tokens.shape[1]
        if length > self.context_length:
            raise ValueError(
                f"{length} tokens do not fit context_length={self.context_length}; "
                f"pass at most {self.context_length}, or build the model with a longer context"
            )
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
        self.rotary = spec.style == "llama"
        self.attend: Attend = causal_attention
        self.locate: Locate = count_positions
        bias = spec.style == "gpt2"
        self.q = nn.Linear(spec.hidden_size, spec.hidden_size, bias)
        self.k = nn.Linear(spec.hidden_size, spec.kv_size, bias)
        self.v = nn.Linear(spec.hidden_size, spec.kv_size, bias)
        self.out = nn.Linear(spec.hidden_size, spec.hidden_size, bias)

    def forward(self, x: Tensor) -> Tensor:  # [B, S, h] -> [B, S, h]
        q = self.split(self.q(x))                                     # [B, H, S, e]
        k = self.split(self.k(x))                                     # [B, K, S, e]
        v = self.split(self.v(x))                                     # [B, K, S, e]
        if self.rotary:
            positions = self.locate(x)                                # [S] or [B, S]
            q = rotate(q, positions)                                  # [B, H, S, e]
            k = rotate(k, positions)                                  # [B, K, S, e]
        y = self.attend(q, k, v)                                      # [B, H, S, e]
        y = y.transpose(1, 2).flatten(2)                              # [B, S, H*e]
        out: Tensor = self.out(y)                                     # [B, S, h]
        return out

    def split(self, x: Tensor) -> Tensor:
        """Split into heads: [B, S, H*e] -> [B, H, S, e]."""
        heads: Tensor = x.unflatten(-1, (-1, self.head_size))         # [B, S, H, e]
        return heads.transpose(1, 2)


class MLP(nn.Module):
    """GPT-2's feed-forward block: GELU (https://arxiv.org/abs/1606.08415), approximated by tanh."""

    def __init__(self, spec: TransformerSpec):
        super().__init__()
        self.up = nn.Linear(spec.hidden_size, spec.ffn)
        self.down = nn.Linear(spec.ffn, spec.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.gelu(self.up(x), approximate="tanh")                # [B, S, f]
        y: Tensor = self.down(inner)                                  # [B, S, h]
        return y


def make_feed_forward(spec: TransformerSpec) -> nn.Module:
    """Make the feed-forward block of the style, or a mixture of experts in its place."""
    if spec.experts:
        return Mixture(spec.hidden_size, spec.experts)
    return MLP(spec) if spec.style == "gpt2" else GatedMLP(spec.hidden_size, spec.ffn)


def check(spec: TransformerSpec) -> None:
    """Raise ValueError, with its fields, for a spec that only `costs` knows."""
    fields = {name: getattr(spec, name) for name in COUNTED_ONLY}
    given = [f"{name}={value!r}" for name, value in fields.items() if value not in (None, False)]
    if given:
        raise ValueError(
            f"the reference model does not build {', '.join(given)}; count and plan this spec with "
            "`shardlab.costs`, or leave these fields out"
        )


def make_norm(spec: TransformerSpec) -> nn.Module:
    """Make the norm of the style, which acts on each token.

    LayerNorm: https://arxiv.org/abs/1607.06450; RMSNorm: https://arxiv.org/abs/1910.07467.
    """
    norm = nn.LayerNorm if spec.style == "gpt2" else nn.RMSNorm
    return norm(spec.hidden_size, eps=EPSILON)


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


def rotate(x: Tensor, positions: Tensor, base: float = ROTARY_BASE) -> Tensor:
    """Encode positions by rotation: [..., S, e] -> [..., S, e].

    positions: [S], or [B, S] for x of [B, H, S, e]. Rotates the i-th pair of neighbouring numbers
    by position * base**(-2i/e), so that the product of a query and a key depends on their distance
    alone. RoFormer (https://arxiv.org/abs/2104.09864), equation 34.
    """
    width = x.shape[-1]
    exact = torch.promote_types(x.dtype, torch.float32)
    pairs = torch.arange(0, width, 2, device=x.device, dtype=exact)   # [e/2], 2i
    turns = base ** (-pairs / width)                                  # [e/2], radians per position
    angles = positions.to(exact).unsqueeze(-1) * turns                # [S, e/2] or [B, S, e/2]
    if positions.dim() > 1:
        angles = angles.unsqueeze(1)                                  # [B, 1, S, e/2]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]                            # [..., S, e/2]
    rotated_even = even * cos - odd * sin
    rotated_odd = even * sin + odd * cos
    return torch.stack((rotated_even, rotated_odd), dim=-1).flatten(-2)


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats per token: [B, S, V] and [B, S] -> []."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
