"""Dropout is alike where ranks hold the same numbers, and independent elsewhere."""

import functools
import math

import pytest
import torch

from shardlab.launch import run
from shardlab.ranks.tensor_parallel import conjugates, dropout

SHAPE, PROBABILITY, KEY = (4, 12, 24), 0.3, 17


def x():
    return torch.randn(SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def alone():
    """Compute output and gradient on one process."""
    whole = x().requires_grad_()
    y = dropout.dropout(whole, PROBABILITY, KEY)
    y.pow(2).sum().backward()
    return y.detach(), whole.grad


def on_both_sides(group):
    """Return outputs and gradients: of the whole tensor, and joined from pieces along each dim."""
    whole = x().requires_grad_()
    y = dropout.dropout(whole, PROBABILITY, KEY)
    y.pow(2).sum().backward()
    seen = {None: (y.detach(), whole.grad)}
    for dim in (0, 1, 2, -1):
        piece = conjugates.piece(x(), group, dim).requires_grad_()
        y = dropout.dropout(piece, PROBABILITY, KEY, group, dim)
        y.pow(2).sum().backward()
        seen[dim] = tuple(
            conjugates.all_gather(part, group, dim) for part in (y.detach(), piece.grad)
        )
    return seen


@functools.cache
def ranks(size):
    return run(on_both_sides, world_size=size)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("dim", [None, 0, 1, 2, -1])
@pytest.mark.parity("tensor_parallel", "dropout of pieces is dropout of the whole, bitwise")
def test_every_tp_drops_the_same_numbers_of_the_whole(dim, size):
    for seen in ranks(size):
        for ours, reference in zip(seen[dim], alone(), strict=True):
            assert torch.equal(ours, reference)


def test_pieces_are_dropped_independently():
    """Ranks with equal pieces drop different numbers of them."""
    first, second = run(
        lambda group: dropout.dropout(torch.ones(1000), 0.5, KEY, group, 0) == 0, world_size=2
    )
    assert 0.45 < (first == second).double().mean() < 0.55


def test_the_share_that_is_dropped_is_the_probability_and_the_mean_stays():
    ones = torch.ones(1000, 1000, dtype=torch.float64)
    for probability in (0.0, 0.1, 0.5, 0.9):
        y = dropout.dropout(ones, probability, KEY)
        deviation = math.sqrt(probability * (1 - probability) / ones.numel())
        assert (y == 0).double().mean().item() == pytest.approx(probability, abs=5 * deviation)
        assert torch.equal(y[y != 0], torch.full_like(y[y != 0], 1 / (1 - probability)))


def test_neighbours_keys_and_bits_are_independent():
    bits = dropout.random_bits(torch.arange(10**6), KEY)
    assert len(bits.unique()) == 10**6
    shares = torch.stack([bits >> each & 1 for each in range(64)]).double().mean(1)
    assert (shares - 0.5).abs().max() < 5 * 0.5 / 1000
    dropped = bits > 0
    others = {"neighbour": dropped.roll(1), "row": dropped.roll(1024)}
    for key in (KEY + 1, -KEY, KEY + 2**63):
        others[f"key {key}"] = dropout.random_bits(torch.arange(10**6), key) > 0
    for name, other in others.items():
        assert abs((dropped == other).double().mean().item() - 0.5) < 5 * 0.5 / 1000, name


def test_the_bits_are_those_of_splitmix64():
    """First outputs from state 1234567.

    Source: https://rosettacode.org/wiki/Pseudo-random_numbers/Splitmix64
    """
    states = [1234567 + (i + 1) * dropout.GAMMA for i in range(3)]
    mixed = dropout._mix(torch.tensor([dropout._signed(state) for state in states]))
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [number % 2**64 for number in mixed.tolist()] == expected


def test_nothing_is_kept_for_backward_and_the_input_stays():
    whole, before = x().requires_grad_(), x()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor
    ):
        dropout.dropout(whole, PROBABILITY, KEY).sum().backward()
    assert kept == []
    assert torch.equal(whole, before)


def test_errors_say_what_to_do():
    with pytest.raises(ValueError, match="probability=1 leaves nothing"):
        dropout.dropout(torch.ones(2), 1, KEY)
    with pytest.raises(ValueError, match="pass both for a tensor that is cut"):
        dropout.dropout(torch.ones(2), 0.1, KEY, dim=0)
