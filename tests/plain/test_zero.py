"""The plain file of ZeRO: equal to one process and to the engine; what is whole at which moment; what is sent."""

import inspect
import sys

import cloudpickle
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from shardlab.costs import zero as costs
from shardlab.costs.facts import recipes
from shardlab.costs.training import Training
from shardlab.launch import run
from shardlab.plain import zero
from shardlab.ranks import zero as engine
from shardlab.ranks.observe import ledger
from shardlab.sharding.layout import Layout

from ..patience import until
from ..rank_types import rank_type
from . import lesson

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that no rank need import pytest

SOURCE = inspect.getsource(zero)
STAGES = (1, 2, 3)
CASES = [(stage, case) for stage in STAGES for case in lesson.CASES]


def own(variables, _):
    return lesson.parameters(variables["model"])


def whole(variables, _):
    """All parameters, gathered: the next step frees them."""
    states = variables["states"]
    states.gather(states.parameters)
    return lesson.parameters(variables["model"])


def follow(group, stage, read, case=lesson.CASES[0], source=SOURCE, **options):
    """The docstring's lines, at one stage."""
    source = lesson.changed(source, "zero.ZeRO1(", f"zero.ZeRO{stage}(")
    return lesson.follow(group, "zero", source, case, read, **options)


def train(group, stage, source=SOURCE, case=lesson.CASES[0]):
    return follow(group, stage, whole if stage == 3 else own, case, source)


def all_cases(group):
    return {case: train(group, case[0], case=case[1]) for case in CASES}


@pytest.fixture(scope="module", params=lesson.WORLD_SIZES)
def histories(request):
    return run(all_cases, world_size=request.param, ranks=rank_type(request.param))


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parity("zero", "every stage of the plain file trains like one process: parameters, each step")
def test_the_plain_file_equals_one_process(histories, case):
    for rank in histories:
        lesson.assert_same_training(rank[case], lesson.alone(*case[1]))


def fast(group, stage, case):
    """The engine, in the same training."""
    model, history = lesson.build(*case, seed=group.rank()), []
    states = engine.shard(model, group, stage=stage, optimizer=lesson.adamw)
    for step in range(lesson.STEPS):
        batch = lesson.batch_of(step)
        mine = batch.tensor_split(group.size())[group.rank()]
        states.zero_grad()
        (model(mine[:, :-1], mine[:, 1:]) * len(mine) * group.size() / len(batch)).backward()
        states.step()
        history.append(states.full_state_dict())
    return history


@pytest.mark.parity("zero", "the plain file and the engine train alike, at every stage")
def test_the_plain_file_equals_the_engine():
    def both(group):
        return [(train(group, stage), fast(group, stage, lesson.CASES[0])) for stage in STAGES]

    for plain, fast_one in (pair for rank in run(both, world_size=3, ranks="threads") for pair in rank):
        lesson.assert_same_training(plain, fast_one)


def test_a_layer_may_return_its_own_input():
    """As dropout does in evaluation: the border behind it is another tensor, with a gradient of its own."""
    source = lesson.changed(SOURCE, "*model.blocks, ", "*model.blocks, nn.Identity(), ")
    assert all(lesson.verdict(right, stage, source, world_size=2) is True for stage in STAGES)


# ---- predicted, counted ----------------------------------------------------------------------------------------------


def training(style, ranks, stage):
    return Training(
        spec=lesson.SPECS[style], layout=Layout(dp=ranks, zero=stage), recipe=recipes.recipe("fp32 Adam")
    )


def bytes_of(group, style):
    """What a rank sends in every step, by stage."""
    options = {"around": ledger.Ledger, "dtype": torch.float32}
    return [follow(group, stage, lesson.wire_bytes, (style, False), **options) for stage in STAGES]


@pytest.mark.parametrize("style", lesson.SPECS)
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.counted("zero", "bytes that the plain file sends in a step, at each stage")
def test_a_step_sends_what_the_formula_says(style, ranks):
    """Stage 3 gathers every layer twice: the engine keeps what is in no layer. A tied table has two layers' turns."""
    parts = [costs.sent_bytes(training(style, ranks, stage)) for stage in STAGES]
    parts[2]["gather in backward"] = parts[2]["gather in forward"]
    table = lesson.SPECS[style].tied * 4 * lesson.VOCABULARY * lesson.SIZES["hidden_size"] * (ranks - 1) / ranks
    predicted = [sum(part.values()) + turns * table for part, turns in zip(parts, (0, 1, 3), strict=True)]
    for by_stage in run(bytes_of, style, world_size=ranks):
        for steps, expected in zip(by_stage, predicted, strict=True):
            assert steps == pytest.approx([expected] * lesson.STEPS, abs=1e-6)


def bytes_in(tensors):
    return sum(x.untyped_storage().nbytes() for x in tensors if x is not None)


