"""Every schedule against the uncut model: gradients, order, microbatches held, bytes sent."""

import functools
import re
import weakref

import pytest
import torch
from torch import nn

from shardlab import comm, schedules, trace
from shardlab.costs.pipeline import timeline
from shardlab.launch import RankError, run
from shardlab.model.spec import TransformerSpec
from shardlab.plain import data_parallel
from shardlab.ranks import pipeline, transformer
from shardlab.ranks.memory import recompute
from shardlab.ranks.observe import ledger
from shardlab.ranks.pipeline import partition
from shardlab.schedules import make
from tests.rank_types import rank_type
from tests.ranks.tolerance import EXACT

SAMPLES, LENGTH, VOCABULARY, WIDTH = 7, 5, 11, 8
# (schedule, microbatches, chunks, style); samples divide by the microbatches or not
CASES = [
    (name, m, None, style)
    for name in schedules.SCHEDULES
    for m, style in [(1, "llama"), (3, "gpt2"), (6, "llama")]
]
CASES += [("interleaved", 5, 1, "gpt2"), ("1F1B", 4, None, "gpt2")]


def spec(style, layers):
    return TransformerSpec(
        vocab_size=VOCABULARY,
        context_length=LENGTH,
        hidden_size=WIDTH,
        num_layers=layers,
        num_heads=2,
        num_kv_heads=1 if style == "llama" else None,
        style=style,
    )


def model(style, layers, seed=0):
    torch.manual_seed(seed)
    return transformer.Transformer(spec(style, layers)).double()


