"""Starters fail, solutions pass, and every plausible mistake fails for its own reason, and for no other."""

from itertools import permutations, product

import torch

from shardlab import comm
from shardlab.exercises import checker
from shardlab.plain import generator

from .grading import Chapter, Graded, Mistake
from .solutions import trainer_generator as solutions

CHAPTER = Chapter("trainer_generator", solutions)
mistake, right = CHAPTER.mistake, CHAPTER.right


class TestExercises(Graded):
    chapter = CHAPTER


# ---- mistakes: what must fail (all else must hold), the smallest case, and a word of the report ----------------------

COPIES, ONCE = "copies are of boxes that one rank has and the other wants", "every wanted number arrives once"
STAYS, LOAD = "what a rank has is copied, not sent", "no rank sends more than its share and a box"
FEW = "a part that no border crosses is not cut to pieces"
LOG_P, TOKENS = "log p is that of the whole model without a cache", "every rank draws the same tokens"
PLACED, MOST = "every rank of the generator has a GPU of its own", "as many bytes stay as can"
WRITTEN, ONE = "returns every token that was drawn", "each token is written by weights of one version"
TOGETHER = "all ranks change their weights between the same two tokens"
CACHE, TAGGED = "the cache is of the weights that read it", "each token has the version that wrote it"
USED = "new weights are used once every rank has them"
SOURCE = "source = to if to in ranks else min(ranks, key=lambda rank: sent[rank])"
AGREE = 'int(comm.all_reduce(torch.tensor(max(complete, default=0)), group, "min"))'


CHAPTER.changes({
    "always takes the first holder": Mistake("plan", {LOAD}, at="3 ranks, dp 2 to one",
        old=SOURCE, new="source = to if to in ranks else ranks[0]"),
    "lets every holder send": Mistake("plan", {ONCE, LOAD}, at="3 ranks, dp 2 to one", says="2 times",
        old="copies.append((source, to, name, part))",
        new="copies += [(each, to, name, part) for each in ([to] if to in ranks else ranks)]"),
    "balances boxes": Mistake("plan", {LOAD}, at="3 ranks, one keeps, another gets", says="each sends [3, 36, 0]",
        old="prod(map(len, part)) * (source != to)", new="(source != to)"),
    "counts what stays as sent": Mistake("plan", {LOAD}, at="3 ranks, one keeps, another gets",
        says="each sends [0, 39, 0]", old=" * (source != to)", new=""),
    "forgets what stays": Mistake("plan", {STAYS, LOAD}, at="2 ranks, dp 2 is dp 2 on the same GPUs",
        old="to if to in ranks else min", new="min"),
    "cuts to single numbers": Mistake("plan", {FEW}, at="1 rank, the same GPU", says="at most 2 copies of it",
        old="copies.append((source, to, name, part))",
        new="copies += [(source, to, name, [[i] for i in place]) for place in product(*part)]"),
})


@mistake("plan", COPIES, at="3 ranks, ZeRO-3 x 2 to one", says="a box that its source has")
def takes_the_hull_of_a_ranks_boxes(have, want):
    def hulls(places):
        of = {}
        for name, box in places:
            of.setdefault(name, []).append(box)
        ends = {name: [(min(x.start for x in dim), max(x.stop for x in dim)) for dim in zip(*boxes, strict=True)]
                for name, boxes in of.items()}
        return [(name, tuple(range(*end) for end in each)) for name, each in ends.items()]

    return solutions.my_plan([hulls(places) for places in have], want)


@mistake("plan", COPIES, LOAD, at="2 ranks, tp 2 is dp 2 on the same GPUs", says="[3, 4, 5]")
def copies_the_padding_of_a_vocabulary(have, want):
    def padded(box):
        return (range(3, 6), *box[1:]) if box[0] == range(3, 5) else box

    return [(source, to, name, padded(box)) for source, to, name, box in solutions.my_plan(have, want)]


