"""Every way to share sequences gives the losses, gradients and weights of one process, however tokens are dealt."""

import functools
import inspect
import sys
import weakref

import cloudpickle
import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from shardlab import comm, trace
from shardlab.costs import context_parallel as costs
from shardlab.launch import RankError, run
from shardlab.model.spec import TransformerSpec
from shardlab.plain import context_parallel as plain_context
from shardlab.plain import ring_attention
from shardlab.ranks import context_parallel, transformer
from shardlab.ranks.context_parallel import ContextStrategy, engine, heads, ring, tiles
from shardlab.ranks.data_parallel.averaging import mean
from shardlab.ranks.memory import recompute
from shardlab.ranks.observe import ledger
from shardlab.sharding import sequences
from tests.rank_types import rank_type
from tests.ranks.second_device import as_on_gpus

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that no rank need import pytest

STEPS, VOCABULARY, ATOL = 2, 31, 1e-12
SIZES = {"vocab_size": VOCABULARY, "context_length": 32, "num_layers": 2, "num_heads": 12}
SPECS = {
    "gpt2": TransformerSpec(**SIZES, hidden_size=24),
    "llama": TransformerSpec(**SIZES, hidden_size=48, num_kv_heads=2, style="llama"),  # fewer than ranks
}
ONE = ((24,), (23,))  # tokens of each document, in each step
SEVERAL = ((5, 1, 11, 7), (2, 9, 12))


def build(style):
    """A model whose every parameter is random: ones and zeros would hide mistakes."""
    torch.manual_seed(0)
    model = transformer.Transformer(SPECS[style]).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