def data(seed=0, samples=SAMPLES):
    """Draw tokens and targets, [samples, LENGTH] each."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCABULARY, (samples, LENGTH + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def gradients(module):
    return {
        name: None if p.grad is None else p.grad.clone() for name, p in module.named_parameters()
    }


@functools.cache
def alone(style, layers, batches=1):
    """Train the uncut model on `batches` batches; return the last loss and summed gradients."""
    whole = model(style, layers)
    for seed in range(batches):
        loss = whole(*data(seed))
        loss.backward()
    found = gradients(whole)
    if whole.spec.tied:
        found["head.weight"] = found["embedding.tokens.weight"]
    return loss.detach(), found


def assert_same(found, expected):
    for name, gradient in found.items():
        torch.testing.assert_close(
            gradient, expected[name], **EXACT, msg=lambda text, name=name: f"{name}: {text}"
        )


class Marker(torch.autograd.Function):
    """The identity, which puts an object into the graph that is freed with it."""

    class Held:
        pass

    @staticmethod
    def forward(ctx, x, alive):
        ctx.held = Marker.Held()
        alive.add(ctx.held)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Watched(nn.Module):
    """A part that logs its calls, its gradients, and how many of its graphs are alive."""

    def __init__(self, part, chunk, log, alive, peak):
        super().__init__()
        self.part, self.chunk, self.calls, self.shared = part, chunk, 0, part.shared
        self.log, self.alive, self.peak = log, alive, peak

    def forward(self, *inputs):
        y = self.part(*inputs)
        if not y.requires_grad:
            return y
        microbatch, self.calls = self.calls, self.calls + 1
        y = Marker.apply(y, self.alive)
        self.log.append(("F", microbatch, self.chunk))
        self.peak.append(len(self.alive))
        y.register_hook(lambda _: self.log.append(("B", microbatch, self.chunk)))
        return y


def layers_of(schedule):
    """Count one layer more than there are parts, so that the first part has two."""
    return schedule.num_parts + 1


def execute(group, case):
    """Execute one step, watched from outside."""
    name, m, v, style = case
    schedule = make(name, group.size(), m, v)
    log, peak, alive = [], [], weakref.WeakSet()
    parts = partition.split(model(style, layers_of(schedule)), schedule, group.rank())
    watched = [Watched(part, chunk, log, alive, peak) for chunk, part in enumerate(parts)]
    pipe = pipeline.Pipeline(watched, schedule, group)
    with ledger.Ledger() as book:
        loss = pipe.step(*data())
    return {
        "loss": loss,
        "gradients": {name: grad for part in parts for name, grad in gradients(part).items()},
        "events": pipe.events,
        "log": log,
        "live": pipe.live,
        "graphs": max(peak),
        "sent": trace.totals(book.events).get("send", {"count": 0, "nbytes": 0}),
        "left": len(alive),
    }


@functools.cache
def executed(world_size):
    """Return what every rank saw, for every case, in one launch."""
    by_rank = run(
        lambda group: [execute(group, case) for case in CASES], world_size=world_size, ranks=rank_type(world_size)
    )
    return dict(zip(CASES, zip(*by_rank, strict=True), strict=True))


cases = pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
world_sizes = pytest.mark.parametrize("p", [1, 2, 3, 4])


@world_sizes
@cases
@pytest.mark.parity("pipeline", "every schedule gives the gradients of the uncut model")
def test_the_gradients_are_those_of_the_uncut_model(case, p):
    loss, expected = alone(case[3], layers_of(make(case[0], p, *case[1:3])))
    ranks = executed(p)[case]
    assert {"head.weight", *expected} == {
        "head.weight",
        *(name for rank in ranks for name in rank["gradients"]),
    }
    for rank in ranks:
        assert_same(rank["gradients"], expected)
    (mean,) = [rank["loss"] for rank in ranks if rank["loss"] is not None]
    torch.testing.assert_close(mean, loss, **EXACT)


@world_sizes
@cases
@pytest.mark.counted("pipeline", "the order in which stages worked is that of the schedule")
def test_the_measured_order_is_the_scheduled_order(case, p):
    schedule = make(case[0], p, *case[1:3])
    for stage, rank in enumerate(executed(p)[case]):
        order = schedule.orders[stage]
        assert [event.op for event in rank["events"]] == list(map(str, order))
        assert all(
            a.end <= b.start for a, b in zip(rank["events"], rank["events"][1:], strict=False)
        )
        seen = [
            ("F" if a.kind == "F" else "B", a.microbatch, a.chunk) for a in order if a.kind != "W"
        ]
        assert rank["log"] == seen


@world_sizes
@cases
@pytest.mark.counted("pipeline", "microbatches that each stage holds at its peak")
def test_what_is_held_is_what_the_timeline_predicts(case, p):
    schedule = make(case[0], p, *case[1:3])
    predicted = timeline.play(schedule)
    ranks = executed(p)[case]
    assert [rank["live"] for rank in ranks] == predicted.peaks()
    assert [rank["graphs"] for rank in ranks] == predicted.peaks(
        kept=0
    )  # after I the graph itself is gone
    assert [rank["left"] for rank in ranks] == [0] * p


@world_sizes
@cases
@pytest.mark.counted("pipeline", "bytes that each stage sends")
def test_the_ledger_counts_what_the_formula_says(case, p):
    name, m, v, style = case
    schedule = make(name, p, m, v)
    sizes = [len(each) for each in data()[0].tensor_split(m)]
    predicted = timeline.sent_bytes(schedule, [size * LENGTH * WIDTH * 8 for size in sizes])
    ends = {schedule.homes[0][0], schedule.homes[-1][0]}
    if len(ends) > 1 and spec(style, 1).tied:
        for stage in ends:
            predicted[stage] += (
                VOCABULARY * WIDTH * 8
            )  # the gradient of the embeddings that it shares
    assert [rank["sent"]["nbytes"] for rank in executed(p)[case]] == predicted


# ---- other models and uses -----------------------------------------------------------------------

SIX = 6  # layers


def build(group, schedule, whole, layers=None):
    return pipeline.Pipeline(partition.split(whole, schedule, group.rank(), layers), schedule, group)


def uneven(group):
    """Cut stages of 1, 1 and 4 layers, and of 0, 5 and 1: one has only embeddings."""
    found = {}
    for layers in ([range(0, 1), range(1, 2), range(2, 6)], [range(0), range(0, 5), range(5, 6)]):
        pipe = build(group, make("1F1B", 3, 4), model("gpt2", SIX), layers)
        pipe.step(*data())
        found |= {
            f"{len(layers[0])} {name}": grad for name, grad in gradients(pipe.parts[0]).items()
        }
    return found


def own_seeds(group):
    """Let every rank draw its own model, whose shared weights must become equal; then train."""
    pipe = build(group, make("ZB-H1", 3, 4), model("gpt2", SIX, seed=group.rank()))
    start = {name: p.detach().clone() for name, p in pipe.parts[0].named_parameters()}
    pipe.step(*data(0))
    pipe.step(*data(1))
    before = gradients(pipe.parts[0])
    torch.optim.AdamW(pipe.parameters()).step()
    return start, before, [weight.detach() for weight in pipe.parts[0].shared]


def recomputed(group):
    """Recompute blocks or whole parts, with whole and with split backwards."""
    found = {}
    for name in ("1F1B", "ZB-H2"):
        for what in ("blocks", "parts"):
            whole, schedule = model("llama", SIX), make(name, 3, 4)
            parts = partition.split(whole, schedule, group.rank())
            recompute.wrap(whole.blocks if what == "blocks" else parts)
            pipe = pipeline.Pipeline(parts, schedule, group)
            pipe.step(*data())
            found |= {f"{name} {what} {key}": grad for key, grad in gradients(parts[0]).items()}
    return found


def frozen(group):
    """Freeze the embeddings and the first layers: the first stage has no backward."""
    found = {}
    for name, style in (("GPipe", "llama"), ("ZB-V", "llama"), ("1F1B", "gpt2")):
        whole, schedule = model(style, SIX), make(name, 3, 4)
        for module in (whole.embedding, *whole.blocks[:3]):
            module.requires_grad_(False)
        parts = partition.split(whole, schedule, group.rank())
        pipeline.Pipeline(parts, schedule, group).step(*data())
        found |= {
            f"{style} {name} {key}": grad for part in parts for key, grad in gradients(part).items()
        }
    return found


def inference(group):
    """Predict before and after training, and with batches of another shape."""
    pipe = build(group, make("interleaved", 3, 4), model("gpt2", SIX))
    found = [pipe.predict(data()[0])]
    pipe.step(*data())
    shorter = data(1, samples=9)[0][:, :3]
    pipe.negotiate(shorter)
    held = pipe.live
    return [*found, pipe.predict(shorter)], held, pipe.live


def only_where_needed(group):
    """Pass tokens to the first stage, targets to the last, and nothing to the others."""
    tokens, targets = data()
    pipe = build(group, make("GPipe", 3, 4), model("gpt2", SIX))
    last = group.rank() == 2
    loss = pipe.step(tokens if group.rank() == 0 else None, targets if last else None)
    return loss, gradients(pipe.parts[0])


class Last(nn.Module):
    """The last part of a plain model: a layer, and with targets its error."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x, targets=None):
        y = self.layer(x)
        return y if targets is None else (y - targets).square().mean()