CHAPTER.changes({
    "counts positions from 0 again": Mistake("decode", {LOG_P, TOKENS}, at="1 rank, a prompt and a token",
        old="starts[:, None] + torch.arange(tokens.shape[1])", new="torch.arange(tokens.shape[1]).expand_as(tokens)"),
    "has no mask within the second part": Mistake("decode", {LOG_P}, at="1 rank, a prompt in two parts",
        old="positions[:, None, :, None]",
        new="torch.where(starts[:, None] > 0, positions.amax(1, True), positions)[:, None, :, None]"),
    "has one cache for all layers": Mistake("decode", {LOG_P}, at="1 rank, a prompt and a token",
        old="enumerate(caches)", new="enumerate([caches[0]] * len(caches))"),
    "shows a new text the keys of the old one": Mistake("decode", {LOG_P}, at="1 rank, a text leaves and another",
        old="seen = torch.arange(keys.shape[2]) <= positions[:, None, :, None]",
        new="place, old = torch.arange(keys.shape[2]), (keys[rows] != 0).any(1).any(-1)\n"
            "        old &= place > positions[:, -1:]\n"
            "        seen = (place <= positions[:, None, :, None]) | old[:, None, None]"),
    "draws with each rank's own seed": Mistake("decode", {TOKENS}, at="2 ranks, ", says="on rank 1",
        old="seed)", new="seed + 100 * group.rank())"),
    "leaves rank i on GPU i": Mistake("place", {MOST}, at="2 ranks, a rank that has most is needed elsewhere",
        old="return max(permutations(gpus), key=lambda order: sum(kept[gpu][order[gpu]] for gpu in gpus))",
        new="return gpus"),
    "counts numbers, not bytes": Mistake("place", {MOST}, at="2 ranks, four bytes against many numbers",
        old="element[name] * ", new=""),
    "counts rows, not numbers": Mistake("place", {MOST}, at="2 ranks, many short rows against a long one",
        old="prod(map(len, box))", new="len(box[0])"),
    "counts parameters": Mistake("place", {MOST}, at="2 ranks, a large parameter against two small ones",
        old="sum(element[name] * prod(map(len, box)) for name, box in pairs)",
        new="len({name for name, box in pairs if prod(map(len, box))})"),
    "puts two ranks on one GPU": Mistake("place", {PLACED}, at="2 ranks, a rank that has most is needed elsewhere",
        old="return max(permutations(gpus), key=lambda order: sum(kept[gpu][order[gpu]] for gpu in gpus))",
        new="return [max(gpus, key=lambda rank: kept[gpu][rank]) for gpu in gpus]"),
})


@mistake("place", MOST, at="2 ranks, a rank that has most is needed elsewhere", says="20 bytes")
def takes_the_largest_overlap_first(have, want, element):
    kept = {(i, j): solutions.staying(a, b, element) for i, a in enumerate(have) for j, b in enumerate(want)}
    chosen = {}
    for gpu, rank in sorted(kept, key=lambda pair: -kept[pair]):
        if gpu not in chosen and rank not in chosen.values():
            chosen[gpu] = rank
    return [chosen[gpu] for gpu in range(len(have))]


CHAPTER.changes({
    "copies buckets as they arrive": Mistake("commit", {ONE, TOGETHER, TAGGED}, at="1 rank, one update",
        old="staged.setdefault(number, {})[name] = tensor",
        new="staged.setdefault(number, {})[name] = tensor\n"
            "            engine.weights[name] = tensor\n            engine.forget()"),
    "switches when its own buckets are there": Mistake("commit", {TOGETHER}, at="2 ranks, rank 1 is late",
        old=AGREE, new="max(complete, default=0)"),
    "forgets the cache of rank 0 only": Mistake("commit", {CACHE}, at="2 ranks, one update",
        old="engine.forget()", new="engine.forget() if group.rank() == 0 else None"),
    "tags the text by its last version": Mistake("commit", {TAGGED}, at="1 rank, one update",
        old="return written", new="return [(token, version) for token, _ in written]"),
    "waits for the others where it has all": Mistake("commit", {checker.RUNS}, at="2 ranks, rank 1 is late",
        old=f"newest = {AGREE}\n        if newest > version:",
        new="newest = max(complete, default=0)\n        if newest > version:\n            comm.barrier(group)"),
    "never switches": Mistake("commit", {USED}, at="1 rank, one update",
        old="newest > version", new="newest > version + len(complete)"),
})


# ---- answers that are right, and not near the solution ---------------------------------------------------------------


@right("plan")
def backwards(have, want):
    """Yields, and lists the indices of a box."""
    for source, to, name, box in reversed(solutions.my_plan(have, want)):
        yield [torch.tensor(source), to, name, [list(numbers) for numbers in box]]


