"""The planner tries every plan, ranks it as step and memory do, and gives a reason for each failure."""

import functools
import math
import re
from dataclasses import replace
from itertools import product

import pytest

from shardlab.costs import context_parallel, memory, step
from shardlab.costs.facts import models, nodes, recipes
from shardlab.costs.planning import planner, plans
from shardlab.costs.planning.plans import Question, TrainingPlan
from shardlab.costs.programs import DEEPSEEK_2024, LLAMA_2024, MEGATRON_2021
from shardlab.costs.published import studies
from shardlab.costs.published.sweeps import SWEEPS
from shardlab.costs.step import axes
from shardlab.files import measured
from shardlab.model.attention import LatentAttention
from shardlab.model.experts import Experts
from shardlab.model.spec import TransformerSpec
from shardlab.sharding.layout import divisors

from ...sharding.test_hybrids import HYBRID

SMALL = TransformerSpec(vocab_size=50_257, context_length=1024, hidden_size=3072, num_layers=6, num_heads=24)
GROUPED = replace(SMALL, style="llama", num_kv_heads=4, num_layers=8)

EXPERTS = Experts(num_experts=12, per_token=3, expert_size=256)
MIXTURE = replace(GROUPED, hidden_size=768, experts=EXPERTS)
HEADS = LatentAttention(num_heads=24, query_rank=64, kv_rank=32, plain_size=16, rotary_size=8, value_size=16)
LATENT = replace(
    MIXTURE, num_kv_heads=None, latent=HEADS, num_dense=2, ffn_size=512, experts=replace(EXPERTS, num_shared=1)
)


def small(spec=SMALL, *, num_nodes=2, batch=48, room=8e9, node="DGX A100", headroom=0.0, **options):
    """On GPUs with little memory, so that some plans fit and some do not."""
    there = nodes.node(node)
    there = replace(there, chip=replace(there.chip, memory=room))
    cluster = replace(nodes.cluster(node, num_nodes), node=there)
    return Question(spec=spec, cluster=cluster, batch=batch, headroom=headroom, **options)


WIDE = {"hidden_size": 1024, "vocab_size": 50_000, "context_length": 1024}
QUESTIONS = {
    "GPT, one node": small(num_nodes=1, batch=24),
    "GPT, two nodes, scores stored": small(attention="stored", dropout=True, program=MEGATRON_2021),
    "Llama, two nodes, contexts": small(GROUPED, context=(1, 2, 3), batch=16),
    "Llama, three nodes, PCIe": small(GROUPED, num_nodes=3, batch=24, node="PCIe box, InfiniBand NDR", room=6e9),
    "mixture, imbalance": small(MIXTURE, num_nodes=1, batch=8, room=4e9, imbalance=1.25),
    "mixture, whole experts": small(MIXTURE, batch=16, room=5e9, whole_experts=(False, True)),
    "latent attention, dense layers": small(LATENT, batch=16, room=4e9, program=DEEPSEEK_2024),
    "hybrid, contexts": small(replace(HYBRID, **WIDE), num_nodes=1, batch=8, room=4e9, context=(1, 2)),
    "fp8": small(GROUPED, node="DGX H100", batch=32, precision="fp8", program=LLAMA_2024),
}


@functools.cache
def answered(name):
    return planner.search(QUESTIONS[name])


def bytes_of(run):
    return memory.total(run.training) + context_parallel.at_work(run.training, run.training.program.context_strategy)


