"""Starters fail, solutions pass, and every plausible mistake fails for its own reason, and for no other."""


import pytest
import torch

from shardlab import comm, exercises
from shardlab.costs.operations import Reliability, play, shares
from shardlab.exercises.operations import interval, survivors
from shardlab.exercises.shared import disk

from .grading import Chapter, Graded, Mistake
from .solutions import operations as solutions

CHAPTER = Chapter("operations", solutions)
mistake, right = CHAPTER.mistake, CHAPTER.right


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


CHAPTER.changes({
    "takes the first term": Mistake("interval", {LONG}, at="1 rank, a long save", says="got       2,078.46 s",
        old="max(low, lag)", new="max(math.sqrt(2 * save * between), lag)"),
    "forgets that half an interval is lost": Mistake("interval", {SHORT, LONG},
        at="1 rank, a short save", says="got       282.843 s",
        old="max(low, lag)", new="max(math.sqrt(save * between), lag)"),
    "adds the restart to the save": Mistake("interval", {SHORT, LONG},
        at="1 rank, a short save and a long restart", says="restart=900",
        old="-(middle + save) / between", new="-(middle + save + restart) / between"),
    "begins a save before the last is safe": Mistake("interval", {LAG},
        at="1 rank, a save that takes longer to be safe than to wait for", says="expected  500 s",
        old="max(low, lag)", new="low"),
    "lets no save fail": Mistake("interval", {GOODPUT},
        at="1 rank, a lag as long as the time between failures", says="0.198688",
        old="interval / (between * lost * math.expm1((interval + save) / between))",
        new="interval / (interval + save) * interval / (between * lost * math.expm1(interval / between))"),
    "forgets the lag in the goodput": Mistake("interval", {GOODPUT},
        at="1 rank, a short save that is safe later", says="lag=300",
        old="(lag + restart) / between", new="restart / between"),
    "adds up losses": Mistake("interval", {GOODPUT}, at="1 rank, a short save and a long restart", says="restart=900",
        old="interval / (between * lost * math.expm1((interval + save) / between))",
        new="1 - save / interval - (interval / 2 + lag + restart) / between"),
})


def shuffled(seed, num_samples):
    return torch.randperm(num_samples, generator=torch.Generator().manual_seed(seed)).tolist()


def cut(samples, rank, ranks, batch):
    part = batch // ranks
    return samples[rank * part : (rank + 1) * part]


CHAPTER.changes({
    "seeds by rank": Mistake("stream", {RANKS}, at="2 ranks, 8 samples, batches of 2", says="as 1 rank has it",
        old='f"{seed} {epoch}"', new='f"{seed} {epoch} {rank}"'),
    "seeds by step": Mistake("stream", {EPOCH}, at="1 rank, 9 samples, batches of 2", says="8 different samples",
        old='f"{seed} {epoch}"', new='f"{seed} {step}"'),
    "keeps one order": Mistake("stream", {ORDER},
        at="1 rank, 9 samples, batches of 2", says="another order than in epoch 0",
        old='f"{seed} {epoch}"', new="seed"),
    "deals in turns": Mistake("stream", {RANKS}, at="2 ranks, 11 samples, batches of 4", says="2 on each rank",
        old="order[first : first + part]", new="order[place * batch : (place + 1) * batch][rank::ranks]"),
    "cuts the epoch by rank first": Mistake("stream", {RANKS},
        at="2 ranks, 11 samples, batches of 4", says="2 on each rank",
        old="order[first : first + part]", new="order[rank::ranks][place * part : (place + 1) * part]"),
    "pads the last batch": Mistake("stream", {EPOCH}, at="1 rank, 9 samples, batches of 2", says="8 different samples",
        old="num_samples // batch)\n    order = ", new="-(-num_samples // batch))\n    order = 2 * "),
    "gives the rest as a small batch": Mistake("stream", {EPOCH, RANKS},
        at="1 rank, 9 samples, batches of 2", says="8 different samples",
        old="num_samples // batch", new="-(-num_samples // batch)"),
})