def watch(states):
    """Note from now on, at each layer's forward, before gradients are cut, and before the optimizer steps, in bytes:
    whole parameters that are alive, be it in autograd's graph only; whole gradients; gradients of pieces."""
    gather, cut, moments, alive = states.gather, states.reduce_scatter, [], []

    def storages(parameters):
        return [(StorageWeakRef(p.untyped_storage()), bytes_in([p])) for p in parameters]

    def gather_and_follow(parameters):
        parameters = list(parameters)
        gather(parameters)
        gathered = storages(parameters)
        for p in parameters:
            p.data = p.data.clone()
        until(lambda: all(each.expired() for each, _ in gathered), 2.0)  # gloo's threads let go a moment later
        alive.extend([*gathered, *storages(parameters)])

    def note(*_):
        whole = sum(num_bytes for storage, num_bytes in alive if not storage.expired())
        gradients = [bytes_in(x.grad for x in each) for each in (states.parameters, states.piece.values())]
        moments.append((whole, *gradients))

    alive.extend(storages(states.parameters))
    states.gather = gather_and_follow
    states.reduce_scatter = lambda parameters: (note(), cut(parameters))
    states.optimizer.register_step_pre_hook(note)
    for layer in states.layers:
        layer.register_forward_hook(note)
    return moments


def held(group, stage, source=SOURCE):
    """Bytes between steps, of parameters, pieces and the optimizer's states; of each layer; and in the last step."""
    watched = []

    def read(variables, _):
        states = variables["states"]
        own = [x for each in states.optimizer.state.values() for x in each.values() if x.dim()]
        found = [bytes_in(states.parameters), bytes_in(states.piece.values()), bytes_in(own)]
        if not watched:
            watched.append(watch(states))  # from the second step on: then the optimizer has its states
        return found, [4 * sum(states.shape[p].numel() for p in layer.parameters()) for layer in states.layers]

    *_, last = follow(group, stage, read, ("llama", False), source, dtype=torch.float32)
    return (*last, watched[0][-len(watched[0]) // (lesson.STEPS - 1) :])


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.counted("zero", "bytes that the plain file holds, between steps and in each layer's turn")
def test_what_is_whole_at_which_moment(stage):
    ranks = 3
    predicted = costs.states(training("llama", ranks, stage))
    for (whole, piece, own), layers, moments in run(held, stage, world_size=ranks):
        everything = sum(layers)
        assert (piece if stage == 3 else whole) == predicted["parameters"]
        assert own == predicted["optimizer"]
        assert whole == (0 if stage == 3 else everything)
        forward = [(layer if stage == 3 else everything, 0, 0) for layer in layers]
        turns = []
        for n, layer in reversed(list(enumerate(layers))):
            cut = sum(layers[n + 1 :]) // ranks  # gradients of the layers behind this one
            if stage == 2:
                turns += [(everything, layer, cut)]
            if stage == 3:  # the layer's forward once more, and then its backward
                turns += [(layer, 0, cut), (layer, layer, cut)]
        if stage == 1:
            turns = [(everything, everything, 0)]
        assert moments == [*forward, *turns, (whole, 0, everything // ranks)]


def test_a_graph_would_keep_freed_parameters_alive():
    """Why stage 3 computes forward without a graph: `free` alone frees nothing that autograd has kept."""
    source = lesson.changed(SOURCE, "with torch.no_grad():", "with torch.enable_grad():")
    for _, layers, moments in run(held, 3, source, world_size=2):
        whole, *_ = zip(*moments[: len(layers)], strict=True)
        assert whole[-1] > max(layers)


# ---- wrong versions --------------------------------------------------------------------------------------------------

BORDER = "            x = y.detach().requires_grad_()     # a border: backward stops here\n            borders"
TURN = "\n            gradient = x.grad"
WRONG = {  # what went wrong: (stage, what stands there, what stands there then, what the launcher reports)
    "nobody divides": (
        1,
        "(share * loss(x, targets)).backward()   # all",
        "loss(x, targets).backward()   # all",
        None,
    ),
    "a border is missing": (2, BORDER, "            x = y\n            borders", "RuntimeError"),
    "the gradient stops at a border": (2, BORDER, BORDER.replace(".requires_grad_()", ""), "does not require grad"),
    "nothing is gathered before backward": (
        3,
        "            self.gather(layer.parameters())     # [P/N] -> [P], whole\n            go_back(",
        "            go_back(",
        "RuntimeError",
    ),
    "nothing is gathered after the step": (
        1,
        "        self.gather(self.parameters)            # [P/N] -> [P], whole\n\n\nclass ZeRO2",
        "\n\nclass ZeRO2",
        None,
    ),
    "a rank keeps another one's piece": (1, "[group.rank()]", "[-1 - group.rank()]", None),
    "a tied weight's second gradient is dropped": (2, "new = new + piece.grad", "pass", None),
    "gradients add up over steps": (1, "self.optimizer.zero_grad()", "pass", None),
    "a whole gradient stays": (2, "            p.grad = None\n", "", None),
    "layers go in the order of forward": (3, f"in reversed(self.layers):{TURN}", f"in self.layers:{TURN}", "Error"),
}


def right(group, stage, source):
    history = train(group, stage, source)
    return all(map(lesson.equal, history, lesson.alone(*lesson.CASES[0])))


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_version_is_noticed(what):
    stage, old, new, report = WRONG[what]
    found = lesson.verdict(right, stage, lesson.changed(SOURCE, old, new))
    assert lesson.noticed(found, report), found
