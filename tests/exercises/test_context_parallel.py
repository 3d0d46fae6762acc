"""Starters fail, solutions pass, and every plausible mistake fails for its own reason, and for no other."""

import torch

from shardlab import comm
from shardlab.plain.context_parallel import AllToAll, GatherParts

from .grading import Chapter, Graded
from .solutions import context_parallel as solutions

CHAPTER = Chapter("context_parallel", solutions)
mistake = CHAPTER.mistake


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


@mistake("merge", MERGED, at="1 rank, one query, a key in each part", says="y = [")
def adds_without_rescaling(y_a, lse_a, y_b, lse_b):
    return y_a + y_b, torch.logaddexp(lse_a, lse_b)


@mistake("merge", MERGED, at="1 rank, one query, a key in each part")
def averages(y_a, lse_a, y_b, lse_b):
    return (y_a + y_b) / 2, torch.logaddexp(lse_a, lse_b)


@mistake("merge", MERGED, at="1 rank, one query, a key in each part")
def swaps_the_factors(y_a, lse_a, y_b, lse_b):
    return solutions.my_merge(y_b, lse_a, y_a, lse_b)


@mistake("merge", FINITE, MERGED, MERGED_LSE, at="1 rank, one query, a key in each part", says="lse = [6]")
def adds_the_logarithms(y_a, lse_a, y_b, lse_b):
    lse = lse_a + lse_b
    return y_a * (lse_a - lse).exp() + y_b * (lse_b - lse).exp(), lse


@mistake("merge", FINITE, MERGED, MERGED_LSE, at="1 rank, scores around 1000", says="subtract a log-sum-exp")
def leaves_the_logarithm(y_a, lse_a, y_b, lse_b):
    a, b = lse_a.exp(), lse_b.exp()
    return (a * y_a + b * y_b) / (a + b), (a + b).log()


@mistake("merge", FINITE, MERGED, at="1 rank, three queries, one sees no key of a part", says="nan")
def shifts_by_the_smaller(y_a, lse_a, y_b, lse_b):
    low = torch.minimum(lse_a, lse_b)
    a, b = (lse_a - low).exp(), (lse_b - low).exp()
    return (a * y_a + b * y_b) / (a + b), torch.logaddexp(lse_a, lse_b)


@mistake("merge", UNCHANGED, at="1 rank, one query, a key in each part", says="y_a has changed")
def adds_in_place(y_a, lse_a, y_b, lse_b):
    y, lse = solutions.my_merge(y_a, lse_a, y_b, lse_b)
    return y_a.copy_(y), lse


@mistake("merge", FINITE, MERGED_LSE, MERGED, at="1 rank, one query, a key in each part", says="y and lse, two tensors")
def returns_one_tensor(y_a, lse_a, y_b, lse_b):
    return solutions.my_merge(y_a, lse_a, y_b, lse_b)[0].sum().item()


def visible(positions):
    return sum(position + 1 for position in positions)


@mistake("place", PLACED, at="2 ranks, 4 tokens, zig-zag", says="rank 0: 0, 1")
def never_turns(length, rank, world_size, zig_zag):
    return solutions.my_place(length, rank, world_size, False)


@mistake("place", PLACED, at="2 ranks, 4 tokens, contiguous", says="rank 0: 0, 2")
def deals_in_stripes(length, rank, world_size, zig_zag):
    positions = range(rank, length, world_size)
    return positions, visible(positions)


@mistake("place", PLACED, at="2 ranks, 12 tokens, zig-zag", says="11, 10, 9")
def reads_the_end_backwards(length, rank, world_size, zig_zag):
    positions, pairs = solutions.my_place(length, rank, world_size, zig_zag)
    half = len(positions) // 2
    return positions[:half] + (positions[half:][::-1] if zig_zag else positions[half:]), pairs


@mistake("place", ONCE, PLACED, at="3 ranks, 12 tokens, zig-zag", says="every position on one rank")
def takes_the_last_part_always(length, rank, world_size, zig_zag):
    positions, _ = solutions.my_place(length, rank, world_size, zig_zag)
    if zig_zag and world_size > 2:
        half = len(positions) // 2
        positions = [*positions[:half], *range(length - half, length)]
    return positions, visible(positions)


