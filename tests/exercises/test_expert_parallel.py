"""Starters fail, solutions pass, and every plausible mistake fails for its own reason, and for no other."""

import torch
from torch.nn.functional import one_hot

from shardlab import comm
from shardlab.exercises import checker
from shardlab.plain.expert_parallel import AllToAllRows

from .grading import Chapter, Graded
from .solutions import expert_parallel as solutions

CHAPTER = Chapter("expert_parallel", solutions)
mistake = CHAPTER.mistake


class TestExercises(Graded):
    chapter = CHAPTER


# ---- mistakes: what must fail (all else must hold), the smallest case, and a word of the report ----------------------

PAIR, HIGHEST = "returns experts and weights of each token", "experts are those with the highest scores"
SLOTS, WEIGHTS = "slots go to first choices first", "weights come from the softmax, or are 0"
SCORES = "scores get their gradient"
TIES = "1 rank, equal scores"
ROWS, SHARES = "every rank has the tokens of its experts", "every rank has the weights of its experts"
SENT_GRADIENTS, UNCHANGED = "tokens and weights get their gradients", "tokens and weights stay what they were"
SENT, TWO = "forward sends a token once to a rank", "forward sends two messages"
SENT_BACK, ONE_BACK = BACK = "backward sends a gradient once", "backward sends one message"
SUM, Y_GRADIENT = "every token has its weighted sum", "results get their gradient"
SHARE_GRADIENT, HOME = "weights get their gradient", "forward sends a row for each that came"
ONE, HOME_BACK = "forward sends one message", "backward sends a row for each that was sent"
SHARED, EXPERTS = "shared gradients are means over all tokens", "experts' gradients are means over all tokens"
FROZEN, REDUCED = "frozen parameters get no gradient", "a rank sends two all-reduces"
TWO_MESSAGES = "a rank sends two messages"
LOSS, LOSS_GRADIENT = "every rank has the loss of all tokens", "scores get the gradient of this loss"
NUMBERS, ONE_MESSAGE = "forward sends 2 * E numbers", "forward sends one message"
FILLED, PLACED = "every rank fills its slots", "every expert is placed, on a rank at most once"
HOTTEST, EVEN = "spare slots go to the hottest experts", "the fullest rank is as light as the rule makes it"


def route_with(order, *, by_token=False):
    """A choice in another order, or slots that are handed out token by token."""

    def route(scores, per_token, before, slots):
        num_experts = scores.shape[1]
        chosen = order(scores)[:, :per_token]
        weights = scores.softmax(-1) if before else scores.gather(1, chosen).softmax(-1)
        weights = weights.gather(1, chosen) if before else weights
        queue = one_hot((chosen if by_token else chosen.T).flatten(), num_experts)
        places = (queue.cumsum(0) * queue).sum(1)
        full = (places.view_as(chosen) if by_token else places.view_as(chosen.T).T) > slots
        return chosen.masked_fill(full, num_experts), weights.masked_fill(full, 0)

    return route


def by_score(scores):
    return scores.argsort(dim=-1, descending=True, stable=True)


@mistake("route", HIGHEST, SLOTS, WEIGHTS, SCORES, at="1 rank, one token, one of two experts", says="choices [[1]]")
def chooses_the_lowest_scores(*arguments):
    return route_with(lambda scores: scores.argsort(dim=-1, stable=True))(*arguments)


@mistake("route", HIGHEST, SCORES, at=TIES, says="[[3, 1]")
def chooses_the_highest_number(*arguments):
    return route_with(lambda scores: scores.argsort(dim=-1, stable=True).flip(-1))(*arguments)


@mistake("route", HIGHEST, SCORES, at=TIES, says="choices [[0, 1")
def takes_equal_scores_in_any_order(*arguments):
    return route_with(lambda scores: scores.topk(scores.shape[1]).indices)(*arguments)


