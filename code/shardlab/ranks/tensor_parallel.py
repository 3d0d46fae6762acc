"""Tensor parallelism: every rank holds a part of each layer, and all ranks compute every token together.

Shoeybi et al. 2019, section 3 (https://arxiv.org/abs/1909.08053). Two matrices that follow each other are cut so that
nothing need be said between them: the first by its outputs (columns of the paper's matrices, rows of torch's weights),
the second by its inputs. What stands between them, an activation function or a head's attention, then only needs what
its rank has:

    norm -> x | enter -> q k v   -> attention -> out  -> leave | + residual
    norm -> x | enter -> gate up -> GELU      -> down -> leave | + residual

`enter` and `leave` are conjugate (see `conjugates`): one all-reduce in forward and one in backward for each of the two.
With sequence parallelism they are its halves (see `sequence_parallel`).
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

from .. import cuts
from ..layout import Layout
from . import comm, regather, shards
from .conjugates import CopyToRanks, SumOverRanks
from .sequence_parallel import GatherSequence, ScatterSequence, SlicedPositions
from .transformer import Block, Transformer
from .vocabulary_parallel import VocabularyEmbedding, cross_entropy


def column_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, group: comm.Group, enter: type[Function] = CopyToRanks
) -> Tensor:
    """Some outputs of a linear layer, from all inputs: [..., D] and [F/tp, D] -> [..., F/tp]."""
    return F.linear(enter.apply(x, group), weight, bias)


def row_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, group: comm.Group, leave: type[Function] = SumOverRanks
) -> Tensor:
    """All outputs of a linear layer, from some inputs on each rank: [..., F/tp] and [D, F/tp] -> [..., D].

    The bias is added after the sum: before it, it would count once for every rank.
    """
    y: Tensor = leave.apply(F.linear(x, weight), group)
    return y if bias is None else y + bias


class RowLinear(nn.Module):
    """The last layer of a cut region, in the place of a plain one that holds some columns of the weight."""

    def __init__(self, plain: nn.Linear, group: comm.Group, leave: type[Function]):
        super().__init__()
        self.weight, self.bias, self.group, self.leave = plain.weight, plain.bias, group, leave

    def forward(self, x: Tensor) -> Tensor:
        return row_linear(x, self.weight, self.bias, self.group, self.leave)


def parallelize(
    model: Transformer, group: comm.Group, *, sequence_parallel: bool = False, regather: bool = False
) -> Transformer:
    """Cut a plain transformer over the ranks of the group, in place. Every rank passes the same whole model.

    Then model(tokens, targets) is the loss of the uncut model, on every rank, and backward leaves each rank the
    gradients of its own pieces. All ranks of the group pass the same tokens. model(tokens) is this rank's columns of
    the logits: see `vocabulary_parallel.gather_logits`.

    sequence_parallel  between the cut matrices, a rank has a slice of every sequence
    regather           of what these matrices read it keeps its slice, too, and gathers it again in backward

    Errors: ValueError for heads, key/value heads or a feed-forward width that do not split, for models that differ
    between ranks, and for regather without sequence_parallel.
    """
    Layout(tp=group.size(), sequence_parallel=sequence_parallel).check(model.spec)
    if regather and not sequence_parallel:
        raise ValueError("regather=True gathers slices of sequences again; use it with sequence_parallel=True")
    check_equal(model, group)
    plan = cuts.model(model.spec, group.size())
    for name, parameter in model.named_parameters():
        parameter.data = shards.take(parameter, plan[name], group.rank())
    enter, leave = (GatherSequence, ScatterSequence) if sequence_parallel else (CopyToRanks, SumOverRanks)
    for norm, module, readers in regions(model):  # q, k and v, or gate and up: plain layers with fewer outputs
        if regather:
            replace_readers(norm, module, readers, group)
        else:
            norm.register_forward_hook(lambda _module, _inputs, x: enter.apply(x, group))
    for block in blocks(model):
        block.attention.register_module("out", RowLinear(block.attention.out, group, leave))
        block.mlp.register_module("down", RowLinear(block.mlp.down, group, leave))
    cut_vocabulary(model, group, leave)
    share_gradients(model, plan, group, sequence_parallel)
    return model


def cut_vocabulary(model: Transformer, group: comm.Group, leave: type[Function]) -> None:
    """Let embedding and loss work on this rank's words; what is behind the embedding is whole, or a slice."""
    embedding, vocab_size = model.embedding, model.spec.vocab_size
    embedding.register_module("tokens", VocabularyEmbedding(embedding.tokens, vocab_size, group, leave))
    if leave is ScatterSequence and embedding.positions is not None:
        embedding.register_module("positions", SlicedPositions(embedding.positions, group))
    model.loss = lambda logits, targets: cross_entropy(logits, targets, vocab_size, group)


