"""Tensor parallelism, plainly: every rank has a part of every matrix.

Shoeybi et al. 2019, Megatron-LM, https://arxiv.org/abs/1909.08053. The engine,
`ranks.tensor_parallel`, sums once for all matrices that read the same input.

    model = Transformer(spec)                     # different numbers on every rank
    data_parallel.copy_from_rank_0(model, group)  # the same numbers on every rank
    tensor_parallel.parallelize(model, group)     # this rank's parts of them
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in batches:                         # [B, S + 1], whole
        optimizer.zero_grad()
        model(batch[:, :-1], batch[:, 1:]).backward()  # the loss of the whole model
        optimizer.step()                          # of this rank's parts

N = ranks, B = samples, S = sequence, V = vocabulary, h = width of the model. Whole:
the same on every rank. Partial: a rank's term of a sum over ranks, which is whole.
"""

from typing import Any

from torch import Tensor
from torch.autograd.function import Function, once_differentiable
from torch.nn import Embedding, Linear, Module, Parameter, functional

from shardlab import comm


class CopyToRanks(Function):
    """Megatron's f: every rank uses the same x, so its gradients are summed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: comm.Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)                           # [...], whole

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return comm.all_reduce(grad, ctx.group), None  # [...], partial -> whole


class SumOverRanks(Function):
    """Megatron's g: the ranks' x are summed, so each has the gradient of the sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: comm.Group) -> Tensor:
        return comm.all_reduce(x, group)              # [...], partial -> whole

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None                             # [...], whole


class ColumnLinear(Module):
    """Some outputs of a linear layer: columns of the paper's matrix, rows of torch's."""

    def __init__(self, linear: Linear, group: comm.Group):
        super().__init__()
        self.group = group
        self.weight = shard(linear.weight, 0, group)  # [outputs/N, inputs]
        self.bias = shard(linear.bias, 0, group)      # [outputs/N], or None

    def forward(self, x: Tensor) -> Tensor:           # [B, S, h], whole
        x = CopyToRanks.apply(x, self.group)          # [B, S, h], whole; sums the gradient
        return functional.linear(x, self.weight, self.bias)  # [B, S, outputs/N]


class RowLinear(Module):
    """All outputs of a linear layer, of whose inputs each rank has some."""

    def __init__(self, linear: Linear, group: comm.Group):
        super().__init__()
        self.group = group
        self.weight = shard(linear.weight, 1, group)  # [h, inputs/N]
        self.bias = linear.bias                       # [h], whole

    def forward(self, x: Tensor) -> Tensor:           # [B, S, inputs/N]
        x = functional.linear(x, self.weight)         # [B, S, h], partial
        x = SumOverRanks.apply(x, self.group)         # [B, S, h], whole
        return x if self.bias is None else x + self.bias  # once, not N times


class VocabularyEmbedding(Module):
    """The vectors of all tokens, of which each rank holds V/N."""

    def __init__(self, table: Embedding, group: comm.Group):
        super().__init__()
        self.group = group
        self.weight = shard(table.weight, 0, group)   # [V/N, h]

    def forward(self, tokens: Tensor) -> Tensor:      # [B, S], whole
        row, here = find(tokens, len(self.weight), self.group)  # [B, S] each
        x: Tensor = self.weight[row]                  # [B, S, h]; any if not here
        x = SumOverRanks.apply(x * here[..., None], self.group)  # partial -> whole
        return x


def cross_entropy(logits: Tensor, targets: Tensor, group: comm.Group) -> Tensor:
    """Return the mean of log(sum(exp(all logits))) - target's logit; logits: [B, S, V/N]."""
    top = comm.all_reduce(logits.detach().amax(-1), group, "max")  # [B, S], whole
    logits = logits - top[..., None]                  # [B, S, V/N]; exp stays finite
    total: Tensor = SumOverRanks.apply(logits.exp().sum(-1), group)  # [B, S], whole
    row, here = find(targets, logits.shape[-1], group)  # [B, S] each
    chosen: Tensor = logits.gather(-1, row[..., None])[..., 0]  # [B, S]; any if not here
    chosen = SumOverRanks.apply(chosen * here, group)  # [B, S], partial -> whole
    return (total.log() - chosen).mean()              # [], whole


def find(tokens: Tensor, size: int, group: comm.Group) -> tuple[Tensor, Tensor]:
    """Return each token's row among the `size` of this rank, and whether it is here."""
    words = size * group.size()
    if tokens.min() < 0 or tokens.max() >= words:
        raise ValueError(f"token {tokens.min()} or {tokens.max()}: use 0 to {words - 1}")
    row = tokens - size * group.rank()                # counted from this rank's first
    here = (row >= 0) & (row < size)
    return row * here, here                           # row 0 for a token elsewhere


def shard(whole: Any, dim: int, group: comm.Group) -> Any:
    """Return this rank's part of a whole parameter; None for a bias that is None."""
    if whole is None:
        return None
    part = whole.detach().chunk(group.size(), dim)[group.rank()]
    return Parameter(part.clone(), whole.requires_grad)


def parallelize(model: Any, group: comm.Group) -> None:
    """Replace every matrix of the reference transformer by this rank's part of it."""
    if model.spec.experts:
        raise ValueError("blocks.0.mlp has experts; use ranks.tensor_parallel, which cuts them")
    for size in ("num_heads", "kv_heads", "ffn", "vocab_size"):
        count = getattr(model.spec, size)
        if count % group.size():
            raise ValueError(f"{size}={count} on {group.size()} ranks; use a divisor of {count}")
    tokens = model.embedding.tokens = VocabularyEmbedding(model.embedding.tokens, group)
    for block in model.blocks:
        attention, mlp = block.attention, block.mlp
        attention.q = ColumnLinear(attention.q, group)
        attention.k = ColumnLinear(attention.k, group)
        attention.v = ColumnLinear(attention.v, group)
        attention.out = RowLinear(attention.out, group)
        if hasattr(mlp, "gate"):
            mlp.gate = ColumnLinear(mlp.gate, group)
        mlp.up = ColumnLinear(mlp.up, group)
        mlp.down = RowLinear(mlp.down, group)
    model.head = ColumnLinear(model.head, group)
    if model.spec.tied:
        model.head.weight = tokens.weight             # one parameter, as before
    model.loss = lambda logits, targets: cross_entropy(logits, targets, group)