def brute(question):
    """Every plan that a `Training` can be made of, timed by `step` and weighed by `memory`, with nothing shared."""
    found = {}
    gpus, node = question.cluster.gpus, question.cluster.node
    recomputations = [each for each in question.recomputations if each != "selective" or question.attention == "stored"]
    degrees = range(1, gpus + 1)
    for tp, pp, cp, ep in product(degrees, degrees, question.context, degrees if question.spec.experts else [1]):
        if gpus % (tp * pp * cp) or not axes.fits_nodes(question.cluster, tp):
            continue
        dp = gpus // (tp * pp * cp)
        ways = product(question.sequence_parallel, question.whole_experts)
        choices = product(question.zero, ways, range(1, question.batch + 1), recomputations)
        for zero, (shared, whole), size, again in choices:
            if (zero and dp * cp == 1) or ((shared or whole) and tp == 1) or question.batch % (dp * size):
                continue
            for schedule, chunks in product(question.schedules, range(1, 9)):
                m = question.batch // (dp * size)
                if (schedule == "interleaved") != (chunks > 1) or (chunks > 1 and m % pp):
                    continue
                if pp == 1 and schedule != "1F1B":
                    continue
                plan = TrainingPlan(
                    tp=tp,
                    cp=cp,
                    pp=pp,
                    dp=dp,
                    ep=ep,
                    zero=zero,
                    sequence_parallel=shared,
                    whole_experts=whole,
                    microbatch=size,
                    recomputation=again,
                    schedule=schedule,
                    chunks=chunks,
                )
                try:
                    run = plans.run_of(question, plan)
                except ValueError:
                    continue
                found[plan[2:]] = run, bytes_of(run), node.chip.memory
    return found


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_plans_are_all_there_are_and_as_step_and_memory_have_them(name):
    question, answer = QUESTIONS[name], answered(name)
    expected = brute(question)
    every = (*answer.fitting, *answer.rejected)
    looked_at = {
        plan._replace(seconds=0, nbytes=0, reason="", recomputed_layers=0, layers=0)[2:]: plan
        for plan in every
        if plan.reason in ("", "memory")
    }
    assert looked_at.keys() == expected.keys()
    assert len(answer.fitting) > 50
    assert {plan.reason for plan in looked_at.values()} == {"", "memory"}
    for key, (_run, nbytes, room) in expected.items():
        plan = looked_at[key]
        if plan.recomputed_layers:
            continue
        assert plan.nbytes == pytest.approx(nbytes, rel=1e-12)
        assert (plan.reason == "memory") == (nbytes > room)
    for plan in answer.fitting[::7]:
        assert plan.seconds == pytest.approx(step.step(plans.run_of(question, plan)).seconds, rel=1e-9)


@pytest.mark.parametrize("name", ["GPT, one node", "Llama, two nodes, contexts", "mixture, imbalance"])
def test_a_plan_recomputes_as_few_layers_as_suffice(name):
    question, answer = QUESTIONS[name], answered(name)
    some = [plan for plan in answer.fitting if plan.recomputed_layers]
    assert some
    for plan in some[::5]:
        assert f"recomputes {plan.recomputed_layers} of {plan.layers} layers" in plan.name
        assert bytes_of(plans.run_of(question, plan)) == pytest.approx(plan.nbytes, rel=1e-12)
        assert plan.nbytes <= question.capacity
        none = bytes_of(plans.run_of(question, plan._replace(recomputation="none", recomputed_layers=0)))
        full = bytes_of(plans.run_of(question, plan._replace(recomputed_layers=0)))
        saved = (none - full) / plan.layers  # by each layer
        assert none - (plan.recomputed_layers - 1) * saved > question.capacity


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_fastest_comes_first(name):
    seconds = [plan.seconds for plan in answered(name).fitting]
    assert seconds == sorted(seconds)
    assert answered(name).best.seconds == seconds[0] > 0


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_rejected_plan_has_a_reason_with_numbers(name):
    question, answer = QUESTIONS[name], answered(name)
    assert sum(answer.reasons.values()) == len(answer.rejected)
    for reason in answer.reasons:
        plan = next(plan for plan in answer.rejected if plan.reason == reason)
        text = plans.why(question, plan)
        assert reason in plans.REASONS
        assert any(letter.isdigit() for letter in text), text


def test_reasons_name_what_is_wrong():
    question = small(num_nodes=3, batch=20, room=60e9)
    answer = planner.search(question)

    def first(reason):
        return plans.why(question, next(plan for plan in answer.rejected if plan.reason == reason))

    assert answer.reasons.keys() == {"node size", "layers", "batch", "sequence", "microbatches"}
    assert first("node size") == "tp=3 does not share nodes of 8 GPUs evenly; use 1, 2, 4, 8, 24"
    assert first("layers") == "6 layers leave some of 8 stages empty"
    assert first("batch") == "a batch of 20 does not split over dp=24 replicas"
    assert first("microbatches") == "5 microbatches do not interleave over 3 stages; use a multiple"
    heads = small(replace(SMALL, num_heads=12), num_nodes=1)
    assert plans.why(heads, TrainingPlan(tp=8, reason="heads")) == "12 heads do not split over tp=8; use 1, 2, 4"
    short = small(num_nodes=1, sequence=1022)
    assert "1022 tokens do not split over 4 ranks" in plans.why(short, TrainingPlan(tp=4, dp=2, reason="sequence"))


def test_a_hybrid_is_planned_where_its_stages_are_alike_and_sequences_whole():
    answer = answered("hybrid, contexts")
    assert {plan.pp for plan in answer.fitting} == {1, 2}
    assert {plan.chunks for plan in answer.fitting} == {1}  # two stages in two chunks each would not be alike
    for reason, words in (("kinds", "use 1, 2 in all"), ("states", "use cp = 1")):
        plan = next(plan for plan in answer.rejected if plan.reason == reason)
        assert words in plans.why(answer.question, plan)


