"""Starters fail, solutions pass, and every plausible mistake fails for its own reason, and for no other."""

import pytest
import torch
from torch.utils import checkpoint as torchs

from shardlab import exercises
from shardlab.costs import memory
from shardlab.costs.memory import activations
from shardlab.costs.training import Training
from shardlab.costs.units import GB
from shardlab.exercises import checker, evidence
from shardlab.model.spec import TransformerSpec
from shardlab.ranks.memory import recompute
from shardlab.sharding.layout import Layout

from .grading import Chapter, Graded, Mistake
from .solutions import memory as solutions

CHAPTER = Chapter("memory", solutions)
mistake, right = CHAPTER.mistake, CHAPTER.right


class TestExercises(Graded):
    chapter = CHAPTER


# ---- against what others print and count -----------------------------------------------------------------------------


@pytest.mark.parametrize(("dp", "stages"), [(1, (120, 120, 120)), (64, (31.4, 16.6, 1.88)), (1024, (30.1, 15.1, 0.12))])
def test_the_solution_gives_zeros_table_1(dp, stages):
    """Rajbhandari et al. 2020, Table 1: GB for 7.5e9 parameters, ZeRO stages 1, 2, 3."""
    for zero, gigabytes in zip((1, 2, 3), stages, strict=True):
        assert sum(solutions.my_model_states(7.5e9, dp, zero).values()) / GB == pytest.approx(gigabytes, abs=0.06)


@pytest.mark.parametrize("tp", [1, 8])
@pytest.mark.parametrize(
    ("sequence_parallel", "recomputation"),
    [(False, "none"), (True, "none"), (False, "selective"), (True, "selective"), (False, "full")],
)
def test_the_solution_is_what_costs_predict_for_gpt_3(tp, sequence_parallel, recomputation):
    """But for the statistics of norms, which the paper leaves out."""
    spec = TransformerSpec(vocab_size=51200, context_length=2048, hidden_size=12288, num_layers=96, num_heads=96)
    layout = Layout(tp=tp, sequence_parallel=sequence_parallel)
    policy = {"attention": "stored", "recomputation": recomputation, "dropout": True}
    parts = activations.layer(Training(spec=spec, layout=layout, **policy))
    mine = solutions.my_activation_bytes(2048, 1, 12288, 96, tp, sequence_parallel, recomputation)
    assert mine == pytest.approx(sum(parts.values()), rel=1e-3)


def test_the_library_passes_its_own_exercises():
    assert exercises.check("memory.checkpoint", recompute.checkpoint)
    assert exercises.check("memory.model_states", lambda n, dp, zero: memory.model_states(n, dp=dp, zero=zero))
    assert exercises.check("memory.checkpoint", lambda f, *x: torchs.checkpoint(f, *x, use_reentrant=False))


def test_a_check_leaves_the_learner_s_random_numbers_alone():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    exercises.check("memory.checkpoint", solutions.my_checkpoint)
    assert torch.equal(torch.rand(1), expected)


def test_held_bytes_are_counted_wherever_they_are():
    before, hidden = torch.ones(1000, requires_grad=True), []
    with evidence.Held() as held:
        y = before * 2  # 4000 bytes, the result
        hidden.append(y.exp())  # 4000 more in a list
        z = y.exp().sum()  # 4000 more that autograd keeps, and 4
        before.view(10, 100).detach()
        assert held.nbytes == 3 * 4000 + 4
        hidden.clear()
        assert held.nbytes == 2 * 4000 + 4
        z.backward()  # and a gradient instead
        assert held.nbytes == 2 * 4000 + 4


# ---- mistakes --------------------------------------------------------------------------------------------------------

PARTS, PARAMETERS = "returns the bytes of three parts", "parameters: 2 bytes each, cut with stage 3"
GRADIENTS = "gradients: 2 bytes each, cut from stage 2 on"
OPTIMIZER = "optimizer states: three fp32 numbers each, cut from stage 1 on"