def regions(model: Transformer) -> Iterator[tuple[nn.Module, nn.Module, tuple[str, ...]]]:
    """Where whole tensors enter cut matrices: the norm they come from, the module they go to, its layers that read."""
    for block in blocks(model):
        yield block.attention_norm, block.attention, ("q", "k", "v")
        yield block.mlp_norm, block.mlp, ("up",) if model.spec.style == "gpt2" else ("gate", "up")
    yield model.norm, model, ("head",)


def blocks(model: Transformer) -> list[Block]:
    """The layers."""
    return [module for module in model.modules() if isinstance(module, Block)]


def replace_readers(norm: nn.Module, module: nn.Module, readers: tuple[str, ...], group: comm.Group) -> None:
    """Let the layers that read what the norm puts out keep only this rank's slice of it."""
    entrance = regather.Entrance(group)
    norm.register_forward_hook(lambda _module, _inputs, x: entrance(x))
    for name in readers:
        module.register_module(name, regather.Linear(getattr(module, name), entrance))


def share_gradients(model: nn.Module, plan: Mapping[str, cuts.Cut], group: comm.Group, sliced: bool) -> None:
    """Where several ranks hold the same numbers and use them for different things, let backward sum the gradients.

    The query heads of several ranks may share a key/value head; with sequence parallelism (sliced), norms and biases
    that every rank has see the tokens of a slice.
    """
    shared = {cut.holders: None for cut in plan.values() if cut.dim is not None and cut.holders > 1}
    neighbours = {count: comm.split(group, count) for count in shared}
    for path, module in model.named_modules():
        for name, _ in module.named_parameters(recurse=False):
            cut = plan.get(f"{path}.{name}")  # a tied head has none
            if cut is not None and cut.dim is None and sliced:
                sum_gradient(module, name, group)
            elif cut is not None and cut.dim is not None and cut.holders > 1:
                sum_gradient(module, name, neighbours[cut.holders])


def sum_gradient(module: nn.Module, name: str, group: comm.Group) -> None:
    """Let every backward sum the gradient of this parameter over the ranks of the group."""
    heard: list[Tensor] = []

    def listen(_module: nn.Module, _inputs: object) -> None:
        """Before each forward: `model.to(...)` may have put another parameter in the place of the one with the hook."""
        parameter = getattr(module, name)
        if parameter.requires_grad and not (heard and heard[0] is parameter):
            heard[:] = [parameter]
            parameter.register_hook(lambda grad: comm.all_reduce(grad, group))

    module.register_forward_pre_hook(listen)


def gather(model: Transformer, group: comm.Group) -> dict[str, Tensor]:
    """The state dict of the plain model, whole, on every rank."""
    plan = cuts.model(model.spec, group.size())
    plain = {name: shards.join(parameter, plan[name], group) for name, parameter in model.named_parameters()}
    return {**plain, "head.weight": plain["embedding.tokens.weight"]} if model.spec.tied else plain


@torch.no_grad()
def load(model: Transformer, plain: Mapping[str, Tensor], group: comm.Group) -> None:
    """Fill the cut model from the state dict of a plain one; a memory-mapped one is read where a rank needs it.

    A model too large for one rank is built on the meta device, cut, made real (`to_empty`), and filled here.
    Errors: ValueError for missing names and for other shapes.
    """
    if model.spec.tied:
        model.head.weight = model.embedding.tokens.weight  # `to_empty` makes two of them
    plan = cuts.model(model.spec, group.size())
    missing = [name for name in plan if name not in plain]
    if missing:
        raise ValueError(f"the state lacks {len(missing)} parameters ({', '.join(missing[:5])}); pass a plain model's")
    for name, parameter in model.named_parameters():
        parameter.copy_(shards.take(plain[name], plan[name], group.rank()))


def gradient_norm(model: Transformer, group: comm.Group) -> Tensor:
    """The norm of all gradients of the uncut model, which clipping needs: what several ranks hold counts once."""
    plan = cuts.model(model.spec, group.size())
    squares = [
        parameter.grad.double().pow(2).sum() / plan[name].holders
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    ]
    return comm.all_reduce(torch.stack(squares).sum(), group).sqrt()


@torch.no_grad()
def check_equal(model: nn.Module, group: comm.Group) -> None:
    """ValueError unless the model has the same numbers on every rank, as far as sums tell."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if not parameter.is_meta]
    if not named:
        return
    sums = torch.stack([parameter.double().sum() for _, parameter in named])
    apart = comm.all_reduce(sums, group, "max") != comm.all_reduce(sums, group, "min")
    if apart.any():
        name = named[int(apart.nonzero()[0])][0]
        raise ValueError(
            f"{name} differs between ranks, whose pieces would not fit together; call torch.manual_seed with the same "
            f"number on every rank before you build the model, or load the same state"
        )
