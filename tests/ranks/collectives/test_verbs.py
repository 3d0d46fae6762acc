"""Every collective against plain arithmetic on what all ranks hold: any number of ranks, any length, any dtype.

Hypothesis draws the cases here, in the test's process; the ranks go through many of them in one run.
"""

from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from shardlab import comm, exchanges
from shardlab.launch import RankError, run
from shardlab.ranks import collectives
from shardlab.ranks.collectives import exchanges as executed
from tests.rank_types import rank_type

WORLD_SIZES = range(1, 10)
EXAMPLES = 32  # for each number of ranks
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.int64]
SIZES = {"sum": torch.sum, "max": torch.amax, "min": torch.amin, "product": torch.prod, "average": torch.mean}
PAGE = 4096  # bytes
SMALL_PART = 512  # bytes: a message of a page is cut as one of many megabytes is


@dataclass(frozen=True)
class Case:
    verb: str
    plan: str
    op: str
    dtype: torch.dtype
    rows: int  # of dim 0, for each rank where the verb deals rows
    width: int
    strided: bool
    seed: int

    def input(self, rank, world_size):
        """Make a rank's input: different numbers on every rank, with zeros of both signs."""
        dealt = self.verb in ("reduce_scatter", "all_to_all")
        shape = (self.rows * (world_size if dealt else 1), self.width)
        random = torch.Generator().manual_seed(1000 * self.seed + rank)
        if self.strided:
            shape = (shape[1], 2 * shape[0])
        if self.dtype == torch.int64:
            x = torch.randint(-(10**6), 10**6, shape, generator=random)
        else:
            x = torch.randn(shape, generator=random, dtype=torch.float64).to(self.dtype)
            x = torch.where(torch.rand(shape, generator=random) < 0.2, torch.zeros((), dtype=self.dtype), x)
            x = torch.where(torch.rand(shape, generator=random) < 0.1, -torch.zeros((), dtype=self.dtype), x)
        return x[:, ::2].t() if self.strided else x

    def planner(self, world_size):
        return PLANS[self.verb][self.plan](world_size)


def two_levels(n):
    """Plan groups of the smallest size above 1 that divides n; a prime number of ranks is one group."""
    return partial(exchanges.hierarchical_all_reduce, size=next((d for d in range(2, n + 1) if n % d == 0), 1))


PLANS = {  # verb -> algorithm -> number of ranks -> planner
    "all_reduce": {name: (lambda _, make=make: make) for name, make in exchanges.ALL_REDUCES.items()}
    | {"two levels": two_levels},
    "reduce_scatter": {
        "ring": lambda _: exchanges.ring_reduce_scatter,
        "halving": lambda _: exchanges.halving_reduce_scatter,
    },
    "all_gather": {"ring": lambda _: exchanges.ring_all_gather, "doubling": lambda _: exchanges.doubling_all_gather},
    "all_to_all": {"pairwise": lambda _: exchanges.pairwise_all_to_all},
}
ALGORITHMS = [(verb, plan) for verb, plans in PLANS.items() for plan in plans]


