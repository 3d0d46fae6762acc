"""Questions on choosing a layout: what plans waste, and how far to trust a plan."""

from math import ceil
from random import Random

from shardlab.costs import memory, tensor_parallel
from shardlab.costs.facts import hardware, models
from shardlab.costs.pipeline import bubble
from shardlab.costs.training import Training
from shardlab.costs.units import percent, text
from shardlab.sharding.layout import Layout

from .bank import ExamQuestion

TENTH = 0.1


def _bubble(stages: int, count: int, chunks: int = 1) -> float:
    """Return the bubble of `count` microbatches, as a share of the computing time."""
    each = dict.fromkeys("FIW", 1 / chunks)
    waits = bubble.waiting("interleaved", stages, count, each)
    return float(bubble.of_ideal(waits, count, chunks, each))


def least(draw: Random) -> ExamQuestion:
    """Ask how many GPUs must share a model, because of memory and because of the batch."""
    billions, card = draw.choice((8, 32, 70)), draw.choice((80, 141, 192))
    gpus, batch = draw.choice((2048, 4096, 8192)), 512
    states = sum(memory.model_states(billions * 1e9).values())
    by_states, by_batch = ceil(states / (0.95 * card * 1e9)), gpus // batch
    more = (by_batch >= by_states) + (by_batch > by_states)
    decides = ("memory", "neither", "the batch")[more]
    return ExamQuestion(
        level=1,
        ask=f"""{billions} billion parameters have states of 16 bytes each. A GPU has {card} GB, of
        which a twentieth stays free. There are {gpus:,} GPUs, and learning allows a batch of
        {batch} sequences, none of which is cut. At least how many GPUs must share a copy of the
        model because of its states, without ZeRO, and how many because of the batch? Which of the
        two decides, if one does? Why is the first a bound, and no plan?""",
        answer=f"""States: {text(states, "B")}, at least {by_states} GPU{"s" * (by_states > 1)}.
        Batch: at most {batch} replicas, so at least {by_batch} GPUs for each. Here {decides}
        decides. Activations, context, libraries and buffers come on top of states, and degrees must
        divide heads, layers and GPUs.""",
        rubric="""1: states over usable memory, rounded up
        1: a replica needs at least one sequence
        1: the larger of both, and what the bound leaves out""",
        wrong="Memory only: model parallelism also puts GPUs to work that have no sequence.",
    )


def stays(draw: Random) -> ExamQuestion:
    """Ask what fewer stages gain where GPUs and batch are given."""
    gpus, batch = draw.choice((512, 1024)), draw.choice((128, 256, 512))
    many, few = draw.choice(((16, 4), (16, 8), (32, 8)))
    found = {}
    for stages in (many, few):
        dp = gpus // (8 * stages)
        found[stages] = dp, batch // dp, _bubble(stages, batch // dp)
    kept, again = 1 + found[many][2], 4 / 3 * (1 + found[few][2])
    return ExamQuestion(
        level=3,
        ask=f"""{gpus:,} GPUs, tp = 8, a batch of {batch} sequences, one in a microbatch, 1F1B
        without interleaving. A plan with pp = {many} keeps all activations. A colleague recomputes
        every layer, so that pp = {few} fits, "because the bubble grows with pp". dp takes the
        remaining GPUs. Compare both steps by their wastes: bubble and recomputation only. Why does
        the bubble hardly fall, and what would make the bubble smaller?""",
        answer=f"""pp = {many}: dp = {found[many][0]}, m = {found[many][1]}, a bubble of
        {percent(found[many][2])} of the computing time, so {kept:.2f} times the bare arithmetic. pp
        = {few}: dp = {found[few][0]}, m = {found[few][1]}, {percent(found[few][2])}, but a third
        more arithmetic: {again:.2f}. Fewer stages mean more replicas and fewer microbatches: the
        bubble is (1 - 1/pp) N / (tp B), which hardly depends on pp. Chunks, a larger batch or fewer
        GPUs make it smaller.""",
        rubric="""3: dp and m of both plans, and both factors, with bubble and 4/3
        2: m falls with pp, so the bubble nearly stays; chunks, batch or GPUs as a remedy""",
        wrong="m is left as it was: then half the stages would have half the bubble.",
    )


