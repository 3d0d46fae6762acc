"""Starters fail, solutions pass, and every plausible mistake fails for its own reason, and for no other."""

import numpy as np
import torch

from shardlab import comm
from shardlab.plain.context_parallel import AllToAll, GatherParts

from .grading import Chapter, Graded, Mistake
from .solutions import context_parallel as solutions

CHAPTER = Chapter("context_parallel", solutions)
mistake, right = CHAPTER.mistake, CHAPTER.right


class TestExercises(Graded):
    chapter = CHAPTER


# ---- mistakes: what must fail (all else must hold), the smallest case, and a word of the report ----------------------

FINITE, MERGED_LSE = "all numbers are finite", "lse is that of all keys together"
MERGED, UNCHANGED = "y is that of one softmax over all keys", "the arguments stay what they were"
NUMBERS, ONCE = "returns positions and a number of pairs", "every position is on one rank"
PLACED, COUNTED = "each rank has the parts of its placement", "the pairs are those that the mask leaves"
LSE, Y = "every rank has the lse of all keys", "every rank has the output of all keys"
ALONE, SMALL = "ranks send messages to one rank at a time", "no rank has all keys, or the scores of all"
STEPS, BOTH_STEPS = "keys and values take n - 1 steps", "blocks and gradients take n - 1 steps"
DQ, DK = "queries get the gradient of all keys", "keys get the gradient of all queries"
DV = "values get the gradient of all queries"
OUTPUT, GRADIENTS = "every rank has the output of its tokens", "queries, keys and values get their gradients"
SENT, MESSAGES = "forward sends each number to one rank", "forward sends two messages"
FEWEST, SMALLEST = "1 rank, 2 heads, 2 of keys", "2 ranks, 2 heads, 2 of keys"
SENT_BACK, MESSAGES_BACK = "backward sends no more than forward", "backward sends two messages"
M, B = "m is what a state is multiplied by", "b is what an empty state becomes"
BEGINS, ROUNDS = "every rank has the state with which it begins", "it takes ceil(log2(n)) steps"
ONE_MAP, FEW_MAPS = "a rank gets one map at a time", "a rank sends at most one map in each step"


CHAPTER.changes({
    "adds without rescaling": Mistake("merge", {MERGED}, at="1 rank, one query, a key in each part", says="y = [",
        old="y_a * (lse_a - lse).exp() + y_b * (lse_b - lse).exp()", new="y_a + y_b"),
    "averages": Mistake("merge", {MERGED}, at="1 rank, one query, a key in each part",
        old="y_a * (lse_a - lse).exp() + y_b * (lse_b - lse).exp()", new="(y_a + y_b) / 2"),
    "swaps the factors": Mistake("merge", {MERGED}, at="1 rank, one query, a key in each part",
        old="y_a * (lse_a - lse).exp() + y_b * (lse_b - lse).exp()",
        new="y_b * (lse_a - lse).exp() + y_a * (lse_b - lse).exp()"),
    "adds the logarithms": Mistake("merge", {FINITE, MERGED, MERGED_LSE},
        at="1 rank, one query, a key in each part", says="lse = [6]",
        old="torch.logaddexp(lse_a, lse_b)", new="lse_a + lse_b"),
    "leaves the logarithm": Mistake("merge", {FINITE, MERGED, MERGED_LSE},
        at="1 rank, scores around 1000", says="subtract a log-sum-exp",
        old="torch.logaddexp(lse_a, lse_b)", new="(lse_a.exp() + lse_b.exp()).log()"),
    "adds in place": Mistake("merge", {UNCHANGED}, at="1 rank, one query, a key in each part", says="y_a has changed",
        old="return y_a * (lse_a - lse).exp()", new="return y_a.mul_((lse_a - lse).exp())"),
    "returns one tensor": Mistake("merge", {FINITE, MERGED_LSE, MERGED},
        at="1 rank, one query, a key in each part", says="y and lse, two tensors",
        old="y_a * (lse_a - lse).exp() + y_b * (lse_b - lse).exp(), lse",
        new="(y_a * (lse_a - lse).exp() + y_b * (lse_b - lse).exp()).sum().item()"),
})