@st.composite
def cases(draw):
    verb, plan = draw(st.sampled_from(ALGORITHMS))
    dtype = draw(st.sampled_from(DTYPES))
    ops = [op for op in SIZES if dtype != torch.int64 or op != "average"]
    many = draw(st.booleans())
    rows = draw(st.integers(0, 2 * PAGE // dtype.itemsize) if many else st.integers(0, 12))
    width = 1 if many else draw(st.integers(0, 3))
    op, strided, seed = draw(st.sampled_from(ops)), draw(st.booleans()), draw(st.integers(0, 99))
    return Case(verb, plan, op, dtype, rows, width, strided, seed)


def drawn(number):
    """List `count` cases, the smallest first, with every algorithm among them."""
    found = []

    @settings(
        max_examples=number,
        database=None,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases())
    def collect(case):
        found.append(case)

    collect()
    every = [Case(verb, plan, "sum", torch.float64, 7, 1, False, 0) for verb, plan in ALGORITHMS]
    signs = [Case("all_reduce", plan, "max", torch.float32, 40, 3, False, 0) for plan in PLANS["all_reduce"]]
    return sorted({*found, *every, *signs}, key=lambda case: (case.rows * case.width, str(case)))


def call(case, x, group, plan):
    """Call the collective of a case."""
    op = {"op": case.op} if "reduce" in case.verb else {}
    return getattr(collectives, case.verb)(x, group, plan=plan, check=False, **op)


def attempt(group, chosen, changes=None):
    """Run every case on this rank; return the result, and what is wrong with how it was made."""
    seen = []
    for case in chosen:
        x = case.input(group.rank(), group.size())
        before, planner = x.clone(), case.planner(group.size())
        plan = planner if changes is None else (lambda n, planner=planner: changes(planner(n)))
        y = call(case, x, group, plan)
        faults = [] if bits(x) == bits(before) else ["changed its input"]
        if y.numel() and y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
            faults.append("returned a view of its input")
        executed.PART_BYTES, usual = SMALL_PART, executed.PART_BYTES
        again = call(case, x, group, plan)
        executed.PART_BYTES = usual
        if bits(again) != bits(y):
            faults.append("gave other bits in short parts")
        seen.append((y, faults))
    return seen


def bits(y):
    return (tuple(y.shape), y.contiguous().view(-1).view(torch.uint8).numpy().tobytes())


def expected(case, world_size):
    """Return what every rank must end with, and the tolerance for rounding."""
    inputs = torch.stack([case.input(rank, world_size) for rank in range(world_size)])
    exact = inputs if case.dtype == torch.int64 else inputs.double()
    if case.verb == "all_gather":
        return [exact.flatten(0, 1)] * world_size, 0.0
    if case.verb == "all_to_all":
        parts = exact.unflatten(1, (world_size, case.rows))
        return list(parts.transpose(0, 1).flatten(1, 2)), 0.0
    total = SIZES[case.op](exact, dim=0)
    slack = torch.zeros(())
    if case.dtype != torch.int64 and case.op not in ("max", "min"):
        size = exact.abs().prod(dim=0) if case.op == "product" else exact.abs().sum(dim=0)
        slack = (world_size + 1) * torch.finfo(case.dtype).eps * size + torch.finfo(case.dtype).tiny
    if case.verb == "reduce_scatter":
        return list(total.unflatten(0, (world_size, case.rows))), share(slack, world_size)
    return [total] * world_size, slack


def share(slack, world_size):
    return slack.max() if slack.numel() else slack.sum()


def wrong(case, results, world_size):
    """List what is wrong with the results of all ranks."""
    found = [f"rank {rank} {fault}" for rank, (_, faults) in enumerate(results) for fault in faults]
    right, slack = expected(case, world_size)
    for rank, (y, _) in enumerate(results):
        if y.shape != right[rank].shape or y.dtype != case.dtype:
            found.append(f"rank {rank} got another shape or dtype")
        elif not (y.to(right[rank].dtype) - right[rank]).abs().le(slack).all():
            found.append(f"rank {rank} is off")
    if case.verb in ("all_reduce", "all_gather") and len({bits(y) for y, _ in results}) > 1:
        found.append("ranks got different bits")
    return found


@pytest.fixture(scope="module")
def chosen():
    return {world_size: drawn(EXAMPLES) for world_size in WORLD_SIZES}


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parity("collectives", "every algorithm gives the sum: to (n + 1) roundings, copies to the bit")
def test_every_collective_is_what_arithmetic_says(world_size, chosen):
    by_rank = run(attempt, chosen[world_size], world_size=world_size, ranks=rank_type(world_size))
    for number, case in enumerate(chosen[world_size]):
        assert not wrong(case, [results[number] for results in by_rank], world_size), case


@pytest.mark.parity("collectives", "two runs give the same bits")
def test_the_bits_are_the_same_from_run_to_run(chosen):
    floats = [case for case in chosen[5] if case.dtype != torch.int64]
    first, second = (run(attempt, floats, world_size=5) for _ in range(2))
    assert [[bits(y) for y, _ in rank] for rank in first] == [[bits(y) for y, _ in rank] for rank in second]


# ---- one mistake in each algorithm -----------------------------------------------------------------------------------


def mistake(plan):
    """Let a plan's last move that adds copy instead; without one, its last message takes a wrong piece."""
    steps = [list(step) for step in plan.steps]
    adding = [(i, j) for i, step in enumerate(steps) for j, move in enumerate(step) if move.action == exchanges.ADD]
    if adding:
        i, j = adding[-1]
        steps[i][j] = steps[i][j]._replace(action=exchanges.COPY)
    elif plan.num_pieces == 1:
        steps[-1] = steps[-1][:-1]
    else:
        last = steps[-1][-1]
        steps[-1][-1] = last._replace(shift=last.shift - 1)
    return replace(plan, steps=steps)


def test_a_mistake_in_any_algorithm_is_seen():
    slips = [Case(verb, plan, "sum", torch.float64, 8, 1, False, 1) for verb, plan in ALGORITHMS]
    by_rank = run(attempt, slips, mistake, world_size=4, ranks="threads")
    for number, case in enumerate(slips):
        assert wrong(case, [results[number] for results in by_rank], 4), case


# ---- the rest --------------------------------------------------------------------------------------------------------


def test_ranks_of_a_smaller_group_talk_among_themselves():
    def in_pairs(group):
        pair = comm.split(group, 2)
        return collectives.all_reduce(torch.tensor([10.0**group.rank()]), pair).item()

    assert run(in_pairs, world_size=4) == [11.0, 11.0, 1100.0, 1100.0]


def test_scalars_gradients_and_whole_numbers():
    def odd_ones(group):
        weight = torch.ones(3, requires_grad=True)
        summed = collectives.all_reduce(2 * weight, group)
        return collectives.all_reduce(torch.tensor(2.0), group), summed, collectives.all_gather(torch.arange(2), group)

    for scalar, summed, gathered in run(odd_ones, world_size=3):
        assert scalar.shape == ()
        assert scalar == 6
        assert summed.tolist() == [6, 6, 6]
        assert not summed.requires_grad
        assert gathered.tolist() == [0, 1, 0, 1, 0, 1]


DISAGREEMENTS = {
    "length": lambda rank, group: collectives.all_reduce(torch.ones(6 if rank == 2 else 4), group),
    "dtype": lambda rank, group: collectives.all_reduce(torch.ones(4, dtype=DTYPES[rank % 2]), group),
    "operation": lambda rank, group: collectives.all_reduce(torch.ones(4), group, op="max" if rank == 2 else "sum"),
    "algorithm": lambda rank, group: collectives.all_reduce(
        torch.ones(4), group, exchanges.ring_all_reduce if rank else exchanges.naive_all_reduce
    ),
    "verb": lambda rank, group: (collectives.all_gather if rank == 2 else collectives.all_reduce)(torch.ones(4), group),
}
TOLD = {
    "length": "ranks 0, 1, 3: ring all-reduce (sum) of float32[4]\n  rank 2: ring all-reduce (sum) of float32[6]",
    "dtype": "ranks 0, 2: ring all-reduce (sum) of float64[4]\n  ranks 1, 3: ring all-reduce (sum) of float32[4]",
    "operation": "rank 2: ring all-reduce (max) of float32[4]",
    "algorithm": "rank 0: naive all-reduce (sum) of float32[4]\n  ranks 1, 2, 3: ring all-reduce",
    "verb": "rank 2: ring all-gather of float32[4]",
}


def told(group):
    """Return the error of every disagreement, and whether the group still works afterwards."""
    messages = {}
    for name, disagree in DISAGREEMENTS.items():
        with pytest.raises(ValueError, match="the ranks do not call the same collective") as caught:
            disagree(group.rank(), group)
        messages[name] = str(caught.value)
    return messages, collectives.all_reduce(torch.ones(1), group).item()


def test_ranks_that_disagree_are_all_told_so_by_name():
    for messages, total in run(told, world_size=4):
        assert total == 4
        for name, words in TOLD.items():
            assert words in messages[name], name


def refused(group):
    x, found = torch.ones(4), []
    for attempt in (
        lambda: collectives.all_reduce(x, group, op="mean"),
        lambda: collectives.all_reduce(torch.arange(4), group, op="average"),
        lambda: collectives.reduce_scatter(x, group),
        lambda: collectives.all_to_all(x, group),
        lambda: collectives.all_reduce(x, group, lambda n: exchanges.ring_all_reduce(n + 1), check=False),
        lambda: executed.execute(exchanges.pairwise_all_to_all(3), x, torch.empty(4), group),
    ):
        try:
            attempt()
        except ValueError as error:
            found.append(str(error))
    return found


def test_bad_input_names_the_way_out():
    for found in run(refused, world_size=3):
        assert found == [
            "unknown operation 'mean'; use one of average, sum, max, min, product",
            "an average of torch.int64 would not be an integer; use op='sum', or pass x.float()",
            *["4 rows do not split over 3 ranks; pad to a multiple of 3"] * 2,
            "the plan is for 4 ranks, the group has 3; make it for 3",
            "4 numbers do not divide into 6 equal pieces, which a pairwise all-to-all needs; "
            "pad them to a multiple of 6",
        ]


def test_a_rank_that_stays_away_is_reported_with_the_line_at_which_the_others_wait(impatient):
    def stay_away(group):
        if group.rank() != 2:
            collectives.all_reduce(torch.ones(4), group)

    with pytest.raises(RankError, match=r"collectives.all_reduce\(torch.ones\(4\), group\)") as caught:
        run(stay_away, world_size=3, timeout=20)
    assert "rank 2 had finished" in str(caught.value)
