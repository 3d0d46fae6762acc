"""Starters fail, solutions pass, and every plausible mistake fails for its own reason, and for no other."""

import math

import pytest
import torch

from shardlab import comm, exercises
from shardlab.costs.operations import Reliability, play, shares
from shardlab.exercises.operations import interval, survivors
from shardlab.exercises.shared import disk

from .grading import Chapter, Graded
from .solutions import operations as solutions

CHAPTER = Chapter("operations", solutions)
mistake = CHAPTER.mistake


class TestExercises(Graded):
    chapter = CHAPTER


def test_every_property_of_an_interval_has_cases():
    kinds = [interval.kind(case.given) for case in exercises.find("operations.interval").cases]
    assert all(kinds.count(kind) >= 2 for kind in ("short", "long", "lag"))


def test_a_run_that_is_played_has_the_goodput_of_the_solution():
    for case in exercises.find("operations.interval").cases[::2]:
        best, goodput = solutions.my_interval(**case.given)
        stretches = play(Reliability(**case.given), best, useful=4000 * best, seed=0)
        assert shares([*stretches]).useful == pytest.approx(goodput, rel=0.06)


def test_the_survivors_of_every_case_by_hand():
    expected = {
        "all there": ([0], [0, 1]),
        "one sees only itself": ([],),
        "rank 0 is gone": ([1, 2],),
        "rank 0 is gone, and believes to see all": ([1, 2],),
        "rank 1 hears rank 2, which does not hear it": ([0, 1],),
        "rank 2 is gone, and one has not noticed": ([0, 1, 3],),
        "rank 3 sees nobody": ([0, 1, 2],),
        "two halves": ([],),
        "two links are cut": ([],),
        "one link is cut": ([0, 1, 2],),
    }
    for case in exercises.find("operations.survivors").cases:
        assert survivors.survivors(case.given) in expected[case.title], case.title


# ---- the disk --------------------------------------------------------------------------------------------------------


def after(*verbs):
    """What a power cut may leave of a file "a" after these verbs: the set of each file's names and bytes."""
    folder = disk.on_disk({"a": b"old!"})
    for verb, *arguments in verbs:
        getattr(folder, verb)(*arguments)
    return {tuple(sorted(files.items())) for _, files in folder.power_cuts()}


OLD = ("a", b"old!")


def test_bytes_that_are_not_flushed_may_be_lost_or_torn():
    assert after(("write", "a", b"new!")) == {(OLD,), (("a", b"ne"),), (("a", b"new!"),)}
    assert after(("write", "a", b"new!"), ("flush", "a")) == {(("a", b"new!"),)}


def test_a_flush_of_a_file_leaves_its_name_in_the_cache():
    assert after(("write", "b", b"new!"), ("flush", "b")) == {(OLD,), (OLD, ("b", b"new!"))}
    assert after(("write", "b", b"new!"), ("flush", "b"), ("flush_folder",)) == {(OLD, ("b", b"new!"))}
    empty = after(("write", "b", b"new!"), ("flush_folder",))
    assert empty == {(OLD, ("b", each)) for each in (b"", b"ne", b"new!")}


def test_a_rename_is_all_or_nothing_and_may_overtake_the_bytes():
    safe = [("write", "b", b"new!"), ("flush", "b"), ("flush_folder",), ("rename", "b", "a")]
    assert after(*safe) == {(OLD, ("b", b"new!")), (("a", b"new!"),)}
    assert (("a", b""),) in after(("write", "b", b"new!"), ("flush_folder",), ("rename", "b", "a"))


def test_names_may_reach_the_disk_in_any_order():
    assert () in after(("write", "b", b"new!"), ("flush", "b"), ("delete", "a"))


def test_a_folder_shows_what_is_in_its_cache():
    folder = disk.on_disk({"a": b"old!"})
    folder.write("b", b"new!")
    folder.rename("b", "a")
    assert (folder.names(), folder.read("a")) == (["a"], b"new!")
    folder.delete("a")
    for verb in (folder.read, folder.flush, folder.delete):
        with pytest.raises(FileNotFoundError, match="no file is called 'a'"):
            verb("a")
    with pytest.raises(TypeError, match="a str and bytes"):
        folder.write("a", "text")


# ---- mistakes: what must fail (all else must hold), the smallest case, and a word of the report ----------------------

SHORT, LONG = "the best interval where saves are short, within 2 %", "the best interval where saves are long"
LAG, GOODPUT = "the best interval where a save has to wait for the last", "the goodput of the interval"
EPOCH, ORDER = (
    "an epoch takes each sample at most once, in whole batches",
    "every epoch and every seed has an order of its own",
)
RANKS, RESTART = "the batch of a step is the same for every number of ranks", "after a restart the batches are the same"
FOUND, WHOLE = (
    "without a power cut the last two are there, and no other",
    "a power cut at any moment leaves a whole checkpoint",
)
SAFE = "the new one is safe when the function returns"
TWO = "a power cut leaves the checkpoint before it, too"
AGREE, LIST = "all ranks have the same list", "the list is the largest set that all see one another"
NUMBER, ONE = "the new number of a rank is its place in its list", "one all-gather of at most 8 bytes for each rank"