@mistake("merge", FINITE, MERGED_LSE, MERGED, at="1 rank, scores of one query around 1000, of the other", says="-inf")
def shifts_by_the_highest_of_all_queries(y_a, lse_a, y_b, lse_b):
    top = max(lse_a.max(), lse_b.max())
    a, b = (lse_a - top).exp(), (lse_b - top).exp()
    return (y_a * a + y_b * b) / (a + b), top + (a + b).log()


@mistake("merge", FINITE, MERGED, at="1 rank, three queries, one sees no key of a part", says="nan")
def shifts_by_the_smaller(y_a, lse_a, y_b, lse_b):
    low = torch.minimum(lse_a, lse_b)
    a, b = (lse_a - low).exp(), (lse_b - low).exp()
    return (a * y_a + b * y_b) / (a + b), torch.logaddexp(lse_a, lse_b)


CHAPTER.changes({
    "never turns": Mistake("place", {PLACED}, at="2 ranks, 4 tokens, zig-zag", says="rank 0: 0, 1",
        old="if zig_zag:", new="if False:"),
    "deals in stripes": Mistake("place", {PLACED}, at="2 ranks, 4 tokens, contiguous", says="rank 0: 0, 2",
        old="range(rank * share, (rank + 1) * share)", new="range(rank, length, world_size)"),
    "reads the end backwards": Mistake("place", {PLACED}, at="2 ranks, 12 tokens, zig-zag", says="11, 10, 9",
        old="in reversed(front)", new="in front"),
    "counts the whole square": Mistake("place", {COUNTED}, at="1 rank, 2 tokens, contiguous", says="pairs [4]",
        old="sum(position + 1 for position in positions)", new="len(positions) * length"),
    "lets no query see itself": Mistake("place", {COUNTED}, at="1 rank, 2 tokens, contiguous", says="pairs [1]",
        old="sum(position + 1 for position in positions)", new="sum(positions)"),
    "counts its own keys only": Mistake("place", {COUNTED}, at="2 ranks, 4 tokens, contiguous", says="pairs [3, 3]",
        old="sum(position + 1 for position in positions)", new="sum(range(1, len(positions) + 1))"),
    "returns a fraction": Mistake("place", {NUMBERS}, at="1 rank, 2 tokens, contiguous", says="2.0",
        old="sum(position + 1 for position in positions)", new="sum(position + 1 for position in positions) / 1.5"),
})


@mistake("place", ONCE, PLACED, at="3 ranks, 12 tokens, zig-zag", says="every position on one rank")
def takes_the_last_part_always(length, rank, world_size, zig_zag):
    positions, _ = solutions.my_place(length, rank, world_size, zig_zag)
    if zig_zag and world_size > 2:
        half = len(positions) // 2
        positions = [*positions[:half], *range(length - half, length)]
    return positions, sum(position + 1 for position in positions)


CHAPTER.changes({
    "merges without rescaling": Mistake("ring_forward", {Y}, at="2 ranks, contiguous, no mask", says="y = [",
        old="y * (before - lse).exp()", new="y"),
    "gives each block its own softmax": Mistake("ring_forward", {Y},
        at="2 ranks, contiguous, causal", says="sees no key is -inf",
        old="(scores - lse).exp() @ block[1]",
        new="scores.softmax(-1) @ block[1] * (scores.logsumexp(-1, keepdim=True) - lse).exp()"),
    "turns the other way": Mistake("ring_forward", {LSE, Y}, at="3 ranks, contiguous, causal",
        old="to=(rank + 1) % size, source=(rank - 1) % size", new="to=(rank - 1) % size, source=(rank + 1) % size"),
    "sends blocks home": Mistake("ring_forward", {STEPS},
        at="2 ranks, contiguous, no mask", says="4 blocks sent by rank 0",
        old="return y, lse", new="pass_on(block, group)\n    return y, lse"),
    "forgets the root": Mistake("ring_forward", {LSE, Y}, at="1 rank, contiguous, causal",
        old=" / q.shape[-1] ** 0.5", new=""),
    "takes the masks in order": Mistake("ring_forward", {LSE, Y}, at="2 ranks, contiguous, causal",
        old="by_rank[group.rank() - turn]", new="by_rank[turn]"),
})


