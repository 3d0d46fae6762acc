"""Twenty bugs: each right program is accepted and right; each wrong one has its numbers, and is refused or unseen."""

import re

import pytest
import torch

from shardlab import comm
from shardlab.launch import RankError, run
from shardlab.ranks.players.numbers import numbers
from shardlab.ranks.players.spread import assemble
from shardlab.sharding.types.bugs import BUGS

INVISIBLE = {11, 16, 17, 18}
NUMBERED = list(enumerate(BUGS, start=1))


def of_ranks(bug, held):
    """What each rank holds, in the order of ranks."""
    return held.flatten(0, len(bug.mesh) - 1)


def close_to(held, listed):
    """Equal to what is listed for each rank, or once for all."""
    expected = torch.tensor(listed).double()
    return torch.allclose(held, expected.expand_as(held) if expected.dim() < held.dim() else expected, atol=5e-5)


def test_there_are_twenty_and_four_of_them_are_invisible_to_types():
    assert len(BUGS) == 20
    assert {number for number, bug in NUMBERED if not bug.refusal} == INVISIBLE
    assert all(bool(bug.refusal) != bool(bug.net) for bug in BUGS)


@pytest.mark.parametrize(("number", "bug"), NUMBERED)
def test_a_right_program_is_accepted_and_computes_what_one_process_does(number, bug):
    x = bug.trace(True).lines[-1].result
    held = numbers(bug, True)
    assert close_to(of_ranks(bug, held), bug.right)
    alone = dict.fromkeys(bug.mesh, 1)
    whole = assemble(numbers(bug, True, alone), x, alone)
    assert torch.allclose(assemble(held, x, bug.mesh), whole)


@pytest.mark.parametrize(("number", "bug"), [each for each in NUMBERED if each[0] not in INVISIBLE])
def test_a_wrong_program_is_refused_and_has_the_wrong_numbers(number, bug):
    with pytest.raises(ValueError, match=re.escape(bug.refusal)):
        bug.trace(False)
    held = of_ranks(bug, numbers(bug, False))
    assert close_to(held, bug.wrong)
    assert not close_to(held, bug.right)


@pytest.mark.parametrize(("number", "bug"), [each for each in NUMBERED if each[0] in INVISIBLE - {18}])
def test_a_wrong_factor_seed_or_order_is_accepted_and_differs_from_one_process(number, bug):
    x = bug.trace(False).lines[-1].result
    held = numbers(bug, False)
    assert close_to(of_ranks(bug, held), bug.wrong)
    alone = dict.fromkeys(bug.mesh, 1)
    assert not torch.allclose(assemble(held, x, bug.mesh), assemble(numbers(bug, True, alone), x, alone))


def sum_of(group, lengths):
    return comm.all_reduce(torch.ones(lengths[group.rank()]), group).sum().item()


def test_lengths_that_differ_fail_on_real_ranks_only():
    assert run(sum_of, (3, 3), world_size=2) == [6, 6]
    with pytest.raises(RankError, match="the ranks disagree about collective number 1"):
        run(sum_of, (3, 2), world_size=2)
