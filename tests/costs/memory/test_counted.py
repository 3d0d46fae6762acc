"""Predicted equals counted, to the byte: what the reference model and torch's optimizers really keep."""

from collections import Counter
from dataclasses import replace
from itertools import combinations

import pytest
import torch
from torch.distributed._tools import mem_tracker
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from shardlab import launch
from shardlab.costs import memory
from shardlab.costs.facts import models, recipes
from shardlab.costs.memory import activations
from shardlab.costs.memory import timeline as memory_timeline
from shardlab.costs.programs import BOOK_ON_CPU
from shardlab.costs.training import Training
from shardlab.model.experts import Experts
from shardlab.model.spec import TransformerSpec
from shardlab.ranks import expert_parallel, tensor_parallel, train, transformer
from shardlab.ranks.memory import recompute
from shardlab.ranks.mesh import Mesh
from shardlab.ranks.observe.saved_tensors import SavedTensors, without_memory
from shardlab.schedules import make
from shardlab.sharding.layout import ZERO_STAGES, Layout

SIZES = {"vocab_size": 41, "context_length": 24, "hidden_size": 24, "num_layers": 3, "num_heads": 6}
SPECS = {
    "gpt2": TransformerSpec(**SIZES),
    "gpt2, grouped keys": TransformerSpec(**{**SIZES, "num_kv_heads": 2, "ffn_size": 50, "tied_head": False}),
    "llama": TransformerSpec(**SIZES, style="llama"),
    "llama, grouped keys": TransformerSpec(**SIZES, style="llama", num_kv_heads=3, ffn_size=44, tied_head=True),
    "llama, one key": TransformerSpec(**{**SIZES, "num_layers": 1}, style="llama", num_kv_heads=1, ffn_size=7),
}
EXPERTS = Experts(num_experts=5, per_token=2, expert_size=7)
MIXTURES = {
    "llama, experts": replace(SPECS["llama"], experts=EXPERTS),
    "llama, a shared expert": replace(SPECS["llama"], experts=replace(EXPERTS, num_shared=2, choose="sigmoid")),
    "gpt2, experts balanced by a bias": replace(
        SPECS["gpt2"], experts=replace(EXPERTS, choose="softmax before", balance="bias")
    ),
}
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "stored": SDPBackend.MATH}


def reference(spec, microbatch, sequence, **options):
    """The step of the reference model in float32, and its prediction."""
    model = transformer.Transformer(spec)
    tokens, targets = torch.randint(spec.vocab_size, (2, microbatch, sequence))
    training = Training(
        spec=spec,
        microbatch=microbatch,
        sequence=sequence,
        recipe=recipes.recipe("fp32 Adam"),
        program=BOOK_ON_CPU,
        **options,
    )
    return model, tokens.clone(), targets.clone(), training


def recomputing(model):
    """Every block keeps its input only."""
    for block in model.blocks:
        block.forward = lambda x, forward=block.forward: checkpoint(forward, x, use_reentrant=False)
    return model


def predicted(training):
    held = memory.kept(training)
    return held["activations"] + held["logits"]


EVERY = {**SPECS, **MIXTURES}


