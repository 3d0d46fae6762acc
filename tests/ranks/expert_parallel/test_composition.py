"""Every layout with expert parallelism trains the model of one process, and any of them goes on from a checkpoint."""

import itertools
import sys
from dataclasses import replace

import cloudpickle
import pytest
import torch

from shardlab.launch import run
from shardlab.ranks import context_parallel, expert_parallel, tensor_parallel, train
from shardlab.ranks.checkpoint import weights
from shardlab.ranks.mesh import Mesh
from shardlab.ranks.mixture import mixtures
from shardlab.ranks.pipeline import stage
from shardlab.schedules import make
from shardlab.sharding.layout import ZERO_STAGES, Layout, divisors
from tests.rank_types import rank_type

from . import training
from .training import MAX_NORM, MICROBATCHES, RULES, STYLES

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that no rank need import pytest

SIZES = (1, 2, 4, 8)
WHOLE = {"sequence_parallel": True, "whole_experts": True}
WAYS = {}, {"sequence_parallel": True}, WHOLE
SCHEDULES = ("GPipe", "1F1B", "ZB-H1", "interleaved")


def layouts(size):
    """List layouts of a size whose ranks deal experts, alone and beside tp, pp and cp, with slices or without.

    One rank has none to deal with. Every stage of ZeRO is tried with ep=2 on 2 and 4 ranks of dp; else they take turns.
    Of 8 ranks those that 4 cannot have: three axes, 4 stages, 4 parts of a sequence, or copies of experts beside
    another axis.
    """
    turns = itertools.cycle(ZERO_STAGES)
    for tp, pp, cp in itertools.product(divisors(size), repeat=3):
        dp = size // (tp * pp * cp)
        if dp * tp * pp * cp != size or tp > training.SIZES["num_heads"]:
            continue
        for ep in divisors(dp):
            for way in WAYS[: 1 + 2 * (tp > 1)]:
                layout = Layout(dp=dp, ep=ep, tp=tp, pp=pp, cp=cp, **way)
                if layout.expert_ranks == 1 and size > 1:
                    continue
                axes = sum(degree > 1 for degree in (tp, pp, cp, dp))
                if size == 8 and axes < 3 and max(pp, cp) < 4 and not (axes == 2 and 1 < ep < dp):
                    continue
                every = layout.ep == 2 and layout.dp == size < 8
                for zero in ZERO_STAGES if every else [next(turns) if layout.replicas > 1 else 0]:
                    yield replace(layout, zero=zero)