@mistake("place", COUNTED, at="1 rank, 2 tokens, contiguous", says="pairs [4]")
def counts_the_whole_square(length, rank, world_size, zig_zag):
    positions, _ = solutions.my_place(length, rank, world_size, zig_zag)
    return positions, len(positions) * length


@mistake("place", COUNTED, at="1 rank, 2 tokens, contiguous", says="pairs [1]")
def lets_no_query_see_itself(length, rank, world_size, zig_zag):
    positions, _ = solutions.my_place(length, rank, world_size, zig_zag)
    return positions, sum(positions)


@mistake("place", COUNTED, at="2 ranks, 4 tokens, contiguous", says="pairs [3, 3]")
def counts_its_own_keys_only(length, rank, world_size, zig_zag):
    positions, _ = solutions.my_place(length, rank, world_size, zig_zag)
    return positions, visible(range(len(positions)))


@mistake("place", NUMBERS, at="1 rank, 2 tokens, contiguous", says="2.0")
def returns_a_fraction(length, rank, world_size, zig_zag):
    positions, pairs = solutions.my_place(length, rank, world_size, zig_zag)
    return positions, pairs / 1.5


def turn_with(step, *, back=False, home=False):
    """A forward whose every turn is `step(y, lse, scores, v) -> y, lse`."""

    def forward(q, k, v, mask, group):
        rank, size = group.rank(), group.size()
        y, lse, block = torch.zeros_like(q), q.new_full((*q.shape[:2], 1), -torch.inf), torch.stack([k, v])
        ways = {"to": (rank - 1) % size, "source": (rank + 1) % size}
        for turn, seen in enumerate(solutions.blocks_of(mask, group)):
            if turn:
                block = comm.exchange(block, group, **ways) if back else solutions.pass_on(block, group)
            scores = (q @ block[0].mT / q.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf)
            y, lse = step(y, lse, scores, block[1])
        if home:
            solutions.pass_on(block, group)
        return y, lse

    return forward


def right_step(y, lse, scores, v):
    after = torch.logaddexp(lse, scores.logsumexp(-1, keepdim=True))
    return y * (lse - after).exp() + (scores - after).exp() @ v, after


@mistake("ring_forward", Y, at="2 ranks, contiguous, no mask", says="y = [")
def merges_without_rescaling(q, k, v, mask, group):
    def step(y, lse, scores, v):
        after = torch.logaddexp(lse, scores.logsumexp(-1, keepdim=True))
        return y + (scores - after).exp() @ v, after

    return turn_with(step)(q, k, v, mask, group)


@mistake("ring_forward", Y, at="2 ranks, contiguous, causal", says="a log-sum-exp of -inf")
def gives_each_block_its_own_softmax(q, k, v, mask, group):
    def step(y, lse, scores, v):
        own = scores.logsumexp(-1, keepdim=True)
        more, after = (scores - own).exp() @ v, torch.logaddexp(lse, own)
        return y * (lse - after).exp() + more * (own - after).exp(), after

    return turn_with(step)(q, k, v, mask, group)


@mistake("ring_forward", LSE, Y, at="3 ranks, contiguous, causal")
def turns_the_other_way(q, k, v, mask, group):
    return turn_with(right_step, back=True)(q, k, v, mask, group)


@mistake("ring_forward", STEPS, at="2 ranks, contiguous, no mask", says="4 blocks sent by rank 0")
def sends_blocks_home(q, k, v, mask, group):
    return turn_with(right_step, home=True)(q, k, v, mask, group)


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


@mistake("ring_forward", LSE, Y, at="1 rank, contiguous, causal")
def forgets_the_root(q, k, v, mask, group):
    return solutions.my_ring_forward(q * q.shape[-1] ** 0.5, k, v, mask, group)


