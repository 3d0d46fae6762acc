"""Each conjugate pair against autograd on one process that has all ranks' tensors."""

import functools

import pytest
import torch
from torch.autograd import Function

from shardlab import comm
from shardlab.launch import RankError, run
from shardlab.plain.tensor_parallel import CopyToRanks, SumOverRanks
from shardlab.ranks.tensor_parallel import conjugates, sequence
from shardlab.ranks.tensor_parallel.conjugates import GatherFromRanks, ScatterToRanks
from shardlab.ranks.tensor_parallel.sequence import GatherSequence, ScatterSequence
from tests.ranks.tolerance import EXACT

WORLD_SIZES = [1, 2, 3, 4]  # 12 divides by all of them


class InPlace(Function):
    """CopyToRanks with a mistake that was once published: it changes the gradient it is given."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        comm.start_all_reduce(grad, ctx.group)()
        return grad, None


def whole(number, *shape):
    """Draw integers from a seed, so that sums are exact."""
    return torch.randint(-9, 10, shape, generator=torch.Generator().manual_seed(number)).double()


def slices(x, dim, size):
    return x.chunk(size, dim)


# case -> (function, its options, what it is on one process: list of inputs -> list of outputs,
#          whether ranks have the same input, whether they go on alike with the same output)
CASES = {
    "CopyToRanks": (CopyToRanks, (), lambda xs: xs, True, False),
    "SumOverRanks": (SumOverRanks, (), lambda xs: [sum(xs)] * len(xs), False, True),
    **{f"GatherFromRanks, dim {d}": (
        GatherFromRanks, (d,), lambda xs, d=d: [torch.cat(xs, d)] * len(xs), False, True)
        for d in (0, 1, -1)},
    **{f"ScatterToRanks, dim {d}": (
        ScatterToRanks, (d,), lambda xs, d=d: slices(xs[0], d, len(xs)), True, False)
        for d in (0, 1, -1)},
    "GatherSequence": (GatherSequence, (), lambda xs: [torch.cat(xs, 1)] * len(xs), False, False),
    "ScatterSequence": (ScatterSequence, (), lambda xs: slices(sum(xs), 1, len(xs)), False, False),
}  # fmt: skip


def given(case, rank):
    """Draw the input of a rank; if all ranks must have the same, that of rank 0."""
    return whole(0 if CASES[case][3] else rank, 12, 24, 12)


def weights(case, rank, shape):
    """Draw the outputs' weights in the loss; if all ranks compute the same, those of rank 0."""
    return whole(100 if CASES[case][4] else 100 + rank, *shape)


@functools.cache
def alone(case, size):
    """Compute outputs and gradients of all ranks by autograd on one process."""
    _, _, compute, same_input, same_output = CASES[case]
    leaves = [given(case, rank).requires_grad_() for rank in range(1 if same_input else size)]
    outputs = compute(leaves * size if same_input else leaves)
    counted = outputs[:1] if same_output else outputs  # what all ranks have counts once
    sum((weights(case, rank, y.shape) * y).sum() for rank, y in enumerate(counted)).backward()
    grads = [leaf.grad for leaf in leaves]
    return [y.detach() for y in outputs], grads * size if same_input else grads


def together(group):
    """Return output, gradient, and whether input and incoming gradient are unchanged."""
    seen = {}
    for case, (function, options, *_) in CASES.items():
        x = given(case, group.rank()).requires_grad_()
        before = x.detach().clone()
        y = function.apply(x, group, *options)
        grad = weights(case, group.rank(), y.shape)
        arrived = grad.clone()
        y.backward(arrived)
        seen[case] = (
            y.detach(),
            x.grad,
            torch.equal(x, before) and torch.equal(arrived, grad),
            y.is_contiguous(),
        )
    return seen


def beside_a_residual(group):
    """Return the gradient of x beside a residual, where autograd lends both branches one tensor."""
    seen = {}
    for name, function in {"CopyToRanks": CopyToRanks, "in place": InPlace}.items():
        x = whole(7, 4).requires_grad_()
        h = x * 1.0  # the residual stream
        (h + function.apply(h, group)).backward(whole(8, 4))
        seen[name] = x.grad
    return seen


@functools.cache
def ranks(size):
    return run(lambda group: (together(group), beside_a_residual(group)), world_size=size)


@pytest.mark.parametrize("size", WORLD_SIZES)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parity("tensor_parallel", "each conjugate pair, forward and backward, is one process")
def test_forward_and_backward_are_those_of_one_process(case, size):
    outputs, grads = alone(case, size)
    for rank, (seen, _) in enumerate(ranks(size)):
        y, grad, unchanged, contiguous = seen[case]
        torch.testing.assert_close(y, outputs[rank], **EXACT)
        torch.testing.assert_close(grad, grads[rank], **EXACT)
        assert unchanged, "it changed a tensor it was given"
        assert contiguous


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_residual_keeps_its_own_gradient(size):
    """The gradient of h + copy(h) is that of the residual plus its sum over ranks."""
    grad = whole(8, 4)
    for _, seen in ranks(size):
        assert torch.equal(seen["CopyToRanks"], grad + size * grad)
        assert not torch.equal(
            seen["in place"], grad + size * grad
        )  # this test sees the mistake it is there for


def test_tensors_that_do_not_split_are_refused():
    with pytest.raises(
        RankError, match=r"dim 1 of a tensor of shape \(2, 7\) does not split over 2 ranks; pad"
    ):
        run(lambda group: ScatterToRanks.apply(torch.ones(2, 7), group, 1), world_size=2)
    with pytest.raises(
        RankError,
        match="sequences of 5 tokens do not split over 2 ranks; pad them to a multiple of 2",
    ):
        run(lambda group: sequence.sum_slices(torch.ones(1, 5, 2), group), world_size=2)


def test_a_second_derivative_is_refused_rather_than_wrong():
    def twice(group):
        x = torch.ones(2, dtype=torch.float64, requires_grad=True)
        (grad,) = torch.autograd.grad(
            (CopyToRanks.apply(x * x, group) ** 2).sum(), x, create_graph=True
        )
        grad.sum().backward()

    with pytest.raises(RankError, match="once_differentiable"):
        run(twice, world_size=1)


def test_a_piece_is_a_copy():
    def cut(group):
        x = torch.arange(4.0)
        part = conjugates.piece(x, group, 0)
        part += 1
        return torch.equal(x, torch.arange(4.0)), part.untyped_storage().nbytes()

    assert run(cut, world_size=2) == [(True, 8)] * 2