def test_a_plan_that_lacks_memory_says_how_much():
    answer = answered("GPT, one node")
    plan = next(plan for plan in answer.rejected if plan.reason == "memory")
    text = plans.why(answer.question, plan)
    assert text.startswith("needs ")
    assert " of 8 GB, " in text
    assert text.endswith(" too much")
    assert plans.why(answer.question, answer.best).startswith("fits: ")


def test_where_nothing_fits_the_nearest_plan_is_told():
    question = small(num_nodes=1, room=1.5e9, batch=8)
    answer = planner.search(question)
    assert not answer.fitting
    least = min(plan.nbytes for plan in answer.rejected if plan.reason == "memory")
    with pytest.raises(ValueError, match=r"nothing fits on DGX A100: .* too much"):
        _ = answer.best
    fits = planner.search(small(num_nodes=1, room=least, batch=8))
    assert fits.fitting
    assert fits.best.nbytes <= least


@pytest.mark.parametrize("name", QUESTIONS)
def test_more_memory_never_makes_the_best_plan_slower(name):
    best = float("inf")
    for room in (5e9, 8e9, 12e9, 40e9):
        question = QUESTIONS[name]
        node = replace(question.cluster.node, chip=replace(question.cluster.node.chip, memory=room))
        answer = planner.search(replace(question, cluster=replace(question.cluster, node=node)))
        if answer.fitting:
            assert answer.best.seconds <= best
            best = answer.best.seconds
    assert best < float("inf")


def test_experts_are_cut_by_every_degree_that_divides_them_and_dp():
    answer = answered("latent attention, dense layers")
    searched = [*answer.fitting, *answer.rejected_where(reason="memory")]
    tried = {(plan.dp, plan.ep) for plan in searched}
    assert {ep for dp, ep in tried if dp == 8} == {1, 2, 4}
    assert all(dp % ep == 0 == 12 % ep for dp, ep in tried)
    refused = answer.rejected_where(reason="experts", dp=2, ep=4)
    text = "dp=2 replicas do not split into groups of ep=4; use 1, 2"
    assert plans.why(answer.question, refused[0]) == text
    odd = replace(answer.question, expert=(8,))
    gone = planner.search(odd).rejected_where(reason="experts", dp=8)
    assert plans.why(odd, gone[0]) == "12 experts do not split over ep=8; use 1, 2, 4"
    dense = replace(QUESTIONS["fp8"], expert=(1, 2))
    gone = planner.search(dense).rejected_where(reason="experts")
    assert "a model without experts has none for ep=2 ranks" in plans.why(dense, gone[0])
    fuller = replace(QUESTIONS["mixture, imbalance"], imbalance=2.0)
    assert len(planner.search(fuller).fitting) < len(answered("mixture, imbalance").fitting)


def test_whole_experts_are_dealt_to_ep_and_tp_together():
    answer = answered("mixture, whole experts")
    whole = answer.where(whole_experts=True)
    assert whole
    assert all(plan.sequence_parallel and 12 % (plan.tp * plan.ep) == 0 for plan in whole)
    assert "sequence parallel, whole experts, microbatch" in whole[0].name
    assert plans.training_of(answer.question, whole[0]).layout.whole_experts
    gone = answer.rejected_where(reason="experts", whole_experts=True, tp=4, dp=4, ep=2)
    text = "12 whole experts do not split over ep=2 x tp=4; use fewer ranks, or whole_experts=(False,)"
    assert plans.why(answer.question, gone[0]) == text
    only = planner.search(replace(answer.question, whole_experts=(True,)))
    assert only.fitting == [plan for plan in answer.fitting if plan.whole_experts or plan.tp == 1]
    light = planner.search(replace(answer.question, recipe=recipes.MIXED))  # fp32 gradients wait longer than they save
    ways = [light.where(whole_experts=each, sequence_parallel=True, zero=2)[0].seconds for each in (True, False)]
    assert ways == sorted(ways)
    short = planner.search(replace(answer.question, sequence=1022, expert=(1,)))
    gone = short.rejected_where(reason="sequence", whole_experts=True, tp=4)
    assert "1022 tokens do not split over 4 ranks" in plans.why(short.question, gone[0])


