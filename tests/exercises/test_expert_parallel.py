"""Starters fail, solutions pass, and every plausible mistake fails for its own reason, and for no other."""

import torch

from shardlab import comm
from shardlab.exercises import checker
from shardlab.plain.expert_parallel import AllToAllRows

from .grading import Chapter, Graded, Mistake
from .solutions import expert_parallel as solutions

CHAPTER = Chapter("expert_parallel", solutions)
mistake, right = CHAPTER.mistake, CHAPTER.right


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


CHAPTER.changes({
    "chooses the lowest scores": Mistake("route", {HIGHEST, SLOTS, WEIGHTS, SCORES},
        at="1 rank, one token, one of two experts", says="choices [[1]]",
        old="descending=True, ", new=""),
    "takes the softmax in float32": Mistake("route", {WEIGHTS, SCORES},
        at="1 rank, one token, two of three, softmax after", says="e-08 away: keep the precision of torch.float64",
        old="scores.gather(1, chosen).softmax(-1)", new="scores.gather(1, chosen).float().softmax(-1).double()"),
    "chooses the highest number": Mistake("route", {HIGHEST, SCORES}, at=TIES, says="[[3, 1]",
        old="argsort(dim=-1, descending=True, stable=True)", new="argsort(dim=-1, stable=True).flip(-1)"),
    "takes equal scores in any order": Mistake("route", {HIGHEST, SCORES}, at=TIES, says="choices [[0, 1",
        old="argsort(dim=-1, descending=True, stable=True)", new="topk(num_experts).indices"),
    "hands out slots token by token": Mistake("route", {SLOTS, WEIGHTS, SCORES},
        at="1 rank, two choices, two slots", says="experts [[0, 1]",
        old="chosen.T.flatten(), num_experts)\n    places = (queue.cumsum(0) * queue).sum(1).view(per_token, -1).T",
        new="chosen.flatten(), num_experts)\n    places = (queue.cumsum(0) * queue).sum(1).view_as(chosen)"),
    "counts places from zero": Mistake("route", {SLOTS, WEIGHTS, SCORES}, at="1 rank, two tokens, one slot",
        old="places > slots", new="places - 1 > slots"),
    "takes the softmax always after": Mistake("route", {WEIGHTS, SCORES},
        at="1 rank, one token, one of two experts", says="weights [",
        old="shares.gather(1, chosen) if before else ", new=""),
    "leaves the weight without a slot": Mistake("route", {WEIGHTS, SCORES},
        at="1 rank, two tokens, one slot", says="weights [",
        old="weights.masked_fill(full, 0)", new="weights"),
    "makes the others add up to one": Mistake("route", {WEIGHTS, SCORES},
        at="1 rank, two choices, two slots", says="weights [",
        old="full = places > slots",
        new="full = places > slots\n"
            "    left = weights.masked_fill(full, 0).sum(-1, keepdim=True).clamp(min=1e-9)\n"
            "    weights = weights / left * weights.sum(-1, keepdim=True)"),
    "loses the gradient": Mistake("route", {SCORES},
        at="1 rank, one token, one of two experts", says="no gradient has arrived",
        old="weights.masked_fill(full, 0)", new="weights.masked_fill(full, 0).detach()"),
    "returns experts only": Mistake("route", {PAIR}, at="1 rank, one token, one of two experts", says="of shape [1, 1]",
        old=", weights.masked_fill(full, 0)", new=""),
    "forgets scores that were chosen": Mistake("route", {"scores stay what they were"},
        at="1 rank, one token, one of two experts", says="scores has changed",
        old="full = places > slots", new="scores.data.zero_()\n    full = places > slots"),
    "sends a row for each expert": Mistake("dispatch", {ROWS, SHARES, SENT_GRADIENTS, SENT, *BACK},
        at="1 rank, two choices", says="of shape [4, 3]",
        old="rank, token = (by_rank != 0).any(-1).T.nonzero", new="rank, token, _ = by_rank.transpose(0, 1).nonzero"),
    "sends all tokens to all ranks": Mistake("dispatch", {ROWS, SHARES, SENT_GRADIENTS, SENT, *BACK},
        at="2 ranks, one choice", says="instead of [3, 3]",
        old="(by_rank != 0).any(-1).T", new="torch.ones(by_rank.shape[:2]).T"),
    "sends the last token first": Mistake("dispatch", {ROWS, SHARES, SENT_GRADIENTS},
        at="1 rank, one choice", says="rows = [",
        old="(by_rank != 0).any(-1).T.nonzero(as_tuple=True)",
        new="(by_rank.flip(0) != 0).any(-1).T.nonzero(as_tuple=True)\n    token = len(x) - 1 - token"),
    "sends weights apart": Mistake("dispatch", {TWO, ONE_BACK},
        at="1 rank, one choice", says="3 messages (3 x all_to_all)",
        old="arrived = AllToAllRows.apply(packed, group, sends.tolist(), receives)\n"
            "    return arrived.split([x.shape[1], here], dim=1)",
        new="parts = packed.split([x.shape[1], here], dim=1)\n"
            "    return tuple(AllToAllRows.apply(part, group, sends.tolist(), receives) for part in parts)"),
    "exchanges outside of autograd": Mistake("dispatch", {SENT_GRADIENTS, *BACK},
        at="1 rank, one choice", says="x.grad",
        old="apply(packed, ", new="apply(packed.detach(), "),
    "says only which experts were chosen": Mistake("dispatch", {SHARES, SENT_GRADIENTS},
        at="1 rank, one choice", says="shares = [",
        old="scatter(1, chosen, weights)", new="scatter(1, chosen, torch.ones_like(weights))"),
    "sends tokens without a slot to the last expert": Mistake("dispatch", {ROWS, SHARES, SENT_GRADIENTS, *BACK},
        at="2 ranks, a choice without", says="[5, 3] instead",
        old="scatter(1, chosen, ", new="scatter(1, chosen.clamp(max=num_experts - 1), "),
    "deals experts in turn": Mistake("dispatch", {ROWS, SHARES, SENT_GRADIENTS, SENT, *BACK},
        at="2 ranks, two choices", says="rows = [",
        old="dense.view(len(x), group.size(), here)", new="dense.view(len(x), here, group.size()).transpose(1, 2)"),
    "pads to a capacity": Mistake("dispatch", {SENT, SENT_BACK}, at="2 ranks, one choice", says="bytes sent by rank",
        old="arrived = AllToAllRows.apply(packed, group, sends.tolist(), receives)",
        new="pad, parts = torch.nn.functional.pad, packed.split(sends.tolist())\n"
            "    padded = torch.cat([pad(part, (0, 0, 0, 4 - len(part))) for part in parts])\n"
            "    arrived = AllToAllRows.apply(padded, group, *[[4] * group.size()] * 2).split(4)\n"
            "    arrived = torch.cat([part[:count] for part, count in zip(arrived, receives, strict=True)])"),
    "skips the exchange of no rows": Mistake("dispatch", {checker.RUNS},
        at="3 ranks, a rank that no token chooses", says="rank 2",
        old="arrived = AllToAllRows",
        new="if not sum(receives):\n"
            "        return packed[:0].split([x.shape[1], here], dim=1)\n"
            "    arrived = AllToAllRows"),
})


