"""The engine equals one process and the plain file, sends a token once to each rank or node, and computes meanwhile."""

import sys

import cloudpickle
import pytest
import torch

from shardlab import comm
from shardlab.launch import RankError, run
from shardlab.plain import expert_parallel as plain_file
from shardlab.ranks import expert_parallel, tensor_parallel
from shardlab.ranks.data_parallel import averaging
from shardlab.ranks.expert_parallel import dispatch
from shardlab.ranks.mesh import Mesh
from shardlab.ranks.mixture import mixtures, rebalance
from shardlab.ranks.observe import ledger
from shardlab.sharding.layout import Layout
from shardlab.trace import wire_bytes
from tests.ranks.second_device import as_on_gpus

from . import training
from .training import RULES

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that no rank need import pytest

SAMPLES, ATOL = 7, 1e-12
CASES = [(4, nodes, rules) for nodes in (1, 2) for rules in RULES]
CASES += [(ep, nodes, rules) for ep, nodes in [(1, 1), (2, 1), (4, 4)] for rules in ("shared", "capacity")]


def train(group, ep, nodes, rules, frozen=()):
    """Train for two steps; return losses, the last gradients and the parameters."""
    model = training.plain("llama", rules, 2)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen) if frozen else True)
    expert_parallel.parallelize(model, comm.split(group, ep), group, nodes=nodes)
    same, losses = comm.across(group, ep), []
    optimizer = training.adamw(model.parameters())
    for step in range(training.STEPS):
        optimizer.zero_grad()
        tokens, targets, weight = training.batch(group.rank(), group.size(), step, SAMPLES)
        loss = model(tokens, targets) * weight
        loss.backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                parameter.grad = averaging.mean(parameter.grad, same if ".experts." in name else group)
        optimizer.step()
        rebalance(model)
        losses.append(averaging.mean(loss.detach(), group).item())
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return losses, gradients, {name: p.detach() for name, p in model.named_parameters()}


def alone(rules, frozen=()):
    model, losses = training.plain("llama", rules, 2), []
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen) if frozen else True)
    optimizer = training.adamw(model.parameters())
    for step in range(training.STEPS):
        optimizer.zero_grad()
        loss = model(*training.data(step, SAMPLES))
        loss.backward()
        optimizer.step()
        rebalance(model)
        losses.append(loss.item())
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return losses, gradients, {name: p.detach() for name, p in model.named_parameters()}


FROZEN = ("embedding.", "blocks.0.", "blocks.1.mlp.experts.3.")


def everything(group):
    return {case: train(group, *case) for case in CASES} | {"frozen": train(group, 2, 1, "shared", FROZEN)}


@pytest.fixture(scope="module")
def found():
    return run(everything, world_size=4, ranks="threads")


def assert_equal(ranks, expected):
    losses, gradients, parameters = expected
    for ours in ranks:
        torch.testing.assert_close(ours[0], losses, rtol=0, atol=ATOL)
    for which, whole in ((1, gradients), (2, parameters)):
        assert set().union(*(ours[which] for ours in ranks)) == whole.keys()
        for ours in ranks:
            for name, x in ours[which].items():
                torch.testing.assert_close(x, whole[name], rtol=0, atol=ATOL, msg=name)


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parity(
    "expert_parallel", "the engine, flat and on two levels: the losses, gradients and parameters of one process"
)
def test_the_engine_equals_one_process(found, rules):
    for case in CASES:
        if case[2] == rules:
            assert_equal([rank[case] for rank in found], alone(rules))


def test_what_is_frozen_stays_as_it_is(found):
    assert_equal([rank["frozen"] for rank in found], alone("shared", FROZEN))


# ---- what is sent ----------------------------------------------------------------------------------------------------

def messages(group, nodes):
    """The bytes that this rank sends to others in a step, by the size of the group; what it chose, in each layer."""
    model, chosen = training.plain("llama", "shared", 2, torch.float32), []
    expert_parallel.parallelize(model, group, nodes=nodes)
    listen(model, chosen)
    tokens, targets, _ = training.batch(group.rank(), group.size(), 0, SAMPLES)
    with ledger.Ledger() as book:
        model(tokens, targets).backward()
    return sent_by_group(book, "all_to_all"), chosen


def listen(model, chosen):
    """Append the experts of this rank's tokens, of each mixture that computes."""
    for mixture in mixtures(model):
        whole = mixture.compute
        mixture.compute = lambda *given, whole=whole: chosen.append(given[2].tolist()) or whole(*given)


def sent_by_group(book, op):
    sent = {}
    for event in book.events:
        if event.op == op:
            sent[event.group] = sent.get(event.group, 0) + wire_bytes(event)
    return sent


