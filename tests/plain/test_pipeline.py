"""The plain file of pipelines: both schedules equal to one process and to the engine; what is sent, what is kept."""

import gc
import inspect
import sys
import types
import weakref
from unittest import mock

import cloudpickle
import pytest
import torch
from torch import nn

from shardlab import comm, schedules, trace
from shardlab.costs.pipeline import timeline
from shardlab.launch import RankError, run
from shardlab.plain import pipeline
from shardlab.ranks import pipeline as engine
from shardlab.ranks.data_parallel import sampler
from shardlab.ranks.observe import ledger
from shardlab.ranks.pipeline import partition
from shardlab.sharding import layout
from shardlab.sharding.deal import deal

from ..rank_types import rank_type
from . import lesson

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that no rank need import pytest

SOURCE = inspect.getsource(pipeline)
SCHEDULES = {"1F1B": "pipeline.one_forward_one_backward", "GPipe": "pipeline.gpipe"}
SAMPLES_IN_ONE = (1, 3, 7)  # of 7 samples: seven microbatches, three of 3, 3 and 1, and a single one
LAYERS = 3
MODELS = [(*case, LAYERS) for case in lesson.CASES]  # embedding and head beside them: up to 4 stages
CASES = [(name, 3, case) for name in SCHEDULES for case in MODELS]
CASES += [(name, samples, MODELS[0]) for name in SCHEDULES for samples in (1, 7)]


def own(variables, _):
    """The parameters of this rank's layers, by their names in the model, which is gone."""
    stage, group = variables["stage"], variables["group"]
    names = [f"blocks.{layer}" for layer in list(deal(LAYERS, group.size()))[group.rank()]]
    if stage.before == 0:
        names.insert(0, "embedding")
    if stage.after == 0:
        names += ["norm", "head"]
    found = {}
    for name, layer in zip(names, stage.layers, strict=True):
        found |= {f"{name}.{inner}": p for inner, p in lesson.parameters(layer).items()}
    return found


def follow(group, name, samples, source, case, read, **options):
    """The docstring's lines, with the one schedule or the other."""
    source = lesson.changed(source, "step(parts, pipeline.one_forward_one_backward)", f"step(parts, {SCHEDULES[name]})")
    return lesson.follow(group, "pipeline", source, case, read, n=samples, **options)


def train(group, name, samples, source=SOURCE, case=MODELS[0]):
    return follow(group, name, samples, source, case, own)


@pytest.fixture(scope="module", params=lesson.WORLD_SIZES)
def histories(request):
    def everything(group):
        return {case: train(group, *case[:2], case=case[2]) for case in CASES}

    return run(everything, world_size=request.param, ranks=rank_type(request.param))


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parity("pipeline", "GPipe and 1F1B of the plain file train like one process: parameters, each step")
def test_the_plain_file_equals_one_process(histories, case):
    for rank in histories:
        for ours, theirs in zip(rank[case], lesson.alone(*case[2]), strict=True):
            for name in ours:
                torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=lesson.ATOL)
    seen = set().union(*(rank[case][0] for rank in histories))
    assert seen == set(lesson.alone(*case[2])[0])


def fast(group, name, case):
    """The engine, in the same training; frozen or not, with the same names."""
    schedule = schedules.make(name, group.size(), len(lesson.batch_of(0).split(3)))
    parts = partition.split(lesson.build(*case, seed=0), schedule, group.rank())
    pipe, history = engine.Pipeline(parts, schedule, group), []
    optimizer = lesson.adamw(pipe.parameters())
    for step in range(lesson.STEPS):
        batch = lesson.batch_of(step)
        optimizer.zero_grad()
        pipe.step(batch[:, :-1], batch[:, 1:])
        optimizer.step()
        history.append(lesson.parameters(parts[0]))
    return history