def batch(step, length):
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(VOCABULARY, (2, length + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)


# ---- one process -----------------------------------------------------------------------------------------------------


def reference(q, k, v, *, lengths, causal):
    """Attend in each document by itself."""
    length, heads = sum(lengths), q.shape[1]
    k, v = (x.repeat_interleave(heads // x.shape[1], 1) for x in (k, v))
    text = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    seen = text[:, None] == text
    if causal:
        seen = seen & torch.ones(length, length, dtype=torch.bool).tril()
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf)
    return F.softmax(scores, -1) @ v


@functools.cache
def alone(style, documents, causal):
    """Loss and gradients of each step, and the last weights."""
    model, history = build(style), []
    optimizer = adamw(model)
    for step, lengths in enumerate(documents):
        positions = torch.cat([torch.arange(length) for length in lengths])
        transformer.replace(model, locate=lambda _, positions=positions: positions)
        for block in model.blocks:
            transformer.replace(block, attend=functools.partial(reference, lengths=lengths, causal=causal))
        optimizer.zero_grad()
        loss = model(*batch(step, sum(lengths)))
        loss.backward()
        history.append((loss.detach(), [p.grad.clone() for p in model.parameters()]))
        optimizer.step()
    return history, [p.detach() for p in model.parameters()]


# ---- ranks -----------------------------------------------------------------------------------------------------------


def average_gradients(model, group):
    """Average all gradients in one message; with one for each, ranks would mostly wake and sleep."""
    gradients = [p.grad for p in model.parameters()]
    averaged = mean(torch.cat([x.flatten() for x in gradients]), group)
    for x, piece in zip(gradients, averaged.split([x.numel() for x in gradients]), strict=True):
        x.copy_(piece.view_as(x))


def train(group, style, documents, strategy, again=False):
    """The same on the ranks of a group: losses are means over this rank's tokens, scaled."""
    model, history = build(style), []
    context = engine.parallelize(model, group, strategy)
    if again:
        recompute.wrap(model.blocks)
    optimizer = adamw(model)
    for step, lengths in enumerate(documents):
        optimizer.zero_grad()
        loss = model(*context.shard(*batch(step, sum(lengths)), documents=lengths))
        loss.backward()
        average_gradients(model, group)
        history.append((loss.detach(), [p.grad.clone() for p in model.parameters()]))
        optimizer.step()
    return history, [p.detach() for p in model.parameters()]


def cases(size):
    """List (style, documents, strategy, whether layers are recomputed)."""
    options = [{}, {"placement": "contiguous"}, {"gathered": True}, {"ulysses": size}]
    options += [{"ulysses": 2}, {"ulysses": 2, "placement": "contiguous"}] if size == 4 else []
    if size == 8:
        options = [{}, {"ulysses": 2}, {"ulysses": 4, "placement": "contiguous"}]
    models = ("gpt2", SEVERAL), ("llama", ONE)
    found = [(*model, ContextStrategy(**each), False) for model in models for each in options]
    if size < 8:
        more = [{"causal": False}, {}, {"ulysses": size, "causal": False}, {"gathered": True}, {"ulysses": size}]
        found += [("llama", SEVERAL, ContextStrategy(**each), False) for each in more]
        found += [("llama", SEVERAL, ContextStrategy(**each), True) for each in ({}, {"ulysses": size})]
    return list(dict.fromkeys(found))


def together(group):
    return [train(group, *case) for case in cases(group.size())]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
@pytest.mark.parity(
    "context_parallel", "every way of context parallelism: losses, gradients and weights of one process"
)
def test_every_way_trains_like_one_process(size):
    """Rings, gathered keys, Ulysses and grids; lengths that do not divide, documents, recomputation."""
    everything = run(together, world_size=size, ranks=rank_type(size))
    for index, (style, documents, strategy, _) in enumerate(cases(size)):
        history, weights = alone(style, documents, strategy.causal)
        found = [rank[index] for rank in everything]
        for step, (loss, gradients) in enumerate(history):
            mean = torch.stack([rank[0][step][0] for rank in found]).mean()
            torch.testing.assert_close(mean, loss, rtol=0, atol=ATOL, msg=f"{cases(size)[index]}")
            for rank in found:
                torch.testing.assert_close(rank[0][step][1], gradients, rtol=0, atol=ATOL)
        for rank in found:
            torch.testing.assert_close(rank[1], weights, rtol=0, atol=ATOL)


# ---- predicted, counted ----------------------------------------------------------------------------------------------

LENGTH, HEADS, KV_HEADS, HEAD_SIZE, BATCH = 48, 12, 4, 6, 2
STRATEGIES = {  # strategy -> what the formulas call it
    ContextStrategy(): ("ring", 1),
    ContextStrategy(gathered=True): ("gathered", 1),
    ContextStrategy(ulysses=4): ("ulysses", 4),
    ContextStrategy(ulysses=2): ("grid", 2),
}


class Resident:
    """Bytes of all that has been received and is not freed."""

    def __init__(self):
        self.now = self.peak = 0

    def add(self, x):
        nbytes = x.untyped_storage().nbytes()
        self.now += nbytes
        self.peak = max(self.peak, self.now)
        weakref.finalize(x.untyped_storage(), self.drop, nbytes)

    def drop(self, nbytes):
        self.now -= nbytes


def watched(resident):
    """Let `resident` know what messages and gathering fill; returns how to stop that."""
    start, gather = comm.start_messages, comm.all_gather

    def note_start(sends, receives, group):
        for y, _ in receives:
            resident.add(y)
        return start(sends, receives, group)

    def note_gather(x, group):
        y = gather(x, group)
        resident.add(y)
        return y

    comm.start_messages, comm.all_gather = note_start, note_gather

    def stop():
        comm.start_messages, comm.all_gather = start, gather

    return stop


def measure(group, strategy):
    """Bytes and messages, FLOPs, and peak bytes received, in forward and in backward of one layer."""
    sizes = {"hidden_size": HEADS * HEAD_SIZE, "num_heads": HEADS, "num_kv_heads": KV_HEADS, "num_layers": 1}
    spec = TransformerSpec(vocab_size=5, context_length=LENGTH, style="llama", **sizes)
    torch.manual_seed(0)
    context = engine.parallelize(transformer.Transformer(spec), group, strategy)
    context.shard(torch.zeros(BATCH, LENGTH))
    tokens, resident = len(context.mine), Resident()
    x = [torch.randn(BATCH, heads, tokens, HEAD_SIZE, requires_grad=True) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    stop = watched(resident)
    try:
        with ledger.Ledger() as forward, FlopCounterMode(display=False) as flops:
            y = context.attend(*x)
        peaks = [resident.peak]
        resident.peak = resident.now
        with ledger.Ledger() as backward, FlopCounterMode(display=False) as flops_back:
            y.sum().backward()
        peaks.append(resident.peak)
    finally:
        stop()
    books = {"forward": forward.events, "backward": backward.events}
    sent = {name: sum(map(trace.wire_bytes, events)) for name, events in books.items()}
    messages = {name: sum(event.op not in ("receive",) for event in events) for name, events in books.items()}
    return sent, messages, peaks, [flops.get_total_flops(), flops_back.get_total_flops()]


@functools.cache
def measured(strategy, size=4):
    return run(measure, strategy, world_size=size)


def sizes_of(size):
    shape = {"heads": HEADS, "kv_heads": KV_HEADS, "head_size": HEAD_SIZE, "batch": BATCH, "element": 4}
    return costs.SplitAttention(length=LENGTH, ranks=size, **shape)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: STRATEGIES[strategy][0])
@pytest.mark.counted("context_parallel", "bytes and messages of each way of context parallelism")
def test_bytes_and_messages_are_those_of_the_formulas(strategy):
    name, ulysses = STRATEGIES[strategy]
    for sent, messages, _, _ in measured(strategy):
        assert sent == pytest.approx(costs.sent_bytes(sizes_of(4), name, ulysses=ulysses), abs=1e-6)
        assert messages == costs.messages(sizes_of(4), name, ulysses=ulysses)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.counted("context_parallel", "keys and values on a rank of a ring at most: three blocks, never all")
def test_a_ring_never_has_all_keys(size):
    whole = size * 2 * sizes_of(size).block
    own = 2 * sizes_of(size).block
    for _, _, (forward, backward), _ in measured(ContextStrategy(), size):
        assert forward + own == costs.resident(sizes_of(size), "ring")
        assert forward + own < whole or size < 4
        assert backward <= 3 * own  # two blocks, and a gradient that is coming
    for _, _, (forward, _), _ in measured(ContextStrategy(gathered=True), size):
        assert forward + own == costs.resident(sizes_of(size), "gathered")


@pytest.mark.parametrize("placement", sequences.PLACEMENTS)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.counted("context_parallel", "FLOPs of attention on each rank, contiguous and zig-zag")
def test_flops_of_each_rank_are_those_of_the_formulas(placement, size):
    found = [flops for *_, flops in measured(ContextStrategy(placement=placement), size)]
    predicted = costs.flops(sizes_of(size), placement)
    assert found == [[each["forward"], each["backward"]] for each in predicted]


def order_of(group):
    """What a rank does in a round: starts a message, computes, waits."""
    seen, start, attend = [], comm.start_messages, tiles.attend

    def noting(*args):
        seen.append("start")
        waits = start(*args)
        return [lambda wait=wait: (seen.append("wait"), wait()) for wait in waits]

    def compute(*args):
        seen.append("compute")
        attend(*args)

    comm.start_messages, tiles.attend = noting, compute
    try:
        x = torch.randn(1, 2, 4, 6)
        context = engine.parallelize(build("gpt2"), group, ContextStrategy())
        context.shard(torch.zeros(1, 12))
        context.attend(x, x, x)
    finally:
        comm.start_messages, tiles.attend = start, attend
    return seen


def test_the_next_block_travels_while_this_one_is_used():
    turn = ["start", "compute", "wait", "wait"]
    assert run(order_of, world_size=3) == [[*turn, *turn, "compute"]] * 3


def on_the_device(group):
    """Train with each strategy, and with the plain files, on what is the ranks' device."""
    for options in ({}, {"gathered": True}, {"ulysses": 2}):
        model = build("llama")
        context = engine.parallelize(model, group, ContextStrategy(**options))
        tokens = torch.arange(46).view(2, -1) % VOCABULARY
        model(*context.shard(tokens, tokens, documents=(5, 18))).backward()
    context = plain_context.Context(torch.zeros(8).long(), plain_context.zig_zag(8, group), group)
    q = torch.randn(1, 2, 4, 6, requires_grad=True)
    found = [context.gathered(q, q, q), context.ulysses(q, q, q)]
    found.append(ring_attention.ring(q, q, q, context.mask, group))
    torch.stack(found).sum().backward()
    return [y.detach() for y in found]


def test_new_tensors_are_on_the_device_of_the_ranks():
    for gathered, ulysses, ring_output in run(as_on_gpus(on_the_device), world_size=2):
        torch.testing.assert_close(ulysses, gathered)
        torch.testing.assert_close(ring_output, gathered)


# ---- mistakes --------------------------------------------------------------------------------------------------------

WRONG = {  # what went wrong: (module, what stands there, what stands there then)
    "tiles are merged without rescaling": (tiles, ".mul_((before - lse).exp())", ".mul_(1)"),
    "the mask is shifted": (tiles, "keys > queries", "keys > queries + 1"),
    "the softmax's sum has no gradient": (tiles, "(dweights - at.delta[..., here, :])", "dweights"),
    "the backward ring has stale keys": (ring, "differentiate(at, block, here", "differentiate(at, own, here"),
    "gradients of the ranks before are dropped": (ring, "gradient += coming()", "coming()"),
    "gradients do not come home": (ring, "home + coming()", "home + 0 * coming()"),
    "blocks come in another order": (engine, "blocks[self.ring_place - turn]", "blocks[turn]"),
    "positions start at zero on every rank": (engine, "self.mine - first[self.mine]", "self.mine.argsort()"),
    "documents do not restart": (engine, "self.mine - first[self.mine]", "self.mine"),
}
WRONG_EXCHANGES = {
    "gradients of others are dropped": ("(mine,) = comm.reduce_scatter(rows, group)", "mine = rows[group.rank()]"),
    "the way back is the way there": ("return to_tokens(grad, *ctx.where), None, None", "return grad, None, None"),
}


def right(group, module, source, strategy, documents=((7, 17), (24,))):
    """Tell whether ranks train as one process does, with a module whose source is changed."""
    original = inspect.getsource(module)
    exec(compile(source, "changed", "exec"), module.__dict__)
    try:
        case = "gpt2", documents
        history, weights = train(group, *case, strategy)
        expected, last = alone(*case, True)
        pairs = [*zip(weights, last, strict=True)]
        for ours, theirs in zip(history, expected, strict=True):
            pairs += zip(ours[1], theirs[1], strict=True)
        return all(torch.allclose(*pair, rtol=0, atol=ATOL) for pair in pairs)
    finally:
        exec(compile(original, module.__file__, "exec"), module.__dict__)


def changed(module, old, new):
    source = inspect.getsource(module)
    assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times"
    return source.replace(old, new)


@pytest.mark.parametrize("what", WRONG)
def test_a_mistake_is_noticed(what):
    module, old, new = WRONG[what]
    assert not all(run(right, module, changed(module, old, new), ContextStrategy(), world_size=3))


def test_the_means_of_ranks_with_more_tokens_weigh_more():
    source = changed(engine, "len(self.mine) * self.group.size() / self.length", "1")
    assert not all(run(right, engine, source, ContextStrategy(), ((7, 16), (23,)), world_size=3))


def test_what_is_not_changed_is_right():
    source = inspect.getsource(engine)
    assert all(run(right, engine, source, ContextStrategy(), world_size=3))


EXCHANGING = ContextStrategy(gathered=True), ContextStrategy(ulysses=3)


@pytest.mark.parametrize(("what", "strategy"), [*zip(WRONG_EXCHANGES, EXCHANGING, strict=True)])
def test_a_mistake_in_an_exchange_is_noticed(what, strategy):
    source = changed(heads, *WRONG_EXCHANGES[what])
    if strategy.gathered:
        assert not all(run(right, heads, source, strategy, world_size=3))
    else:
        with pytest.raises(RankError, match="returned an invalid gradient"):
            run(right, heads, source, strategy, world_size=3)


# ---- lined up --------------------------------------------------------------------------------------------------------


def lined_up(group):
    """Whether ranks find whole sequences in what they hold, and their own part in these, also of unequal lengths."""
    found = []
    for placement in ("zig-zag", "contiguous"):
        context = context_parallel.parallelize(build("gpt2"), group, ContextStrategy(placement=placement))
        for length in (8, 11, 3):
            whole = torch.arange(2 * length * 2).view(2, length, 2)
            (mine,) = context.shard(whole)
            found += [torch.equal(context.line_up(mine), whole), torch.equal(context.pick(whole), mine)]
    return found


def test_ranks_line_up_what_they_hold():
    assert run(lined_up, world_size=3) == [[True] * 12] * 3


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "length", "documents", "message"),
    [
        ({"ulysses": 5}, 24, None, "cp=5 ranks|12 heads do not split over 5 ranks of Ulysses; use 1, 2, 3, 4, 6, 12"),
        ({"ulysses": 2}, 24, None, "cp=5 ranks do not split into groups of ulysses=2; use ulysses = 1, 5"),
        ({}, 4, None, "4 tokens leave some of cp=5 ranks without any; use cp = 1 to 4"),
        ({}, 33, None, "33 tokens does not fit context_length=32"),
        ({}, 24, (5, 18), "documents of 5, 18 tokens have 23 tokens, and the sequence has 24; give"),
        ({"placement": "striped"}, 24, None, "unknown placement 'striped'; known: contiguous, zig-zag"),
    ],
)
def test_what_does_not_fit_is_refused(options, length, documents, message):
    def call(group):
        context = context_parallel.parallelize(build("gpt2"), group, ContextStrategy(**options))
        context.shard(torch.zeros(1, length), documents=documents)

    with pytest.raises(RankError, match=message):
        run(call, world_size=5)


def test_gathered_keys_are_not_exchanged_too():
    with pytest.raises(ValueError, match="keys are gathered or exchanged, not both: use gathered=False or ulysses=1"):
        ContextStrategy(gathered=True, ulysses=2)