def landed(routes, span, first=0):
    """The tokens that each member gets from each: a token once from whoever has it to whoever has its experts.

    routes: of each member, the experts of each of its tokens. Member m has `span` experts, from first + m * span on.
    """
    places = [range(first + m * span, first + (m + 1) * span) for m in range(len(routes))]
    return [[[t for t in tokens if {*t} & {*place}] for tokens in routes] for place in places]


def sent_bytes(routes, span, first=0):
    """Bytes that each member of a group sends, forward and backward: rows of 16 numbers, weights of 2 experts."""
    counts = [[len(tokens) for tokens in row] for row in landed(routes, span, first)]  # by receiver and by sender
    found = []
    for me in range(len(routes)):
        there = sum(row[me] for other, row in enumerate(counts) if other != me)
        back = sum(count for other, count in enumerate(counts[me]) if other != me)
        forward = 8 * (len(routes) - 1) + 2 * 4 * there + (16 + 2) * 4 * there + 16 * 4 * back
        found.append((forward, 16 * 4 * there + (16 + 2) * 4 * back))  # counts, choices, dispatch, combine; and back
    return found


def predicted(routes, span, first=0):
    return [sum(both) for both in sent_bytes(routes, span, first)]


@pytest.mark.counted("expert_parallel", "bytes of the engine: each token once to every rank with its experts")
def test_a_token_goes_once_to_each_rank():
    ranks = run(messages, 1, world_size=4)
    layers = [predicted([chosen[layer] for _, chosen in ranks], 2) for layer in range(2)]
    assert [sent[0, 1, 2, 3] for sent, _ in ranks] == [sum(both) for both in zip(*layers, strict=True)]