@pytest.mark.parity("pipeline", "the plain file and the engine train alike")
def test_the_plain_file_equals_the_engine():
    """Each stage may have other layers; all stages together have all."""
    cases = [(name, case) for name in SCHEDULES for case in MODELS[::2]]
    both = run(lambda group: [(train(group, n, 3, case=c), fast(group, n, c)) for n, c in cases], world_size=2)
    for ranks in zip(*both, strict=True):
        for plain, engines in zip(*(zip(*each, strict=True) for each in zip(*ranks, strict=True)), strict=True):
            ours, theirs = ({k: x for part in parts for k, x in part.items()} for parts in (plain, engines))
            for name in theirs:
                torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=lesson.ATOL)


# ---- predicted, counted ----------------------------------------------------------------------------------------------


def watched(group, name, samples, style, source=SOURCE):
    """Bytes sent in every step, and the most microbatches that were kept at a time."""
    most = []

    def read(variables, book):
        return trace.totals(book.events).get("send", {"nbytes": 0})["nbytes"]

    source = lesson.changed(source, "self.kept.append((x, y))", "self.kept.append((x, y)); note(len(self.kept))")
    source = lesson.changed(source, "class Stage:", "note = None\n\n\nclass Stage:")
    source = lesson.changed(source, "stage = pipeline.Stage", "pipeline.note = note\n    stage = pipeline.Stage")
    sent = follow(group, name, samples, source, (style, False), read, around=ledger.Ledger, note=most.append)
    return sent, max(most)


def everything(group):
    cases = [(name, samples, style) for name in SCHEDULES for samples in SAMPLES_IN_ONE for style in lesson.SPECS]
    return {case: watched(group, *case) for case in cases}


@pytest.fixture(scope="module", params=[2, 3])
def counted(request):
    return run(everything, world_size=request.param, ranks=rank_type(request.param))


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("samples", SAMPLES_IN_ONE)
@pytest.mark.parametrize("style", lesson.SPECS)
@pytest.mark.counted("pipeline", "bytes that each stage of the plain file sends, and microbatches that it keeps")
def test_a_step_sends_and_keeps_what_the_formulas_say(counted, name, samples, style):
    sizes = [len(part) for part in lesson.batch_of(0).split(samples)]
    schedule, width = schedules.make(name, len(counted), len(sizes)), lesson.SIZES["hidden_size"]
    predicted = timeline.sent_bytes(schedule, [size * lesson.LENGTH * width * 8 for size in sizes])
    for stage in (0, -1):
        predicted[stage] += lesson.SPECS[style].tied * lesson.VOCABULARY * width * 8
    assert [rank[name, samples, style][0] for rank in counted] == [[each] * lesson.STEPS for each in predicted]
    assert [rank[name, samples, style][1] for rank in counted] == timeline.play(schedule).peaks()


# ---- what a rank holds -----------------------------------------------------------------------------------------------


def numbers_alive(group, source=SOURCE):
    """Run the docstring's lines; count numbers in parameters: those of the model alive, and those of the stage."""
    born, build = [], lesson.build

    def noted(*case, **options):
        model = build(*case, **options)
        born.extend(map(weakref.ref, model.parameters()))
        return model

    def read(variables, _):
        gc.collect()
        alive = [parameter for each in born if (parameter := each()) is not None]
        own = list(variables["stage"].layers.parameters())
        return sum(p.numel() for p in alive), sum(p.numel() for p in own)

    with mock.patch.object(lesson, "build", noted):
        return follow(group, "1F1B", 3, source, MODELS[0], read)


def test_only_the_own_layers_stay_alive():
    whole = sum(p.numel() for p in lesson.build(*MODELS[0], seed=0).parameters())
    for rank in run(numbers_alive, world_size=3):
        for alive, own in rank:
            assert alive == own < whole


def test_a_stage_that_keeps_the_model_is_noticed():
    keeps = lesson.changed(SOURCE, "self.loss = model.loss", "self.loss = model.loss; self.model = model")
    for rank in run(numbers_alive, keeps, world_size=3):
        assert all(alive > own for alive, own in rank)


