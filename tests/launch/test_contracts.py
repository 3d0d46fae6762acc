"""Ranks that are about to send what does not fit are stopped before they do, each with its line."""

import asyncio
import contextlib
import sys
import threading

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from shardlab import comm
from shardlab.launch import contracts, run
from tests.launch.failing import failure

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that no rank need import pytest


def a_longer_receive(group):
    if group.rank() == 0:
        comm.send(torch.ones(3), group, to=1)
    else:
        comm.receive(torch.ones(5), group, source=0)


def a_shorter_receive(group):
    if group.rank() == 0:
        comm.send(torch.ones(5), group, to=1)
    else:
        comm.receive(torch.ones(3), group, source=0)


def a_receive_of_another_dtype(group):
    if group.rank() == 0:
        comm.send(torch.ones(3, dtype=torch.int64), group, to=1)
    else:
        comm.receive(torch.ones(3), group, source=0)


def an_exchange_of_unlike_tensors(group):
    other = 1 - group.rank()
    comm.exchange(torch.ones(2), group, to=other, source=other)
    comm.exchange(torch.ones(2 + group.rank()), group, to=other, source=other)


def messages_that_were_started(group):
    other = 1 - group.rank()
    for wait in comm.start_messages([(torch.ones(4), other)], [(torch.ones(4 + group.rank()), other)], group):
        wait()


def another_operation(group):
    comm.all_reduce(torch.ones(3), group, "sum" if group.rank() else "max")


def another_source(group):
    comm.broadcast(torch.ones(3), group, source=group.rank())


def another_collective(group):
    (comm.all_gather if group.rank() else comm.all_reduce)(torch.ones(3), group)


def another_shape(group):
    comm.barrier(group)
    comm.start_all_reduce(torch.ones(3 + group.rank()), group)()


def torchs_own_verbs(group):
    (dist.barrier if group.rank() else dist.all_reduce)(*([] if group.rank() else [torch.ones(3)]))


def another_dtype(group):
    comm.all_to_all(torch.ones(2, dtype=torch.float64 if group.rank() else torch.float32), group)


SAID = {
    a_longer_receive: ("message from rank 0 to rank 1 number 1", "3 numbers of float32", "5 numbers of float32"),
    a_shorter_receive: ("message from rank 0 to rank 1 number 1", "5 numbers of float32", "3 numbers of float32"),
    a_receive_of_another_dtype: ("from rank 0 to rank 1 number 1", "3 numbers of int64", "3 numbers of float32"),
    an_exchange_of_unlike_tensors: ("number 2", "2 numbers of float32", "3 numbers of float32"),
    messages_that_were_started: ("number 1", "4 numbers of float32", "5 numbers of float32"),
    another_operation: ("collective number 1", "rank 0: all_reduce (max)", "rank 1: all_reduce (sum) of float32[3]"),
    another_source: ("collective number 1", "rank 0: broadcast from rank 0", "rank 1: broadcast from rank 1"),
    another_collective: ("collective number 1", "all_reduce (sum) of float32[3]", "all_gather of float32[3]"),
    another_shape: ("collective number 2", "float32[3]", "float32[4]"),
    torchs_own_verbs: ("collective number 1", "rank 0: all_reduce (sum)", "rank 1: barrier"),
    another_dtype: ("collective number 1", "all_to_all of float32,", "all_to_all of float64,"),
}


@pytest.mark.parametrize("program", SAID, ids=lambda program: program.__name__)
def test_what_does_not_fit_is_said_before_it_is_sent(program):
    told = failure(program, world_size=2)
    assert "ValueError: the ranks disagree about" in told
    for words in SAID[program]:
        assert words in told


def test_both_lines_are_named():
    told = failure(a_longer_receive, world_size=2)
    first = a_longer_receive.__code__.co_firstlineno
    assert f'rank 0: 3 numbers of float32, File "{__file__}", line {first + 2}' in told
    assert f'rank 1: 5 numbers of float32, File "{__file__}", line {first + 4}' in told