CHAPTER.changes({
    "forgets the master copy": Mistake("model_states", {OPTIMIZER},
        at="1 rank, ZeRO stage 0, 1 parameter", says="optimizer: 8",
        old="12 * num", new="8 * num"),
    "keeps gradients in fp32": Mistake("model_states", {GRADIENTS},
        at="1 rank, ZeRO stage 0, 1 parameter", says="gradients: 4",
        old="gradients = 2 *", new="gradients = 4 *"),
    "cuts everything at once": Mistake("model_states", {PARAMETERS, GRADIENTS},
        at="2 ranks, ZeRO stage 1", says="parameters: 10",
        old="optimizer = 12", new="zero = 3 if zero else 0\n    optimizer = 12"),
    "thinks that data parallelism cuts": Mistake("model_states", {PARAMETERS, GRADIENTS, OPTIMIZER},
        at="2 ranks, ZeRO stage 0",
        old="optimizer = 12", new="zero = 3\n    optimizer = 12"),
    "rounds down": Mistake("model_states", {PARAMETERS},
        at="3 ranks, ZeRO stage 3, 10 parameters", says="expected  parameters: 6.666666667",
        old="2 * num_parameters / (dp if zero >= 3", new="2 * num_parameters // (dp if zero >= 3"),
    "returns a tuple": Mistake("model_states", {PARTS, PARAMETERS, GRADIENTS, OPTIMIZER},
        at="1 rank, ZeRO stage 0", says="a tuple",
        old='{"parameters": parameters, "gradients": gradients, "optimizer": optimizer}',
        new="parameters, gradients, optimizer"),
})


@mistake("model_states", OPTIMIZER, GRADIENTS, at="2 ranks, ZeRO stage 2, 10 parameters", says="optimizer: 120")
def cuts_one_part_at_each_stage(num_parameters, dp, zero):
    whole = solutions.my_model_states(num_parameters, 1, 0)
    cut = {1: "optimizer", 2: "gradients", 3: "parameters"}.get(zero)
    return {name: bytes_ / (dp if name == cut else 1) for name, bytes_ in whole.items()}


WHOLE, CUT = "one rank that recomputes nothing", "tensor parallelism cuts what lies between matrices"
SHARED, SELECTIVE = "sequence parallelism cuts the rest", "selective recomputation keeps no scores"
FULL = "full recomputation keeps the input, which sequence parallelism cuts"


@mistake("activation_bytes", WHOLE, CUT, SHARED, SELECTIVE, at="1 rank, one token", says="68.5")
def forgets_the_dropout_masks(sequence, batch, hidden, heads, tp, sequence_parallel, recomputation):
    right = solutions.my_activation_bytes(sequence, batch, hidden, heads, tp, sequence_parallel, recomputation)
    if recomputation == "full":
        return right
    masks = 2 * sequence * batch * hidden / (tp if sequence_parallel else 1)
    scores = heads * sequence**2 * batch / tp if recomputation == "none" else 0
    return right - masks - scores / 2


CHAPTER.changes({
    "takes scores for linear in the sequence": Mistake("activation_bytes", {WHOLE, CUT, SHARED},
        at="1 rank, four tokens",
        old="sequence**2", new="sequence"),
    "cuts everything": Mistake("activation_bytes", {CUT, SELECTIVE}, at="2 ranks, tensor parallel",
        old="masks) / (tp if sequence_parallel else 1)", new="masks) / tp"),
    "does not cut the scores": Mistake("activation_bytes", {CUT, SHARED}, at="2 ranks, tensor parallel",
        old="sequence**2 * batch / tp", new="sequence**2 * batch"),
    "overlooks sequence parallelism": Mistake("activation_bytes", {SHARED, SELECTIVE},
        at="2 ranks, tensor and sequence parallel",
        old="masks) / (tp if sequence_parallel else 1)", new="masks)"),
    "still keeps the softmax": Mistake("activation_bytes", {SELECTIVE}, at="1 rank, selective", says="expected  2,176",
        old='"none" else 0', new='"none" else 2 / 5 * scores'),
    "cuts the kept input over tp": Mistake("activation_bytes", {FULL}, at="2 ranks, tensor parallel, full",
        old="wide / (tp if sequence_parallel else 1)", new="wide / tp"),
    "keeps the whole input beside sequence parallelism": Mistake("activation_bytes", {FULL},
        at="2 ranks, tensor and sequence parallel, full",
        old="wide / (tp if sequence_parallel else 1)", new="wide"),
    "keeps two inputs": Mistake("activation_bytes", {FULL}, at="1 rank, full", says="expected  128",
        old="return 2 * wide", new="return 4 * wide"),
})