def test_headroom_is_memory_that_no_plan_takes():
    """The same plans fit as on GPUs with so much less memory."""
    full, less = (planner.search(small(num_nodes=1, batch=24, room=room)) for room in (8e9, 6e9))
    answer = planner.search(replace(full.question, headroom=0.25))
    assert answer.fitting == less.fitting
    assert 0 < len(answer.fitting) < len(full.fitting)
    assert "of 6 GB" in plans.why(answer.question, answer.best)
    with pytest.raises(ValueError, match="headroom=10 must be a share"):
        replace(full.question, headroom=10)


def test_those_that_were_rejected_come_smallest_first():
    answer = answered("GPT, two nodes, scores stored")
    gone = answer.rejected_where(tp=8, reason="memory")
    assert gone
    assert [plan.nbytes for plan in gone] == sorted(plan.nbytes for plan in gone)


def test_a_limit_on_chunks_leaves_all_plans_with_fewer():
    question = small(num_nodes=1, batch=24)
    few = planner.search(replace(question, most_chunks=2)).fitting
    assert few == [plan for plan in planner.search(question).fitting if plan.chunks <= 2]
    assert {plan.chunks for plan in few} == {1, 2}
    assert any(plan.chunks > 2 for plan in planner.search(question).fitting)


def test_different_plans_differ_in_their_degrees():
    answer = answered("Llama, two nodes, contexts")
    degrees = [(plan.tp, plan.cp, plan.pp, plan.ep) for plan in answer.different]
    every = {(plan.tp, plan.cp, plan.pp, plan.ep) for plan in answer.fitting}
    assert len(degrees) == len(set(degrees)) == len(every)
    assert answer.different[0] == answer.best
    assert all(plan == answer.where(tp=plan.tp, cp=plan.cp, pp=plan.pp)[0] for plan in answer.different)


def test_a_plan_says_what_it_is():
    plan = TrainingPlan(
        tp=8,
        pp=64,
        dp=6,
        zero=1,
        sequence_parallel=True,
        microbatch=2,
        recomputation="full",
        schedule="interleaved",
        chunks=2,
    )
    cut = "tp 8, pp 64, dp 6, ZeRO-1, sequence parallel"
    assert plan.name == f"{cut}, microbatch 2, interleaved in 2 chunks, full recomputation"
    alone = TrainingPlan(microbatch=4, schedule="1F1B", recomputation="none")
    assert alone.name == "one GPU, microbatch 4"


def test_a_plan_that_was_not_looked_at_to_its_end_makes_no_training():
    with pytest.raises(ValueError, match="does not split over dp=24"):
        plans.training_of(small(batch=20), TrainingPlan(dp=24, reason="batch"))


# ---- what teams published --------------------------------------------------------------------------------------------


@functools.cache
def studied(name):
    return planner.search(studies.STUDIES[name].question)


def test_a_trillion_parameters_are_cut_as_megatron_cut_them():
    study, answer = studies.STUDIES["a trillion on 3,072 A100"], studied("a trillion on 3,072 A100")
    assert {name: getattr(answer.best, name) for name in study.published} == study.published == {"tp": 8, "pp": 64}
    assert (answer.best.dp, answer.best.microbatch, answer.best.recomputation) == (6, 1, "full")


def test_gpt_3_as_megatron_cut_it_is_near_the_best():
    """Theirs computes half of the layers again; the best keeps everything on 36 stages more."""
    study, answer = studies.STUDIES["GPT-3 on 1,536 A100"], studied("GPT-3 on 1,536 A100")
    theirs = study.theirs(answer)
    assert (answer.best.tp, answer.best.pp, answer.best.recomputation) == (8, 12 + 36, "none")
    assert answer.best.seconds == pytest.approx(17.4, abs=0.05)
    assert (theirs.recomputed_layers, theirs.layers) == (4, 8)
    assert theirs.seconds < 1.03 * answer.best.seconds


def test_llama_3_as_its_team_cut_it_is_near_the_best():
    """Its degrees are the fastest where three layers of eight are recomputed; without, 8.4 GB are missing.

    Theirs recomputed nothing and freed early what it no longer needed.
    """
    study, answer = studies.STUDIES["Llama 3 405B on 16,384 H100"], studied("Llama 3 405B on 16,384 H100")
    theirs = study.theirs(answer)
    assert (theirs.dp, theirs.schedule, theirs.microbatch, theirs.recomputation) == (128, "interleaved", 1, "full")
    assert theirs == answer.best
    assert (theirs.recomputed_layers, theirs.layers) == (3, 8)
    assert theirs.seconds == pytest.approx(7.256, abs=0.001)
    assert answer.where(tp=16)[0].seconds == pytest.approx(7.419, abs=0.001)
    assert not answer.where(tp=8, pp=16, recomputation="none")
    short = answer.rejected_where(tp=8, pp=16, recomputation="none", zero=2, sequence_parallel=True)
    assert short[0].nbytes == pytest.approx(84.4e9, abs=0.05e9)