def plain():
    """Make modules that pass on different shapes: [N, 4] -> [N, 7, 1] -> [N, 3] -> loss."""
    torch.manual_seed(0)
    first = nn.Sequential(nn.Linear(4, 7), nn.Unflatten(1, (7, 1)))
    middle = nn.Sequential(nn.Flatten(), nn.Tanh(), nn.Linear(7, 3))
    return [module.double() for module in (first, middle, Last())]


def plain_data():
    generator = torch.Generator().manual_seed(2)
    return [
        torch.randn(SAMPLES, width, dtype=torch.float64, generator=generator) for width in (4, 2)
    ]


def other_models(group):
    found = {}
    for name in ("1F1B", "ZB-H1"):
        part = plain()[group.rank()]
        pipeline.Pipeline([part], make(name, 3, 4), group).step(*plain_data())
        found |= {f"{name} {key}": grad for key, grad in gradients(part).items()}
    return found


ALL = (uneven, own_seeds, recomputed, frozen, inference, only_where_needed, other_models)


@functools.cache
def of_three():
    """Run all of these in one launch; return, for each, what the ranks returned."""
    by_rank = run(lambda group: [each(group) for each in ALL], world_size=3)
    return dict(zip(ALL, zip(*by_rank, strict=True), strict=True))


def test_stages_can_be_unequal():
    _, expected = alone("gpt2", SIX)
    for rank in of_three()[uneven]:
        assert_same(rank, {key: expected[key.split()[-1]] for key in rank})