@mistake("stream", ORDER, at="4 ranks, 21 samples, batches of 4", says="another order than in epoch 0")
def begins_elsewhere(step, rank, ranks, num_samples, batch, seed):
    epoch, place = divmod(step, num_samples // batch)
    order = [(i + seed + epoch) % num_samples for i in range(num_samples)]
    return cut(order[place * batch :], rank, ranks, batch)


@mistake("stream", ORDER, at="1 rank, 9 samples, batches of 2", says="two seeds")
def seeds_with_more_than_32_bits(step, rank, ranks, num_samples, batch, seed):
    """torch's generator on CPUs takes the lower 32 bits."""
    epoch, place = divmod(step, num_samples // batch)
    return cut(shuffled((seed << 32) + epoch, num_samples)[place * batch :], rank, ranks, batch)


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


CHAPTER.changes({
    "marks first": Mistake("commit", {WHOLE}, at="1 rank, the first checkpoint", says="without one of its pieces",
        old="write_pieces(store, step, pieces)\n    store.flush_folder()\n    mark(store, step, pieces)",
        new="mark(store, step, pieces)\n    store.flush_folder()\n    write_pieces(store, step, pieces)"),
    "forgets the names of the pieces": Mistake("commit", {WHOLE},
        at="1 rank, the first checkpoint", says="only the name 100.rank0 is lost",
        old="store.flush_folder()\n    mark(", new="mark("),
    "leaves the pieces in the cache": Mistake("commit", {WHOLE},
        at="1 rank, the first checkpoint", says="step 100 with rank0: ''",
        old='        store.flush(f"{step}.{name}")\n', new=""),
    "renames before it flushes": Mistake("commit", {WHOLE},
        at="1 rank, the first checkpoint", says="step 100 with no piece",
        old='store.flush("new")\n    store.rename("new", f"{step}.whole")',
        new='store.rename("new", f"{step}.whole")\n    store.flush(f"{step}.whole")'),
    "marks without a rename": Mistake("commit", {WHOLE},
        at="1 rank, the first checkpoint", says="after verb 4 of 6, write 100.whole",
        old='store.write("new", "\\n".join(pieces).encode())\n'
            '    store.flush("new")\n'
            '    store.rename("new", f"{step}.whole")',
        new='store.write(f"{step}.whole", "\\n".join(pieces).encode())\n    store.flush(f"{step}.whole")'),
    "returns with the rename in the cache": Mistake("commit", {SAFE, TWO},
        at="1 rank, the first checkpoint", says="got       no checkpoint",
        old="store.flush_folder()\n    delete_old", new="delete_old"),
    "deletes before the new one is safe": Mistake("commit", {TWO},
        at="1 rank, the third checkpoint", says="only the rename to 300.whole is lost",
        old="store.flush_folder()\n    delete_old(store, kept=2)",
        new="delete_old(store, kept=2)\n    store.flush_folder()"),
    "makes room first": Mistake("commit", {TWO}, at="1 rank, the third checkpoint", says="delete 100.rank0",
        old="write_pieces(store", new="delete_old(store, kept=1)\n    write_pieces(store"),
    "keeps all": Mistake("commit", {FOUND}, at="1 rank, the third checkpoint", says="also 100.rank0, 100.whole",
        old="\n    delete_old(store, kept=2)", new=""),
    "sorts steps as words": Mistake("commit", {FOUND, WHOLE, SAFE},
        at="1 rank, more digits and more pieces", says="got       step 900",
        old="for name in store.names()})", new="for name in store.names()}, key=str)"),
})


@mistake("commit", FOUND, WHOLE, TWO, at="1 rank, the second checkpoint", says="step 200")
def writes_over_the_last(store, step, pieces):
    last = max((name.partition(".")[0] for name in store.names()), key=int, default=step)
    solutions.write_pieces(store, last, pieces)
    store.flush_folder()
    for name in store.names():
        store.rename(name, f"{step}.{name.partition('.')[2]}")
    store.flush_folder()
    solutions.mark(store, step, pieces)
    store.flush_folder()


CHAPTER.changes({
    "keeps its own view": Mistake("survivors", {AGREE, LIST},
        at="2 ranks, one sees only itself", says="([1], 0) on rank 1",
        old="largest(views)", new="[rank for rank, is_alive in enumerate(alive) if is_alive]"),
    "takes the view of rank 0": Mistake("survivors", {LIST},
        at="2 ranks, one sees only itself", says="[0, 1] on rank 0",
        old="largest(views)", new="views[0].nonzero().flatten().tolist()"),
    "takes whom anybody sees": Mistake("survivors", {LIST}, at="2 ranks, one sees only itself", says="[0, 1] on rank 0",
        old="largest(views)", new="views.any(0).nonzero().flatten().tolist()"),
    "takes whom all see": Mistake("survivors", {LIST}, at="2 ranks, one sees only itself", says="[1] on rank 0",
        old="largest(views)", new="views.all(0).nonzero().flatten().tolist()"),
    "lets a half go on": Mistake("survivors", {LIST}, at="2 ranks, one sees only itself", says="[0] on rank 0",
        old="len(views) // 2, -1", new="len(views) // 2 - 1, -1"),
    "takes one way for sight": Mistake("survivors", {LIST}, at="2 ranks, one sees only itself", says="[0, 1] on rank 0",
        old="largest(views)", new="largest(views | views.T)"),
    "keeps its old number": Mistake("survivors", {NUMBER},
        at="2 ranks, one sees only itself", says="expected  [], None",
        old="numbered(largest(views), group)", new="largest(views), group.rank()"),
    "goes on with its rank if it is in": Mistake("survivors", {NUMBER},
        at="3 ranks, rank 0 is gone", says="[1, 2], 1 on rank 1",
        old="members.index(group.rank())", new="group.rank()"),
    "sends one view at a time": Mistake("survivors", {ONE}, at="2 ranks, all there", says="broadcast",
        old="comm.all_gather(mine, group)",
        new="torch.cat([comm.broadcast(mine, group, rank) for rank in range(group.size())])"),
    "asks a second time": Mistake("survivors", {ONE}, at="2 ranks, all there", says="2 x all_gather",
        old="views = comm", new="comm.all_gather(mine, group)\n    views = comm"),
    "sends more than its view": Mistake("survivors", {ONE},
        at="2 ranks, all there", says="32 bytes sent by rank 0 in 1 message",
        old="comm.all_gather(mine, group)", new="comm.all_gather(mine.repeat(1, 2), group)[:, : group.size()]"),
})


@mistake("survivors", LIST, at="3 ranks, rank 0 is gone", says="[] on rank 0")
def begins_with_the_lowest(group, alive):
    mine, members = torch.tensor([alive], dtype=torch.int64, device=comm.device(group)), []
    views = comm.all_gather(mine, group).bool()
    for rank in range(group.size()):
        if all(views[rank, other] and views[other, rank] for other in members):
            members.append(rank)
    return solutions.numbered(members if 2 * len(members) > group.size() else [], group)


# ---- answers that are right, and not near the solution ---------------------------------------------------------------


@right("survivors")
def sends_bits(group, alive):
    ranks = range(group.size())
    mine = torch.tensor([sum(is_alive << rank for rank, is_alive in zip(ranks, alive, strict=True))])
    masks = comm.all_gather(mine, group).tolist()
    sets = [m for m in range(1 << len(ranks)) if all(m & masks[rank] == m for rank in ranks if m >> rank & 1)]
    best = max(sets, key=lambda m: (m.bit_count(), [m >> rank & 1 for rank in ranks]))
    members = torch.tensor([rank for rank in ranks if best >> rank & 1 and 2 * best.bit_count() > len(ranks)])
    return members, next(iter((members == group.rank()).nonzero()), None)
