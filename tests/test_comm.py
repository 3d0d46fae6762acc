"""Each verb agrees with plain arithmetic on the list of all ranks' tensors, and keeps its input."""

import inspect
import re
from collections.abc import Sequence

import pytest
import torch

from shardlab import comm
from shardlab.launch import RankError, run
from shardlab.ranks.observe import ledger

WORLD_SIZES = [1, 2, 3, 4]  # 3 catches every "rank - 1 == rank + 1" mistake
MESSAGES = Sequence[comm.Send]
VERBS = [
    verb
    for name, verb in inspect.getmembers(comm, inspect.isfunction)
    if not name.startswith("_") and {torch.Tensor, MESSAGES} & {*inspect.get_annotations(verb).values()}
]


def of_rank(rank, size, dtype=torch.float64):
    """Make a tensor that differs between ranks and is not contiguous."""
    return (torch.arange(6 * size * 2, dtype=dtype).sin() * (rank + 1)).reshape(-1, 2)[:, 0]


def everyone(verb, world_size):
    """Return what each rank gets from `verb(x, group)`; assert that x has not changed."""

    def call(group):
        x = of_rank(group.rank(), group.size())
        before = x.clone()
        y = verb(x, group)
        assert torch.equal(x, before), "the verb changed its input"
        return y

    return run(call, world_size=world_size)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize(
    ("op", "combine"), [("sum", torch.sum), ("max", torch.amax), ("min", torch.amin), ("product", torch.prod)]
)
def test_all_reduce(world_size, op, combine):
    inputs = torch.stack([of_rank(rank, world_size) for rank in range(world_size)])
    for y in everyone(lambda x, group: comm.all_reduce(x, group, op), world_size):
        torch.testing.assert_close(y, combine(inputs, dim=0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_start_all_reduce_fills_the_buffer_it_was_lent(world_size):
    def call(x, group):
        buffer = x.clone()
        wait = comm.start_all_reduce(buffer, group)
        wait()
        return buffer

    expected = sum(of_rank(rank, world_size) for rank in range(world_size))
    for y in everyone(call, world_size):
        torch.testing.assert_close(y, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_all_to_all_transposes_the_slices(world_size):
    """Slices may be alike, or of r + t rows from rank r to rank t."""
    inputs = [of_rank(rank, world_size) for rank in range(world_size)]
    slices = [x.chunk(world_size) for x in inputs]
    for rank, y in enumerate(everyone(comm.all_to_all, world_size)):
        assert torch.equal(y, torch.cat([each[rank] for each in slices]))

    def uneven(group):
        rank, size = group.rank(), group.size()
        rows = [rank + other for other in range(size)]
        x = torch.cat([torch.full((count, 2), 10.0 * rank + other) for other, count in enumerate(rows)])
        return comm.all_to_all(x, group, rows, rows)[:, 1]

    for rank, y in enumerate(run(uneven, world_size=world_size)):
        assert y.tolist() == [10.0 * other + rank for other in range(world_size) for _ in range(rank + other)]


def test_an_all_to_all_whose_slices_do_not_make_up_the_rows_is_refused():
    with pytest.raises(RankError, match=r"5 rows, and 2 ranks get \[2, 2\] of them; pad it to a multiple of 2, or"):
        run(lambda group: comm.all_to_all(torch.zeros(5), group), world_size=2)
    with pytest.raises(RankError, match=r"5 rows, and 2 ranks get \[2, 1\] of them; .* with sum\(sends\) = 5"):
        run(lambda group: comm.all_to_all(torch.zeros(5), group, [2, 1], [2, 1]), world_size=2)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_start_all_gather_and_start_reduce_scatter(world_size):
    def call(x, group):
        x = x.contiguous()
        gathered = x.new_empty(group.size() * len(x))
        waits = [comm.start_all_gather(x, gathered, group), comm.start_reduce_scatter(x, group)]
        return [wait() for wait in waits][1], gathered

    inputs = [of_rank(rank, world_size) for rank in range(world_size)]
    for (mine, gathered), expected in zip(everyone(call, world_size), sum(inputs).chunk(world_size), strict=True):
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-12)
        assert torch.equal(gathered, torch.cat(inputs))


@pytest.mark.parametrize("world_size", [2, 4])
def test_start_reduce_scatter_sends_half_of_what_gloo_would(world_size):
    """Each rank sends (n - 1)/n of the buffer, plus the headers of the messages."""

    def call(group):
        x = torch.ones(world_size * 10_000)
        with ledger.Ledger() as book:
            comm.start_reduce_scatter(x, group)()
        return book.sent_bytes

    exact = (world_size - 1) * 40_000
    for sent in run(call, world_size=world_size):
        assert sent is None or exact <= sent < 1.02 * exact


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_broadcast(world_size):
    def from_each(x, group):
        return torch.stack([comm.broadcast(x, group, source) for source in range(world_size)])

    for y in everyone(from_each, world_size):
        assert torch.equal(y, torch.stack([of_rank(source, world_size) for source in range(world_size)]))


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_all_gather(world_size):
    for y in everyone(comm.all_gather, world_size):
        assert torch.equal(y, torch.cat([of_rank(rank, world_size) for rank in range(world_size)]))


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_reduce_scatter(world_size):
    total = sum(of_rank(rank, world_size) for rank in range(world_size))
    for y, expected in zip(everyone(comm.reduce_scatter, world_size), total.chunk(world_size), strict=True):
        torch.testing.assert_close(y, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_send_and_receive(world_size):
    def relay(x, group):
        """Pass rank 0's tensor from rank to rank."""
        if group.rank() > 0:
            x = comm.receive(x, group, source=group.rank() - 1)
        if group.rank() < group.size() - 1:
            comm.send(x, group, to=group.rank() + 1)
        return x

    for y in everyone(relay, world_size):
        assert torch.equal(y, of_rank(0, world_size))


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_exchange_passes_tensors_around_the_ring(world_size):
    def turn(x, group):
        return comm.exchange(x, group, to=(group.rank() + 1) % group.size(), source=(group.rank() - 1) % group.size())

    for rank, y in enumerate(everyone(turn, world_size)):
        assert torch.equal(y, of_rank((rank - 1) % world_size, world_size))


def test_ranks_in_arguments_are_positions_in_the_group():
    def in_a_pair(group):
        import torch.distributed as dist

        pair = dist.new_group([1, 3])
        if group.rank() in (1, 3):
            return comm.broadcast(torch.tensor(float(group.rank())), pair, source=1).item()

    assert run(in_a_pair, world_size=4) == [None, 3.0, None, 3.0]


@pytest.mark.parametrize(("size", "groups"), [(1, [[0], [1], [2], [3]]), (2, [[0, 1], [2, 3]]), (4, [[0, 1, 2, 3]])])
def test_split_makes_groups_of_neighbours(size, groups):
    def members(group):
        mine = comm.split(group, size)
        return mine.rank(), comm.all_gather(torch.tensor([group.rank()]), mine).tolist()

    assert run(members, world_size=4) == [(place, each) for each in groups for place in range(size)]


@pytest.mark.parametrize(("size", "groups"), [(1, [[0, 1, 2, 3]]), (2, [[0, 2], [1, 3]]), (4, [[0], [1], [2], [3]])])
def test_across_groups_the_same_positions(size, groups):
    def members(group):
        mine = comm.across(group, size)
        return mine.rank(), comm.all_gather(torch.tensor([group.rank()]), mine).tolist()

    found = run(members, world_size=4)
    assert sorted(found) == sorted((place, each) for each in groups for place in range(len(each)))
    assert all(each[place] == rank for rank, (place, each) in enumerate(found))


def test_groups_within_groups_do_not_mix_their_messages():
    """Both halves split at the same time, as the replicas of a model do."""

    def members(group):
        half = comm.split(group, 2)
        return [
            comm.all_gather(torch.tensor([group.rank()]), comm.split(half, 2)).tolist(),
            comm.all_gather(torch.tensor([group.rank()]), comm.subgroup(half, [0, 1])).tolist(),
        ]

    assert run(members, world_size=4) == [[[0, 1]] * 2] * 2 + [[[2, 3]] * 2] * 2


def test_a_dry_run_gives_shapes_and_communicates_nothing():
    """Only rank 0 calls the verbs; if they communicated, it would wait forever."""

    def shapes(group):
        x = torch.empty(4, 3, dtype=torch.bfloat16, device="meta")
        verbs = [comm.all_reduce, comm.broadcast, comm.all_gather, comm.reduce_scatter]
        found = [verb(x, group) for verb in verbs if group.rank() == 0]
        assert all(y.is_meta and y.dtype == x.dtype for y in found)
        return [tuple(y.shape) for y in found]

    assert run(shapes, world_size=2) == [[(4, 3), (4, 3), (8, 3), (2, 3)], []]


def test_the_device_is_the_cpu_under_gloo():
    assert run(comm.device, world_size=1) == [torch.device("cpu")]


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_names_what_it_got_instead_of_a_tensor(verb):
    kinds = {name: each.annotation for name, each in inspect.signature(verb).parameters.items()}

    def misuse(group):
        right = {torch.Tensor: torch.ones(1), MESSAGES: [], comm.Group: group, int: 0}
        given = {name: right[kind] for name, kind in kinds.items() if kind in right}
        tensors = [(name, kind) for name, kind in kinds.items() if kind in (torch.Tensor, MESSAGES)]
        for wrong in (3, [1.0], None):
            for name, kind in tensors:
                refused = f"{verb.__name__} needs a tensor, got {re.escape(repr(wrong))}; pass numbers"
                with pytest.raises(TypeError, match=refused):
                    verb(**{**given, name: wrong if kind is torch.Tensor else [(wrong, 0)]})

    run(misuse, world_size=1)


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_refuses_a_tensor_that_requires_a_gradient(verb):
    """Torch would warn at most, and leave the gradient wrong or out; without grad mode there is none to lose."""
    kinds = {name: each.annotation for name, each in inspect.signature(verb).parameters.items()}

    def lose(group):
        right = {torch.Tensor: torch.ones(1), comm.Group: group, int: 0, MESSAGES: []}
        given = {name: right[kind] for name, kind in kinds.items() if kind in right}
        pair = {"sends": [(torch.ones(1), 0)], "receives": [(torch.ones(1), 0)]}
        trained = torch.ones(1, requires_grad=True)
        for name, kind in kinds.items():
            if kind in (torch.Tensor, MESSAGES):
                with pytest.raises(ValueError, match=rf"^{verb.__name__} got .* requires a gradient.*x\.detach\(\)"):
                    verb(**{**given, name: trained if kind is torch.Tensor else [(trained, 0)]})
        given = {**given, **{name: each for name, each in pair.items() if kinds.get(name) is MESSAGES}}
        if verb not in (comm.send, comm.receive):  # one rank alone has nobody to send to
            with torch.no_grad():
                verb(**{**given, **{name: trained for name, kind in kinds.items() if kind is torch.Tensor}})

    run(lose, world_size=1)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_tensors_without_dimensions_and_without_numbers(world_size):
    """A loss is gathered to [N]; what is split must have rows, and there may be none."""

    def edges(group):
        loss, none, no_columns = torch.tensor(1.0 + group.rank()), torch.empty(0, 3), torch.empty(6, 0)
        for split in (comm.reduce_scatter, comm.all_to_all, comm.start_reduce_scatter, comm.start_all_to_all):
            with pytest.raises(ValueError, match=rf"^{split.__name__} splits dim 0 .*n a multiple of {group.size()}"):
                split(loss, group)
        for x in (none, no_columns):
            shapes = {verb(x, group).shape for verb in (comm.all_reduce, comm.broadcast, comm.all_to_all)}
            assert shapes == {x.shape}
            assert comm.all_gather(x, group).shape == (len(x) * group.size(), x.shape[1])
            assert comm.reduce_scatter(x, group).shape == (len(x) // group.size(), x.shape[1])
            assert comm.start_reduce_scatter(x, group)().shape == (0,)
            comm.start_all_gather(x, torch.empty(len(x) * group.size(), x.shape[1]), group)()
        into = torch.empty(group.size())
        comm.start_all_gather(loss, into, group)()
        gathered = comm.all_gather(loss, group)
        assert torch.equal(into, gathered)
        after = (group.rank() + 1) % group.size(), (group.rank() - 1) % group.size()
        return gathered.tolist(), comm.all_reduce(loss, group).item(), comm.exchange(loss, group, *after).item()

    ranks = range(world_size)
    losses = [1.0 + rank for rank in ranks]
    assert run(edges, world_size=world_size) == [(losses, sum(losses), losses[rank - 1]) for rank in ranks]


def test_what_does_not_split_is_refused():
    with pytest.raises(RankError, match="4 rows do not split over 3 ranks; pad to a multiple of 3"):
        run(lambda group: comm.reduce_scatter(torch.ones(4), group), world_size=3)
    with pytest.raises(RankError, match="4 ranks do not split into groups of 3; use a divisor of 4"):
        run(lambda group: comm.split(group, 3), world_size=4)
    with pytest.raises(RankError, match="unknown operation 'mean'; use one of sum, max, min, product"):
        run(lambda group: comm.all_reduce(torch.ones(4), group, "mean"), world_size=1)