@functools.cache
def every_choice():
    question = replace(
        studies.STUDIES["a trillion on 3,072 A100"].question,
        context=(1, 2, 4),
        zero=(0, 1, 2, 3),
        sequence_parallel=(False, True),
        recomputations=("none", "selective", "full"),
    )
    return planner.search(question)


@pytest.mark.slow
def test_a_hundred_thousand_plans():
    answer = every_choice()
    assert answer.count > 100_000
    assert answer.best.seconds < studied("a trillion on 3,072 A100").best.seconds


def test_the_recorded_bench_counts_the_plans_that_are_found_now():
    """Its seconds are a machine's; its counts stand in the chapter beside those that the chapter computes."""
    for name, row in measured.results("planner")["questions"].items():
        answer = studied(name) if name in studies.STUDIES else every_choice()
        assert (row["plans"], row["fit"], row["best"]) == (answer.count, len(answer.fitting), answer.best.name), name


def test_the_recorded_bench_ranks_the_published_sweeps_as_they_are_ranked_now():
    now = [{"tau": each.agreement, "regret": each.regret} for each in SWEEPS]
    assert [*measured.results("planner")["sweeps"].values()] == [pytest.approx(each) for each in now]


def test_degrees_use_all_gpus():
    for answer in map(answered, QUESTIONS):
        gpus = answer.question.cluster.gpus
        assert all(plan.tp * plan.cp * plan.pp * plan.dp == gpus for plan in (*answer.fitting, *answer.rejected))
        assert {plan.tp for plan in answer.rejected} | {plan.tp for plan in answer.fitting} == set(divisors(gpus))


def test_published_models_have_their_published_layouts_in_reach():
    for name, study in studies.STUDIES.items():
        assert study.theirs(studied(name)) is not None
        assert models.num_parameters(study.question.spec) > 100e9


# ---- what it refuses -----------------------------------------------------------------------------------------------

OPEN = Question(spec=models.published("GPT-3 175B").spec, cluster=nodes.cluster("DGX H100", 128), batch=8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": -8}, "batch=-8 must be a whole number of at least 1"),
        ({"batch": 16.0}, "batch=16.0 must be a whole number of at least 1"),
        ({"context": (-1,)}, "context=(-1,) must be a list or a tuple, each item a whole number of at least 1"),
        ({"context": (0,)}, "context=(0,) must be a list or a tuple, each item a whole number of at least 1"),
        ({"context": ()}, "context, expert, sequence_parallel must name a choice each"),
        ({"schedules": ("ZB-H1",)}, "schedules=('ZB-H1',) must be some of naive, GPipe, 1F1B, interleaved"),
        ({"zero": (4,)}, "zero=(4,) must be some of 0, 1, 2, 3"),
        ({"recomputations": ()}, "recomputations=() must be some of none, selective, full"),
        ({"sequence": 4096}, "use at most 2048"),
        ({"whole_experts": ()}, "whole_experts=() must be some of False, True"),
        ({"whole_experts": (True,)}, "whole experts need a model with experts and sequence_parallel=(True,); use"),
        ({"headroom": math.nan}, "headroom=nan must be a finite number of at least 0"),
    ],
)
def test_a_question_without_an_answer_is_refused(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        replace(OPEN, **changes)


def test_a_search_that_would_not_end_is_refused_with_the_way_out():
    for batch, message in [
        (735_134_400, "up to 2,580,480 plans, and a search tries at most 2,000,000; leave fewer choices open"),
        (10**12, "batch=1000000000000 sequences on 1024 GPUs have too many divisors to try; use at most 1,000,000,000"),
    ]:
        with pytest.raises(ValueError, match=message):
            planner.search(replace(OPEN, batch=batch))


def test_a_batch_of_a_hundred_million_is_searched():
    """It has as many plans as a small batch with as many divisors."""
    found = planner.search(replace(OPEN, cluster=nodes.cluster("DGX H100"), batch=10**8))
    assert found.count > 30_000


def test_no_plan_has_a_choice_that_does_not_exist():
    found = planner.search(replace(OPEN, cluster=nodes.cluster("DGX H100")))
    with pytest.raises(ValueError, match="a plan has no tensor; use seconds, nbytes, tp, "):
        found.where(tensor=8)
