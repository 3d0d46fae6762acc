"""Questions on pipeline parallelism: bubbles, what is in flight, borders, and slow stages."""

from random import Random

from shardlab import schedules
from shardlab.costs.pipeline import balance, timeline

from .bank import ExamQuestion


def _played(name: str, p: int, m: int, v: int | None = None) -> timeline.Timeline:
    """Play a schedule whose backwards take twice as long as its forwards; a stage takes 3."""
    chunks = v or 1
    return timeline.play(schedules.make(name, p, m, v), {"F": 1 / chunks, "B": 2 / chunks})


def replicas(draw: Random) -> ExamQuestion:
    """Ask which of two layouts has the smaller bubble at the same batch."""
    stages, total = draw.choice((8, 16)), draw.choice((64, 128, 256))
    wide, slim = (_played("1F1B", p, total * p // 64) for p in (stages, stages // 2))
    return ExamQuestion(
        level=1,
        ask=f"""64 GPUs train with a global batch of {total} microbatches of a fixed size, in 1F1B
        with a flush. Compare {stages} stages with {stages // 2}: how many replicas, how many
        microbatches in each, and which bubble, as a share of all time? Stages are equally slow, and
        messages take no time. Why does half the stages not halve the bubble?""",
        answer=f"""{64 // stages} replicas with {total * stages // 64} microbatches each, and
        {128 // stages} with {total * stages // 128}. (p - 1) / (m + p - 1) is
        {100 * wide.bubble_of_total:.1f} % and {100 * slim.bubble_of_total:.1f} %. With the GPUs and
        the batch fixed, m falls with p, so p / m stays; only the 1 in p - 1 matters.""",
        rubric="""1: replicas and microbatches of both
        2: both bubbles, of all time
        1: the microbatches of a replica fall with its stages""",
        wrong="The same m in both: the batch would then have to be twice as large.",
    )


def chunks(draw: Random) -> ExamQuestion:
    """Ask what interleaving gains, sends and holds."""
    p, v, rounds = draw.choice((4, 8)), draw.choice((2, 4)), draw.choice((2, 3, 4))
    m = p * rounds
    plain, mixed = _played("1F1B", p, m), _played("interleaved", p, m, v)
    crossings = [run.schedule.num_crossings for run in (plain, mixed)]
    held = max(mixed.peaks(activation=1 / v))
    return ExamQuestion(
        level=2,
        ask=f"""A pipeline of {p} stages runs {m} microbatches. Compare 1F1B with its interleaved
        form of {v} chunks on each stage: the bubble as a share of all time, how often a microbatch
        crosses from one stage to another in forward, and how many microbatches' activations the
        first stage holds at most, counted as whole stages. A message is as large as before: why?
        All chunks are equally slow, messages take no time, and a flush ends the step.""",
        answer=f"""The wait is 1/{v} as long: {100 * plain.bubble_of_total:.1f} % becomes
        {100 * mixed.bubble_of_total:.1f} %. Crossings: p v - 1 = {crossings[1]} in place of
        {crossings[0]}. Held: p + (p - 1) / v = {held:g} in place of {p}. A message carries the
        activations of a border, tokens times width, whatever number of layers lies behind it.""",
        rubric="""2: both bubbles
        1: crossings
        2: the memory, and what a message is made of""",
        wrong=f"1/{v} of the share: the wait shrinks so, but all time shrinks as well.",
    )


def hidden(draw: Random) -> ExamQuestion:
    """Ask how many layers a chunk needs to hide its message."""
    width, rate = draw.choice((1600, 4096, 12_288)), draw.choice((200, 400, 500))
    gbits = draw.choice((25, 100, 200))
    layers = rate * 1e12 / (12 * gbits / 8 * 1e9 * width)
    return ExamQuestion(
        level=2,
        ask=f"""A GPT of width {width:,} is cut into stages. Each GPU reaches {rate}
        TFLOP/s, and its own card {gbits} Gb/s in each direction; activations have 16 bits. Derive
        how many layers a chunk needs so that its forward takes as long as its message, without
        latency and without attention's scores. What changes with twice as many tokens, and with
        tensor parallelism over 8 ranks in each stage, each of which sends the whole border through
        a card of its own?""",
        answer=f"""24 T h² FLOPs for each layer over F, against 2 T h bytes over β: F / (12 β h) =
        {layers:.2g} layers. Tokens cancel. With 8 ranks each computes an eighth and sends as much:
        {8 * layers:.2g} layers.""",
        rubric="""2: both times, with bits turned into bytes
        1: tokens cancel
        1: eight times as many layers, since arithmetic alone is divided""",
        wrong="Gigabits taken for gigabytes: an eighth of the layers.",
    )


def slowest(draw: Random) -> ExamQuestion:
    """Ask what one slow stage costs, and what moving a layer gains."""
    m, layers = draw.choice((16, 32, 64)), draw.choice((6, 8, 10))
    head = draw.choice((2, 3))
    units = [balance.Layer(seconds=1, states=0)] * (4 * layers)
    cut = balance.split([*units, balance.Layer(seconds=head, states=0)], [1] * 4)
    even = 4 * layers + head + (m - 1) * (layers + head)
    best = sum(cut.seconds) + (m - 1) * max(cut.seconds)
    sizes = sorted(map(int, cut.seconds))
    return ExamQuestion(
        level=2,
        ask=f"""{4 * layers} equal layers and a head that takes as long as {head} of them stand on
        four stages, {layers} layers on each, and the head on the last stage as well. Memory does
        not limit anything. In units of a layer's forward and backward, how long does a GPipe step
        of {m} microbatches take? Only whole layers can move, and the head stays behind the last.
        How short can the step become, and do more microbatches help against the imbalance?""",
        answer=f"""The sum of all stages plus (m - 1) times the slowest: {4 * layers + head} +
        {m - 1} x {layers + head} = {even}. The best cut has stages of {", ".join(map(str, sizes))}
        units, in some order: {best:g}. More microbatches only make the slowest stage's share of the
        step larger.""",
        rubric="""2: the step with the head on a full stage
        1: a cut whose slowest stage is as fast as possible
        1: its step, and that m does not cure an imbalance""",
        wrong="The mean of all stages times m: others cannot work ahead of the slowest for long.",
    )


def states(draw: Random) -> ExamQuestion:
    """Ask what more stages divide, and what they do not."""
    p, held, kept = draw.choice((4, 8)), draw.choice((160, 320, 480)), draw.choice((24, 40, 56))
    first, last = (_played("1F1B", p, 64).peaks()[stage] for stage in (0, -1))
    share = kept / p
    return ExamQuestion(
        level=1,
        ask=f"""A model's states take {held} GB, and one microbatch's activations of all its layers
        {kept} GB. On {p} equal stages with 64 microbatches, what do the first and the last stage
        hold in 1F1B, and what would the first hold in GPipe? Leave out embedding, head and
        buffers. What do twice as many stages change for the first?""",
        answer=f"""States {held / p:g} GB on each. A stage keeps {share:g} GB of a microbatch. First
        stage: {first} of them, {held / p + first * share:g} GB in all; the last: {last}, which is
        {held / p + last * share:g} GB. GPipe: 64, {held / p + 64 * share:g} GB. With twice as many
        stages only the states halve: the first holds halves of twice as many microbatches.""",
        rubric="""2: p microbatches on the first and one on the last stage, with bytes
        1: all of them in GPipe
        1: activations of the first stage do not depend on p""",
        wrong="Everything divided by the stages: the microbatches in flight were forgotten.",
    )


def half(draw: Random) -> ExamQuestion:
    """Ask for the wait of a split backward, and what attention does to it."""
    p, m = draw.choice((4, 6, 8)), draw.choice((16, 24, 32))
    takes = {"F": draw.choice((10, 12)), "I": 12, "W": draw.choice((6, 8, 10))}
    split = timeline.play(schedules.make("ZB-H1", p, m), takes)
    plain = timeline.play(schedules.make("1F1B", p, m), takes)
    waits = [run.makespan - run.busy[0] for run in (plain, split)]
    gain = 1 - split.makespan / plain.makespan
    return ExamQuestion(
        level=2,
        ask=f"""On {p} stages a microbatch's forward takes {takes["F"]} ms, the gradient of inputs
        12 ms, and that of weights {takes["W"]} ms. {m} microbatches, a flush, messages free. How
        long does a stage wait in 1F1B? ZB-H1 fills holes with gradients of weights and waits (p -
        1)(F + I - W), with the three times from above: where does the minus come from, by how much
        is the step shorter, and what do longer texts do to the gain? Scores have no weights.""",
        answer=f"""1F1B: (p - 1) (F + I + W) = {waits[0]} ms. ZB-H1: {waits[1]} ms: a stage's W
        no longer delays a gradient, and one W more fills each hole. The step takes {split.makespan}
        in place of {plain.makespan} ms, {100 * gain:.1f} % less. Attention's scores have gradients
        of inputs only. Per token F and I grow with the text, W not: less work, larger holes.""",
        rubric="""1: both waits
        1: W leaves the way of gradients, and fills
        2: both steps, work included; scores make F and I longer, not W""",
        wrong="No wait: zero holds at best inside, for equal parts, and not with a flush.",
    )


GRAPH = ExamQuestion(
    level=2,
    ask="""A stage in the middle keeps `y` and later gets the gradient `dy` for it. The program
    runs without an error. On which stages do gradients differ from those of one process, which
    line is missing, and why is there no error?

    ```python
    x = comm.receive(like, group, stage - 1)
    y = layers(x)
    comm.send(y.detach(), group, stage + 1)
    # ... later ...
    y.backward(comm.receive(like, group, stage + 1))
    dx = x.grad if x.requires_grad else torch.zeros_like(x)
    comm.send(dx, group, stage - 1)
    ```""",
    answer="""`x.requires_grad_()` before `layers(x)`. This stage's own gradients are right, since
    its weights need gradients; x gets none, so zeros go to all stages before, which learn nothing.
    The line that guards against a missing gradient turns an error into silence.""",
    rubric="""1: the line, before the layers
    2: right from here on, zero before
    1: the guard hides it""",
    wrong="`detach` cuts the graph: numbers cross without history anyway; y is kept for backward.",
)

ORDER = ExamQuestion(
    level=2,
    ask="""Somebody writes these orders for two stages, where `B1` is the backward of microbatch 1.
    A receive names no microbatch, and messages of a link arrive in the order in which they were
    sent. All microbatches have the same shape. What happens, and what would a checker compare?

    ```
    stage 0:  F0 F1 B0 B1
    stage 1:  F0 F1 B1 B0
    ```""",
    answer="""No stage waits for ever: stage 1 sends the gradient of microbatch 1 first, and stage 0
    takes it for that of microbatch 0. Shapes fit, so stage 0 goes back through the wrong graph with
    each, and its gradients are wrong without an error; stage 1's are right. Compare the order of
    microbatches that leave one end of a link with the order in which the other end takes them.""",
    rubric="""2: gradients are exchanged between microbatches on stage 0, silently
    1: stage 1 is right
    1: both ends of a link must agree on the order""",
    wrong="A deadlock: nobody waits for a message that is never sent.",
)

SCALE = ExamQuestion(
    level=2,
    ask="""20 sequences form microbatches of 8, 8 and 4; `loss` is the mean of a microbatch's
    sequences, all equally long. The last stage runs `(loss / 3).backward()`. By which factors are
    the sequences weighted wrongly? What is right, which other stages need a change, and does the
    number of stages matter?""",
    answer="""A sequence has weight 1/24 in the large microbatches and 1/12 in the small one, in
    place of 1/20: 5/6 and 5/3 times. Multiply by 8/20, 8/20 and 4/20. Only the last stage does
    so, since all others go on from the gradient that it sends. The same mistake appears with one
    stage: it is one of accumulation.""",
    rubric="""2: both factors
    1: the share of the samples
    1: the last stage alone, and any number of stages""",
    wrong="Each stage scales its gradients: then early stages are scaled several times.",
)

PICK = ExamQuestion(
    level=3,
    ask="""A model of 64 layers just fits on 8 stages with 1F1B, and the first stage is full. A
    replica gets 16 microbatches, links between servers are slow and plain 1F1B waits for messages.
    Judge GPipe, 1F1B that runs ahead as far again and so holds 15, interleaving with 2 chunks, and
    ZB-V. Which would you try first, and what would you measure?""",
    answer="""GPipe and the deeper 1F1B hide messages better, but hold 16 and 15 microbatches,
    which do not fit. Interleaving halves the wait and has other work meanwhile, but holds 8 + 7/2.
    ZB-V holds 8 if its parts take equally long, has other work meanwhile, and sends twice as
    much. So ZB-V, or recomputation with one of the others; measure the busy time of each stage and
    whether messages still show.""",
    rubric="""2: what each holds, against a first stage that is full
    2: which of them have work while a message travels, and that messages double
    1: a decision with a measurement""",
    wrong="The smallest bubble on paper: it counts neither messages nor memory.",
)

ONE_BATCH = ExamQuestion(
    level=3,
    ask="""You may double the global batch, or the number of stages may be halved by recomputing
    all layers. Which one makes the pipeline faster?""",
    answer="""Twice the microbatches almost halve the bubble, but learning may need more tokens
    beyond the critical batch. Recomputation costs a third more FLOPs, so it pays only if the bubble
    was large: stages halve, but replicas double and each gets half of the microbatches: at a fixed
    batch the bubble hardly moves. Usually the batch, while learning allows it.""",
    rubric="""2: at a fixed batch and number of GPUs m falls with p
    1: a third more FLOPs
    1: what a larger batch costs""",
    wrong="Half the stages halve the bubble: true for one replica only.",
    then="From which bubble on could recomputation pay, if it removed the bubble altogether?",
)

SHARDS = ExamQuestion(
    level=2,
    ask="""A model fits on 64 GPUs with ZeRO-3, and on 8 stages with 8 replicas. What decides
    between the two?""",
    answer="""ZeRO-3 sends all parameters for every microbatch, so each GPU needs F/β tokens at a
    time to hide them; it has no bubble. A pipeline sends tokens times width at each border, hides
    them behind a wide model, but needs many more microbatches than stages. A large batch per GPU:
    ZeRO-3. Few tokens per GPU, or slow links: the pipeline, while a replica still has enough
    microbatches.""",
    rubric="""2: parameters for each microbatch against activations at a border
    1: the tokens that ZeRO-3 needs
    1: the microbatches that a pipeline needs""",
    wrong="ZeRO-3 has no bubble and so always wins: it waits as soon as tokens are few.",
    then="Would you use ZeRO-3 inside the replicas of a pipeline? Which stage of ZeRO, and why?",
)

WRITTEN = (replicas, states, chunks, hidden, slowest, half, GRAPH, ORDER, SCALE, PICK)
ORAL = (ONE_BATCH, SHARDS)