def test_the_users_line_is_named_where_new_tensors_have_a_device():
    """As under torchrun: torch's own lines then stand between comm's and the user's."""

    def on_a_device(group):
        with torch.device("cpu"):
            comm.all_reduce(torch.ones(3 + group.rank()), group)

    line = on_a_device.__code__.co_firstlineno + 2
    assert failure(on_a_device, world_size=2).count(f'of float32[3], File "{__file__}", line {line}') == 1


# ---- whatever the function catches ----------------------------------------------------------------------------------


def step(group, number):
    """Sum over ranks; in step 1 the last rank has a number more."""
    return comm.all_reduce(torch.ones(4 + (number == 1 and group.rank() == 1)), group).sum().item()


def skips_the_batch(group):
    for number in range(4):
        with contextlib.suppress(ValueError):
            step(group, number)


def catches_all(group):
    for number in range(4):
        with contextlib.suppress(BaseException):
            step(group, number)


def goes_on_with_two_shapes(group):
    skips_the_batch(group)
    for number in range(20):
        comm.all_reduce(torch.ones(1 + number % 2), group)


def falls_back(group):
    try:
        return [step(group, 0), step(group, 1)]
    except ValueError:
        return [0.0]


def raises_its_own(group):
    try:
        return [step(group, 0), step(group, 1)]
    except ValueError:
        raise KeyError("step failed") from None


def gathers_exceptions(group):
    async def act(number):
        return step(group, number)

    async def all_of_them():
        return await asyncio.gather(*map(act, range(3)), return_exceptions=True)

    asyncio.run(all_of_them())
    comm.barrier(group)


def leaves_it_to_a_thread(group):
    step(group, 0)
    thread = threading.Thread(target=falls_back, args=[group])
    thread.start()
    thread.join()


def tries_again(group):
    step(group, 0)
    while True:
        with contextlib.suppress(ValueError):
            step(group, 1)


SWALLOWING = [
    skips_the_batch,
    catches_all,
    goes_on_with_two_shapes,
    falls_back,
    raises_its_own,
    gathers_exceptions,
    leaves_it_to_a_thread,
    tries_again,
]


@pytest.mark.parametrize("program", SWALLOWING, ids=lambda program: program.__name__)
def test_what_disagreed_is_said_whatever_the_function_catches(program):
    told = failure(program, world_size=2, timeout=20)
    number = 3 if program is leaves_it_to_a_thread else 2
    assert f"ValueError: the ranks disagree about collective number {number}:" in told
    line = f'File "{__file__}", line {step.__code__.co_firstlineno + 2}'
    for text in (f"rank 0: all_reduce (sum) of float32[4], {line}", f"rank 1: all_reduce (sum) of float32[5], {line}"):
        assert text in told
    assert told.count("ValueError") == 1
    assert "Deadlock" not in told
    if program is raises_its_own:
        before, after = told.split("and then\n")
        assert "disagree" in before
        assert "KeyError: 'step failed'" in after


def test_a_refused_rank_is_refused_all_later_calls():
    """Also under torchrun, where no launcher hears of it."""
    mine = contracts.Contracts("/nowhere", lambda _: None)
    mine.refusal = "the ranks disagree"
    for _ in range(2):
        with pytest.raises(ValueError, match="the ranks disagree"):
            mine._compare("group", "collective", [0], 0, "barrier")


# ---- what is said ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "sizes"),
    [
        (lambda x, group: comm.all_gather(x, group), ("[6, 2]", "[12, 2]")),
        (lambda x, group: comm.reduce_scatter(x, group), ("[6, 2]", "[12, 2]")),
        (lambda x, group: dist.all_gather([x.clone() for _ in range(3)], x, group=group), ("[6, 2]", "[12, 2]")),
        (lambda x, group: dist.reduce_scatter(x[:2].clone(), [*x.split(2)][:3], group=group), ("[2, 2]",)),
    ],
)
def test_sizes_are_those_that_were_passed(verb, sizes):
    def unequal(group):
        return verb(torch.ones(6 + 6 * (group.rank() == 1), 2), group)

    if len(sizes) == 1:
        assert len(run(unequal, world_size=3)) == 3
        return
    told = failure(unequal, world_size=3)
    for size in sizes:
        assert f"of float32{size}, File" in told
    assert told.count(" raised") == 1