WIDE, LONG, MEGABYTES = 1024, 256, 4  # of a message of 4 samples: far more than any backend buffers


class Wide(nn.Module):
    """What a stage needs of a model, with large messages and little to compute."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.spec = types.SimpleNamespace(tied=False, hidden_size=WIDE)
        self.embedding = nn.Embedding(8, WIDE)
        self.blocks = nn.ModuleList(nn.LayerNorm(WIDE) for _ in range(4))
        self.norm, self.head = nn.Identity(), nn.Linear(WIDE, 2)

    def loss(self, logits, targets):
        return (logits.sum(2) * targets).mean()


class Message:
    """What waits for a message; as long as it is alive, so is the tensor that is sent."""

    def __init__(self, wait, waiting):
        self.wait, self.waiting = wait, waiting
        waiting.append(id(self))

    def __call__(self):
        self.wait()
        self.waiting.remove(id(self))


def watch_messages(group, name, num_microbatches, source=SOURCE):
    """The most tensors alive, kept and sent; messages of a step that nobody waited for; and a gradient.

    Of a step with messages of several megabytes.
    """
    module = lesson.load("pipeline", source)
    alive, waiting, most = weakref.WeakSet(), [], [0]

    def start(sends, receives, group):
        waits = comm.start_messages(sends, receives, group)
        if sends:
            assert sends[0][0].nbytes == MEGABYTES * 2**20
            waits = [Message(wait, waiting) for wait in waits]
            alive.update(waits)
        most[0] = max(most[0], len(alive) + len(stage.kept))
        return waits

    module.comm = types.SimpleNamespace(start_messages=start, split=comm.split)
    stage = module.Stage(Wide(), group)
    tokens = (torch.arange(num_microbatches * 4 * LONG) % 7).view(num_microbatches, 4, LONG)
    schedule = {"1F1B": module.one_forward_one_backward, "GPipe": module.gpipe}[name]
    stage.step([(each, each) for each in tokens], schedule)
    return most[0], len(waiting), next(stage.layers.parameters()).grad


def of_many_and_few(group):
    return {(name, m): watch_messages(group, name, m) for name in SCHEDULES for m in (4, 12)}


@pytest.mark.parametrize("stages", lesson.WORLD_SIZES)
def test_large_messages_arrive_and_1f1b_holds_no_more_of_them_for_more_microbatches(stages):
    found = run(of_many_and_few, world_size=stages)
    for rank, each in enumerate(found):
        after = stages - 1 - rank
        assert each["1F1B", 12][0] == each["1F1B", 4][0] <= 1 + after + 2  # at most one in flight each way
        assert each["GPipe", 12][0] == each["GPipe", 4][0] + 8 * (stages > 1)
        assert all(left == 0 for _, left, _ in each.values())
    gradients = [found[0][name, 12][2] for name in SCHEDULES]
    model, tokens = Wide(), (torch.arange(48 * LONG) % 7).view(48, LONG)
    x = model.embedding(tokens)
    for block in model.blocks:
        x = block(x)
    model.loss(model.head(x), tokens).backward()
    for gradient in gradients:
        torch.testing.assert_close(gradient, model.embedding.weight.grad, rtol=1e-3, atol=1e-6)


HOLDING = {  # what went wrong: (what stands there, what stands there then)
    "messages are held until the end": (
        "        self.finish()\n        x = x.contiguous()\n",
        "        self.held = [*getattr(self, 'held', []), self.in_flight]\n        x = x.contiguous()\n",
    ),
    "nobody waits for the last outputs": ("        self.outputs.finish()\n", ""),
}


@pytest.mark.parametrize("what", HOLDING)
def test_a_version_that_holds_more_or_does_not_wait_is_noticed(what):
    source = lesson.changed(SOURCE, *HOLDING[what])
    found = run(lambda group: [watch_messages(group, "1F1B", m, source)[:2] for m in (4, 12)], world_size=2)
    assert any(few[0] < many[0] or many[1] for few, many in found)


# ---- wrong versions --------------------------------------------------------------------------------------------------

WRONG = {  # what went wrong: (what stands there, what stands there then, what the launcher reports)
    "what arrives needs no gradient": ("x.requires_grad_()", "pass", "NoneType"),
    "backward starts without the gradient": ("y.backward(gradient)", "y.sum().backward()", None),
    "the loss is a sum over microbatches": ("y = share * self.loss", "y = self.loss", None),
    "microbatches count alike": ("sum(len(inputs) for inputs, _ in microbatches)", "3 * len(microbatches)", None),
    "the newest goes back first": ("self.kept.pop(0)", "self.kept.pop()", "the ranks disagree about message"),
    "the gradient goes the wrong way": (
        "Channel(back, source=rank + 1, to=rank - 1)",
        "Channel(back, source=rank + 1, to=(rank + 1) % 3)",
        "Deadlock",
    ),
    "a send waits until it is received": ("self.in_flight = (x, wait)", "wait()", "Deadlock"),
    "a tied weight's ends are not added": ("if self.tied is not None and", "if False and", None),
    "gradients add up over steps": ("self.layers.zero_grad()", "pass", None),
    "there is no cool-down": (
        "    # Cool-down: backwards only.\n    while stage.kept:\n",
        "    # Cool-down: backwards only.\n    while False:\n",
        "Deadlock",
    ),
    "there is no warm-up": ("microbatches[:warm_up]", "microbatches[:0]", "the ranks disagree about message"),
    "the steady state has backwards only": (
        "        stage.forward(inputs, targets, len(inputs) / samples)\n        stage.backward()\n",
        "        stage.backward()\n",
        "pop from empty list",
    ),
}


def right(group, source):
    history = train(group, "1F1B", 3, source)
    return all(map(lesson.equal, history, lesson.alone(*MODELS[0])))


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_version_is_noticed(what):
    old, new, report = WRONG[what]
    found = lesson.verdict(right, lesson.changed(SOURCE, old, new))
    assert lesson.noticed(found, report), found


@pytest.mark.parametrize(
    ("warm_up", "peaks"),
    [("max(0, stage.after - 1)", [2, 1, 1]), ("stage.after", [3, 2, 1]), ("stage.after + 1", [4, 3, 2])],
)
def test_another_warm_up_is_as_right_and_keeps_more_or_less(warm_up, peaks):
    """Fewer forwards ahead keep less, and wait more: each stage for the gradient of what it has just sent."""

    def call(group):
        source = lesson.changed(SOURCE, "warm_up = stage.after", f"warm_up = {warm_up}")
        return right(group, source), watched(group, "1F1B", 1, "gpt2", source)[1]

    assert run(call, world_size=3) == [(True, peak) for peak in peaks]


@pytest.mark.parametrize("stages", [2, 3])
def test_every_door_deals_layers_and_samples_alike(stages):
    """The first stages, and the first ranks, have one more: in the plain file, the engine, torch and the package."""

    def layers(group):
        models = [lesson.build("gpt2", False, count, seed=0) for count in (5, 7, 8)]
        held = [list(pipeline.Stage(model, group).layers) for model in models]
        return [[block in mine for block in model.blocks] for model, mine in zip(models, held, strict=True)]

    found = run(layers, world_size=stages)
    for place, count in enumerate((5, 7, 8)):
        dealt = list(deal(count, stages))
        assert [[layer for layer, here in enumerate(rank[place]) if here] for rank in found] == list(map(list, dealt))
        assert layout.stages(count, stages) == dealt
        assert [sampler.shard(count, rank, stages) for rank in range(stages)] == dealt
        assert [part.tolist() for part in torch.arange(count).tensor_split(stages)] == list(map(list, dealt))


def test_more_stages_than_layers_are_refused():
    with pytest.raises(RankError, match="5 stages for 2 blocks; use fewer"):
        run(lambda group: pipeline.Stage(lesson.build("gpt2", False, seed=0), group), world_size=5)