@mistake("ring_forward", LSE, Y, at="2 ranks, contiguous, causal, large scores", says="before you take exp")
def sums_exponentials_of_scores(q, k, v, mask, group):
    over, under = torch.zeros_like(q), q.new_zeros(*q.shape[:2], 1)
    block = torch.stack([k, v])
    for turn, seen in enumerate(solutions.blocks_of(mask, group)):
        if turn:
            block = solutions.pass_on(block, group)
        p = (q @ block[0].mT / q.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf).exp()
        over, under = over + p @ block[1], under + p.sum(-1, keepdim=True)
    return over / under, under.log()


@mistake("ring_forward", ALONE, SMALL, STEPS, at="1 rank, contiguous, causal", says="all_gather on rank 0")
def gathers_all_keys(q, k, v, mask, group):
    k, v = (torch.cat([*comm.all_gather(x[None], group)], dim=1) for x in (k, v))
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf)
    lse = scores.logsumexp(-1, keepdim=True)
    return (scores - lse).exp() @ v, lse


@mistake("ring_forward", SMALL, at="3 ranks, contiguous, causal", says="use each block as it comes by")
def collects_all_keys(q, k, v, mask, group):
    blocks = [torch.stack([k, v])]
    for _ in range(group.size() - 1):
        blocks.append(solutions.pass_on(blocks[-1], group))
    ranks = range(group.size())
    k, v = torch.cat([blocks[group.rank() - rank] for rank in ranks], dim=2)
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf)
    lse = scores.logsumexp(-1, keepdim=True)
    return (scores - lse).exp() @ v, lse


CHAPTER.changes({
    "reads stale keys": Mistake("ring_backward", {DQ, DK, DV}, at="2 ranks, contiguous, no mask", says="dq = [",
        old="block = pass_on(block, group)", new="pass"),
    "keeps gradients where they are computed": Mistake("ring_backward", {DK, DV},
        at="2 ranks, contiguous, no mask", says="dk = [",
        old="coming = pass_on(coming + gradient, group)", new="home = home + gradient"),
    "forgets what arrived": Mistake("ring_backward", {DK, DV}, at="3 ranks, contiguous, causal",
        old="coming + gradient", new="gradient"),
    "leaves gradients one rank too early": Mistake("ring_backward", {DK, DV}, at="2 ranks, contiguous, no mask",
        old="coming = pass_on(coming + gradient, group)",
        new="coming = coming + gradient\n"
            "            coming = coming if turn + 1 == group.size() else pass_on(coming, group)"),
    "forgets the sum of the softmax": Mistake("ring_backward", {DQ, DK}, at="1 rank, contiguous, causal",
        old="block[1].mT - delta", new="block[1].mT"),
    "looks at hidden keys": Mistake("ring_backward", {DQ, DK, DV}, at="1 rank, contiguous, causal",
        old=".masked_fill(~seen, -torch.inf)", new=""),
    "divides exponentials": Mistake("ring_backward", {DQ, DK, DV}, at="2 ranks, contiguous, causal, large scores",
        old="p = (q @ block[0].mT / root - lse).masked_fill(~seen, -torch.inf).exp()",
        new="p = (q @ block[0].mT / root).masked_fill(~seen, -torch.inf).exp() / lse.exp()"),
    "sends a block too many": Mistake("ring_backward", {BOTH_STEPS},
        at="2 ranks, contiguous, no mask", says="6 blocks sent by rank 0",
        old="return dq", new="if group.size() > 1:\n        pass_on(block, group)\n    return dq"),
    "sums gradients with a library": Mistake("ring_backward", {ALONE},
        at="2 ranks, contiguous, no mask", says="reduce_scatter",
        old="return dq",
        new="if group.size() > 1:\n"
            "        comm.reduce_scatter(torch.stack([home[0]] * group.size()), group)\n"
            "    return dq"),
    "joins before it cuts": Mistake("exchange_heads", {OUTPUT, GRADIENTS}, at=SMALLEST, says="output = [",
        old="[x for part in parts for x in part]", new="[q, k, v]"),
    "returns heads in another order": Mistake("exchange_heads", {OUTPUT, GRADIENTS}, at="2 ranks, 4 heads, 2 of keys",
        old="return AllToAll.apply(y, group, 1, 0)",
        new="y = AllToAll.apply(y, group, 1, 0)\n    return y.unflatten(0, (size, -1)).transpose(0, 1).flatten(0, 1)"),
})