SUMS = SUM, Y_GRADIENT, SHARE_GRADIENT


CHAPTER.changes({
    "takes results row by row": Mistake("combine", {*SUMS}, at="1 rank, two choices", says="output = [",
        old="expert, row = shares.T.nonzero", new="row, expert = shares.nonzero"),
    "forgets the weights": Mistake("combine", {*SUMS}, at="1 rank, one choice", says="output = [",
        old="y * shares[", new="y + 0 * shares["),
    "takes weights for constants": Mistake("combine", {SHARE_GRADIENT}, at="1 rank, one choice", says="shares.grad",
        old="y * shares[", new="y * shares.detach()["),
    "keeps the last row of a token": Mistake("combine", {SUM}, at="2 ranks, two choices", says="output = [",
        old="index_add(0, tokens, rows)", new="index_copy(0, tokens, rows)"),
    "averages the rows of a token": Mistake("combine", {*SUMS}, at="2 ranks, two choices", says="output = [",
        old="index_add(0, tokens, rows)",
        new="index_add(0, tokens, rows) / tokens.bincount(minlength=num_tokens).clamp(min=1)[:, None]"),
    "counts tokens by the last that came": Mistake("combine", {*SUMS}, at="1 rank, tokens without a slot",
        says="[2, 3]", old="new_zeros(num_tokens, ", new="new_zeros(len(tokens) and int(tokens.max()) + 1, "),
    "takes the way out again": Mistake("combine", {checker.RUNS}, at="2 ranks, one choice", says="dim 0 has",
        old="AllToAllRows.apply(rows, group, sends, receives)", new="AllToAllRows.apply(rows, group, receives, sends)"),
    "sends columns one half after the other": Mistake("combine", {ONE, "backward sends one message"},
        at="1 rank, one choice", says="2 messages (2 x all_to_all)",
        old="rows = AllToAllRows.apply(rows, group, sends, receives)",
        new="halves = rows[:, :1], rows[:, 1:]\n"
            "    rows = torch.cat([AllToAllRows.apply(half, group, sends, receives) for half in halves], dim=1)"),
})


