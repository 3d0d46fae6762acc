"""Tensor parallelism: every rank holds a part of each layer, and all ranks compute every token together.

Shoeybi et al. 2019, section 3 (https://arxiv.org/abs/1909.08053). Two matrices that follow each other are cut so that
nothing need be said between them: the first by its outputs (columns of the paper's matrices, rows of torch's weights),
the second by its inputs. What stands between them, an activation function or a head's attention, then only needs what
its rank has:

    norm -> x | enter -> q k v   -> attention -> out  -> leave | + residual
    norm -> x | enter -> gate up -> GELU      -> down -> leave | + residual

`enter` and `leave` are conjugate (see `conjugates`): one all-reduce in forward and one in backward for each of the two.
With sequence parallelism they are its halves (see `sequence`).
"""

from collections.abc import Iterator

from torch import nn
from torch.autograd import Function

from ... import cuts
from ...layout import Layout
from .. import agreement, comm
from ..transformer import Block, Transformer
from . import regather, shards
from .conjugates import CopyToRanks, SumOverRanks
from .gradients import share_gradients
from .linear import RowLinear
from .sequence import GatherSequence, ScatterSequence, SlicedPositions
from .vocabulary import VocabularyEmbedding, cross_entropy


def parallelize(
    model: Transformer, group: comm.Group, *, sequence_parallel: bool = False, regather: bool = False
) -> Transformer:
    """Cut a plain transformer over the ranks of the group, in place. Every rank passes the same whole model.

    Then model(tokens, targets) is the loss of the uncut model, on every rank, and backward leaves each rank the
    gradients of its own pieces. All ranks of the group pass the same tokens. model(tokens) is this rank's columns of
    the logits: see `vocabulary.gather_logits`.

    sequence_parallel  between the cut matrices, a rank has a slice of every sequence
    regather           of what these matrices read it keeps its slice, too, and gathers it again in backward

    Errors: ValueError for heads, key/value heads or a feed-forward width that do not split, for models that differ
    between ranks, and for regather without sequence_parallel.
    """
    Layout(tp=group.size(), sequence_parallel=sequence_parallel).check(model.spec)
    if regather and not sequence_parallel:
        raise ValueError("regather=True gathers slices of sequences again; use it with sequence_parallel=True")
    agreement.check_equal(model, group)
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