def cases(size):
    """List (layout, schedule, nodes, style, rules, layers, samples), most of which take turns."""
    found = []
    for index, layout in enumerate(layouts(size)):
        rules = list(RULES)[index % len(RULES)]
        style = list(STYLES)[index // 2 % 2]
        schedule = SCHEDULES[index % len(SCHEDULES)]
        if schedule == "interleaved" and (layout.zero and style == "gpt2"):
            schedule = "1F1B"
        nodes = divisors(layout.expert_ranks)[index % len(divisors(layout.expert_ranks))]
        layers = make(schedule, layout.pp, MICROBATCHES).num_parts + (layout.pp > 1)
        found.append((layout, schedule, nodes, style, rules, layers, MICROBATCHES * layout.dp + 1))
    if size >= 4:  # slots of whole experts for slices of slices
        layout = Layout(dp=size // 4, ep=size // 4, tp=2, cp=2, zero=1, **WHOLE)
        found.append((layout, "1F1B", 1, "llama", "capacity", 2, MICROBATCHES * layout.dp + 1))
    return found


def make_trainer(group, case, known=None):
    layout, schedule, nodes, style, rules, layers, _ = case
    return train.Trainer(
        training.plain(style, rules, layers),
        Mesh(layout, group, known=known),
        make(schedule, layout.pp, MICROBATCHES),
        training.adamw,
        max_norm=MAX_NORM,
        nodes=nodes,
    )


def step_of(trainer, step, samples):
    place = trainer.mesh.dp
    loss = trainer.backward(*training.batch(place.rank(), place.size(), step, samples))
    return loss.item(), trainer.update().item()


def state(trainer):
    """Parameters, whole, and the biases of this stage."""
    return trainer.gather() | {name: x for name, x in trainer.pipeline.parts.named_buffers() if name.endswith(".bias")}


def errors(trainer, case, one_process):
    """Return the largest errors of losses, norms, weights and biases."""
    history, whole = one_process
    apart = [0.0]
    for step, both in enumerate(history):
        apart += [abs(ours - theirs) for ours, theirs in zip(step_of(trainer, step, case[-1]), both, strict=True)]
    for name, ours in state(trainer).items():
        plain = name.partition(".")[2] if name not in whole else name  # a buffer of a part has its number before it
        apart.append((ours - whole[plain]).abs().max().item())
    return max(apart)


def reference(case):
    layout, _, _, style, rules, layers, samples = case
    steps = 1 if layout.ranks == 8 else training.STEPS
    return training.alone(style, rules, layers, samples, layout.dp, steps=steps)


def together(group, references):
    known = {}
    found = []
    for case, one_process in zip(cases(group.size()), references, strict=True):
        found.append(errors(make_trainer(group, case, known), case, one_process))
    return found


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parity(
    "expert_parallel", "layouts of 1, 2, 4 and 8 ranks that deal experts, with every other axis, train like one process"
)
def test_every_layout_trains_the_model_of_one_process(size):
    """Losses, norms, weights and biases agree after two steps, on 8 ranks one, with accumulation and clipping."""
    references = [reference(case) for case in cases(size)]
    for rank in run(together, references, world_size=size, ranks=rank_type(size, on_gloo=4)):
        for case, apart in zip(cases(size), rank, strict=True):
            torch.testing.assert_close(apart, 0.0, rtol=0, atol=1e-12, msg=f"{case}: {apart}")


# ---- checkpoints -----------------------------------------------------------------------------------------------------

SAVED = [
    (Layout(dp=4, ep=2, zero=2), "1F1B", 1, "llama", "bias", 2, 9),
    (Layout(dp=2, ep=2, tp=2, zero=1, **WHOLE), "GPipe", 1, "llama", "bias", 2, 9),
]
LOADED = [
    (Layout(dp=4, ep=4, zero=1), "1F1B", 2),
    (Layout(dp=4), "GPipe", 1),
    (Layout(dp=2, ep=2, tp=2, zero=3), "GPipe", 1),
    (Layout(dp=2, pp=2), "1F1B", 1),
    (Layout(tp=4, **WHOLE), "GPipe", 1),
    (Layout(tp=2, cp=2, zero=2, **WHOLE), "GPipe", 1),
]


def save_and_go_on(group, case, loaded, folder):
    """Save after a step, take another, and take the same from the checkpoint in other layouts."""
    known = {}
    trainer = make_trainer(group, case, known)
    step_of(trainer, 0, 9)
    path = trainer.save(folder, 1)
    step_of(trainer, 1, 9)
    expected, found = trainer.gather(), []
    for layout, schedule, nodes in loaded:
        other = make_trainer(group, (layout, schedule, nodes, *case[3:]), known)
        other.load(path)
        step_of(other, 1, 9)
        found.append(max((x - expected[name]).abs().max().item() for name, x in other.gather().items()))
    return path, found


@pytest.mark.parametrize(("case", "loaded"), list(zip(SAVED, (LOADED[::2], LOADED[1::2]), strict=True)))
def test_a_checkpoint_is_loaded_by_any_layout(case, loaded, tmp_path):
    """Experts by their numbers, with their moments; biases, too: with other ones the same tokens go elsewhere."""
    ranks = run(save_and_go_on, case, loaded, tmp_path, world_size=4, ranks="threads")
    for _, found in ranks:
        assert max(found) <= 1e-12, found
    plain = training.plain("llama", "bias", 2)
    assert not plain.load_state_dict(weights(ranks[0][0])).missing_keys
    assert all(mixture.bias.any() for mixture in mixtures(plain))


# ---- mistakes --------------------------------------------------------------------------------------------------------

MISTAKEN = {
    "experts are averaged over all replicas": (Layout(dp=4, ep=2), "GPipe", 1, "llama", "shared", 1, 9),
    "experts' gradients are not divided": (Layout(dp=4, ep=4), "GPipe", 1, "llama", "shared", 1, 9),
    "every rank balances its own load": (Layout(dp=4, ep=2), "GPipe", 1, "llama", "balance loss", 1, 9),
    "earlier stages forget the balance loss": (Layout(dp=2, pp=2), "1F1B", 1, "llama", "balance loss", 3, 5),
    "weights keep the gradients of a part": (Layout(dp=2, ep=2, tp=2), "GPipe", 1, "llama", "shared", 1, 5),
    "biases never move": (Layout(dp=4, ep=2), "GPipe", 1, "llama", "bias", 1, 9),
    "whole experts take slices for samples": (Layout(tp=2, dp=2, ep=2, **WHOLE), "GPipe", 1, "llama", "shared", 1, 5),
    "shared experts see a slice only": (Layout(tp=2, dp=2, ep=2, **WHOLE), "GPipe", 1, "llama", "shared", 1, 5),
    "ranks of cp take slots by themselves": (Layout(cp=2, dp=2, ep=2), "GPipe", 1, "llama", "capacity", 1, 5),
    "only one node computes": (Layout(dp=4, ep=4), "GPipe", 2, "llama", "shared", 1, 9),
}


def make_mistake(mistake, patch):
    """Put a mistake into the code."""
    engine = expert_parallel.engine
    if "all replicas" in mistake:
        patch.setattr(train, "EXPERTS", "no such name")
    elif "not divided" in mistake:
        patch.setattr(torch.nn.Parameter, "register_hook", lambda *_: None)
    elif "own load" in mistake:
        keep = engine.keep
        patch.setattr(engine, "keep", lambda mixture, *ranks: keep(mixture, *ranks) or setattr(mixture, "group", None))
    elif "forget" in mistake:
        patch.setattr(stage, "balance_loss", lambda part: None)
    elif "slices for samples" in mistake:
        patch.setattr(engine, "keep", lambda mixture, ep, _, keep=engine.keep: keep(mixture, ep, ep.size()))
    elif "a slice only" in mistake:
        patch.setattr(tensor_parallel.engine, "pass_slices", without_shared(tensor_parallel.engine.pass_slices))
    elif "by themselves" in mistake:
        patch.setattr(context_parallel.ContextParallel, "line_up", lambda context, x: x)
        patch.setattr(context_parallel.ContextParallel, "pick", lambda context, x: x)
    elif "biases" in mistake:
        patch.setattr(train, "rebalance", lambda model: None)
    elif "node" in mistake:
        patch.setattr(engine, "_sums", lambda dispatch, x, chosen, weights, *, inner: inner(x, chosen, weights))


def without_shared(pass_slices):
    """Leave the shared experts as they are."""

    def call(mixture, group):
        shared, mixture.shared = mixture.shared, None
        pass_slices(mixture, group)
        mixture.shared = shared

    return call


def mistaken(group, references):
    found, known = {}, {}
    for mistake, case in MISTAKEN.items():
        with pytest.MonkeyPatch.context() as patch:
            make_mistake(mistake, patch)
            trainer = make_trainer(group, case, known)
            if "weights" in mistake:
                for mixture in mixtures(trainer.pipeline):
                    mixture.place(share=lambda weights: weights)
            found[mistake] = errors_of_one_step(trainer, case, references[mistake])
    return found


def errors_of_one_step(trainer, case, one_process):
    (loss, norm), *_ = one_process[0]
    ours = step_of(trainer, 0, case[-1])
    rest = [abs(a - b) for a, b in zip(step_of(trainer, 1, case[-1]), one_process[0][1], strict=True)]
    return max(abs(ours[0] - loss), abs(ours[1] - norm), *rest)


@pytest.fixture(scope="module")
def with_mistakes():
    references = {mistake: reference(case) for mistake, case in MISTAKEN.items()}
    return run(mistaken, references, world_size=4)  # processes: threads share the modules that are changed


@pytest.mark.parametrize("mistake", MISTAKEN)
def test_the_comparison_sees_the_mistake(mistake, with_mistakes):
    assert max(rank[mistake] for rank in with_mistakes) > 1e-5