@mistake("ring_forward", LSE, Y, at="2 ranks, contiguous, causal")
def takes_the_masks_in_order(q, k, v, mask, group):
    parts, size = mask.chunk(group.size(), dim=1), group.size()
    wrong = torch.cat([parts[(group.rank() - rank) % size] for rank in range(size)], dim=1)
    return solutions.my_ring_forward(q, k, v, wrong, group)


def backward_with(*, stale=False, sums=True, delta=True, masked=True, home=True, passed=True):
    """A backward in which one thing is left out."""

    def backward(dy, q, k, v, y, lse, mask, group):
        root = q.shape[-1] ** 0.5
        below = (dy * y).sum(-1, keepdim=True) if delta else 0
        dq, block = torch.zeros_like(q), torch.stack([k, v])
        coming, mine = torch.zeros_like(block), torch.zeros_like(block)
        for turn, seen in enumerate(solutions.blocks_of(mask, group)):
            if turn and not stale:
                block = solutions.pass_on(block, group)
            p = (q @ block[0].mT / root - lse).exp()
            p = p.masked_fill(~seen, 0) if masked else p
            ds = p * (dy @ block[1].mT - below) / root
            dq = dq + ds @ block[0]
            gradient = torch.stack([ds.mT @ q, p.mT @ dy])
            last = turn + 1 == group.size()
            if turn == 0 or not passed:
                mine = mine + gradient
            else:
                coming = coming + gradient if sums else gradient
                coming = coming if last and not home else solutions.pass_on(coming, group)
        return dq, *(mine + coming)

    return backward


@mistake("ring_backward", DQ, DK, DV, at="2 ranks, contiguous, no mask", says="dq = [")
def reads_stale_keys(*arguments):
    return backward_with(stale=True)(*arguments)


@mistake("ring_backward", DK, DV, at="2 ranks, contiguous, no mask", says="dk = [")
def keeps_gradients_where_they_are_computed(*arguments):
    return backward_with(passed=False)(*arguments)


@mistake("ring_backward", DK, DV, at="3 ranks, contiguous, causal")
def forgets_what_arrived(*arguments):
    return backward_with(sums=False)(*arguments)


@mistake("ring_backward", DK, DV, at="2 ranks, contiguous, no mask")
def leaves_gradients_one_rank_too_early(*arguments):
    return backward_with(home=False)(*arguments)


@mistake("ring_backward", DQ, DK, at="1 rank, contiguous, causal")
def forgets_the_sum_of_the_softmax(*arguments):
    return backward_with(delta=False)(*arguments)


@mistake("ring_backward", DQ, DK, DV, at="1 rank, contiguous, causal")
def looks_at_hidden_keys(*arguments):
    return backward_with(masked=False)(*arguments)


@mistake("ring_backward", BOTH_STEPS, at="2 ranks, contiguous, no mask", says="6 blocks sent by rank 0")
def sends_a_block_too_many(dy, q, k, v, y, lse, mask, group):
    if group.size() > 1:
        solutions.pass_on(torch.stack([k, v]), group)
    return solutions.my_ring_backward(dy, q, k, v, y, lse, mask, group)


@mistake("ring_backward", ALONE, at="2 ranks, contiguous, no mask", says="reduce_scatter")
def sums_gradients_with_a_library(dy, q, k, v, y, lse, mask, group):
    dq, dk, dv = solutions.my_ring_backward(dy, q, k, v, y, lse, mask, group)
    if group.size() > 1:
        comm.reduce_scatter(torch.stack([dk] * group.size()), group)
    return dq, dk, dv


def to_heads(x, group):
    return AllToAll.apply(x, group, 0, 1)


