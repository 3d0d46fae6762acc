"""Every layout trains the model of one process: equal losses, norms and weights after each step, in float64."""

import functools
import itertools

import pytest
import torch
from torch import nn

from shardlab import comm
from shardlab.launch import run
from shardlab.ranks import pipeline, tensor_parallel, train
from shardlab.ranks.data_parallel import averaging, sampler
from shardlab.ranks.mesh import Mesh
from shardlab.ranks.pipeline import split_backward
from shardlab.schedules import SCHEDULES, make
from shardlab.sharding.layout import AXES_3D, ZERO_STAGES, Layout, divisors, tensor_degrees
from tests.rank_types import rank_type
from tests.ranks.training import (
    MAX_NORM,
    MICROBATCHES,
    STYLES,
    adamw,
    alone,
    batch,
    data,
    make_trainer,
    plain,
    spec,
)

# ---- all layouts -----------------------------------------------------------------------------------------------------


def layouts(size):
    """List all of a size, with slices and whole sequences, and every stage of ZeRO.

    Where 6 or 8 ranks make many layouts, the stages of ZeRO take turns, but not with all three axes.
    """
    turns = itertools.cycle(ZERO_STAGES)
    for dp, tp in itertools.product(divisors(size), repeat=2):
        if size % (dp * tp) == 0:
            for sliced in (False, True)[: 1 + (tp > 1)]:
                stages = ZERO_STAGES if size < 6 or 1 not in (dp, tp, size // dp // tp) else [next(turns)]
                for zero in stages if dp > 1 else [0]:
                    yield Layout(dp=dp, tp=tp, pp=size // dp // tp, zero=zero, sequence_parallel=sliced)


def cases(size):
    """List (layout, schedule, style, layers, samples). Stages do not divide layers, nor replicas samples.

    Schedules take turns; where ranks or ZeRO make many layouts, styles do, too.
    """
    names = [name for name in SCHEDULES if size < 6 or make(name, 2, MICROBATCHES).num_chunks == 1]
    found, turns = [], {style: itertools.cycle(names) for style in STYLES}
    for index, layout in enumerate(layouts(size)):
        legal = [style for style in STYLES if layout.tp in tensor_degrees(spec(style, 1))]
        for style in legal if size < 6 and not layout.zero else [legal[index % len(legal)]]:
            schedule = next(name for name in turns[style] if allowed(name, layout, style))
            layers = make(schedule, layout.pp, MICROBATCHES).num_parts + (layout.pp > 1)
            found.append((layout, schedule, style, layers, MICROBATCHES * layout.dp + 1))
    return found


def steps(size):
    """Return how many steps layouts of a size take: what a second one adds, 4 ranks and fewer show."""
    return 2 if size <= 4 else 1


def allowed(schedule, layout, style):
    """Tell whether ZeRO takes the case; it refuses tied embeddings in two parts of one stage."""
    plan = make(schedule, layout.pp, MICROBATCHES)
    return not (layout.zero and style == "gpt2" and plan.num_chunks > 1 and plan.homes[0][0] == plan.homes[-1][0])


def together(group, folder, size):
    """Return the largest errors of loss, norm and weights, for every case."""
    known = {}
    return [errors(group, folder, case, known=known) for case in cases(size)]


def errors(group, folder, case, **options):
    """Return the errors of one case against one process."""
    _, _, style, layers, samples = case
    reference = folder / name(style, layers, samples, steps(group.size()))
    history, weights = torch.load(reference, weights_only=False)
    trainer = make_trainer(group, case, **options)
    losses, norms = [], []
    for step, (loss, norm) in enumerate(history):
        losses.append(abs(trainer.backward(*batch(trainer.mesh, style, step, samples)).item() - loss))
        norms.append(abs(trainer.update().item() - norm))
    apart = [off(piece, weights[name], trainer.cuts[name], trainer.mesh.tp) for name, piece in pieces(trainer)]
    return max(losses), max(norms), max(apart)


def pieces(trainer):
    """List the parameters of this rank, also a tied head, by their names in the plain model."""
    for state in trainer.states:
        for name, piece in state.full_state_dict().items():
            tied = name == "head.weight" and name not in trainer.cuts
            yield "embedding.tokens.weight" if tied else name, piece


def off(piece, whole, cut, tp):
    """Return how far a piece is from its place in the whole, padded with zeros; without the library."""
    if cut.dim is not None:
        short = cut.pieces * -(-whole.shape[cut.dim] // cut.pieces) - whole.shape[cut.dim]
        padded = torch.cat([whole, whole.new_zeros(short, *whole.shape[1:])]) if short else whole
        whole = padded.chunk(cut.pieces, cut.dim)[tp.rank() * cut.pieces // tp.size()]
    return (piece - whole).abs().max().item()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Save what one process does in files."""
    path = tmp_path_factory.mktemp("alone")
    wanted = [(*case[2:], steps(size)) for size in SIZES for case in cases(size)]
    wanted += [(*case[2:], steps(4)) for case in MISTAKEN.values()]
    for each in set(wanted):
        torch.save(alone(*each), path / name(*each))
    return path


def name(style, layers, samples, num_steps):
    return f"{style}-{layers}-{samples}-{num_steps}.pt"


SIZES = (1, 2, 4, 6, 8)


@functools.cache
def executed(size, folder):
    return run(together, folder, size, world_size=size, ranks=rank_type(size, on_gloo=4))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parity(
    "composition",
    "every legal layout of 1, 2, 4, 6 and 8 ranks trains like one process; on 6 and 8, ZeRO's stages take turns",
)
def test_every_layout_trains_the_model_of_one_process(size, folder):
    """Losses, norms and weights agree after each step, with accumulation and clipping."""
    for rank in executed(size, folder):
        for case, apart in zip(cases(size), rank, strict=True):
            torch.testing.assert_close(list(apart), [0.0] * 3, rtol=0, atol=1e-12, msg=f"{case}: {apart}")


# ---- what else a composition must bear ----------------------------------------------------------------------------


def steps_of(trainer, style, sizes):
    """Return the losses and norms of steps with these numbers of samples."""
    return [
        (trainer.backward(*batch(trainer.mesh, style, step, samples)).item(), trainer.update().item())
        for step, samples in enumerate(sizes)
    ]


def in_other_orders(group, known):
    """Train with each axis at each place, which decides which ranks are neighbours and changes no number."""
    case = (Layout(dp=2, tp=2, pp=2, zero=1, sequence_parallel=True), "1F1B", "llama", 3, 5)
    orders = [AXES_3D[first:] + AXES_3D[:first] for first in range(3)]
    return [steps_of(make_trainer(group, case, order=order, known=known), "llama", [5]) for order in orders]


def some_shapes_change(group, known):
    """Replica 0 has 4, 3 and 3 samples, replica 1 always 3: only replica 0 must negotiate a new shape."""
    found = {}
    for zero in (0, 3):
        trainer = make_trainer(group, (Layout(dp=2, pp=4, zero=zero), "1F1B", "llama", 5, None), known=known)
        found[zero] = steps_of(trainer, "llama", [7, 6, 6])
    return found


def added_up(group, known):
    """Run backward twice before the step, each time with half the weight."""
    found = {}
    for zero in ZERO_STAGES:
        trainer = make_trainer(group, (Layout(dp=4, tp=2, zero=zero), "GPipe", "gpt2", 1, None), known=known)
        for step in range(2):
            tokens, targets, weight = batch(trainer.mesh, "gpt2", step, 9)
            trainer.backward(tokens, targets, weight / 2)
        found[zero] = trainer.update().item()
    return found


def both_ends(group, known):
    """Return the tied embeddings of the first and last stage, after steps with four replicas."""
    found = {}
    for zero in ZERO_STAGES:
        trainer = make_trainer(group, (Layout(dp=4, pp=2, zero=zero), "1F1B", "gpt2", 3, None), known=known)
        steps_of(trainer, "gpt2", [9, 9])
        state = {name: piece for each in trainer.states for name, piece in each.full_state_dict().items()}
        mine = state["head.weight" if trainer.mesh.place["pp"] else "embedding.tokens.weight"]
        found[zero] = torch.equal(*comm.all_gather(mine[None], trainer.mesh.pp))
    return found


def whole(group, known):
    """Gather the plain model's weights from all kinds of pieces, before a step."""
    case = (Layout(dp=2, tp=2, pp=2, zero=3), "interleaved", "llama", 5, None)
    expected = dict(plain("llama", 5).named_parameters())
    found = make_trainer(group, case, known=known).gather()
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


def refusals(group, known):
    found = []
    wrong = [
        lambda: Mesh(Layout(dp=2, tp=2), group),
        lambda: make_trainer(group, (Layout(tp=8), "GPipe", "three heads", 1, None), known=known),
        lambda: make_trainer(group, (Layout(dp=4, pp=2, zero=1), "ZB-V", "gpt2", 4, None), known=known),
        lambda: train.Trainer(
            other_on_rank_5(group), Mesh(Layout(dp=8), group, known=known), make("GPipe", 1, 1), adamw
        ),
    ]
    for call in wrong:
        try:
            call()
        except ValueError as error:
            found.append(str(error))
    return found


def other_on_rank_5(group):
    model = plain("gpt2", 1)
    with torch.no_grad():
        model.norm.weight += group.rank() == 5
    return model


SITUATIONS = (in_other_orders, some_shapes_change, added_up, both_ends, whole, refusals)


def all_situations(group):
    """Meshes share their groups: to connect 8 ranks anew takes longer than a step."""
    known = {}
    return [situation(group, known) for situation in SITUATIONS]


@pytest.fixture(scope="module")
def situations():
    found = run(all_situations, world_size=8, ranks="threads")
    return {situation: [rank[i] for rank in found] for i, situation in enumerate(SITUATIONS)}


def by_one_process(style, layers, sizes):
    model, found = plain(style, layers), []
    adam = adamw(model.parameters())
    for step, samples in enumerate(sizes):
        adam.zero_grad()
        loss = model(*data(style, step, samples))
        loss.backward()
        found.append((loss.item(), nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM).item()))
        adam.step()
    return found


def assert_near(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parity("composition", "the order of the axes changes no loss and no norm")
def test_the_order_of_the_axes_changes_no_number(situations):
    expected = by_one_process("llama", 3, [5])
    for rank in situations[in_other_orders]:
        for steps in rank:
            assert_near(steps, expected)


@pytest.mark.parity("composition", "batches that change their shape on some replicas only")
def test_batches_may_change_on_some_replicas_only(situations):
    expected = by_one_process("llama", 5, [7, 6, 6])
    for rank in situations[some_shapes_change]:
        for steps in rank.values():
            assert_near(steps, expected)


@pytest.mark.parity("composition", "the norm of gradients that several batches added up")
def test_gradients_of_several_batches_add_up(situations):
    model = plain("gpt2", 1)
    for step in range(2):
        (model(*data("gpt2", step, 9)) / 2).backward()
    expected = nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()]).item()
    for rank in situations[added_up]:
        assert_near(list(rank.values()), [expected] * len(ZERO_STAGES))


def test_tied_embeddings_stay_bitwise_identical(situations):
    assert situations[both_ends] == [dict.fromkeys(ZERO_STAGES, True)] * 8


def test_the_whole_model_is_gathered_from_any_pieces(situations):
    assert situations[whole] == [True] * 8


def test_what_does_not_fit_is_refused(situations):
    said = situations[refusals]
    assert said == [said[0]] * 8
    size, heads, tied, differ = said[0]
    assert size == "a layout of tp=2 x dp=2 is for 4 ranks, but there are 8; start 4 ranks, or use dp=4"
    assert heads.startswith("3 heads, 3 key/value heads and ffn=48 do not split over tp=8; use tp = 1, 3")
    assert "with ZB-V two parts of stage 0 share the tied embeddings; use zero=0" in tied
    assert differ.startswith("norm.weight differs between ranks")


# ---- mistakes that published systems have made ----------------------------------------------------------------------

MISTAKEN = {
    "gradients are summed over replicas": (Layout(dp=4), "GPipe", "llama", 1, 9),
    "unequal shards count alike": (Layout(dp=4), "GPipe", "llama", 1, 9),
    "the ends of a pipeline keep their own gradients of tied embeddings": (Layout(tp=2, pp=2), "1F1B", "gpt2", 3, 3),
    "tied embeddings count twice in the norm": (Layout(dp=2, pp=2), "1F1B", "gpt2", 3, 5),
    "whole parameters count on every rank of tp": (Layout(tp=4), "GPipe", "llama", 1, 3),
    "norms keep the gradients of a slice": (Layout(tp=4, sequence_parallel=True), "GPipe", "llama", 1, 3),
    "shared key heads keep the gradients of some queries": (Layout(tp=4), "GPipe", "llama", 1, 3),
    "the second half of a backward passes the hooks by": (Layout(tp=4), "ZB-H1", "llama", 1, 3),
    "every rank clips by the norm of its own part": (Layout(tp=2, pp=2), "1F1B", "gpt2", 3, 3),
    "every replica clips by the norm of its own piece": (Layout(dp=4, zero=2), "GPipe", "llama", 1, 9),
    "the average mixes the pieces of all ranks of tp": (Layout(dp=2, tp=2), "GPipe", "llama", 1, 5),
}


class ByItsOwnNorm(train.Trainer):
    def update(self):
        for state in self.states:
            norm = state.squared_norm(self.share).sqrt()
            state.clip(self.max_norm, norm)
            state.step()
            state.zero_grad()
        return norm


def states_of_the_world(parts, mesh, optimizer):
    return [train.Replica(dict(train._named(parts)), mesh.world, optimizer)]


def passing_hooks_by(parameter, gradient):
    parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)


def nothing(*_, **__):
    pass


def make_mistake(mistake, patch):
    """Put a mistake into the code."""
    if "summed over replicas" in mistake:
        patch.setattr(averaging, "mean", comm.all_reduce)
    elif "count alike" in mistake:
        patch.setattr(sampler, "weight", lambda *_: 1.0)
    elif "ends of a pipeline" in mistake:
        patch.setattr(pipeline.Pipeline, "_sum_shared", nothing)
    elif "count" in mistake:
        patch.setattr(train.Trainer, "share", lambda self, name: 1.0)
    elif "hooks" in mistake:
        patch.setattr(split_backward, "_add", passing_hooks_by)
    elif "average mixes" in mistake:
        patch.setattr(train, "make_states", states_of_the_world)
    elif "keep the gradients" in mistake:
        patch.setattr(tensor_parallel.engine, "share_gradients", nothing)
    else:
        patch.setattr(train, "Trainer", ByItsOwnNorm)


def mistaken(group, folder):
    found, known = {}, {}
    for mistake, case in MISTAKEN.items():
        with pytest.MonkeyPatch.context() as patch:
            make_mistake(mistake, patch)
            found[mistake] = errors(group, folder, case, known=known)
    return found


@pytest.fixture(scope="module")
def with_mistakes(folder):
    return run(mistaken, folder, world_size=4)  # processes: threads share the modules that are changed


@pytest.mark.parametrize("mistake", MISTAKEN)
def test_the_comparison_sees_the_mistake(mistake, with_mistakes):
    """With each mistake, training goes on without an error. The first shows in the norm alone, because of clipping."""
    assert max(max(rank[mistake]) for rank in with_mistakes) > 1e-5