def goodput(interval, between, save, lag, restart):
    return interval / (between * math.exp((lag + restart) / between) * math.expm1((interval + save) / between))


@mistake("interval", LONG, at="1 rank, a long save", says="got       2,078.46 s")
def takes_the_first_term(between, save, lag, restart):
    interval = max(math.sqrt(2 * save * between), lag)
    return interval, goodput(interval, between, save, lag, restart)


@mistake("interval", SHORT, LONG, at="1 rank, a short save", says="got       282.843 s")
def forgets_that_half_an_interval_is_lost(between, save, lag, restart):
    interval = max(math.sqrt(save * between), lag)
    return interval, goodput(interval, between, save, lag, restart)


@mistake("interval", SHORT, LONG, at="1 rank, a short save and a long restart", says="restart=900")
def adds_the_restart_to_the_save(between, save, lag, restart):
    interval, _ = solutions.my_interval(between, save + restart, lag, restart)
    return interval, goodput(interval, between, save, lag, restart)


@mistake("interval", LAG, at="1 rank, a save that takes longer to be safe than to wait for", says="expected  500 s")
def begins_a_save_before_the_last_is_safe(between, save, lag, restart):
    interval, _ = solutions.my_interval(between, save, 0, restart)
    return interval, goodput(interval, between, save, lag, restart)


@mistake("interval", GOODPUT, at="1 rank, a lag as long as the time between failures", says="0.198688")
def lets_no_save_fail(between, save, lag, restart):
    interval, _ = solutions.my_interval(between, save, lag, restart)
    return interval, interval / (interval + save) * goodput(interval, between, 0, lag, restart)


@mistake("interval", GOODPUT, at="1 rank, a short save that is safe later", says="lag=300")
def forgets_the_lag_in_the_goodput(between, save, lag, restart):
    interval, _ = solutions.my_interval(between, save, lag, restart)
    return interval, goodput(interval, between, save, 0, restart)


@mistake("interval", GOODPUT, at="1 rank, a short save and a long restart", says="restart=900")
def adds_up_losses(between, save, lag, restart):
    interval, _ = solutions.my_interval(between, save, lag, restart)
    return interval, 1 - save / interval - (interval / 2 + lag + restart) / between


def shuffled(seed, num_samples):
    return torch.randperm(num_samples, generator=torch.Generator().manual_seed(seed)).tolist()


def cut(samples, rank, ranks, batch):
    part = batch // ranks
    return samples[rank * part : (rank + 1) * part]


