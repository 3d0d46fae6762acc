"""Embedding and cross-entropy with the vocabulary cut, against torch's own on one process."""

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from shardlab import trace
from shardlab.launch import RankError, run
from shardlab.plain.tensor_parallel import SumOverRanks
from shardlab.ranks.observe import ledger
from shardlab.ranks.observe.saved_tensors import SavedTensors
from shardlab.ranks.tensor_parallel import vocabulary
from tests.ranks.tolerance import EXACT

VOCABULARIES = [
    12,
    7,
    2,
]  # on 4 ranks: even; the last rank has 1 of 2; two ranks have nothing but padding
BATCH, LENGTH, WIDTH = 2, 5, 6
SIZES = [1, 2, 3, 4]


def drawn(vocab, shift=0.0):
    """Draw a table [V, h], logits [B, S, V], tokens, targets (two ignored), weights of losses."""
    random = torch.Generator().manual_seed(vocab)
    table = torch.randn(vocab, WIDTH, dtype=torch.float64, generator=random)
    logits = 3 * torch.randn(BATCH, LENGTH, vocab, dtype=torch.float64, generator=random) + shift
    tokens, targets = torch.randint(vocab, (2, BATCH, LENGTH), generator=random)
    targets[0, 1] = targets[1, 2] = vocabulary.IGNORED
    return (
        table,
        logits,
        tokens,
        targets,
        torch.randn(BATCH, LENGTH, dtype=torch.float64, generator=random),
    )


def padded(x, dim, group):
    """Cut this rank's piece of x without the library: equal sizes, zeros at the end."""
    size = -(-x.shape[dim] // group.size())
    missing = size * group.size() - x.shape[dim]
    whole = torch.cat([x, x.new_zeros(*x.shape[:dim], missing, *x.shape[dim + 1 :])], dim)
    return whole.chunk(group.size(), dim)[group.rank()].clone()


def look_up(group, vocab):
    table, _, tokens, _, _ = drawn(vocab)
    piece = nn.Embedding.from_pretrained(padded(table, 0, group), freeze=False)
    x = vocabulary.VocabularyEmbedding(piece, vocab, group, SumOverRanks)(tokens)
    x.pow(2).sum().backward()
    return x.detach(), piece.weight.grad


def lose(group, vocab, shift=0.0):
    _, logits, _, targets, weights = drawn(vocab, shift)
    piece = padded(logits, 2, group).requires_grad_()
    losses = vocabulary.CrossEntropy.apply(piece, targets, vocab, group)
    (losses * weights).sum().backward()
    mean = vocabulary.cross_entropy(piece.detach(), targets, vocab, group)
    return losses.detach(), piece.grad, mean


@functools.cache
def ranks(size):
    return run(
        lambda group: {v: (look_up(group, v), lose(group, v)) for v in VOCABULARIES},
        world_size=size,
    )


def joined(pieces, dim, vocab):
    whole = torch.cat(pieces, dim)
    assert not whole.narrow(dim, vocab, whole.shape[dim] - vocab).any(), "padding has a gradient"
    return whole.narrow(dim, 0, vocab)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("vocab", VOCABULARIES)
@pytest.mark.parity("tensor_parallel", "an embedding cut by its vocabulary is torch's")
def test_the_embedding_is_torchs(vocab, size):
    table, _, tokens, _, _ = drawn(vocab)
    x = F.embedding(tokens, table.requires_grad_())
    x.pow(2).sum().backward()
    seen = [each[vocab][0] for each in ranks(size)]
    for ours, _ in seen:
        assert torch.equal(ours, x)
    torch.testing.assert_close(joined([grad for _, grad in seen], 0, vocab), table.grad, **EXACT)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("vocab", VOCABULARIES)
@pytest.mark.parity("tensor_parallel", "a cross-entropy of cut logits is torch's")
def test_the_cross_entropy_is_torchs(vocab, size):
    _, logits, _, targets, weights = drawn(vocab)
    losses = F.cross_entropy(
        logits.requires_grad_().flatten(0, 1), targets.flatten(), reduction="none"
    )
    (losses * weights.flatten()).sum().backward()
    mean = F.cross_entropy(logits.detach().flatten(0, 1), targets.flatten())
    seen = [each[vocab][1] for each in ranks(size)]
    for ours, _, our_mean in seen:
        torch.testing.assert_close(ours.flatten(), losses.detach(), **EXACT)
        torch.testing.assert_close(our_mean, mean, **EXACT)
    torch.testing.assert_close(
        joined([grad for _, grad, _ in seen], 2, vocab), logits.grad, **EXACT
    )


@pytest.mark.parametrize("shift", [1e4, -1e4])
def test_logits_far_from_zero_neither_overflow_nor_vanish(shift):
    """The shift puts the zeros of a rank that has only padding far above or below the others."""
    near, far = run(lambda group: (lose(group, 2)[0], lose(group, 2, shift)[0]), world_size=4)[0]
    torch.testing.assert_close(far, near, rtol=0, atol=1e-9)


def test_no_rank_holds_or_sends_all_logits():
    vocab, size = 64, 4

    def watch(group):
        _, logits, _, targets, _ = drawn(vocab)
        piece = padded(logits, 2, group).requires_grad_()
        with ledger.Ledger() as book, SavedTensors(without=[targets]) as saved:
            vocabulary.cross_entropy(piece * 1.0, targets, vocab, group).backward()
        return saved.peak, book.events

    token = 8 * BATCH * LENGTH
    for peak, events in run(watch, world_size=size):
        assert (
            peak <= token * vocab / size + 3 * token
        )  # probabilities, and for each token a column and two marks
        assert [(event.op, event.nbytes) for event in events] == [
            ("all_reduce", token),
            ("all_reduce", 2 * token),
        ]
        assert (
            sum(map(trace.wire_bytes, events)) < token * vocab * (size - 1) / size
        )  # what gathering would send


def test_16_bit_logits_are_summed_in_32_bits():
    def call(group):
        _, logits, _, targets, _ = drawn(12)
        piece = padded(logits, 2, group).bfloat16().requires_grad_()
        loss = vocabulary.cross_entropy(piece, targets, 12, group)
        loss.backward()
        return loss.detach(), piece.grad.dtype

    _, logits, _, targets, _ = drawn(12)
    expected = F.cross_entropy(logits.bfloat16().float().flatten(0, 1), targets.flatten())
    for loss, dtype in run(call, world_size=2):
        torch.testing.assert_close(loss, expected)
        assert (loss.dtype, dtype) == (torch.float32, torch.bfloat16)


def test_tokens_outside_the_vocabulary_are_refused():
    def look(group, token):
        piece = nn.Embedding(4, 2)
        vocabulary.VocabularyEmbedding(piece, 7, group, SumOverRanks)(torch.tensor([[0, token]]))

    def score(group):
        vocabulary.cross_entropy(torch.zeros(1, 2, 4), torch.tensor([[-100, 7]]), 7, group)

    for token in (7, -1):
        with pytest.raises(RankError, match="not all in the vocabulary of 7; use 0 to 6"):
            run(look, token, world_size=2)
    with pytest.raises(RankError, match="tokens from 7 to 7 are not all in the vocabulary of 7"):
        run(score, world_size=2)
