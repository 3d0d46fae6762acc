"""The decoder-only transformer that every chapter cuts up: GPT-2 style (Radford et al. 2019,
https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf)
or Llama style (Touvron et al. 2023, https://arxiv.org/abs/2302.13971; Llama 3: https://arxiv.org/abs/2407.21783).

    tokens -> embedding -> blocks[0] -> ... -> blocks[n - 1] -> norm -> head -> logits

Shapes: B = batch, S = sequence, D = hidden_size, H = heads, K = key/value heads, N = numbers per head,
F = width of the feed-forward block, V = vocabulary. There is no dropout, so that two runs can be compared.

A rank may hold other tokens than 0 to S - 1, and may have to ask other ranks for keys: `replace` puts another attention
and other positions into a model that is built.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shardlab.spec import TransformerSpec

EPSILON = 1e-5  # of every norm: https://github.com/openai/gpt-2/blob/master/src/model.py; the same in Llama 3
ROTARY_BASE = 500_000.0  # Llama 3, section 3.2 (RoFormer and Llama 1 have 10,000)
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # q [B, H, S, N], k and v [B, K, S, N] -> [B, H, S, N]
Locate = Callable[[Tensor], Tensor]  # tokens [B, S], or what a layer makes of them [B, S, D] -> positions [S] or [B, S]


class Transformer(nn.Module):
    """Tokens in, logits out; with targets, the mean cross-entropy (nats per token) instead."""

    def __init__(self, spec: TransformerSpec):
        super().__init__()
        self.spec = spec
        self.embedding = Embedding(spec)
        self.blocks = nn.ModuleList(Block(spec) for _ in range(spec.num_layers))
        self.norm = make_norm(spec)
        self.head = nn.Linear(spec.hidden_size, spec.vocab_size, bias=False)
        if spec.tied:
            self.head.weight = self.embedding.tokens.weight
        self.loss: Callable[[Tensor, Tensor], Tensor] = loss  # a model whose logits are cut has another
        self.initialize()

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:  # [B, S] whole numbers
        x = self.embedding(tokens)                                               # [B, S, D]
        for block in self.blocks:
            x = block(x)                                                         # [B, S, D]
        logits: Tensor = self.head(self.norm(x))                                 # [B, S, V]
        return logits if targets is None else self.loss(logits, targets)

    @torch.no_grad()
    def initialize(self) -> None:
        """Normal weights of deviation 0.02, positions 0.01, biases zero: the code of GPT-2 (see EPSILON).

        Each block adds to the residual stream twice; those 2 * num_layers projections start smaller by
        1/sqrt(2 * num_layers) (GPT-2 paper, section 2.3). Llama's start is not published: the same is used.
        """
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                module.weight.normal_(std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.zero_()
            if isinstance(module, nn.LayerNorm | nn.RMSNorm):
                module.reset_parameters()
        if self.embedding.positions is not None:
            self.embedding.positions.weight.normal_(std=0.01)
        for block in (module for module in self.modules() if isinstance(module, Block)):
            for projection in (block.attention.out, block.mlp.down):
                projection.weight.div_(math.sqrt(2 * len(self.blocks)))


class Embedding(nn.Module):
    """A vector per token, plus (GPT-2 style) a learned vector per position."""

    def __init__(self, spec: TransformerSpec):
        super().__init__()
        self.context_length = spec.context_length
        self.locate: Locate = count_positions
        self.tokens = nn.Embedding(spec.vocab_size, spec.hidden_size)
        learned = spec.style == "gpt2"
        self.positions = nn.Embedding(spec.context_length, spec.hidden_size) if learned else None

    def forward(self, tokens: Tensor) -> Tensor:  # [B, S] -> [B, S, D]
        length = tokens.shape[1]
        if length > self.context_length:
            raise ValueError(
                f"{length} tokens do not fit context_length={self.context_length}; "
                f"pass at most {self.context_length}, or build the model with a longer context"
            )
        x: Tensor = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions(self.locate(tokens))
        return x


class Block(nn.Module):
    """Attention, then the feed-forward block; each reads a normed copy and adds to the residual stream."""

    def __init__(self, spec: TransformerSpec):
        super().__init__()
        self.attention_norm = make_norm(spec)
        self.attention = Attention(spec)
        self.mlp_norm = make_norm(spec)
        self.mlp: MLP | GatedMLP = MLP(spec) if spec.style == "gpt2" else GatedMLP(spec)

    def forward(self, x: Tensor) -> Tensor:  # [B, S, D] -> [B, S, D]
        x = x + self.attention(self.attention_norm(x))
        y: Tensor = x + self.mlp(self.mlp_norm(x))
        return y


class Attention(nn.Module):
    """Causal self-attention; fewer key/value heads than query heads are shared (https://arxiv.org/abs/2305.13245).

    The number of heads is read from the width of q, k and v, so that a rank may hold only some of them.
    """

    def __init__(self, spec: TransformerSpec):
        super().__init__()
        self.head_size, self.rotary = spec.head_size, spec.style == "llama"
        self.attend: Attend = causal_attention
        self.locate: Locate = count_positions
        bias = spec.style == "gpt2"
        self.q = nn.Linear(spec.hidden_size, spec.hidden_size, bias)
        self.k = nn.Linear(spec.hidden_size, spec.kv_size, bias)
        self.v = nn.Linear(spec.hidden_size, spec.kv_size, bias)
        self.out = nn.Linear(spec.hidden_size, spec.hidden_size, bias)

    def forward(self, x: Tensor) -> Tensor:                                             # [B, S, D]
        q = self.split(self.q(x))                                                       # [B, H, S, N]
        k, v = self.split(self.k(x)), self.split(self.v(x))                             # [B, K, S, N]
        if self.rotary:
            positions = self.locate(x)                                                  # [S] or [B, S]
            q, k = rotate(q, positions), rotate(k, positions)
        y = self.attend(q, k, v)                                                        # [B, H, S, N]
        out: Tensor = self.out(y.transpose(1, 2).flatten(2))                            # [B, S, D]
        return out

    def split(self, x: Tensor) -> Tensor:
        """Into heads: [B, S, H * N] -> [B, H, S, N]."""
        heads: Tensor = x.unflatten(-1, (-1, self.head_size))
        return heads.transpose(1, 2)


class MLP(nn.Module):
    """GPT-2's feed-forward block, with the tanh approximation of GELU (https://arxiv.org/abs/1606.08415)."""

    def __init__(self, spec: TransformerSpec):
        super().__init__()
        self.up = nn.Linear(spec.hidden_size, spec.ffn)
        self.down = nn.Linear(spec.ffn, spec.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.up(x), approximate="tanh")  # [B, S, F]
        y: Tensor = self.down(h)                    # [B, S, D]
        return y


class GatedMLP(nn.Module):
    """Llama's feed-forward block, SwiGLU (https://arxiv.org/abs/2002.05202)."""

    def __init__(self, spec: TransformerSpec):
        super().__init__()
        self.gate = nn.Linear(spec.hidden_size, spec.ffn, bias=False)
        self.up = nn.Linear(spec.hidden_size, spec.ffn, bias=False)
        self.down = nn.Linear(spec.ffn, spec.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(self.gate(x)) * self.up(x)       # [B, S, F]
        y: Tensor = self.down(h)                    # [B, S, D]
        return y


def make_norm(spec: TransformerSpec) -> nn.Module:
    """LayerNorm (https://arxiv.org/abs/1607.06450) or RMSNorm (https://arxiv.org/abs/1910.07467), per token."""
    norm = nn.LayerNorm if spec.style == "gpt2" else nn.RMSNorm
    return norm(spec.hidden_size, eps=EPSILON)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Let every token see itself and those before it: [B, H, S, N] and [B, K, S, N] twice -> [B, H, S, N]."""
    shared = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=shared)


def count_positions(x: Tensor) -> Tensor:
    """Number the tokens of a sequence from 0: [B, S, ...] -> [S]."""
    return torch.arange(x.shape[1], device=x.device)


def replace(model: nn.Module, *, attend: Attend | None = None, locate: Locate | None = None) -> None:
    """Give the model, or a part of it, another attention or other positions; None keeps what is there.

    attend  maps q, k and v to what each token has seen, as `causal_attention` does
    locate  maps tokens, or what a layer makes of them, to positions, as `count_positions` does
    """
    for module in model.modules():
        if isinstance(module, Attention) and attend is not None:
            module.attend = attend
        if isinstance(module, Attention | Embedding) and locate is not None:
            module.locate = locate


def rotate(x: Tensor, positions: Tensor, base: float = ROTARY_BASE) -> Tensor:
    """Rotary positions (RoFormer, https://arxiv.org/abs/2104.09864, equation 34): [..., S, N] -> [..., S, N].

    positions: [S], or [B, S] for x of [B, H, S, N]. Turns the i-th pair of neighbouring numbers by
    position * base**(-2i/N), so that a product of a query and a key depends on their distance alone.
    """
    width = x.shape[-1]
    exact = torch.promote_types(x.dtype, torch.float32)
    turns = base ** (-torch.arange(0, width, 2, device=x.device, dtype=exact) / width)  # [N/2]
    angles = positions.to(exact).unsqueeze(-1) * turns                                  # [S, N/2] or [B, S, N/2]
    if positions.dim() > 1:
        angles = angles.unsqueeze(1)                                                    # [B, 1, S, N/2]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]                                              # [..., S, N/2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats per token: [B, S, V] and [B, S] -> []."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