@mistake("stream", RANKS, at="2 ranks, 8 samples, batches of 2", says="as 1 rank has it")
def seeds_by_rank(step, rank, ranks, num_samples, batch, seed):
    epoch, place = divmod(step, num_samples // batch)
    order = shuffled(seed + epoch + 1000 * rank, num_samples)
    return cut(order[place * batch :], rank, ranks, batch)


@mistake("stream", EPOCH, at="1 rank, 9 samples, batches of 2", says="8 different samples")
def seeds_by_step(step, rank, ranks, num_samples, batch, seed):
    place = step % (num_samples // batch)
    return cut(shuffled(seed + step, num_samples)[place * batch :], rank, ranks, batch)


@mistake("stream", ORDER, at="1 rank, 9 samples, batches of 2", says="another order than in epoch 0")
def keeps_one_order(step, rank, ranks, num_samples, batch, seed):
    place = step % (num_samples // batch)
    return cut(shuffled(seed, num_samples)[place * batch :], rank, ranks, batch)


@mistake("stream", ORDER, at="1 rank, 9 samples, batches of 2", says="two seeds")
def seeds_with_more_than_32_bits(step, rank, ranks, num_samples, batch, seed):
    """torch's generator on CPUs takes the lower 32 bits."""
    epoch, place = divmod(step, num_samples // batch)
    return cut(shuffled((seed << 32) + epoch, num_samples)[place * batch :], rank, ranks, batch)


@mistake("stream", RANKS, at="2 ranks, 11 samples, batches of 4", says="2 on each rank")
def deals_in_turns(step, rank, ranks, num_samples, batch, seed):
    return solutions.my_stream(step, 0, 1, num_samples, batch, seed)[rank::ranks]


@mistake("stream", RANKS, at="2 ranks, 11 samples, batches of 4", says="2 on each rank")
def cuts_the_epoch_by_rank_first(step, rank, ranks, num_samples, batch, seed):
    epoch, place = divmod(step, num_samples // batch)
    mine, part = shuffled(seed + epoch, num_samples)[rank::ranks], batch // ranks
    return mine[place * part : (place + 1) * part]


@mistake("stream", EPOCH, at="1 rank, 9 samples, batches of 2", says="8 different samples")
def pads_the_last_batch(step, rank, ranks, num_samples, batch, seed):
    epoch, place = divmod(step, -(-num_samples // batch))
    order = shuffled(seed + epoch, num_samples)
    return cut((order + order)[place * batch :], rank, ranks, batch)


@mistake("stream", EPOCH, RANKS, at="1 rank, 9 samples, batches of 2", says="8 different samples")
def gives_the_rest_as_a_small_batch(step, rank, ranks, num_samples, batch, seed):
    epoch, place = divmod(step, -(-num_samples // batch))
    return cut(shuffled(seed + epoch, num_samples)[place * batch :], rank, ranks, batch)


ORDERS = {}


@mistake("stream", RESTART, at="1 rank, 9 samples, batches of 2", says="restarted before step")
def remembers_the_order_of_the_epoch(step, rank, ranks, num_samples, batch, seed):
    key = (rank, ranks, num_samples, batch, seed)
    place = step % (num_samples // batch)
    if key not in ORDERS:
        ORDERS[key] = [torch.Generator().manual_seed(seed), None]
    if place == 0 or ORDERS[key][1] is None:
        ORDERS[key][1] = torch.randperm(num_samples, generator=ORDERS[key][0]).tolist()
    return cut(ORDERS[key][1][place * batch :], rank, ranks, batch)


def write_pieces(store, step, pieces, flush=True):
    for name, data in pieces.items():
        store.write(f"{step}.{name}", data)
        if flush:
            store.flush(f"{step}.{name}")


def mark(store, step, pieces):
    store.write("new", "\n".join(pieces).encode())
    store.flush("new")
    store.rename("new", f"{step}.whole")


def delete_old(store, kept=2, key=int):
    steps = sorted({name.partition(".")[0] for name in store.names()}, key=key)
    for name in store.names():
        if name.partition(".")[0] in steps[:-kept]:
            store.delete(name)


@mistake("commit", WHOLE, at="1 rank, the first checkpoint", says="without one of its pieces")
def marks_first(store, step, pieces):
    mark(store, step, pieces)
    store.flush_folder()
    write_pieces(store, step, pieces)
    store.flush_folder()
    delete_old(store)


@mistake("commit", WHOLE, at="1 rank, the first checkpoint", says="only the name 100.rank0 is lost")
def forgets_the_names_of_the_pieces(store, step, pieces):
    write_pieces(store, step, pieces)
    mark(store, step, pieces)
    store.flush_folder()
    delete_old(store)


@mistake("commit", WHOLE, at="1 rank, the first checkpoint", says="step 100 with rank0: ''")
def leaves_the_pieces_in_the_cache(store, step, pieces):
    write_pieces(store, step, pieces, flush=False)
    store.flush_folder()
    mark(store, step, pieces)
    store.flush_folder()
    delete_old(store)


@mistake("commit", WHOLE, at="1 rank, the first checkpoint", says="step 100 with no piece")
def renames_before_it_flushes(store, step, pieces):
    write_pieces(store, step, pieces)
    store.flush_folder()
    store.write("new", "\n".join(pieces).encode())
    store.rename("new", f"{step}.whole")
    store.flush(f"{step}.whole")
    store.flush_folder()
    delete_old(store)


@mistake("commit", WHOLE, at="1 rank, the first checkpoint", says="after verb 4 of 6, write 100.whole")
def marks_without_a_rename(store, step, pieces):
    write_pieces(store, step, pieces)
    store.flush_folder()
    store.write(f"{step}.whole", "\n".join(pieces).encode())
    store.flush(f"{step}.whole")
    store.flush_folder()
    delete_old(store)


@mistake("commit", SAFE, TWO, at="1 rank, the first checkpoint", says="got       no checkpoint")
def returns_with_the_rename_in_the_cache(store, step, pieces):
    write_pieces(store, step, pieces)
    store.flush_folder()
    mark(store, step, pieces)
    delete_old(store)


@mistake("commit", TWO, at="1 rank, the third checkpoint", says="only the rename to 300.whole is lost")
def deletes_before_the_new_one_is_safe(store, step, pieces):
    write_pieces(store, step, pieces)
    store.flush_folder()
    mark(store, step, pieces)
    delete_old(store)
    store.flush_folder()


@mistake("commit", TWO, at="1 rank, the third checkpoint", says="delete 100.rank0")
def makes_room_first(store, step, pieces):
    delete_old(store, kept=1)
    solutions.my_commit(store, step, pieces)


@mistake("commit", FOUND, at="1 rank, the third checkpoint", says="also 100.rank0, 100.whole")
def keeps_all(store, step, pieces):
    write_pieces(store, step, pieces)
    store.flush_folder()
    mark(store, step, pieces)
    store.flush_folder()


@mistake("commit", FOUND, WHOLE, SAFE, at="1 rank, more digits and more pieces", says="got       step 900")
def sorts_steps_as_words(store, step, pieces):
    keeps_all(store, step, pieces)
    delete_old(store, key=str)


@mistake("commit", FOUND, WHOLE, TWO, at="1 rank, the second checkpoint", says="step 200")
def writes_over_the_last(store, step, pieces):
    last = max((name.partition(".")[0] for name in store.names()), key=int, default=step)
    write_pieces(store, last, pieces)
    store.flush_folder()
    for name in store.names():
        store.rename(name, f"{step}.{name.partition('.')[2]}")
    store.flush_folder()
    mark(store, step, pieces)
    store.flush_folder()


def gathered(group, alive):
    return comm.all_gather(torch.tensor([alive], dtype=torch.int64, device=comm.device(group)), group).bool()


def numbered(members, group):
    return members, members.index(group.rank()) if group.rank() in members else None


@mistake("survivors", AGREE, LIST, at="2 ranks, one sees only itself", says="([1], 0) on rank 1")
def keeps_its_own_view(group, alive):
    gathered(group, alive)
    return numbered([rank for rank, is_alive in enumerate(alive) if is_alive], group)


@mistake("survivors", LIST, at="2 ranks, one sees only itself", says="[0, 1] on rank 0")
def takes_the_view_of_rank_0(group, alive):
    return numbered(gathered(group, alive)[0].nonzero().flatten().tolist(), group)


@mistake("survivors", LIST, at="2 ranks, one sees only itself", says="[0, 1] on rank 0")
def takes_whom_anybody_sees(group, alive):
    return numbered(gathered(group, alive).any(0).nonzero().flatten().tolist(), group)


@mistake("survivors", LIST, at="2 ranks, one sees only itself", says="[1] on rank 0")
def takes_whom_all_see(group, alive):
    return numbered(gathered(group, alive).all(0).nonzero().flatten().tolist(), group)


@mistake("survivors", LIST, at="3 ranks, rank 0 is gone", says="[] on rank 0")
def begins_with_the_lowest(group, alive):
    views, members = gathered(group, alive), []
    for rank in range(group.size()):
        if all(views[rank, other] and views[other, rank] for other in members):
            members.append(rank)
    return numbered(members if 2 * len(members) > group.size() else [], group)


def largest(views, least):
    matrix = ["".join(str(int(each)) for each in view) for view in views.tolist()]
    for size in range(len(matrix), least - 1, -1):
        for members in survivors.combinations(range(len(matrix)), size):
            if all(matrix[one][other] == "1" for one in members for other in members):
                return [*members]
    return []


@mistake("survivors", LIST, at="2 ranks, one sees only itself", says="[0] on rank 0")
def lets_a_half_go_on(group, alive):
    return numbered(largest(gathered(group, alive), group.size() // 2), group)


@mistake("survivors", LIST, at="2 ranks, one sees only itself", says="[0, 1] on rank 0")
def takes_one_way_for_sight(group, alive):
    views = gathered(group, alive)
    return numbered(largest(views | views.T, group.size() // 2 + 1), group)


@mistake("survivors", NUMBER, at="2 ranks, one sees only itself", says="expected  [], None")
def keeps_its_old_number(group, alive):
    members, _ = solutions.my_survivors(group, alive)
    return members, group.rank()


@mistake("survivors", NUMBER, at="3 ranks, rank 0 is gone", says="[1, 2], 1 on rank 1")
def goes_on_with_its_rank_if_it_is_in(group, alive):
    members, number = solutions.my_survivors(group, alive)
    return members, None if number is None else group.rank()


@mistake("survivors", ONE, at="2 ranks, all there", says="broadcast")
def sends_one_view_at_a_time(group, alive):
    mine = torch.tensor([alive], dtype=torch.int64, device=comm.device(group))
    views = torch.cat([comm.broadcast(mine, group, rank) for rank in range(group.size())])
    return numbered(largest(views, group.size() // 2 + 1), group)


@mistake("survivors", ONE, at="2 ranks, all there", says="2 x all_gather")
def asks_a_second_time(group, alive):
    gathered(group, alive)
    return solutions.my_survivors(group, alive)


@mistake("survivors", ONE, at="2 ranks, all there", says="32 bytes sent by rank 0 in 1 message")
def sends_more_than_its_view(group, alive):
    views = gathered(group, alive + alive)[:, : group.size()]
    return numbered(largest(views, group.size() // 2 + 1), group)