def ranks(draw: Random) -> ExamQuestion:
    """Ask how many ranks may share a layer."""
    name, chip = draw.choice((("NVLink 4", "H100 SXM 80 GB"), ("NVLink 3", "A100 SXM 80 GB")))
    model, share = draw.choice(("GPT-3 175B", "GPT-2 large")), draw.choice((0.1, 0.2, 0.25))
    run = Training(spec=models.published(model).spec, layout=Layout(tp=2))
    used, link = hardware.chip(chip), hardware.link(name).reached
    most = tensor_parallel.most_ranks(run, used, link, share)
    less = 1 + (most - 1) / 2
    heads, width = run.spec.num_heads, run.spec.hidden_size
    works = max(tp for tp in (1, 2, 4, 8) if heads % tp == 0 and tp <= most)
    return ExamQuestion(
        level=2,
        ask=f"""A GPT of width {width:,} has {heads} heads. A GPU reaches
        {text(tensor_parallel.rate(run, used), "FLOP/s")} in 16 bits, and a ring over NVLink
        {text(link.bandwidth, "B/s")} in each direction. Up to which tp do messages take at most
        {percent(share)} of the time of arithmetic, by the chapter's inequality? Up to which tp
        would you go in servers of eight GPUs, with equal parts only? A better kernel doubles the
        rate: what becomes of the limit?""",
        answer=f"""1 + 9/2 s h β / F = {most:.3g}. tp must also divide {heads} heads and the eight
        GPUs that NVLink joins: at most {works}, and no more than the model or the batch needs. At
        twice the rate the limit is {less:.3g}: arithmetic gets shorter, messages do not.""",
        rubric="""1: the inequality with its numbers
        3: heads, NVLink and need as further limits; the excess over 1 halves""",
        wrong="tp up to the inequality's number: beyond NVLink β is another one.",
    )


def chunks(draw: Random) -> ExamQuestion:
    """Ask how many chunks keep a bubble below a tenth of all time."""
    stages, count = draw.choice(((4, 16), (8, 16), (8, 32), (8, 48), (16, 32), (16, 48)))
    layers = 96 // stages
    every = [v for v in range(1, layers + 1) if layers % v == 0]
    shares = {v: 1 - 1 / (1 + _bubble(stages, count, v)) for v in every}
    enough = next(v for v in every if shares[v] <= TENTH)
    return ExamQuestion(
        level=1,
        ask=f"""96 equal layers are on {stages} stages, and a replica has {count} microbatches.
        Which is the smallest number of chunks on each stage, all with the same number of layers,
        that keeps the bubble at or below a tenth of all time? What is the bubble of 1F1B without
        chunks, and with one layer in a chunk? What do chunks cost?""",
        answer=f"""m v must be at least 9 (p - 1) = {9 * (stages - 1)}, and v must divide {layers}:
        v = {enough}, with {percent(shares[enough])}. It is {percent(shares[1])} with one chunk and
        {percent(shares[layers])} with {layers}. Chunks send over v times as much and keep more.""",
        rubric="""1: the bubble as a share of all time, (p - 1) / (m v + p - 1)
        2: the smallest v that divides the layers of a stage; messages and memory as its price""",
        wrong="A v that does not divide the layers of a stage: chunks would be unequal.",
    )


def larger(draw: Random) -> ExamQuestion:
    """Ask whether a batch with more tokens per second ends sooner."""
    small, critical = draw.choice((2, 4)), draw.choice((4, 6, 8))
    times, faster = draw.choice((4, 8)), draw.choice((1.2, 1.3, 1.5))
    more = (1 + times * small / critical) / (1 + small / critical)
    ends = "later" if more > faster else "sooner"
    return ExamQuestion(
        level=2,
        ask=f"""By the planner {times} times the batch gives {faster} times as many tokens per
        second on the same GPUs. The batch has {small} million tokens now, and the critical batch is
        {critical} million. How many times as many tokens does the larger batch need for the same
        progress, when does it end, and what should the planner have been told?""",
        answer=f"""(1 + {times * small}/{critical}) / (1 + {small}/{critical}) = {more:.2f} times as
        many tokens, at {faster} times the rate: it takes {more / faster:.2f} times as long, so it
        ends {ends}. The batch belongs to the question, not among the choices.""",
        rubric="""2: both factors 1 + B / Bc, and their ratio
        2: the time as tokens over rate; the batch is fixed before planning""",
        wrong="It ends as many times sooner as the rate is higher: tokens are not progress.",
    )


STEP = ExamQuestion(
    level=2,
    ask="""A home-made planner computes steps so; P parameters, B sequences of S tokens, N GPUs of F
    FLOP/s, v chunks, one sequence in a microbatch. Its plans have many stages, and are slower than
    promised. Which letter is wrong? In which direction does the choice go, and for which plans does
    it not matter?

    ```python
    arithmetic = 6 * P * B * S / (N * F) * (4 / 3 if recompute else 1)
    seconds = arithmetic * (1 + (pp - 1) / (v * B))
    ```""",
    answer="""B in the second line: a pipeline has the microbatches of its replica, m = B / dp. The
    bubble is dp times too small, so stages look nearly free, and are preferred to tp and to
    recomputation. It is right with dp = 1, and irrelevant with pp = 1.""",
    rubric="""2: microbatches of a replica, B / dp
    2: the bubble is too small by dp, so too many stages; dp = 1, or pp = 1""",
    wrong="The 6, or the 4/3: both are the chapter's.",
)