@pytest.mark.parametrize("spec", EVERY.values(), ids=EVERY)
@pytest.mark.parametrize(
    ("recomputation", "microbatch", "sequence"), [("none", 1, 24), ("none", 3, 10), ("full", 3, 10)]
)
@pytest.mark.parametrize("attention", BACKENDS)
@pytest.mark.counted("memory", "bytes that a forward pass keeps for backward")
def test_saved_activations(spec, microbatch, sequence, attention, recomputation):
    options = {"attention": attention, "recomputation": recomputation}
    model, tokens, targets, training = reference(spec, microbatch, sequence, **options)
    if recomputation == "full":
        recomputing(model)
    with SavedTensors(without=model.parameters()) as saved, sdpa_kernel(BACKENDS[attention]):
        loss = model(tokens, targets)
    assert saved.nbytes == predicted(training)
    assert loss.requires_grad


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("some", [1, 2, 3])
@pytest.mark.counted("memory", "bytes that a forward pass keeps where some layers are recomputed")
def test_saved_activations_where_some_layers_are_recomputed(spec, some):
    spec = replace(spec, num_layers=3)
    options = {"attention": "stored", "recomputation": "full"}
    model, tokens, targets, training = reference(spec, 3, 10, recomputed_layers=some, **options)
    recompute.wrap(model.blocks[:some])
    with SavedTensors(without=model.parameters()) as saved, sdpa_kernel(BACKENDS["stored"]):
        loss = model(tokens, targets)
    assert saved.nbytes == pytest.approx(predicted(training), rel=1e-12)
    assert loss.requires_grad


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("attention", BACKENDS)
@pytest.mark.counted("memory", "bytes that norms, attention and feed-forward keep, each alone")
def test_saved_activations_part_by_part(spec, attention):
    """Norms, attention and feed-forward block alone; what they keep of their input too, for it is another's output."""
    model, _, _, training = reference(spec, 2, 20, attention=attention)
    block, x = model.blocks[0], torch.randn(2, 20, spec.hidden_size, requires_grad=True)
    counted = {}
    for part in ("attention_norm", "attention", "mlp"):
        with SavedTensors(without=model.parameters()) as saved, sdpa_kernel(BACKENDS[attention]):
            _ = getattr(block, part)(x)
            counted[part] = saved.nbytes
    whole = activations.whole_layer(training)
    sums = Counter()
    for name, nbytes in whole.items():
        sums[name.partition(":")[0]] += nbytes
    assert sums == {
        "norms": 2 * counted["attention_norm"],
        "attention": counted["attention"],
        "feed-forward": counted["mlp"],
        "dropout masks": 0,
    }
    assert (whole["attention: scores"] > 0) == (attention == "stored")


@pytest.mark.parametrize("name", ["GPT-2 small", "Llama 3 8B"])
@pytest.mark.counted("memory", "bytes that GPT-2 small and Llama 3 8B keep at full size")
def test_a_published_model_at_its_full_size(name):
    spec = models.published(name).spec
    with without_memory():
        model, tokens, targets, training = reference(spec, 1, min(spec.context_length, 8192))
        with SavedTensors(without=model.parameters()) as saved:
            loss = model(tokens, targets)
            assert saved.nbytes == predicted(training)
            loss.backward()
        assert saved.nbytes == 0
    assert saved.peak == predicted(training)


def states_of(parameters, optimizer):
    tensors = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    return {
        "parameters": sum(p.nbytes for p in parameters),
        "gradients": sum(p.grad.nbytes for p in parameters),
        "optimizer": sum(t.nbytes for t in tensors if t.dim()),  # Adam's count of steps, 4 bytes a tensor, is none
    }


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize(
    ("recipe", "make"),
    [
        ("fp32 Adam", torch.optim.Adam),
        ("fp32 SGD", lambda parameters: torch.optim.SGD(parameters, lr=0.1)),
        ("fp32 SGD with momentum", lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)),
    ],
)
@pytest.mark.counted("memory", "bytes of parameters, gradients and optimizer states")
def test_parameters_gradients_and_optimizer_states(spec, recipe, make):
    model, tokens, targets, _ = reference(spec, 1, 8)
    optimizer = make(model.parameters())
    model(tokens, targets).backward()
    optimizer.step()
    predicted = memory.states(Training(spec=spec, recipe=recipes.recipe(recipe)))
    assert states_of(list(model.parameters()), optimizer) == predicted


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("recomputation", ["none", "full"])
@pytest.mark.counted("memory", "bytes held before and after each layer, forward and backward")
def test_the_tide_of_a_step(spec, recomputation):
    """Saved bytes before and after each layer, in forward and in backward, and the gradients there at those times."""
    model, tokens, targets, training = reference(spec, 2, 20, recomputation=recomputation)
    seen = []

    def note(*_):
        gradients = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
        seen.append((saved.nbytes, gradients))

    modules = [model.embedding, *model.blocks]
    if recomputation == "full":
        recomputing(model)
    with SavedTensors(without=model.parameters()) as saved:
        for module in modules:
            module.register_forward_hook(lambda _module, _inputs, output: (note(), output.register_hook(note))[0])
        loss = model(tokens, targets)
        note()
        loss.backward()
        note()
    held = [m for m in memory_timeline.through_step(training) if m.doing.startswith(("forward", "backward"))]
    ahead, back = held[: len(modules) + 1], held[len(modules) + 1 :][1::2]  # of backward: when a piece is done
    kept = [moment.held["activations"] + moment.held["logits"] for moment in ahead + back]
    assert [nbytes for nbytes, _ in seen] == kept
    waiting = spec.tied * model.head.weight.nbytes  # the head's share of a gradient to which the embedding adds its own
    shares = [0] * len(ahead) + [waiting] * len(modules) + [0]
    gradients = [moment.held["gradients"] for moment in ahead + back]
    assert [left + share for (_, left), share in zip(seen, shares, strict=True)] == gradients