@mistake("combine", HOME, HOME_BACK, at="2 ranks, two choices", says="bytes sent by rank")
def brings_home_a_row_for_each_expert(y, shares, tokens, num_tokens, sends, receives, group):
    dense = y.new_zeros(*shares.T.shape, y.shape[1])
    dense = dense.index_put(shares.T.nonzero(as_tuple=True), y) * shares.T[..., None]
    rows = AllToAllRows.apply(dense.transpose(0, 1).flatten(1), group, sends, receives)
    rows = rows.view(len(tokens), shares.shape[1], y.shape[1]).sum(1)
    return y.new_zeros(num_tokens, y.shape[1]).index_add(0, tokens, rows)


CHAPTER.changes({
    "averages experts over all ranks": Mistake("average", {EXPERTS, REDUCED}, at="2 ranks, ep=2", says="expert 0 = [",
        old="comm.across(group, ep)", new="group"),
    "averages experts over neighbours": Mistake("average", {EXPERTS, REDUCED}, at="2 ranks, ep=1", says="expert 0 = [",
        old="comm.across(group, ep)", new="comm.split(group, ep)"),
    "leaves experts alone": Mistake("average", {EXPERTS, REDUCED}, at="2 ranks, ep=1", says="expert 0 = [",
        old="comm.across(group, ep)", new="comm.split(group, 1)"),
    "divides experts by the ranks that hold them": Mistake("average", {EXPERTS},
        at="2 ranks, ep=2", says="expert 0 = [",
        old="comm.across(group, ep)) / total", new="comm.across(group, ep)) / total * ep"),
    "takes batches for equal": Mistake("average", {SHARED, EXPERTS}, at="2 ranks, ep=2, unequal batches",
        old="total = summed[-1]", new="total = max(num_tokens, 1) * group.size()"),
    "gives frozen parameters a gradient": Mistake("average", {FROZEN},
        at="4 ranks, ep=2, a frozen parameter", says="shared 0.grad = None",
        old="shared = [p for p in shared if p.requires_grad]",
        new="for p in shared:\n"
            "        p.grad = torch.zeros_like(p) if p.grad is None else p.grad\n"
            "    shared = [p for p in shared if p.requires_grad]"),
    "sums experts only where tokens came": Mistake("average", {checker.RUNS},
        at="4 ranks, ep=2, experts without tokens", says="rank 3 waited at",
        old="set_gradients(experts, comm.all_reduce(flattened(experts), comm.across(group, ep)) / total)",
        new="same, alone = comm.across(group, ep), comm.split(group, 1)\n"
            "    idle = all(p.grad is None for p in experts)\n"
            "    set_gradients(experts, comm.all_reduce(flattened(experts), alone if idle else same) / total)"),
})


