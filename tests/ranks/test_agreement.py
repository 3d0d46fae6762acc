"""What ranks agree on before they train: names, shapes and devices, and the numbers themselves."""

import sys
from unittest import mock

import cloudpickle
import pytest
import torch
from torch import nn

from shardlab.launch import RankError, run
from shardlab.ranks import agreement
from shardlab.ranks.observe import ledger

cloudpickle.register_pickle_by_value(sys.modules[__name__])

DIFFERENT = {
    "shape": lambda rank: nn.Linear(3, 2 + rank),
    "dtype": lambda rank: nn.Linear(3, 2, dtype=(torch.float32, torch.float64)[rank]),
    "name": lambda rank: nn.ModuleDict({f"layer {rank}": nn.Linear(3, 2)}),
    "what is frozen": lambda rank: nn.Sequential(nn.Linear(3, 2), nn.Linear(3, 2).requires_grad_(rank == 0)),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_every_rank_is_told_which_module_differs(what):
    def look(group):
        with pytest.raises(ValueError, match="rank 1's module differs from rank 0's"):
            agreement.check(DIFFERENT[what](group.rank()), group)

    run(look, world_size=2)


def test_modules_that_are_alike_may_hold_different_numbers():
    run(lambda group: agreement.check(nn.Linear(3, 2), group), world_size=3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Linear(3, 2).requires_grad_(False), "no trainable parameter"),
        (lambda: nn.Linear(3, 2, device="meta"), "use module.to"),
    ],
)
def test_what_cannot_be_trained_names_the_way_out(make, message):
    with pytest.raises(RankError, match=message):
        run(lambda group: agreement.check(make(), group), world_size=1)


def test_all_ranks_get_rank_0s_numbers_whatever_their_dtype_and_layout():
    def copied(group):
        torch.manual_seed(group.rank())
        tensors = [torch.randn(3, 4), torch.randn(4, 3).T, torch.randn(5).bfloat16(), torch.tensor(group.rank())]
        with ledger.Ledger() as book, mock.patch.object(agreement, "MESSAGE_BYTES", 32):
            agreement.copy_from_first(tensors, group)
        return tensors, [event.nbytes for event in book.events if event.op == "broadcast"]

    (first, sent), *others = run(copied, world_size=3)
    torch.manual_seed(0)
    expected = [torch.randn(3, 4), torch.randn(4, 3).T, torch.randn(5).bfloat16(), torch.tensor(0)]
    for tensors in (first, *(each for each, _ in others)):
        assert all(map(torch.equal, tensors, expected))
    assert max(sent) <= 32
    assert sum(sent) == 2 * 48 + 10 + 8


def test_a_parameter_whose_numbers_differ_is_named():
    def look(group, rank, name):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
        if group.rank() == rank:
            model.get_parameter(name).data[-1] += 1
        agreement.check_equal(model, group)

    run(look, 5, "1.bias", world_size=2)  # there is no rank 5
    for rank, name in ((0, "0.weight"), (1, "1.bias")):
        with pytest.raises(RankError, match=f"{name} differs between ranks"):
            run(look, rank, name, world_size=2)