@mistake("exchange_heads", MESSAGES, MESSAGES_BACK, at="1 rank, 2 heads", says="4 x all_to_all")
def exchanges_one_by_one(q, k, v, attend, group):
    y = attend(*(AllToAll.apply(x, group, 0, 1) for x in (q, k, v)))
    return AllToAll.apply(y, group, 1, 0)


@mistake("exchange_heads", GRADIENTS, SENT_BACK, MESSAGES_BACK, at=SMALLEST, says="q.grad")
def exchanges_outside_of_autograd(q, k, v, attend, group):
    if group.size() == 1:
        return solutions.my_exchange_heads(q, k, v, attend, group)
    with torch.no_grad():
        y = solutions.my_exchange_heads(q, k, v, attend, group)
    return y + 0 * (q.sum() + k.sum() + v.sum())


@mistake("exchange_heads", SENT, SENT_BACK, MESSAGES, MESSAGES_BACK, at=FEWEST, says="all_gather")
def gathers_everything(q, k, v, attend, group):
    q, k, v = (GatherParts.apply(x[None], group)[0] for x in (q, k, v))
    return attend(q, k, v).chunk(group.size(), 1)[group.rank()]


CHAPTER.changes({
    "leaves out the later map": Mistake("compose", {M, B},
        at="1 rank, no token, and some that follow", says="later = (",
        old="after((m, b), later)", new="m, b"),
    "applies the later map first": Mistake("compose", {M, B},
        at="1 rank, two tokens, and some that follow", says="m = [",
        old="after((m, b), later)", new="after(later, (m, b))"),
    "does not multiply b": Mistake("compose", {B}, at="1 rank, two tokens, and some that follow", says="b = [",
        old="after((m, b), later)", new="later[0] @ m, b + later[1]"),
    "keeps after the write": Mistake("compose", {B}, at="1 rank, one token that keeps half", says="b = [",
        old="value - key @ b", new="kept * value - key @ b"),
    "takes the error before it keeps": Mistake("compose", {M, B}, at="1 rank, one token that keeps half",
        old="m, b = kept * m, kept * b\n        m = m - written * torch.outer(key, key @ m)\n        b = b +",
        new="m = kept * m - written * torch.outer(key, key @ m)\n        b = kept * b +"),
    "adds without reading": Mistake("compose", {M, B}, at="1 rank, one token that keeps all",
        old="m = m - written * torch.outer(key, key @ m)\n        b = b + written * torch.outer(key, value - key @ b)",
        new="b = b + written * torch.outer(key, value)"),
    "reads from the end": Mistake("compose", {M, B}, at="1 rank, two tokens\n",
        old="zip(k, v, keep, write, strict=True)", new="zip(*(x.flip(0) for x in (k, v, keep, write)), strict=True)"),
    "writes the value into m": Mistake("compose", {M}, at="1 rank, one token that keeps all",
        old="m - written * torch.outer(key, key @ m)", new="m + written * torch.outer(key, value - key @ m)"),
    "composes in place": Mistake("compose", {UNCHANGED}, at="1 rank, one token that keeps all", says="b has changed",
        old="return after((m, b), later)", new="m, b = after((m, b), later)\n    return m, later[1].copy_(b)"),
    "returns a state": Mistake("compose", {M, B}, at="1 rank, one token that keeps all", says="m and b, two tensors",
        old="after((m, b), later)", new="after((m, b), later)[1].sum().item()"),
    "counts its own tokens": Mistake("scan", {BEGINS}, at="1 rank, e = 2", says="[0, 0, 0, 0] on rank 0",
        old="return before[1]", new="return up_to[1]"),
    "applies maps in the wrong order": Mistake("scan", {BEGINS}, at="3 ranks, e = 2", says="on rank 2",
        old="second[0] @ first[0], second[0] @ first[1] + second[1]",
        new="first[0] @ second[0], first[0] @ second[1] + first[1]"),
    "begins with the end of the text": Mistake("scan", {BEGINS}, at="2 ranks, e = 2", says="[0, 0, 0, 0] on rank 0",
        old="if rank >= distance:", new="if True:"),
    "stays at distance one": Mistake("scan", {BEGINS}, at="3 ranks, e = 2", says="on rank 2",
        old='(rank + distance) % size, "source": (rank - distance) % size',
        new='(rank + 1) % size, "source": (rank - 1) % size'),
    "sends what came before it": Mistake("scan", {BEGINS}, at="2 ranks, e = 2", says="on rank 1",
        old="exchange(up_to, group, **ways)", new="exchange(before, group, **ways)"),
    "adds what ranks write": Mistake("scan", {BEGINS}, at="3 ranks, e = 2", says="on rank 2",
        old="second[0] @ first[1] + second[1]", new="first[1] + second[1]"),
    "passes the result on": Mistake("scan", {ROUNDS, FEW_MAPS}, at="2 ranks, e = 2", says="2 steps",
        old="return before[1]",
        new="whole = comm.exchange(up_to, group, to=(rank + 1) % size, source=(rank - 1) % size)\n"
            "    return whole[1] if rank else before[1]"),
    "sends m and b apart": Mistake("scan", {ROUNDS}, at="2 ranks, e = 2", says="2 steps",
        old="comm.exchange(up_to, group, **ways)", new="[comm.exchange(x, group, **ways) for x in up_to]"),
    "sends two maps in a message": Mistake("scan", {ONE_MAP, FEW_MAPS},
        at="2 ranks, e = 2", says="join two maps to one",
        old="exchange(up_to, group, **ways)", new="exchange(torch.cat([up_to, before]), group, **ways)[:2]"),
    "writes into b": Mistake("scan", {UNCHANGED}, at="1 rank, e = 2", says="b has changed",
        old="return before[1]", new="return b.copy_(before[1])"),
})


@mistake("scan", ROUNDS, at="4 ranks, e = 3", says="3 steps")
def waits_for_the_rank_before(m, b, group):
    rank, state = group.rank(), torch.zeros_like(b)
    if rank > 0:
        state = comm.receive(b, group, source=rank - 1)
    if rank + 1 < group.size():
        comm.send(m @ state + b, group, to=rank + 1)
    return state


@mistake("scan", ALONE, ROUNDS, ONE_MAP, FEW_MAPS, at="1 rank, e = 2", says="all_gather on rank 0")
def gathers_all_maps(m, b, group):
    state = torch.zeros_like(b)
    for earlier in comm.all_gather(torch.stack([m, b])[None], group)[: group.rank()]:
        state = earlier[0] @ state + earlier[1]
    return state


# ---- answers that are right, and not near the solution ---------------------------------------------------------------


@right("merge")
def in_numpy(*given):
    y_a, lse_a, y_b, lse_b = (x.numpy() for x in given)
    lse = np.logaddexp(lse_a, lse_b)
    return y_a * np.exp(lse_a - lse) + y_b * np.exp(lse_b - lse), lse


@right("compose")
def stacks_the_map(*given):
    return torch.stack(solutions.my_compose(*given))
