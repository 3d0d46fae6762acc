"""Starters fail, solutions pass, and every plausible mistake fails for its own reason, and for no other."""

from shardlab.costs import step
from shardlab.costs.facts.hardware import chip, link
from shardlab.costs.facts.network import uniform
from shardlab.costs.planning import planner
from shardlab.costs.planning.plans import Question
from shardlab.costs.step.exposed import Passes
from shardlab.costs.step.layer_time import LayerTime, PassTime
from shardlab.costs.step.replicas import DataWait
from shardlab.exercises import checker
from shardlab.model.spec import TransformerSpec

from .grading import Chapter, Graded, Mistake
from .solutions import planner as solutions

CHAPTER = Chapter("planner", solutions)
mistake, right = CHAPTER.mistake, CHAPTER.right


class TestExercises(Graded):
    chapter = CHAPTER


def test_the_solution_is_what_costs_predict():
    """Two layers of three seconds on each of eight stages, a head of twelve."""
    idle = PassTime(0, 0, 0)
    time = LayerTime(forward=idle, backward=idle, recomputed=0, entering=(0, 0), leaving=(0, 0))
    seconds = {"first": 0.0, "last": 12.0, "layer": 3.0, "forward": 0, "backward": 0}
    micro = step.MicrobatchTime(time=time, tensor=Passes(0, 0), context=0, **seconds)
    ours = step.pipeline_seconds(micro, DataWait(0, 0, 0), step.stages_of(16, 8), num_microbatches=32)
    assert solutions.my_step_seconds(2, 8, 3.0, 12.0, 32) == ours


def test_the_planner_tries_the_same_layouts():
    spec = TransformerSpec(vocab_size=100, context_length=64, hidden_size=48, num_layers=12, num_heads=12)
    cluster = uniform(24, link("NVLink 3"), chip("A100 SXM 80 GB"))
    found = planner.search(Question(spec=spec, cluster=cluster, batch=96))
    ours = {(plan.tp, plan.pp, plan.dp) for plan in (*found.fitting, *found.rejected) if plan.microbatch}
    theirs = set(solutions.my_layouts(24, 24, 12, 12, 96))
    assert theirs <= ours
    assert {triple for triple in ours if 12 % triple[1] == 0} == theirs


ALONE, EVEN = "one stage does all the work", "equal stages wait for the first and the last microbatch"
SLOWEST = "all wait for the slowest stage"


CHAPTER.changes({
    "forgets the bubble": Mistake("step_seconds", {EVEN, SLOWEST}, at="1 rank, one microbatch through two stages",
        old=" + (num_stages - 1) * stage", new=""),
    "gives every stage the head": Mistake("step_seconds", {SLOWEST}, at="1 rank, two stages, a small head",
        old="(num_stages - 1) * stage", new="(num_stages - 1) * slowest"),
    "one microbatch only": Mistake("step_seconds", {ALONE, EVEN, SLOWEST}, at="1 rank, one stage", says="12",
        old="num_microbatches * slowest", new="slowest"),
    "divides by the stages that wait": Mistake("step_seconds", {checker.RUNS},
        at="1 rank, one stage", says="ZeroDivisionError",
        old="num_microbatches * slowest + (num_stages - 1) * stage", new="1 / (num_stages - 1)"),
})


@mistake("step_seconds", SLOWEST, at="1 rank, two stages, a small head")
def adds_the_head_at_the_end(layers_per_stage, num_stages, layer, head, num_microbatches):
    alone = head * (num_microbatches if num_stages == 1 else 1)
    return (num_microbatches + num_stages - 1) * layers_per_stage * layer + alone


ALL, HEADS = "every layout uses all GPUs", "tp divides the heads and the GPUs of a node"
LAYERS, BATCH, MISSING = "pp divides the layers", "dp divides the batch", "none is missing, none is there twice"


CHAPTER.changes({
    "forgets the heads": Mistake("layouts", {HEADS}, at="1 rank, three heads",
        old="heads % tp or ", new=""),
    "takes powers of two only": Mistake("layouts", {MISSING}, at="1 rank, a node of six", says="(3, 1, 2)",
        old="if heads % tp or", new="if tp & (tp - 1) or heads % tp or"),
    "leaves stages uneven": Mistake("layouts", {LAYERS}, at="1 rank, five layers",
        old="layers % pp == 0 and ", new=""),
    "forgets the batch": Mistake("layouts", {BATCH}, at="1 rank, three sequences",
        old=" and batch % (gpus // (tp * pp)) == 0", new=""),
    "leaves the node": Mistake("layouts", {HEADS}, at="1 rank, two nodes", says="(4, 1, 1)",
        old="found = []", new="found, gpus_per_node = [], gpus"),
    "forgets pipelines": Mistake("layouts", {MISSING}, at="1 rank, two GPUs", says="3 layouts",
        old="range(1, layers + 1)", new="[1]"),
    "lists all twice": Mistake("layouts", {MISSING}, at="1 rank, one GPU", says="more than once",
        old="return found", new="return 2 * found"),
    "leaves gpus idle": Mistake("layouts", {ALL}, at="1 rank, two GPUs",
        old="return found", new="return found + [(1, 1, 1)] * (gpus > 1)"),
})


FITS, NEAREST, LACKS = (
    "the fastest that fits",
    "where none fits, the one that lacks least",
    "says how many bytes lack",
)


@mistake("choose", FITS, NEAREST, LACKS, at="1 rank, the faster one does not fit")
def takes_the_fastest(plans, memory):
    name, _, nbytes = min(plans, key=lambda plan: plan[1])
    return name, max(0, nbytes - memory)


CHAPTER.changes({
    "takes the smallest": Mistake("choose", {FITS}, at="1 rank, the second is faster",
        old="min(fits, key=lambda plan: plan[1])", new="min(fits, key=lambda plan: plan[2])"),
    "wants a byte to spare": Mistake("choose", {FITS}, at="1 rank, one fits to the byte",
        old="<= memory", new="< memory"),
    "takes the fastest where none fits": Mistake("choose", {NEAREST, LACKS}, at="1 rank, none fits",
        old="min(plans, key=lambda plan: plan[2])", new="min(plans, key=lambda plan: plan[1])"),
})


@mistake("choose", LACKS, at="1 rank, one plan")
def says_what_it_needs(plans, memory):
    name, _ = solutions.my_choose(plans, memory)
    return name, dict((plan[0], plan[2]) for plan in plans)[name]


# ---- answers that are right, and not near the solution ---------------------------------------------------------------


@right("layouts")
def collects_a_set(*given):
    return set(solutions.my_layouts(*given))