@mistake("exchange_heads", OUTPUT, GRADIENTS, at=SMALLEST, says="output = [")
def joins_before_it_cuts(q, k, v, attend, group):
    """A rank then gets heads of queries only, and another one heads of keys."""
    size = group.size()
    arrived = to_heads(torch.cat([q, k, v]), group)
    y = attend(*arrived.split([len(x) // size for x in (q, k, v)]))
    return AllToAll.apply(y, group, 1, 0)


@mistake("exchange_heads", MESSAGES, MESSAGES_BACK, at="1 rank, 2 heads", says="4 x all_to_all")
def exchanges_one_by_one(q, k, v, attend, group):
    y = attend(*(to_heads(x, group) for x in (q, k, v)))
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


@mistake("exchange_heads", OUTPUT, GRADIENTS, at="2 ranks, 4 heads, 2 of keys")
def returns_heads_in_another_order(q, k, v, attend, group):
    y = solutions.my_exchange_heads(q, k, v, attend, group)
    return y.unflatten(0, (group.size(), -1)).transpose(0, 1).flatten(0, 1)


def compose_with(step, join=solutions.after):
    """A map of tokens by `step(state, key, value, keep, write)`, joined with the later one."""

    def compose(k, v, keep, write, later):
        m = torch.eye(k.shape[-1]).to(k)
        b = torch.zeros_like(m)
        for key, value, *gates in zip(k, v, keep, write, strict=True):
            m, b = step(m, key, 0 * value, *gates), step(b, key, value, *gates)
        return join((m, b), later)

    return compose


def right_token(state, key, value, keep, write):
    state = keep * state
    return state + write * torch.outer(key, value - key @ state)


@mistake("compose", M, B, at="1 rank, no token, and some that follow", says="later = (")
def leaves_out_the_later_map(*arguments):
    return compose_with(right_token, lambda first, later: first)(*arguments)


@mistake("compose", M, B, at="1 rank, two tokens, and some that follow", says="m = [")
def applies_the_later_map_first(*arguments):
    return compose_with(right_token, lambda first, later: solutions.after(later, first))(*arguments)


@mistake("compose", B, at="1 rank, two tokens, and some that follow", says="b = [")
def does_not_multiply_b(*arguments):
    return compose_with(right_token, lambda a, later: (later[0] @ a[0], a[1] + later[1]))(*arguments)


@mistake("compose", B, at="1 rank, one token that keeps half", says="b = [")
def keeps_after_the_write(*arguments):
    def token(state, key, value, keep, write):
        return keep * (state + write * torch.outer(key, value - key @ state))

    return compose_with(token)(*arguments)


@mistake("compose", M, B, at="1 rank, one token that keeps half")
def takes_the_error_before_it_keeps(*arguments):
    def token(state, key, value, keep, write):
        return keep * state + write * torch.outer(key, value - key @ state)

    return compose_with(token)(*arguments)


@mistake("compose", M, B, at="1 rank, one token that keeps all")
def adds_without_reading(*arguments):
    def token(state, key, value, keep, write):
        return keep * state + write * torch.outer(key, value)

    return compose_with(token)(*arguments)


@mistake("compose", M, B, at="1 rank, two tokens\n")
def reads_from_the_end(k, v, keep, write, later):
    return solutions.my_compose(*(x.flip(0) for x in (k, v, keep, write)), later)


@mistake("compose", M, at="1 rank, one token that keeps all")
def writes_the_value_into_m(k, v, keep, write, later):
    m = torch.eye(k.shape[-1]).to(k)
    for token in zip(k, v, keep, write, strict=True):
        m = right_token(m, *token)
    return later[0] @ m, solutions.my_compose(k, v, keep, write, later)[1]


@mistake("compose", UNCHANGED, at="1 rank, one token that keeps all", says="b has changed")
def composes_in_place(k, v, keep, write, later):
    m, b = solutions.my_compose(k, v, keep, write, later)
    return m, later[1].copy_(b)


@mistake("compose", M, B, at="1 rank, one token that keeps all", says="m and b, two tensors")
def returns_a_state(k, v, keep, write, later):
    return solutions.my_compose(k, v, keep, write, later)[1].sum().item()


def scan_with(*, inclusive=False, swapped=False, wraps=False, factor=2, passes_on="up_to", multiplies=True):
    """A scan in which one thing is wrong."""

    def join(first, second):
        first, second = (second, first) if swapped else (first, second)
        m, b = solutions.after(first, second)
        return torch.stack([m, b if multiplies else first[1] + second[1]])

    def scan(m, b, group):
        rank, size = group.rank(), group.size()
        kept = {"before": torch.stack([torch.eye(len(m)).to(m), torch.zeros_like(b)]), "up_to": torch.stack([m, b])}
        distance = 1
        for _ in range((size - 1).bit_length()):
            ways = {"to": (rank + distance) % size, "source": (rank - distance) % size}
            sent = torch.cat([kept["up_to"], kept["before"]]) if passes_on == "both" else kept[passes_on]
            earlier = comm.exchange(sent, group, **ways)[:2]
            if wraps or rank >= distance:
                kept = {name: join(earlier, each) for name, each in kept.items()}
            distance *= factor
        return kept["up_to" if inclusive else "before"][1]

    return scan


@mistake("scan", BEGINS, at="1 rank, e = 2", says="[0, 0, 0, 0] on rank 0")
def counts_its_own_tokens(m, b, group):
    return scan_with(inclusive=True)(m, b, group)


@mistake("scan", BEGINS, at="3 ranks, e = 2", says="on rank 2")
def applies_maps_in_the_wrong_order(m, b, group):
    return scan_with(swapped=True)(m, b, group)


@mistake("scan", BEGINS, at="2 ranks, e = 2", says="[0, 0, 0, 0] on rank 0")
def begins_with_the_end_of_the_text(m, b, group):
    return scan_with(wraps=True)(m, b, group)


@mistake("scan", BEGINS, at="3 ranks, e = 2", says="on rank 2")
def stays_at_distance_one(m, b, group):
    return scan_with(factor=1)(m, b, group)


@mistake("scan", BEGINS, at="2 ranks, e = 2", says="on rank 1")
def sends_what_came_before_it(m, b, group):
    return scan_with(passes_on="before")(m, b, group)


@mistake("scan", BEGINS, at="3 ranks, e = 2", says="on rank 2")
def adds_what_ranks_write(m, b, group):
    return scan_with(multiplies=False)(m, b, group)


@mistake("scan", ROUNDS, at="4 ranks, e = 3", says="3 steps")
def waits_for_the_rank_before(m, b, group):
    rank, state = group.rank(), torch.zeros_like(b)
    if rank > 0:
        state = comm.receive(b, group, source=rank - 1)
    if rank + 1 < group.size():
        comm.send(m @ state + b, group, to=rank + 1)
    return state


@mistake("scan", ROUNDS, FEW_MAPS, at="2 ranks, e = 2", says="2 steps")
def passes_the_result_on(m, b, group):
    """As the plain file does."""
    rank, size = group.rank(), group.size()
    whole = torch.stack([m, scan_with(inclusive=True)(m, b, group)])
    before = comm.exchange(whole, group, to=(rank + 1) % size, source=(rank - 1) % size)[1]
    return before if rank else torch.zeros_like(b)


@mistake("scan", ROUNDS, at="2 ranks, e = 2", says="2 steps")
def sends_m_and_b_apart(m, b, group):
    rank, size, distance = group.rank(), group.size(), 1
    before, up_to = (torch.eye(len(m)).to(m), torch.zeros_like(b)), (m, b)
    while distance < size:
        ways = {"to": (rank + distance) % size, "source": (rank - distance) % size}
        earlier = [comm.exchange(x, group, **ways) for x in up_to]
        if rank >= distance:
            before, up_to = solutions.after(earlier, before), solutions.after(earlier, up_to)
        distance *= 2
    return before[1]


@mistake("scan", ONE_MAP, FEW_MAPS, at="2 ranks, e = 2", says="join two maps to one")
def sends_two_maps_in_a_message(m, b, group):
    return scan_with(passes_on="both")(m, b, group)


@mistake("scan", ALONE, ROUNDS, ONE_MAP, FEW_MAPS, at="1 rank, e = 2", says="all_gather on rank 0")
def gathers_all_maps(m, b, group):
    state = torch.zeros_like(b)
    for earlier in comm.all_gather(torch.stack([m, b])[None], group)[: group.rank()]:
        state = earlier[0] @ state + earlier[1]
    return state


@mistake("scan", UNCHANGED, at="1 rank, e = 2", says="b has changed")
def writes_into_b(m, b, group):
    return b.copy_(solutions.my_scan(m, b, group))