RESULT, INPUTS = "the result is that of the function", "inputs get the same gradients"
WEIGHTS, HELD = "parameters get the same gradients", "after forward only inputs and result are there"
TWICE, RANDOM = "the function runs once in forward and once in backward", "random numbers go on as without"


CHAPTER.changes({
    "draws other numbers": Mistake("checkpoint", {INPUTS, RANDOM}, at="1 rank, dropout",
        old="torch.random.fork_rng(devices=[]), torch.enable_grad():\n            torch.set_rng_state(ctx.random)\n",
        new="torch.enable_grad():\n"),
    "leaves the random numbers rewound": Mistake("checkpoint", {RANDOM}, at="1 rank, one input",
        old="torch.random.fork_rng(devices=[]), ", new=""),
    "thinks of the first input only": Mistake("checkpoint", {INPUTS}, at="1 rank, two inputs",
        old="return None, *[x.grad for x in inputs]",
        new="first = ctx.needs_input_grad[1:].index(True)\n"
            "        return None, *[x.grad if place == first else None for place, x in enumerate(inputs)]"),
    "forgets the parameters": Mistake("checkpoint", {WEIGHTS},
        at="1 rank, layers with parameters", says="0.weight: None",
        old="torch.autograd.backward(result, gradient)\n        return None, *[x.grad for x in inputs]",
        new="wanted = [x for x in inputs if x.requires_grad]\n"
            "        found = iter(torch.autograd.grad(result, wanted, gradient))\n"
            "        return None, *[next(found) if x.requires_grad else None for x in inputs]"),
    "ignores the gradient that comes in": Mistake("checkpoint", {INPUTS, WEIGHTS}, at="1 rank, one input",
        old="backward(result, gradient)", new="backward(result, torch.ones_like(result))"),
    "writes the gradients itself": Mistake("checkpoint", {INPUTS}, at="1 rank, two with dropout in a row",
        old="return None, *[x.grad for x in inputs]",
        new="for x, copy in zip(ctx.saved_tensors, inputs, strict=True):\n"
            "            if x.is_leaf and x.requires_grad:\n"
            "                x.grad = copy.grad if x.grad is None else x.grad + copy.grad\n"
            "        return None, *[None for _ in inputs]"),
    "keeps copies of the inputs": Mistake("checkpoint", {HELD}, at="1 rank, one input", says="got       65,536 bytes",
        old="ctx.save_for_backward(*inputs)",
        new="ctx.save_for_backward(*inputs)\n        ctx.copies = [x.clone() for x in inputs]"),
    "asks for a gradient of every input": Mistake("checkpoint", {checker.RUNS},
        at="1 rank, an input of whole numbers", says="can require gradients",
        old="requires_grad_(x.requires_grad)", new="requires_grad_()"),
    "computes again without recording": Mistake("checkpoint", {checker.RUNS},
        at="1 rank, one input", says="does not require grad",
        old="torch.enable_grad()", new="torch.no_grad()"),
})


@mistake("checkpoint", HELD, TWICE, at="1 rank, one input", says="131,072 bytes")
def keeps_the_graph_in_a_corner(function, *inputs):
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, function, *inputs):
            ctx.inputs = [x.detach().requires_grad_(x.requires_grad) for x in inputs]
            with torch.enable_grad():
                ctx.result = function(*ctx.inputs)
            return ctx.result.detach()

        @staticmethod
        def backward(ctx, gradient):
            torch.autograd.backward(ctx.result, gradient)
            return None, *[x.grad for x in ctx.inputs]

    return Wrong.apply(function, *inputs)


@mistake("checkpoint", INPUTS, WEIGHTS, TWICE, at="1 rank, one input", says="input 0: None")
def forgets_backward(function, *inputs):
    with torch.no_grad():
        return function(*inputs)


@mistake("checkpoint", RESULT, INPUTS, WEIGHTS, TWICE, RANDOM, at="1 rank, one input", says="result: None")
def returns_nothing(function, *inputs):
    function(*inputs)


# ---- answers that are right, and not near the solution ---------------------------------------------------------------


@right("model_states")
def in_fp32_tensors(num_parameters, dp, zero):
    held = torch.tensor([2.0, 2.0, 12.0]) * num_parameters
    held /= torch.where(torch.tensor([3, 2, 1]) <= zero, dp, 1)
    return dict(zip(("parameters", "gradients", "optimizer"), held, strict=True))