@mistake("average", TWO_MESSAGES, at="1 rank, ep=1", says="5 messages (5 x all_reduce)")
def sends_every_gradient_alone(shared, experts, num_tokens, ep, group):
    total = comm.all_reduce(torch.tensor(float(num_tokens)), group)
    for among, parameters in ((group, shared), (comm.across(group, ep), experts)):
        for p in parameters:
            if p.requires_grad:
                p.grad = comm.all_reduce(torch.zeros_like(p) if p.grad is None else p.grad, among) / total


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


CHAPTER.changes({
    "divides choices by tokens": Mistake("balance", {LOSS, LOSS_GRADIENT},
        at="1 rank, 3 tokens, two choices", says="output = [",
        old="return num_experts * ", new="return chosen.shape[1] * num_experts * "),
    "loses the gradient of the loss": Mistake("balance", {LOSS_GRADIENT}, at="1 rank, 2 tokens", says="scores.grad = [",
        old="own + (total - own).detach()", new="total"),
    "multiplies the gradient by the ranks": Mistake("balance", {LOSS_GRADIENT},
        at="2 ranks, 2 tokens each", says="scores.grad = [",
        old="own + (total - own).detach()", new="total + group.size() * (own - own.detach())"),
    "sends counts and sums apart": Mistake("balance", {ONE_MESSAGE},
        at="1 rank, 2 tokens", says="2 messages (2 x all_reduce)",
        old="comm.all_reduce(torch.stack([counts, own.detach()]), group)",
        new="(comm.all_reduce(x, group) for x in (counts, own.detach()))"),
})


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


CHAPTER.changes({
    "copies the hottest wherever there is space": Mistake("spare", {PLACED},
        at="2 ranks, a hot expert", says="[[0, 3, 0]",
        old="return dealt(loads, num_ranks, with_copies(loads, num_ranks, spare))",
        new="placement = dealt(loads, num_ranks, with_copies(loads, num_ranks, 0))\n"
            "    return [[*experts, *[loads.index(max(loads))] * spare] for experts in placement]"),
    "leaves the spare slots empty": Mistake("spare", {FILLED, HOTTEST, EVEN},
        at="2 ranks, a hot expert", says="2 lists of 3 experts",
        old="num_ranks, spare))", new="num_ranks, 0))"),
    "copies each hot expert once": Mistake("spare", {HOTTEST, EVEN},
        at="4 ranks, an expert with most tokens", says="tokens for a copy",
        old="return dealt(loads, num_ranks, with_copies(loads, num_ranks, spare))",
        new="first = sorted(range(len(loads)), key=lambda expert: -loads[expert])\n"
            "    return dealt(loads, num_ranks, [*first, *first[: num_ranks * spare]])"),
    "deals copies in turn": Mistake("spare", {EVEN}, at="2 ranks, no spare slot", says="tokens on a rank",
        old="return dealt(loads, num_ranks, with_copies(loads, num_ranks, spare))",
        new="waiting = sorted(with_copies(loads, num_ranks, spare), key=lambda each: (-loads[each], each))\n"
            "    return [waiting[rank::num_ranks] for rank in range(num_ranks)]"),
    "places experts by all their tokens": Mistake("spare", {EVEN},
        at="4 ranks, 8 experts drawn with seed 0", says="tokens on a rank",
        old="[load / max(1, waiting.count(expert)) for expert, load in enumerate(loads)]", new="loads"),
})


# ---- answers that are right, and not near the solution ---------------------------------------------------------------


@right("route")
def lists_a_dict(*given):
    experts, weights = solutions.my_route(*given)
    return {"experts": experts.int(), "weights": weights}.values()