@mistake("route", SLOTS, WEIGHTS, SCORES, at="1 rank, two choices, two slots", says="experts [[0, 1]")
def hands_out_slots_token_by_token(*arguments):
    return route_with(by_score, by_token=True)(*arguments)


@mistake("route", SLOTS, WEIGHTS, SCORES, at="1 rank, two tokens, one slot")
def counts_places_from_zero(scores, per_token, before, slots):
    return solutions.my_route(scores, per_token, before, slots + 1)


@mistake("route", WEIGHTS, SCORES, at="1 rank, one token, one of two experts", says="weights [")
def takes_the_softmax_always_after(scores, per_token, before, slots):
    return solutions.my_route(scores, per_token, False, slots)


@mistake("route", WEIGHTS, SCORES, at="1 rank, two tokens, one slot", says="weights [")
def leaves_the_weight_without_a_slot(scores, per_token, before, slots):
    chosen, _ = solutions.my_route(scores, per_token, before, slots)
    return chosen, solutions.my_route(scores, per_token, before, 99)[1]


@mistake("route", WEIGHTS, SCORES, at="1 rank, two choices, two slots", says="weights [")
def makes_the_others_add_up_to_one(scores, per_token, before, slots):
    chosen, weights = solutions.my_route(scores, per_token, before, slots)
    whole = solutions.my_route(scores, per_token, before, 99)[1].sum(-1, keepdim=True)
    return chosen, weights / weights.sum(-1, keepdim=True).clamp(min=1e-9) * whole


@mistake("route", SCORES, at="1 rank, one token, one of two experts", says="no gradient has arrived")
def loses_the_gradient(scores, *rules):
    return solutions.my_route(scores.detach(), *rules)


@mistake("route", PAIR, at="1 rank, one token, one of two experts", says="of shape [1, 1]")
def returns_experts_only(*arguments):
    return solutions.my_route(*arguments)[0]


@mistake("route", "scores stay what they were", at="1 rank, one token, one of two experts", says="scores has changed")
def forgets_scores_that_were_chosen(scores, *rules):
    found = solutions.my_route(scores.clone(), *rules)
    scores.data.zero_()
    return found