def test_shared_embeddings_get_both_gradients_and_stay_equal():
    (_, first, weight), _, (_, last, other) = of_three()[own_seeds]
    assert torch.equal(weight[0], other[0])
    assert torch.equal(first["embedding.tokens.weight"], last["head.weight"])
    whole = model("gpt2", SIX)  # put together from the ranks' own parts
    with torch.no_grad():
        for rank in of_three()[own_seeds]:
            for name, value in rank[0].items():
                whole.get_parameter(name).copy_(value)
    for seed in (0, 1):
        whole(*data(seed)).backward()
    expected = {**gradients(whole), "head.weight": whole.head.weight.grad}
    for rank in of_three()[own_seeds]:
        assert_same(rank[1], expected)


def test_recomputation_changes_nothing():
    _, expected = alone("llama", SIX)
    for rank in of_three()[recomputed]:
        assert_same(rank, {key: expected[key.split()[-1]] for key in rank})


def test_frozen_layers_get_no_gradient_and_the_others_are_right():
    for rank in of_three()[frozen]:
        for key, gradient in rank.items():
            style, _, name = key.split()
            still = (
                "embedding",
                "blocks.0",
                "blocks.1",
                "blocks.2",
                *(["head"] if style == "gpt2" else []),
            )
            assert_same(
                {name: gradient},
                {name: None if name.startswith(still) else alone(style, SIX)[1][name]},
            )


def test_inference():
    whole = model("gpt2", SIX)
    expected = [whole(data()[0]), whole(data(1, samples=9)[0][:, :3])]
    for rank, (found, trained, held) in enumerate(of_three()[inference]):
        assert trained > 0
        assert held == 0
        for mine, its in zip(found, expected, strict=True):
            if rank < 2:
                assert mine is None
            else:
                torch.testing.assert_close(mine, its, **EXACT)


def test_only_the_ends_need_the_batch():
    loss, expected = alone("gpt2", SIX)
    for rank, (mine, found) in enumerate(of_three()[only_where_needed]):
        assert_same(found, expected)
        assert (mine is None) == (rank < 2)
    torch.testing.assert_close(mine, loss, **EXACT)


def test_any_chain_of_modules_can_be_a_pipeline():
    parts, (x, targets) = plain(), plain_data()
    parts[2](parts[1](parts[0](x)), targets).backward()
    for part, rank in zip(parts, of_three()[other_models], strict=True):
        assert_same(rank, {key: gradients(part)[key.split()[-1]] for key in rank})


@pytest.mark.parity(
    "pipeline", "six ranks as two pipelines of three stages are one model of six layers"
)
def test_six_ranks_as_two_pipelines_of_three_over_six_layers():
    """dp=2 x pp=3: stages of layers 0 and 1, 2 and 3, 4 and 5."""

    def train(group):
        pipe_group, replicas = (
            comm.split(group, 3),
            comm.across(group, 3),
        )  # 0 1 2 and 3 4 5; 0 3, 1 4 and 2 5
        schedule = make("1F1B", 3, 2)
        pipe = build(pipe_group, schedule, model("gpt2", SIX))
        tokens, targets = data(samples=8)
        mine = slice(0, 4) if group.rank() < 3 else slice(4, 8)
        pipe.step(tokens[mine], targets[mine])
        data_parallel.average_gradients(pipe.parts[0], replicas, 1 / 2)
        return sorted(pipe.parts[0].blocks), gradients(pipe.parts[0])

    whole = model("gpt2", SIX)
    whole(*data(samples=8)).backward()
    expected = {**gradients(whole), "head.weight": whole.head.weight.grad}
    ranks = run(train, world_size=6)
    assert [layers for layers, _ in ranks] == [["0", "1"], ["2", "3"], ["4", "5"]] * 2
    for _, found in ranks:
        assert_same(found, expected)