def test_an_error_that_differs_by_the_number_of_its_rank_is_told_once():
    def fail(group):
        raise RuntimeError(f"no gradient for rank {group.rank()}: 2 3")

    told = failure(fail, world_size=3)
    assert told.count("RuntimeError: ") == 1
    assert told.startswith("ranks 0, 1 and 2 raised")
    assert "no gradient for rank 0: 2 3" in told


def test_a_group_without_this_rank():
    def outside(group):
        other = dist.new_group([1])
        x = torch.ones(2)
        verbs = (
            *(comm.all_reduce, comm.broadcast, comm.all_gather, comm.reduce_scatter, comm.all_to_all),
            *(comm.start_all_reduce, comm.start_all_to_all, comm.start_reduce_scatter),
            lambda x, group: comm.start_all_gather(x, x, group),
            lambda x, group: comm.barrier(group),
            lambda x, group: comm.send(x, group, 0),
            lambda x, group: comm.receive(x, group, 0),
            lambda x, group: comm.exchange(x, group, 0, 0),
            lambda x, group: comm.start_messages([], [(x, 0)], group),
            lambda x, group: comm.split(group, 1),
            lambda x, group: comm.across(group, 1),
            lambda x, group: comm.subgroup(group, [0]),
        )
        if group.rank() == 0:
            for verb in verbs:
                with pytest.raises(ValueError, match="rank 0 is not in this group; only ranks given to"):
                    verb(x, other)

    run(outside, world_size=2)


@pytest.mark.parametrize("to", [-1, 2, 9])
def test_a_rank_that_the_group_does_not_have(to):
    x = torch.ones(1)
    verbs = (
        lambda group: comm.send(x, group, to=to),
        lambda group: comm.receive(x, group, source=to),
        lambda group: comm.exchange(x, group, to=to, source=0),
        lambda group: comm.exchange(x, group, to=0, source=to),
        lambda group: comm.start_messages([(x, to)], [], group),
        lambda group: comm.broadcast(x, group, source=to),
        lambda group: comm.subgroup(group, [0, to]),
    )

    def all_of_them(group):
        said = []
        for verb in verbs:
            with pytest.raises(ValueError, match=f"there is no rank {to} in a group of 2 ranks"):
                verb(group)
            said.append(verb)
        return len(said)

    assert run(all_of_them, world_size=2) == [7, 7]


def test_nothing_is_compared_where_it_is_forbidden(monkeypatch):
    """As under torchrun: the bits of two numbers are read as one."""
    monkeypatch.setenv(contracts.FOLDER, "")

    def misread(group):
        if group.rank() == 0:
            return comm.send(torch.ones(1, dtype=torch.float64), group, to=1)
        return comm.receive(torch.ones(2), group, source=0).tolist()

    assert run(misread, world_size=2) == [None, [0.0, 1.875]]


def test_half_of_a_call_is_not_read():
    call = contracts._packed(7, "all_reduce")
    assert contracts._text(call, 7) == "all_reduce"
    assert contracts._text(call, 8) == ""
    assert contracts._text(call[:20] + bytes(len(call) - 20), 7) == ""


def test_a_receive_from_anybody_takes_what_comes_first():
    """Its group's messages have no numbers that two ranks could compare."""

    def gather(group):
        if group.rank() == 0:
            received = torch.zeros(3)
            for _ in range(2):
                dist.recv(received, group=group)
            comm.barrier(group)  # whoever comes first, it is no message of five numbers
            return comm.receive(torch.zeros(5), group, source=1).sum().item()
        comm.send(torch.ones(3), group, to=0)
        comm.barrier(group)
        if group.rank() == 1:
            comm.send(torch.ones(5), group, to=0)
        return None

    assert run(gather, world_size=3)[0] == 5