def dense_of(x, chosen, weights, num_experts, group):
    """The weight of each expert for each token, by rank: [T, N, E/N]."""
    dense = weights.new_zeros(len(x), num_experts + 1).scatter(1, chosen, weights)[:, :num_experts]
    return dense.view(len(x), group.size(), num_experts // group.size())


def widths(*tensors):
    return [x.shape[1] for x in tensors]


def dispatch_with(
    rows=lambda x, parts, *way: AllToAllRows.apply(torch.cat([x, parts], 1), *way).split(widths(x, parts), 1),
    pairs=lambda dense: (dense != 0).any(-1).T.nonzero(as_tuple=True),
):
    """A dispatch that lists other pairs of a rank and a token, or sends their rows in another way."""

    def dispatch(x, chosen, weights, num_experts, group):
        dense = dense_of(x, chosen, weights, num_experts, group)
        rank, token = pairs(dense)
        sends = rank.bincount(minlength=group.size())
        receives = comm.all_to_all(sends, group).tolist()
        return rows(x[token], dense[token, rank], group, sends.tolist(), receives)

    return dispatch


@mistake("dispatch", ROWS, SHARES, SENT_GRADIENTS, SENT, *BACK, at="1 rank, two choices", says="of shape [4, 3]")
def sends_a_row_for_each_expert(*arguments):
    def pairs(dense):
        rank, token, _ = dense.transpose(0, 1).nonzero(as_tuple=True)
        return rank, token

    return dispatch_with(pairs=pairs)(*arguments)


@mistake("dispatch", ROWS, SHARES, SENT_GRADIENTS, SENT, *BACK, at="2 ranks, one choice", says="instead of [3, 3]")
def sends_all_tokens_to_all_ranks(*arguments):
    return dispatch_with(pairs=lambda dense: torch.ones(dense.shape[:2]).T.nonzero(as_tuple=True))(*arguments)


@mistake("dispatch", ROWS, SHARES, SENT_GRADIENTS, at="1 rank, one choice", says="rows = [")
def sends_the_last_token_first(*arguments):
    def pairs(dense):
        rank, token = (dense.flip(0) != 0).any(-1).T.nonzero(as_tuple=True)
        return rank, len(dense) - 1 - token

    return dispatch_with(pairs=pairs)(*arguments)


@mistake("dispatch", TWO, ONE_BACK, at="1 rank, one choice", says="3 messages (3 x all_to_all)")
def sends_weights_apart(*arguments):
    def rows(x, parts, *way):
        return AllToAllRows.apply(x, *way), AllToAllRows.apply(parts, *way)

    return dispatch_with(rows)(*arguments)


@mistake("dispatch", SENT_GRADIENTS, *BACK, at="1 rank, one choice", says="x.grad")
def exchanges_outside_of_autograd(*arguments):
    with torch.no_grad():
        return solutions.my_dispatch(*arguments)


@mistake("dispatch", SHARES, SENT_GRADIENTS, at="1 rank, one choice", says="shares = [")
def says_only_which_experts_were_chosen(x, chosen, weights, *rest):
    return solutions.my_dispatch(x, chosen, torch.ones_like(weights), *rest)


@mistake("dispatch", ROWS, SHARES, SENT_GRADIENTS, *BACK, at="2 ranks, a choice without", says="[5, 3] instead")
def sends_tokens_without_a_slot_to_the_last_expert(x, chosen, weights, num_experts, group):
    return solutions.my_dispatch(x, chosen.clamp(max=num_experts - 1), weights, num_experts, group)


@mistake("dispatch", ROWS, SHARES, SENT_GRADIENTS, SENT, *BACK, at="2 ranks, two choices", says="rows = [")
def deals_experts_in_turn(x, chosen, weights, num_experts, group):
    here = num_experts // group.size()
    dealt = chosen % group.size() * here + chosen // group.size()
    dealt = dealt.where(chosen < num_experts, chosen)
    return solutions.my_dispatch(x, dealt, weights, num_experts, group)


@mistake("dispatch", SENT, SENT_BACK, at="2 ranks, one choice", says="bytes sent by rank")
def pads_to_a_capacity(*arguments):
    def rows(x, parts, group, sends, receives):
        most = 4
        packed = torch.cat([x, parts], 1).split(sends)
        padded = torch.cat([torch.cat([each, each.new_zeros(most - len(each), each.shape[1])]) for each in packed])
        equal = [most] * group.size()
        arrived = AllToAllRows.apply(padded, group, equal, equal).split(most)
        kept = torch.cat([part[:count] for part, count in zip(arrived, receives, strict=True)])
        return kept.split([x.shape[1], parts.shape[1]], 1)

    return dispatch_with(rows)(*arguments)


@mistake("dispatch", checker.RUNS, at="3 ranks, a rank that no token chooses", says="rank 2")
def skips_the_exchange_of_no_rows(*arguments):
    def rows(x, parts, group, sends, receives):
        if not sum(receives):
            return x[:0], parts[:0]
        rows = AllToAllRows.apply(torch.cat([x, parts], 1), group, sends, receives)
        return rows.split(widths(x, parts), 1)

    return dispatch_with(rows)(*arguments)


SUMS = SUM, Y_GRADIENT, SHARE_GRADIENT


@mistake("combine", *SUMS, at="1 rank, two choices", says="output = [")
def takes_results_row_by_row(y, shares, tokens, num_tokens, sends, receives, group):
    row, expert = shares.nonzero(as_tuple=True)
    rows = torch.zeros(len(shares), y.shape[1], dtype=y.dtype).index_add(0, row, y * shares[row, expert, None])
    rows = AllToAllRows.apply(rows, group, sends, receives)
    return y.new_zeros(num_tokens, y.shape[1]).index_add(0, tokens, rows)


@mistake("combine", *SUMS, at="1 rank, one choice", says="output = [")
def forgets_the_weights(y, shares, *rest):
    return solutions.my_combine(y, (shares != 0) + 0 * shares, *rest)


@mistake("combine", SHARE_GRADIENT, at="1 rank, one choice", says="shares.grad")
def takes_weights_for_constants(y, shares, *rest):
    return solutions.my_combine(y, shares.detach(), *rest)


@mistake("combine", SUM, at="2 ranks, two choices", says="output = [")
def keeps_the_last_row_of_a_token(y, shares, tokens, num_tokens, sends, receives, group):
    apart = len(tokens)
    rows = solutions.my_combine(y, shares, torch.arange(apart), apart, sends, receives, group)
    return y.new_zeros(num_tokens, y.shape[1]).index_copy(0, tokens, rows)


@mistake("combine", *SUMS, at="2 ranks, two choices", says="output = [")
def averages_the_rows_of_a_token(y, shares, tokens, num_tokens, *rest):
    total = solutions.my_combine(y, shares, tokens, num_tokens, *rest)
    return total / tokens.bincount(minlength=num_tokens).clamp(min=1)[:, None]


@mistake("combine", HOME, HOME_BACK, at="2 ranks, two choices", says="bytes sent by rank")
def brings_home_a_row_for_each_expert(y, shares, tokens, num_tokens, sends, receives, group):
    dense = y.new_zeros(*shares.T.shape, y.shape[1])
    dense = dense.index_put(shares.T.nonzero(as_tuple=True), y) * shares.T[..., None]
    rows = AllToAllRows.apply(dense.transpose(0, 1).flatten(1), group, sends, receives)
    rows = rows.view(len(tokens), shares.shape[1], y.shape[1]).sum(1)
    return y.new_zeros(num_tokens, y.shape[1]).index_add(0, tokens, rows)


@mistake("combine", checker.RUNS, at="2 ranks, one choice", says="dim 0 has")
def takes_the_way_out_again(y, shares, tokens, num_tokens, sends, receives, group):
    return solutions.my_combine(y, shares, tokens, num_tokens, receives, sends, group)


@mistake("combine", ONE, "backward sends one message", at="1 rank, one choice", says="2 messages (2 x all_to_all)")
def sends_columns_one_half_after_the_other(y, shares, *rest):
    halves = [solutions.my_combine(half, shares, *rest) for half in (y[:, :1], y[:, 1:])]
    return torch.cat(halves, dim=1)


def average_with(same=comm.across, total=lambda total, num_tokens, group: total):
    """An average of experts over other ranks, or of all gradients over another number of tokens."""

    def average(shared, experts, num_tokens, ep, group):
        shared, experts = ([p for p in each if p.requires_grad] for each in (shared, experts))
        mine = solutions.flattened(shared)
        summed = comm.all_reduce(torch.cat([mine, mine.new_tensor([num_tokens])]), group)
        of_experts = comm.all_reduce(solutions.flattened(experts), same(group, ep))
        divisor = total(summed[-1], num_tokens, group)
        solutions.set_gradients(shared, summed[:-1] / divisor)
        solutions.set_gradients(experts, of_experts / divisor)

    return average


@mistake("average", EXPERTS, REDUCED, at="2 ranks, ep=2", says="expert 0 = [")
def averages_experts_over_all_ranks(*arguments):
    average_with(lambda group, ep: group)(*arguments)


@mistake("average", EXPERTS, REDUCED, at="2 ranks, ep=1", says="expert 0 = [")
def averages_experts_over_neighbours(*arguments):
    average_with(comm.split)(*arguments)


@mistake("average", EXPERTS, REDUCED, at="2 ranks, ep=1", says="expert 0 = [")
def leaves_experts_alone(*arguments):
    average_with(lambda group, ep: comm.split(group, 1))(*arguments)


@mistake("average", EXPERTS, at="2 ranks, ep=2", says="expert 0 = [")
def divides_experts_by_the_ranks_that_hold_them(shared, experts, num_tokens, ep, group):
    solutions.my_average(shared, experts, num_tokens, ep, group)
    for p in experts:
        p.grad = p.grad * ep


@mistake("average", SHARED, EXPERTS, at="2 ranks, ep=2, unequal batches")
def takes_batches_for_equal(*arguments):
    average_with(total=lambda total, num_tokens, group: max(num_tokens, 1) * group.size())(*arguments)


@mistake("average", FROZEN, at="4 ranks, ep=2, a frozen parameter", says="shared 0.grad = None")
def gives_frozen_parameters_a_gradient(shared, experts, *rest):
    solutions.my_average(shared, experts, *rest)
    for p in [*shared, *experts]:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad


@mistake("average", TWO_MESSAGES, at="1 rank, ep=1", says="5 messages (5 x all_reduce)")
def sends_every_gradient_alone(shared, experts, num_tokens, ep, group):
    total = comm.all_reduce(torch.tensor(float(num_tokens)), group)
    for among, parameters in ((group, shared), (comm.across(group, ep), experts)):
        for p in parameters:
            if p.requires_grad:
                p.grad = comm.all_reduce(torch.zeros_like(p) if p.grad is None else p.grad, among) / total


@mistake("average", checker.RUNS, at="4 ranks, ep=2, experts without tokens", says="rank 3 waited at")
def sums_experts_only_where_tokens_came(shared, experts, num_tokens, ep, group):
    same, alone = comm.across(group, ep), comm.split(group, 1)
    idle = all(p.grad is None for p in experts)
    average_with(lambda *_: alone if idle else same)(shared, experts, num_tokens, ep, group)


def balance_with(sums):
    """A loss with the right number and another gradient: own sums, sums of all, group -> the sums that are used."""

    def balance(scores, chosen, group):
        num_experts = scores.shape[1]
        counts = chosen.flatten().bincount(minlength=num_experts).to(scores.dtype)
        own = scores.softmax(-1).sum(0)
        counts, total = comm.all_reduce(torch.stack([counts, own.detach()]), group)
        share = counts / counts.sum()
        return num_experts * (share * sums(own, total, group)).sum() * chosen.shape[1] / counts.sum()

    return balance


def of_own_tokens(scores, chosen):
    counts = chosen.flatten().bincount(minlength=scores.shape[1]).to(scores.dtype)
    many = max(len(scores), 1)
    return counts / many / chosen.shape[1], scores.softmax(-1).sum(0) / many


@mistake("balance", LOSS, LOSS_GRADIENT, NUMBERS, ONE_MESSAGE, at="2 ranks, 2 tokens each", says="output = [")
def balances_each_rank(scores, chosen, group):
    f, p = of_own_tokens(scores, chosen)
    return scores.shape[1] * (f * p).sum()


@mistake("balance", LOSS, LOSS_GRADIENT, NUMBERS, at="2 ranks, 2 tokens each", says="output = [")
def averages_the_losses_of_ranks(scores, chosen, group):
    loss = balances_each_rank(scores, chosen, group) / group.size()
    return loss + (comm.all_reduce(loss.detach(), group) - loss).detach()


@mistake("balance", LOSS, LOSS_GRADIENT, at="2 ranks, unequal batches", says="output = [")
def averages_the_means_of_ranks(scores, chosen, group):
    f, p = of_own_tokens(scores, chosen)
    f, total = comm.all_reduce(torch.stack([f, p.detach()]), group) / group.size()
    own = p / group.size()
    return scores.shape[1] * (f * (own + (total - own).detach())).sum()


@mistake("balance", LOSS, LOSS_GRADIENT, at="1 rank, 3 tokens, two choices", says="output = [")
def divides_choices_by_tokens(scores, chosen, group):
    return chosen.shape[1] * solutions.my_balance(scores, chosen, group)


@mistake("balance", LOSS_GRADIENT, at="1 rank, 2 tokens", says="scores.grad = [")
def loses_the_gradient_of_the_loss(scores, chosen, group):
    return balance_with(lambda own, total, group: total)(scores, chosen, group)


@mistake("balance", LOSS_GRADIENT, at="2 ranks, 2 tokens each", says="scores.grad = [")
def multiplies_the_gradient_by_the_ranks(scores, chosen, group):
    """What an all-reduce does whose backward is an all-reduce, where every rank has the loss."""

    return balance_with(lambda own, total, group: total + group.size() * (own - own.detach()))(scores, chosen, group)


@mistake("balance", ONE_MESSAGE, at="1 rank, 2 tokens", says="2 messages (2 x all_reduce)")
def sends_counts_and_sums_apart(scores, chosen, group):
    num_experts, own = scores.shape[1], scores.softmax(-1).sum(0)
    counts = comm.all_reduce(chosen.flatten().bincount(minlength=num_experts), group).to(scores.dtype)
    sums = own + (comm.all_reduce(own.detach(), group) - own).detach()
    return num_experts * (counts / counts.sum() * sums).sum() * chosen.shape[1] / counts.sum()


@mistake("balance", NUMBERS, at="2 ranks, 2 tokens each", says="all_gather")
def gathers_the_scores(scores, chosen, group):
    """As one message, padded to as many tokens as a rank may have."""
    padding = scores.new_zeros(4 - len(scores), scores.shape[1])
    counts = chosen.flatten().bincount(minlength=scores.shape[1]).to(scores.dtype)
    shares = torch.cat([scores.softmax(-1), padding, counts[None]])
    parts = comm.all_gather(shares.detach()[None], group)
    own, total, counts = shares[:-1].sum(0), parts[:, :-1].sum((0, 1)), parts[:, -1].sum(0)
    sums = own + (total - own).detach()
    return scores.shape[1] * (counts / counts.sum() * sums).sum() * chosen.shape[1] / counts.sum()


@mistake("spare", PLACED, at="2 ranks, a hot expert", says="[[0, 3, 0]")
def copies_the_hottest_wherever_there_is_space(loads, num_ranks, spare):
    placement = solutions.my_spare(loads, num_ranks, 0)
    return [[*experts, *[loads.index(max(loads))] * spare] for experts in placement]


@mistake("spare", FILLED, HOTTEST, EVEN, at="2 ranks, a hot expert", says="2 lists of 3 experts")
def leaves_the_spare_slots_empty(loads, num_ranks, spare):
    return solutions.my_spare(loads, num_ranks, 0)


@mistake("spare", HOTTEST, EVEN, at="4 ranks, an expert with most tokens", says="tokens for a copy")
def copies_each_hot_expert_once(loads, num_ranks, spare):
    """The most tokens first, not the most per copy."""
    first = sorted(range(len(loads)), key=lambda expert: -loads[expert])
    return solutions.dealt(loads, num_ranks, [*first, *first[: num_ranks * spare]])


@mistake("spare", EVEN, at="2 ranks, no spare slot", says="tokens on a rank")
def deals_copies_in_turn(loads, num_ranks, spare):
    waiting = sorted(solutions.with_copies(loads, num_ranks, spare), key=lambda each: (-loads[each], each))
    return [waiting[rank::num_ranks] for rank in range(num_ranks)]


@mistake("spare", EVEN, at="4 ranks, 8 experts drawn with seed 0", says="tokens on a rank")
def places_experts_by_all_their_tokens(loads, num_ranks, spare):
    """Without dividing an expert's tokens by its copies."""
    waiting = sorted(solutions.with_copies(loads, num_ranks, spare), key=lambda each: (-loads[each], each))
    return solutions.dealt(loads, num_ranks, waiting, share=lambda load, copies: load)