@pytest.mark.counted("expert_parallel", "bytes of two levels: a token crosses once to each node, and goes on inside")
def test_a_token_crosses_once_to_each_node():
    """Ranks 0 and 1 are one node, 2 and 3 the other. Rank 0 hands on what it has, and what rank 2 sent it."""
    ranks = run(messages, 2, world_size=4)
    across, inside = [0.0] * 4, [0.0] * 4
    for layer in range(2):
        arrived = {}
        for place in range(2):
            routes = [ranks[rank][1][layer] for rank in (place, place + 2)]
            for node, sent in enumerate(predicted(routes, 4)):
                across[2 * node + place] += sent
            arrived[place] = [[token for tokens in row for token in tokens] for row in landed(routes, 4)]
        for node in range(2):
            for place, sent in enumerate(predicted([arrived[0][node], arrived[1][node]], 2, 4 * node)):
                inside[2 * node + place] += sent
    assert [sent[rank % 2, rank % 2 + 2] for rank, (sent, _) in enumerate(ranks)] == across
    assert [sent[rank // 2 * 2, rank // 2 * 2 + 1] for rank, (sent, _) in enumerate(ranks)] == inside


TENSOR = [(rules, ep, whole) for rules in ("shared", "ties") for ep in (1, 2) for whole in (False, True)]


def with_tensor(group):
    """By case, bytes that this rank sends in the forward of a layer: dispatching, and around it; and all choices."""
    found = {}
    for rules, ep, whole in TENSOR:
        mesh = Mesh(Layout(dp=ep, ep=ep, tp=4 // ep, sequence_parallel=True, whole_experts=whole), group)
        model, chosen = training.plain("llama", rules, 1, torch.float32), []
        torch.nn.init.normal_(model.blocks[0].mlp.router.weight, generator=torch.Generator().manual_seed(0))
        tensor_parallel.parallelize(model, mesh.tp, sequence_parallel=True, whole_experts=whole)
        expert_parallel.parallelize(model, mesh.ep, mesh.dp, slices=4 // ep if whole else 1)
        listen(model, chosen)
        x = torch.randn(2, training.LENGTH, 16, generator=torch.Generator().manual_seed(mesh.dp.rank()))
        with ledger.Ledger() as book, torch.no_grad():
            model.blocks[0].mlp(x.chunk(mesh.tp.size(), 1)[mesh.tp.rank()])
        tp = comm.all_gather(torch.tensor([group.rank()]), mesh.tp).tolist()
        around = sum(wire_bytes(event) for event in book.events if event.group == tuple(tp))
        hop_bytes = sum(wire_bytes(event) for event in book.events if event.op == "all_to_all")
        found[rules, ep, whole] = hop_bytes, around - whole * (ep == 1) * hop_bytes, chosen[0]
    return found


@pytest.fixture(scope="module")
def ways_of_tp():
    return run(with_tensor, world_size=4)


@pytest.mark.parametrize("case", TENSOR)
@pytest.mark.counted("expert_parallel", "bytes of experts that ranks of tp hold whole or cut")
def test_whole_experts_and_cut_ones_send_what_they_should(ways_of_tp, case):
    """Ranks 0, 1, .. are those of tp. Cut experts have a group of ep for each of their places."""
    rules, ep, whole = case
    tp, tokens = 4 // ep, 2 * training.LENGTH
    slices = (tp - 1) / tp * tokens * 4  # bytes that the others have of one number of all tokens
    gathers = not whole or RULES[rules].num_shared > 0  # inputs before, and outputs are scattered behind
    expected = slices * (RULES[rules].num_experts + 2 * 16 * gathers)
    groups = [range(4)] if whole else [range(place, 4, tp) for place in range(tp)]
    for group in groups:
        mine = [ways_of_tp[rank][case] for rank in group]
        sent = sent_bytes([chosen for _, _, chosen in mine], 8 // len(group))
        for (in_hop, around, chosen), (forward, _) in zip(mine, sent, strict=True):
            assert len(chosen) == (tokens // tp if whole else tokens)
            assert around == expected
            assert in_hop == (forward if len(group) > 1 else 0)


def order_of(group):
    """The order in which messages start and end and the shared experts compute, forward and backward."""
    model, seen = training.plain("llama", "shared", 1), []
    expert_parallel.parallelize(model, group)
    start, finish = dispatch.Flight.start, dispatch.Flight.finish
    (mixture,) = mixtures(model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch.Flight, "start", lambda *given: seen.append("start") or start(*given))
        patch.setattr(dispatch.Flight, "finish", lambda flight: seen.append("finish") or finish(flight))
        mixture.shared.register_forward_hook(lambda *_: seen.append("shared"))
        mixture.shared.down.weight.register_hook(lambda _: seen.append("shared"))
        model(*training.data(0, 2)).backward()
    return seen


def test_shared_experts_compute_while_tokens_travel():
    forward = ["start", "shared", "finish", "start", "finish"]
    for seen in run(order_of, world_size=2):
        assert seen == [*forward, "start", "finish", "start", "shared", "finish"]


# ---- beside the plain file, on another device, and refused -----------------------------------------------------------


def both(group):
    """The gradients of the plain file and of the engine, summed and averaged."""
    found = []
    tokens, targets, weight = training.batch(group.rank(), group.size(), 0, SAMPLES)
    model = training.plain("llama", "bias", 2)
    experts = plain_file.LocalExperts(model, group, 2)
    (model(tokens, targets) * weight / group.size()).backward()
    experts.sum_gradients(model)
    found.append({name: p.grad for name, p in model.named_parameters()})
    model = training.plain("llama", "bias", 2)
    expert_parallel.parallelize(model, experts.neighbours, group)
    (model(tokens, targets) * weight).backward()
    means = {True: experts.replicas, False: group}
    found.append({name: averaging.mean(p.grad, means[".experts." in name]) for name, p in model.named_parameters()})
    return found


@pytest.mark.parity("expert_parallel", "the plain file and the engine: the same gradients")
def test_the_engine_equals_the_plain_file():
    for plain, engine in run(both, world_size=4):
        assert plain.keys() == engine.keys()
        for name in plain:
            torch.testing.assert_close(engine[name], plain[name], rtol=0, atol=ATOL, msg=name)


def on_the_device(group):
    """Compute with the engine and with the plain file, by every rule, on what is the ranks' device."""
    found = []
    for rules in RULES:
        for deal in (lambda model: expert_parallel.parallelize(model, group, nodes=2), plainly(group)):
            model = training.plain("llama", rules, 1)
            deal(model)
            tokens = torch.arange(32).view(4, 8) * (3 + group.rank()) % training.VOCABULARY
            loss = model(tokens, tokens.roll(1))
            loss.backward()
            rebalance(model)
            found.append((loss.item(), model.blocks[0].mlp.router.weight.grad.sum().item()))
    return found


def plainly(group):
    return lambda model: plain_file.LocalExperts(model, group, 4)


def test_new_tensors_are_on_the_device_of_the_ranks():
    for here, there in zip(run(on_the_device, world_size=4), run(as_on_gpus(on_the_device), world_size=4), strict=True):
        for ours, theirs in zip(here, there, strict=True):
            assert ours == pytest.approx(theirs, abs=ATOL)


@pytest.mark.parametrize(
    ("size", "options", "message"),
    [
        (3, {}, "8 experts do not split over ep=3; use ep = 1, 2, 4, 8"),
        (4, {"nodes": 3}, "ep=4 ranks do not lie evenly on 3 nodes; use nodes = 1, 2, 4"),
        (4, {"slices": 3}, "ep=4 ranks do not have slices=3 of the same samples; use slices = 1, 2, 4"),
        (2, {"slices": 2}, "slices=2 of the same samples would be counted 2 times; pass"),
    ],
)
def test_what_does_not_divide_is_refused(size, options, message):
    def call(group):
        expert_parallel.parallelize(training.plain("llama", "shared", 1), group, **options)

    with pytest.raises(RankError, match=message):
        run(call, world_size=size)
