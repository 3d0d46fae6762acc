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
from functools import partial

from torch import nn
from torch.autograd import Function

from shardlab import comm
from shardlab.plain.tensor_parallel import CopyToRanks, SumOverRanks
from shardlab.sharding import cuts
from shardlab.sharding.layout import Layout

from .. import agreement
from ..mixture import Change, Mixture, unchanged
from ..transformer import Block, Transformer
from . import shards
from .conjugates import GatherFromRanks, ScatterToRanks, piece
from .gradients import share_gradients
from .linear import RowLinear
from .regather import GatheredInput, RegatheringLinear
from .sequence import SEQUENCE, GatherSequence, ScatterSequence, SlicedPositions
from .vocabulary import VocabularyEmbedding, cross_entropy


def parallelize(
    model: Transformer,
    group: comm.Group,
    *,
    sequence_parallel: bool = False,
    regather: bool = False,
    whole_experts: bool = False,
) -> Transformer:
    """Cut a plain transformer over the ranks of `group`, in place; all pass the same whole model.

    Afterwards model(tokens, targets) is the loss of the uncut model, on every rank, and backward
    leaves each rank the gradients of its own pieces. All ranks must pass the same tokens.
    model(tokens) gives this rank's columns of the logits.

    sequence_parallel  hold a slice of every sequence between the cut matrices
    regather           keep only the slice of what these matrices read, and gather again in backward
    whole_experts      leave experts as they are, for `expert_parallel.parallelize` to deal; each
                       rank passes them the tokens of its slice

    Errors: ValueError for heads, key/value heads or a feed-forward width that do not split, for
    models that differ between ranks, for `regather` without `sequence_parallel`, and in a mixture.
    """
    Layout(
        tp=group.size(), sequence_parallel=sequence_parallel, whole_experts=whole_experts
    ).check(model.spec)
    if regather and not sequence_parallel:
        raise ValueError(
            "regather=True gathers slices of sequences again; use it with sequence_parallel=True"
        )
    if regather and model.spec.experts:
        raise ValueError(
            "regather=True gathers again what two or three layers read, and experts are many; "
            "use regather=False"
        )
    agreement.check_equal(model, group)
    plan = cuts.model(model.spec, group.size(), whole_experts=whole_experts)
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
        if isinstance(block.mlp, Mixture) and whole_experts:
            pass_slices(block.mlp, group)
        elif isinstance(block.mlp, Mixture):
            cut_experts(block.mlp, group, sliced=sequence_parallel)
        else:
            down = RowLinear(block.mlp.down, group, leave)
            block.mlp.register_module("down", down)
    cut_vocabulary(model, group, leave)
    share_gradients(model, plan, group, sequence_parallel)
    return model


def cut_experts(mixture: Mixture, group: comm.Group, *, sliced: bool) -> None:
    """Let every rank compute its part of every expert, for the same tokens.

    All ranks choose alike, from the same scores. Each has a part of a token's output, and so of the
    gradient of its weights; they are summed where they enter. sliced: the ranks hold slices of
    sequences outside, of which they gather scores, too.
    """
    mixture.place(
        enter=change(GatherSequence if sliced else CopyToRanks, group),
        leave=change(ScatterSequence if sliced else SumOverRanks, group),
        share=change(CopyToRanks, group),
        gather=change(GatherFromRanks, group, SEQUENCE) if sliced else unchanged,
    )


def pass_slices(mixture: Mixture, group: comm.Group) -> None:
    """Let every rank pass the tokens of its slice to experts that lie whole on one rank each.

    All ranks choose alike for whole sequences, and each keeps the choices of its slice. The shared
    experts are cut like a feed-forward block.
    """
    mixture.place(
        gather=change(GatherFromRanks, group, SEQUENCE),
        keep=partial(piece, group=group, dim=SEQUENCE),
        share=change(ScatterToRanks, group, SEQUENCE),
    )
    if mixture.shared is not None:  # which is given tokens as one sequence without its batch
        whole = change(GatherSequence, group)
        mixture.shared.register_forward_pre_hook(lambda _, inputs: whole(inputs[0][None]))
        mixture.shared.register_forward_hook(lambda _, _inputs, y: y[0])
        down = RowLinear(mixture.shared.down, group, ScatterSequence)
        mixture.shared.register_module("down", down)


def change(function: type[Function], *options: object) -> Change:
    """Make a function of one tensor from what communicates, such as a function of `conjugates`."""
    return lambda x: function.apply(x, *options)


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
        if isinstance(block.mlp, Mixture):  # whose router reads the norm's output, too
            continue
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
