"""Tensor parallelism, plainly: every rank has a part of every matrix.

https://arxiv.org/abs/1909.08053. The engine: `ranks.tensor_parallel`.

    model = Transformer(spec)                 # different numbers on every rank
    data_parallel.copy_from_rank_0(model, group)  # the same numbers on every rank
    tensor_parallel.parallelize(model, group)  # this rank's parts of them
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in batches:                     # [B, S + 1], the same on every rank
        optimizer.zero_grad()
        model(batch[:, :-1], batch[:, 1:]).backward()  # the loss of the whole model
        optimizer.step()                      # of this rank's part

N = ranks, B = batch, S = sequence, D = hidden size, V = vocabulary, F = outputs of
the first of two matrices. "Whole": the same on every rank. "Partial": a rank's part
of a sum over ranks. SumOverRanks sums in forward, CopyToRanks in backward.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from shardlab import comm


class CopyToRanks(Function):
    """The same tensor on every rank, from which each computes something else."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: comm.Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)                           # [...], whole

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return comm.all_reduce(grad, ctx.group), None  # [...], summed to the whole


class SumOverRanks(Function):
    """The sum of the ranks' tensors, from which all ranks compute the same."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: comm.Group) -> Tensor:
        return comm.all_reduce(x, group)              # [...], from parts to the whole

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None                             # [...], whole


def columns(linear: nn.Linear, group: comm.Group, x: Tensor) -> Tensor:
    """Compute some outputs, from all inputs."""
    x = CopyToRanks.apply(x, group)           # [B, S, D], whole; sums the gradient
    y: Tensor = functional.linear(x, linear.weight, linear.bias)  # [B, S, F/N]
    return y


def rows(linear: nn.Linear, group: comm.Group, x: Tensor) -> Tensor:
    """Compute all outputs, from some inputs on each rank."""
    y: Tensor = functional.linear(x, linear.weight)  # [B, S, D], partial
    y = SumOverRanks.apply(y, group)          # [B, S, D], whole
    return y if linear.bias is None else y + linear.bias  # once, not N times


def embed(table: nn.Embedding, group: comm.Group, tokens: Tensor) -> Tensor:
    """Look tokens up, each on the rank that has its row."""
    row, here = find(tokens, len(table.weight), group)  # [B, S]
    x: Tensor = functional.embedding(row, table.weight)  # [B, S, D], or another's
    x = SumOverRanks.apply(x * here[..., None], group)  # [B, S, D], partial -> whole
    return x


def loss(logits: Tensor, targets: Tensor, group: comm.Group) -> Tensor:
    """Mean of log(sum(exp(logits))) - target's logit, for logits [B, S, V/N]."""
    top = comm.all_reduce(logits.detach().amax(-1), group, "max")  # [B, S], whole
    logits = logits - top[..., None]          # [B, S, V/N]; exp stays finite
    total: Tensor = SumOverRanks.apply(logits.exp().sum(-1), group)  # [B, S], whole
    row, here = find(targets, logits.shape[-1], group)  # [B, S]
    chosen: Tensor = logits.gather(-1, row[..., None])[..., 0]  # [B, S]
    chosen = SumOverRanks.apply(chosen * here, group)  # [B, S], partial -> whole
    return (total.log() - chosen).mean()


def find(tokens: Tensor, size: int, group: comm.Group) -> tuple[Tensor, Tensor]:
    """Return each token's row among this rank's `size`, and whether it has one."""
    words = size * group.size()
    if tokens.min() < 0 or tokens.max() >= words:
        raise ValueError(f"token {tokens.min()} or {tokens.max()}: use 0 to {words - 1}")
    row = tokens - size * group.rank()
    here = (row >= 0) & (row < size)
    return row * here, here


FORWARD: dict[str, Callable[..., Tensor]] = {  # the reference model's matrices
    "tokens": embed, "head": columns,         # V/N words
    "q": columns, "k": columns, "v": columns,  # D/N numbers: H/N heads
    "out": rows,                              # from these heads
    "gate": columns, "up": columns, "down": rows,  # F/N hidden units
}


def parallelize(model: Any, group: comm.Group) -> None:
    """Cut the reference transformer, in place; all of it must split evenly."""
    size, spec = group.size(), model.spec
    for count in (spec.num_heads, spec.kv_heads, spec.ffn, spec.vocab_size):
        if count % size:
            raise ValueError(
                f"{spec.num_heads} heads, {spec.kv_heads} key/value heads, {spec.ffn} "
                f"hidden units, {spec.vocab_size} words: {count} do not split over "
                f"{size} ranks; use a number of ranks that divides all four"
            )
    for name, parameter in model.named_parameters():  # a tied one comes once
        forward = FORWARD.get(name.split(".")[-2])
        if forward is rows and name.endswith("weight"):
            parameter.data = parameter.data.chunk(size, 1)[group.rank()].clone()
        if forward in (columns, embed):
            parameter.data = parameter.data.chunk(size, 0)[group.rank()].clone()
    for name, module in model.named_modules():
        if name.split(".")[-1] in FORWARD:
            module.forward = partial(FORWARD[name.split(".")[-1]], module, group)
    model.loss = partial(loss, group=group)