# ---- torch's own engine --------------------------------------------------------------------------

ENGINES = {
    "GPipe": "ScheduleGPipe",
    "1F1B": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "ZB-H1": "ScheduleInterleavedZeroBubble",
    "ZB-V": "ScheduleZBVZeroBubble",
    "DualPipe-V": "ScheduleDualPipeV",
}


def torchs(name, schedule, parts, group):
    """Make a function that takes a step with torch's engine."""
    from torch.distributed import pipelining

    numbers = schedule.parts[group.rank()]
    stages = [
        pipelining.PipelineStage(part, number, schedule.num_parts, torch.device("cpu"), group=group)
        for part, number in zip(parts, numbers, strict=True)
    ]
    one = stages[0] if name in ("GPipe", "1F1B") else stages
    engine = getattr(pipelining.schedules, ENGINES[name])(
        one, schedule.num_microbatches, loss_fn=transformer.loss
    )

    def step(tokens, targets):
        at_the_end = {"target": targets} if schedule.num_parts - 1 in numbers else {}
        engine.step(*([tokens] if 0 in numbers else []), **at_the_end)

    return step


def both(group):
    """Train in torch's engine and in ours; return gradients and bytes of the second batch."""
    found = {}
    for name in ENGINES:
        schedule, found[name] = make(name, 2, 4), []
        for ours in (False, True):
            parts = partition.split(model("llama", 5), schedule, group.rank())
            pipe = pipeline.Pipeline(parts, schedule, group) if ours else None
            step = pipe.step if ours else torchs(name, schedule, parts, group)
            step(*data(samples=8))
            for part in parts:
                part.zero_grad()
            with ledger.Ledger() as book:
                step(*data(samples=8))
            grads = {key: grad for part in parts for key, grad in gradients(part).items()}
            found[name].append((grads, trace.totals(book.events)["send"]["nbytes"]))
    return found


@functools.cache
def compared():
    return run(both, world_size=2)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parity("pipeline", "torch's engine gives the same gradients and sends as many bytes")
def test_torchs_engine_has_the_same_gradients_and_the_same_traffic(name):
    for (theirs, their_bytes), (ours, our_bytes) in (rank[name] for rank in compared()):
        assert_same(ours, theirs)
        assert our_bytes == their_bytes


# ---- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda g: build(g, make("1F1B", 3, 4), model("gpt2", 3)),
         "1F1B has 3 stages with 1 parts each, and here are 2 ranks with 1; "
         "make the schedule for 2 stages"),
        (lambda g: build(g, make("1F1B", 2, 4), model("gpt2", 3)).step(*data(samples=3)),
         "3 samples do not fill 4 microbatches; use a schedule of 3 or fewer"),
        (lambda g: build(g, make("1F1B", 2, 2), model("gpt2", 3)).step(),
         "stage 0 needs tokens; pass them to it, or to all"),
        (lambda g: build(g, make("1F1B", 2, 2), model("gpt2", 3)).step(data()[0]),
         "stage 1 needs targets; pass them to it, or to all"),
        (lambda g: twice(g),
         "tokens [9, 5], where [7, 5] was negotiated; call negotiate(tokens) on all stages first"),
    ],
)  # fmt: skip
def test_errors_say_what_to_do(mistake, message):
    with pytest.raises(RankError, match=re.escape(message)):
        run(mistake, world_size=2)


def twice(group):
    pipe = build(group, make("1F1B", 2, 2), model("gpt2", 3))
    pipe.step(*data())
    pipe.step(*data(samples=9))
