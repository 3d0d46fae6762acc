"""Tensor parallelism of a whole model: `parallelize` cuts a plain transformer, from outside.

Shoeybi et al. 2019, section 3 (https://arxiv.org/abs/1909.08053). Two matrices that follow each
other are cut so that ranks need not communicate between them: the first by its outputs (columns of
the paper's matrices, rows of torch's weights), the second by its inputs. What lies between them, an
activation function or the attention of heads, then needs only what its rank has:

    norm -> x | enter -> q k v   -> attention -> out  -> leave | + residual
    norm -> x | enter -> gate up -> GELU      -> down -> leave | + residual

`enter` and `leave` are conjugate (see `conjugates`): each of the two pairs costs one all-reduce in
forward and one in backward. With sequence parallelism these are replaced by their halves (see
`sequence`).
"""

from collections.abc import Iterator

from torch import nn
from torch.autograd import Function

from ... import cuts
from ...layout import Layout
from .. import agreement, comm
from ..transformer import Block, Transformer
from . import shards
from .conjugates import CopyToRanks, SumOverRanks
from .gradients import share_gradients
from .linear import RowLinear
from .regather import GatheredInput, RegatheringLinear
from .sequence import GatherSequence, ScatterSequence, SlicedPositions
from .vocabulary import VocabularyEmbedding, cross_entropy


def parallelize(
    model: Transformer,
    group: comm.Group,
    *,
    sequence_parallel: bool = False,
    regather: bool = False,
) -> Transformer:
    """Cut a plain transformer over the ranks of `group`, in place; all pass the same whole model.

    Afterwards model(tokens, targets) is the loss of the uncut model, on every rank, and backward
    leaves each rank the gradients of its own pieces. All ranks must pass the same tokens.
    model(tokens) gives this rank's columns of the logits; see `vocabulary.gather_logits`.

    sequence_parallel  hold a slice of every sequence between the cut matrices
    regather           keep only the slice of what these matrices read, and gather again in backward

    Errors: ValueError for heads, key/value heads or a feed-forward width that do not split, for
    models that differ between ranks, and for `regather` without `sequence_parallel`.
    """
    Layout(tp=group.size(), sequence_parallel=sequence_parallel).check(model.spec)
    if regather and not sequence_parallel:
        raise ValueError(
            "regather=True gathers slices of sequences again; use it with sequence_parallel=True"
        )
    agreement.check_equal(model, group)
    plan = cuts.model(model.spec, group.size())
    for name, parameter in model.named_parameters():
        parameter.data = shards.take(parameter, plan[name], group.rank())
    enter = GatherSequence if sequence_parallel else CopyToRanks
    leave = ScatterSequence if sequence_parallel else SumOverRanks
    for norm, module, readers in regions(model):
        if regather:
            replace_readers(norm, module, readers, group)
        else:  # plain linear layers, with fewer outputs
            norm.register_forward_hook(lambda _norm, _inputs, x: enter.apply(x, group))
    for block in blocks(model):
        out = RowLinear(block.attention.out, group, leave)
        block.attention.register_module("out", out)
        down = RowLinear(block.mlp.down, group, leave)
        block.mlp.register_module("down", down)
    cut_vocabulary(model, group, leave)
    share_gradients(model, plan, group, sequence_parallel)
    return model


def cut_vocabulary(model: Transformer, group: comm.Group, leave: type[Function]) -> None:
    """Let embedding and loss work on this rank's words.

    leave: makes the embedding's output whole, or this rank's slice of sequences.
    """
    embedding = model.embedding
    vocab_size = model.spec.vocab_size
    tokens = VocabularyEmbedding(embedding.tokens, vocab_size, group, leave)
    embedding.register_module("tokens", tokens)
    if leave is ScatterSequence and embedding.positions is not None:
        embedding.register_module("positions", SlicedPositions(embedding.positions, group))
    model.loss = lambda logits, targets: cross_entropy(logits, targets, vocab_size, group)


def regions(model: Transformer) -> Iterator[tuple[nn.Module, nn.Module, tuple[str, ...]]]:
    """Find where whole tensors enter cut matrices.

    Yields the norm that makes the tensor, the module that takes it, and the names of its layers
    that read it.
    """
    for block in blocks(model):
        yield block.attention_norm, block.attention, ("q", "k", "v")
        yield block.mlp_norm, block.mlp, ("up",) if model.spec.style == "gpt2" else ("gate", "up")
    yield model.norm, model, ("head",)


def blocks(model: Transformer) -> list[Block]:
    """List the layers."""
    return [module for module in model.modules() if isinstance(module, Block)]


def replace_readers(
    norm: nn.Module, module: nn.Module, readers: tuple[str, ...], group: comm.Group
) -> None:
    """Replace the layers that read the norm's output by layers that keep only a slice of it."""
    gathered = GatheredInput(group)
    norm.register_forward_hook(lambda _norm, _inputs, x: gathered(x))
    for name in readers:
        reader = RegatheringLinear(getattr(module, name), gathered)
        module.register_module(name, reader)