@right("plan")
def halves(have, want):
    """Lets two holders send half of a part each."""
    for source, to, name, box in solutions.my_plan(have, want):
        others = {rank for rank, places in enumerate(have) for each, held in places
                  if each == name and solutions.overlap(box, held) == box} - {source}
        (first, *rest), middle = box, len(box[0]) // 2
        if source == to or not others or not middle:
            yield source, to, name, box
        else:
            yield source, to, name, (first[:middle], *rest)
            yield min(others), to, name, (first[middle:], *rest)


@right("decode")
def text_by_text(model, caches, tokens, rows, starts, seed, group):
    """Computes each text's softmax by hand, and keeps what a row has seen."""
    found = []
    for text, row, start in zip(tokens, rows.tolist(), starts.tolist(), strict=True):
        end = start + len(text)
        x = model.embed(text[None], torch.arange(start, end)[None])
        for layer, (keys, values) in enumerate(caches):
            q, k, v = model.project(layer, x)
            keys[row, :, start:end], values[row, :, start:end] = k[0], v[0]
            several = q.shape[1] // k.shape[1]
            every, seen = (each[row, :, :end].repeat_interleave(several, 0) for each in (keys, values))
            scores = q[0] @ every.mT / q.shape[-1] ** 0.5
            hidden = torch.arange(end) > torch.arange(start, end)[:, None]
            x = model.close(layer, x, (scores.masked_fill(hidden, -torch.inf).softmax(-1) @ seen)[None])
        found.append(model.log_p(x[:, -1]))
    return [torch.cat(found), model.draw(torch.cat(found), seed)]


@right("decode")
def with_the_plain_cache(model, caches, tokens, rows, starts, seed, group):
    x = model.embed(tokens, positions := starts[:, None] + torch.arange(tokens.shape[1]))
    for layer, (keys, values) in enumerate(caches):
        cache = generator.Cache.__new__(generator.Cache)
        cache.keys, cache.values, cache.rows, cache.positions = keys, values, rows, positions
        x = model.close(layer, x, cache.attend(*model.project(layer, x)))
    return model.log_p(x[:, -1]), model.draw(model.log_p(x[:, -1]), seed)


@right("place")
def by_subsets(have, want, element):
    best = {frozenset(): (0, ())}
    for held in have:
        found = {}
        for taken, (total, order) in best.items():
            for rank in set(range(len(want))) - taken:
                more = total + solutions.staying(held, want[rank], element), (*order, rank)
                found[taken | {rank}] = max(found.get(taken | {rank}, (-1,)), more)
        best = found
    return torch.tensor(best[frozenset(range(len(want)))][1])


@right("place")
def number_by_number(have, want, element):
    def numbers(places):
        return {(name, place) for name, box in places for place in product(*box)}

    arriving = [[sum(element[name] for name, _ in numbers(wanted) - numbers(held)) for wanted in want] for held in have]

    def moved(order):
        return sum(row[rank] for row, rank in zip(arriving, order, strict=True))

    return min(permutations(range(len(have))), key=moved)


@right("commit")
def one_token_later(engine, group):
    """Asks for each version in turn, after the token, and copies into the old tensors."""
    staged, version = {}, 0
    for _ in range(engine.limit):
        yield engine.step(), version
        for number, name, tensor in engine.arrived():
            staged[number, name] = tensor
        ready = all((version + 1, name) in staged for name in engine.weights)
        if comm.all_gather(torch.tensor([ready]), group).all():
            version += 1
            for name, tensor in engine.weights.items():
                tensor.copy_(staged[version, name])
            engine.forget()


@right("commit")
def what_rank_0_decides(engine, group):
    """Sends counts of buckets to all; rank 0 finds the version, and broadcasts it."""
    staged, written = [], []
    for _ in range(engine.limit):
        staged += engine.arrived()
        counts = comm.all_gather(torch.tensor([len(staged)]), group)
        number = comm.broadcast(counts.min() // len(engine.weights), group)
        new = {name: tensor for version, name, tensor in staged if version == number}
        if new and any(engine.weights[name] is not new[name] for name in new):
            engine.weights |= new
            engine.forget()
        written.append([engine.step(), number])
    return written
