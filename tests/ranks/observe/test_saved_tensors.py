import pytest
import torch
from torch import nn

from shardlab.ranks.observe.saved_tensors import SavedTensors, without_memory

NUMBERS, NBYTES = (4, 8), 4 * 8 * 4


def test_a_square_keeps_its_input():
    x = torch.ones(NUMBERS, requires_grad=True)
    with SavedTensors() as saved:
        y = x.pow(2)
        assert saved.nbytes == NBYTES
        y.sum().backward()
    assert saved.nbytes == 0
    assert saved.peak == NBYTES
    assert torch.equal(x.grad, 2 * x)


def test_an_addition_keeps_nothing():
    with SavedTensors() as saved:
        y = torch.ones(NUMBERS, requires_grad=True) + torch.ones(NUMBERS)
    assert saved.nbytes == saved.peak == 0
    assert saved.timeline == []
    assert y.requires_grad


def test_one_storage_counts_once_until_its_last_keeper_is_done():
    x = torch.ones(NUMBERS, requires_grad=True)
    with SavedTensors() as saved:
        first, second = x.pow(2), x[0].pow(3)  # the second keeps a view
        assert saved.nbytes == NBYTES
        first.sum().backward()
        assert saved.nbytes == NBYTES
        second.sum().backward()
    assert saved.nbytes == 0
    assert [nbytes for _, nbytes in saved.timeline] == [NBYTES, 0]


def test_parameters_do_not_count():
    layer, x = nn.Linear(8, 3), torch.ones(NUMBERS)
    with SavedTensors(without=layer.parameters()) as saved:
        y = layer(x.requires_grad_())
    assert saved.nbytes == NBYTES
    with SavedTensors() as saved:
        y = layer(x)
        assert saved.nbytes == NBYTES + layer.weight.nbytes
        del y
        assert saved.nbytes == 0


def test_results_that_are_kept_do_not_keep_themselves():
    """The softmax keeps its own result; a graph that is dropped without backward must go."""
    with SavedTensors() as saved:
        y = torch.ones(NUMBERS, requires_grad=True).softmax(-1)
        assert saved.nbytes == NBYTES
        del y
    assert saved.nbytes == 0


@pytest.mark.parametrize("weightless", [False, True])
def test_gradients_are_those_without_counting(weightless):
    def gradients():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.LayerNorm(8), nn.Softmax(-1))
        model(torch.randn(NUMBERS)).pow(3).sum().backward()
        return [p.grad for p in model.parameters()]

    plain = gradients()
    with SavedTensors() as saved:
        counted = gradients()
    assert all(torch.equal(a, b) for a, b in zip(plain, counted, strict=True))
    if weightless:
        with without_memory(), SavedTensors() as again:
            gradients()
        assert [nbytes for _, nbytes in again.timeline] == [nbytes for _, nbytes in saved.timeline]


def test_time_goes_on():
    x = torch.ones(NUMBERS, requires_grad=True)
    with SavedTensors() as saved:
        x.pow(2).sum().backward()
        x.pow(2).sum().backward()
    seconds = [second for second, _ in saved.timeline]
    assert seconds == sorted(seconds)
    assert len(seconds) == 4
    assert seconds[0] >= 0


def test_a_model_larger_than_memory_can_be_counted():
    with without_memory():
        layer = nn.Linear(10**6, 10**6)  # 4 TB
        with SavedTensors(without=layer.parameters()) as saved:
            y = layer(torch.ones(10**4, 10**6, requires_grad=True))
            assert saved.nbytes == 4 * 10**10
            y.sum().backward()
        assert layer.weight.grad.nbytes == 4 * 10**12
    assert saved.nbytes == 0