@pytest.mark.parametrize("recomputation", ["none", "full"])
def test_the_peak_of_a_step_is_the_one_that_torch_counts(recomputation):
    """Its tracker sees every storage. Not in the prediction: what one layer's backward holds for a moment."""
    spec = TransformerSpec(**{**SIZES, "vocab_size": 5000, "context_length": 128, "hidden_size": 60})
    with without_memory():
        model, tokens, targets, training = reference(spec, 4, 128, recomputation=recomputation)
        if recomputation == "full":
            recomputing(model)
        optimizer = torch.optim.Adam(model.parameters(), foreach=False)
        tracker = mem_tracker.MemTracker()
        tracker.track_external(model, optimizer, tokens, targets)
        with tracker:
            for _ in range(2):  # the first step makes the optimizer's states
                tracker.reset_mod_stats()
                model(tokens, targets).backward()
                optimizer.step()
                optimizer.zero_grad()
        (counted,) = tracker.get_tracker_snapshot("peak").values()
    top = memory_timeline.peak(memory_timeline.through_step(training))
    sizes = {str(kind).rpartition(".")[2]: nbytes for kind, nbytes in counted.items()}
    assert sizes["TEMP"] == top.held["buffers"]
    assert sizes["GRAD"] == top.held["gradients"] == 0
    assert sizes["Total"] == pytest.approx(sum(top.held.values()), rel=3e-4)


# ---- on ranks of tensor parallelism --------------------------------------------------------------------------------

WAYS = {  # sequence_parallel, and of the input of a cut matrix each rank keeps a slice
    "tp": {"sequence_parallel": False},
    "tp and sp": {"sequence_parallel": True, "regather": True},
}
CUT = [(name, way) for name in ("gpt2", "llama", "llama, one key") for way in WAYS]


def saved_by_layers(group):
    """Bytes that all layers keep on a rank, for each of CUT."""
    counts = []
    for name, way in CUT:
        spec = cut_spec(name)
        torch.manual_seed(0)
        model = tensor_parallel.parallelize(transformer.Transformer(spec), group, **WAYS[way])
        length = 12 // (group.size() if way == "tp and sp" else 1)
        x = torch.randn(2, length, spec.hidden_size, requires_grad=True)
        with SavedTensors(without=model.parameters()) as saved:
            for block in model.blocks:
                x = block(x)
            counts.append(saved.nbytes)
    return counts


def cut_spec(name):
    """With a feed-forward block that splits over 2 and over 3 ranks."""
    return replace(SPECS[name], ffn_size=36)


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request):
    return request.param, launch.run(saved_by_layers, world_size=request.param, ranks="threads")


@pytest.mark.counted("tensor_parallel", "bytes that all layers keep on each rank")
def test_saved_activations_of_tensor_parallel_ranks(ranks):
    tp, counted = ranks
    for i, (name, way) in enumerate(CUT):
        spec, layout = cut_spec(name), Layout(tp=tp, sequence_parallel=way == "tp and sp")
        training = Training(
            spec=spec, layout=layout, microbatch=2, sequence=12, recipe=recipes.recipe("fp32 Adam"),
            program=replace(BOOK_ON_CPU, keeps_gathered=False),
        )  # fmt: skip
        predicted = spec.num_layers * sum(activations.layer(training).values())
        assert [counts[i] for counts in counted] == [predicted] * tp, (name, way)


# ---- on ranks that hold different experts --------------------------------------------------------------------------

SLICED = {"sequence_parallel": True}
WHOLE = {**SLICED, "whole_experts": True}
DEALT = [  # on four ranks
    Layout(dp=4),
    Layout(dp=4, ep=2),
    Layout(dp=4, ep=4),
    Layout(dp=2, ep=2, tp=2),
    Layout(dp=2, ep=2, tp=2, **SLICED),
    Layout(dp=2, ep=2, tp=2, **WHOLE),
    Layout(dp=2, tp=2, **WHOLE),
    Layout(tp=4, **SLICED),
    Layout(tp=4, **WHOLE),
]
FOUR = Experts(num_experts=4, per_token=2, expert_size=8)
SOME = {"routed only": FOUR, "a shared expert": replace(FOUR, num_shared=1, choose="sigmoid")}
EVENLY = list(combinations(range(4), 2))  # of as many tokens, each pair of experts is chosen by one