SEARCH = ExamQuestion(
    level=2,
    ask="""A search on 512 GPUs, for a model with 40 heads and 48 layers and a batch of 1,680
    sequences, lists plans like this. Two checks are missing. Name for each a plan that is listed
    and should not be, and what would happen with it.

    ```python
    for tp in (1, 2, 4, 8, 16):
        for pp in (1, 2, 3, 4, 6, 8, 12, 16):
            dp = 512 // (tp * pp)
            if 1680 % dp == 0:
                plans.append((tp, pp, dp))
    ```""",
    answer="""tp must divide the heads: (16, 4, 8) is listed, and 40 heads do not split over 16
    ranks. The product must be 512: (4, 3, 42) is listed, where 8 GPUs stand idle, while a time with
    N = 512 counts them.""",
    rubric="""2: heads, with a plan of tp = 16
    2: idle GPUs, with a plan whose product is below 512, and the time that flatters it""",
    wrong="Memory: a plan that does not fit is legal, and sorted out later.",
)

TIES = ExamQuestion(
    level=2,
    ask="""A planner whose mean error on similar runs is 4 % prints this. *Behind* and *worst* are
    the mean and the largest loss against the best plan of each of 40 draws of rates. You may time
    two plans. Which two, and which plan would you run without any timing? What does the first
    line's 9.80 s promise?

    | plan | predicted, s | behind, % | worst, % |
    |---|---|---|---|
    | a: tp = 16 on two servers | 9.80 | 6 | 31 |
    | b: tp = 8, pp = 8 | 9.97 | 2 | 7 |
    | c: tp = 8, pp = 16 | 10.05 | 3 | 9 |
    | d: tp = 4, pp = 32 | 10.90 | 10 | 14 |""",
    answer="""a, b and c are ties: within 4 % of each other. d is 11 % behind. Without timing b,
    which is least behind. With two timings b and a: a may be best, but leans on one rate, that
    between servers; c is a neighbour of b, and mostly right or wrong with it. The 9.80 s promise
    too much: the best of many predictions is partly the luckiest.""",
    rubric="""2: ties by the error; b, by what it loses when rates differ
    1: times plans whose errors differ, and measures the network
    1: the winner's curse""",
    wrong="a, for its time: 2 % is less than the planner knows.",
)

FASTER = ExamQuestion(
    level=3,
    ask="""The next GPU has twice the FLOP/s in products, the same memory, as fast as before, and
    the same links. Model, batch and number of GPUs stay. In which direction does each choice move:
    tp, overlap of gradients, recomputation against more tp, pp with its bubble? Does a step become
    twice as fast?""",
    answer="""The limit on tp falls, since the time of its messages stays. Gradients hide behind
    half as much backward, so waiting may appear. A third of the FLOPs costs half as many seconds,
    while messages cost the same: recomputation gains against more tp. The bubble is a share of
    computing and keeps its share. The step is less than twice as fast, as messages, elementwise
    work and the optimizer's update stay.""",
    rubric="""2: the limit on tp falls, and less time hides gradients
    2: recomputation gets cheaper beside messages, and the share of the bubble stays
    1: less than twice, with what stays""",
    wrong="Nothing moves: plans are thought to depend on FLOPs alone.",
)

FAR = ExamQuestion(
    level=2,
    ask="""A planner was compared with 95 published steps of dense models, and is off by 4 % on
    average. For your mixture of experts it prefers tp over two servers, by 10 %, to the best plan
    with tp inside. Is that enough to decide? What do you do before you rent the cluster for a
    month?""",
    answer="""No: no row has tp between servers or experts, so the 4 % says nothing here, and what
    is compared differs in just the part that was never tested. Measure the collectives that the
    plan leans on, with all groups at once, put the rates into the planner, see whether the order
    stays at half of the network, and time the best few plans for some steps.""",
    rubric="""2: the error holds for what resembles the rows; this plan does not
    2: measured rates, under load; times the candidates""",
    wrong="10 % is more than 4 %, so it is safe.",
)

VENDOR = ExamQuestion(
    level=3,
    ask="""A vendor's planner promises a step a fifth faster than yours, on your cluster. What do
    you ask before you believe it?""",
    answer="""The same batch, length and precision? Is memory left for what comes late, and is
    overhead counted? Which rate do links get, under which load? How wrong was it on runs like this?
    Then time both for a few steps.""",
    rubric="""2: three conditions that must be equal, each with its effect
    2: known errors, or the best of many; a measurement decides""",
    wrong="Whether its search is better: a search rarely finds a fifth, another question does.",
    then="All is equal, but it keeps 1 % of the memory free and you keep 5. Who is right?",
)

LITTLE = ExamQuestion(
    level=2,
    ask="""Why as little model parallelism as possible? And when more than memory asks for?""",
    answer="""Arithmetic is the same in every plan. tp sends in each layer and makes matrices
    narrow, pp waits; replicas send once a step, mostly hidden. More is right where there are more
    GPUs than sequences, or where it saves a full recomputation that costs more.""",
    rubric="""1: what each of tp, pp and dp wastes
    2: GPUs without a sequence, or a trade against recomputation""",
    wrong="It computes less: the FLOPs are the same in every plan.",
    then="One server, eight GPUs, and the model fits on one of them. What do you do?",
)

WRITTEN = (least, ranks, chunks, stays, larger, STEP, SEARCH, TIES, FASTER, FAR)
ORAL = (VENDOR, LITTLE)