def mixture_training(rules, layout):
    sizes = {**SIZES, "vocab_size": 40, "hidden_size": 32, "num_heads": 8, "num_layers": 2}
    spec = TransformerSpec(**sizes, style="llama", experts=SOME[rules])
    recipe = recipes.recipe("fp32 Adam")
    return Training(
        spec=spec, layout=layout, microbatch=2, sequence=12, recipe=recipe, program=BOOK_ON_CPU
    )


def choose_evenly(_router, _inputs, scores):
    """Every pair of experts gets as many of these tokens as any other."""
    pairs = torch.tensor([EVENLY[i % len(EVENLY)] for i in range(scores.shape[0] * scores.shape[1])])
    return scores + torch.zeros(len(pairs), 4).scatter(1, pairs, 1000.0).view_as(scores)


def saved_by_mixtures(group):
    """By rules and layout, the bytes that all layers keep on this rank, with equally many tokens for all experts."""
    return {(rules, layout): saved_by_mixture(group, rules, layout) for rules in SOME for layout in DEALT}


def saved_by_mixture(group, rules, layout):
    torch.manual_seed(0)
    model, mesh = transformer.Transformer(mixture_training(rules, layout).spec), Mesh(layout, group)
    options = {"sequence_parallel": layout.sequence_parallel, "whole_experts": layout.whole_experts}
    tensor_parallel.parallelize(model, mesh.tp, **options)
    expert_parallel.parallelize(model, mesh.ep, mesh.dp, slices=layout.expert_ranks // layout.ep)
    for block in model.blocks:
        block.mlp.router.register_forward_hook(choose_evenly)
    length = 12 // (layout.tp if layout.sequence_parallel else 1)
    x = torch.randn(2, length, model.spec.hidden_size, requires_grad=True)
    with SavedTensors(without=model.parameters()) as saved:
        for block in model.blocks:
            x = block(x)
    return saved.nbytes


@pytest.mark.counted("expert_parallel", "bytes that all layers keep on ranks with different experts, cut or whole")
def test_saved_activations_of_expert_parallel_ranks():
    ranks = launch.run(saved_by_mixtures, world_size=4, ranks="threads")
    for case in ranks[0]:
        training = mixture_training(*case)
        predicted = training.spec.num_layers * sum(activations.layer(training).values())
        assert [counted[case] for counted in ranks] == [predicted] * 4, case


HELD = [  # slices of sequences are no states
    replace(layout, zero=zero)
    for layout in DEALT
    for zero in (ZERO_STAGES if layout.dp > 1 else [0])
    if layout.whole_experts or not layout.sequence_parallel
]
HELD += [Layout(pp=2, tp=2, **WHOLE), Layout(pp=2, dp=2, ep=2)]


def held_with_experts(group):
    """By layout, the stage of this rank and the bytes of its states before the second step of the optimizer."""
    return {layout: held_by_a_trainer(group, layout) for layout in HELD}


def held_by_a_trainer(group, layout):
    torch.manual_seed(0)
    model, mesh = transformer.Transformer(mixture_training("a shared expert", layout).spec), Mesh(layout, group)
    trainer = train.Trainer(model, mesh, make("1F1B", layout.pp, 1), torch.optim.Adam)
    tokens = torch.randint(40, (1, 12))
    trainer.step(tokens, tokens)
    trainer.backward(tokens, tokens)
    held = Counter()
    for state in trainer.states:
        held.update(state.nbytes())
    return mesh.place["pp"], dict(held)


@pytest.mark.counted("expert_parallel", "bytes of states on ranks with different experts, cut or whole, by ZeRO stage")
def test_states_of_expert_parallel_ranks():
    """Every buffer is a multiple of its replicas, so that ZeRO pads none."""
    ranks = launch.run(held_with_experts, world_size=4, ranks="threads")
    for layout in HELD:
        training = mixture_training("a shared expert", layout)
        for stage, held in (counted[layout] for counted in ranks):
            assert held == memory.states(training, stage), layout
