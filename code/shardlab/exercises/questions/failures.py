"""Questions on the failure lab: who is missing, where a number goes wrong, and who comes last."""

from random import Random

from shardlab.costs.operations import between_failures
from shardlab.costs.traces import waiting
from shardlab.costs.units import DAY, HOUR
from shardlab.trace import Event

from .bank import ExamQuestion


def rarely(draw: Random) -> ExamQuestion:
    """Ask how often something fails, and what a quiet week shows."""
    gpus, small = draw.choice((1024, 2048, 4096)), draw.choice((8, 16, 32))
    days, times = draw.choice((30, 60, 90)), draw.choice((24, 40, 60))
    alone = gpus * days * 24 / times
    each, less = (between_failures(count, alone) for count in (gpus, small))
    return ExamQuestion(
        level=1,
        ask=f"""A run on {gpus:,} GPUs was interrupted {times} times in {days} days. Failures come
        at random, and each belongs to one GPU and its surroundings. How many hours lie between two
        of them, how many hours does one GPU go without, and how many days would pass between two on
        {small} GPUs? The small run had a quiet week: is its hardware better?""",
        answer=f"""{each / HOUR:.3g} hours; {alone:,.0f} hours for one GPU; {less / DAY:,.0f} days
        on {small} GPUs. A week without a failure is what one expects there, so it shows nothing.
        What small runs meet is mostly their own mistakes.""",
        rubric="""1: hours between two failures
        1: GPU-hours per failure, and the days of the small run
        1: compares the week with these days""",
        wrong="The same hours on fewer GPUs: each GPU adds its own failures.",
    )


def blame(draw: Random) -> ExamQuestion:
    """Ask who makes whom wait, from the times of computing."""
    slow, other = draw.choice((120, 140, 160)), draw.choice((100, 104))
    rank, message = draw.choice((0, 1, 2, 3)), draw.choice((6, 10))
    busy = {each: other if each != rank else slow for each in range(4)}
    events = [
        Event(each, "communicate", "all_reduce", (0, 1, 2, 3), 0, time, slow + message)
        for each, time in busy.items()
    ]
    waits = sum(waiting.who_waits(events).values()) / 3
    times = ", ".join(f"rank {each} {slow + message - time} ms" for each, time in busy.items())
    step = slow + message
    return ExamQuestion(
        level=2,
        ask=f"""Four ranks start a step together and end it with one all-reduce, in which nothing
        hides. Profiles give for the all-reduce: {times}. Sending itself takes {message} ms. Which
        rank is slow, and how long does each rank compute? How long is a step with a network of
        twice the speed, and with this network and a rank that is as fast as the others?""",
        answer=f"""Rank {rank}, with the shortest all-reduce: it enters last. It computes {slow} ms,
        the others {other} ms and then wait {waits:.0f} ms. A step has {step} ms. With twice the
        network: {slow + message / 2:g} ms; with the rank repaired: {other + message} ms.""",
        rubric="""1: the rank that never waits
        1: splits an all-reduce into waiting and sending
        1: both predictions""",
        wrong="The ranks with the long all-reduce are slow: they have come first.",
    )


def paired(draw: Random) -> ExamQuestion:
    """Ask what collectives pair with what, once a rank has skipped a step."""
    steps, skipped = draw.choice((8, 10, 12)), draw.choice((3, 4, 5))
    messages = draw.choice((2, 3, 5))
    made = messages * (steps - 1)
    return ExamQuestion(
        level=2,
        ask=f"""Three ranks take {steps} steps of {messages} all-reduces each, always with the same
        shapes. Rank 1 silently skips its step number {skipped} and goes on. With which step of the
        others is its step {skipped + 1} averaged, where does the run hang, and which number of a
        collective do the three ranks reach? What does comparing shapes and operations find? What
        harm is done before?""",
        answer=f"""With the others' step {skipped}: ranks pair by order alone. Rank 1 makes {made}
        all-reduces and ends; the others wait in number {made + 1}, the first of step {steps}.
        Shapes and operations agree in every pair, so nothing is found. Each average holds one batch
        of each rank, but rank 1 is a step ahead in all that depends on its number: learning rate,
        evaluation, checkpoint.""",
        rubric="""1: pairs are shifted by one step
        1: the numbers at the end, and who has finished
        1: calls agree, so only a step's number that is sent along shows it
        1: harm only where the step's number counts""",
        wrong=f"It hangs in step {skipped}, where a call is missing: the next one takes its place.",
    )


def missed(draw: Random) -> ExamQuestion:
    """Ask what an epoch reads if ranks shuffle on their own."""
    ranks, samples = draw.choice((2, 8, 16, 64)), draw.choice((6400, 64_000, 128_000))
    share = (1 - 1 / ranks) ** ranks
    return ExamQuestion(
        level=1,
        ask=f"""{ranks} ranks share {samples:,} samples. Each shuffles with a seed of its own and
        then takes its part of its own order. How many samples of an epoch does nobody read, on
        average? How many reads are repetitions? Why do gradients, replicas and the loss's curve not
        show it, and what would?""",
        answer=f"""A rank misses a sample with probability 1 - 1/{ranks}, all ranks with that to the
        power of {ranks}, {share:.3f}: about {float(f"{share * samples:.3g}"):,.0f} samples. Reads
        are as many as samples, so as many reads repeat. Every batch is a fair draw of samples, and
        all ranks apply the same average. Gathering the indices of an epoch and counting them shows
        it.""",
        rubric="""1: the power, and the number
        1: as many repetitions as gaps
        1: batches look right; counting indices""",
        wrong="Nothing is missed: each rank's part has the right length, but of another order.",
    )


def factors(draw: Random) -> ExamQuestion:
    """Ask which division is missing or doubled, from the ratio."""
    ranks, count = draw.choice((2, 4, 8)), draw.choice((3, 5, 6))
    cases = {
        f"{ranks}": "not divided by the ranks",
        f"{count}": "not divided by the microbatches",
        f"{ranks * count}": "divided by neither",
        f"1/{ranks}": "divided by the ranks twice",
    }
    places = draw.choice(((0, 2, 3), (1, 3, 2), (2, 1, 3), (3, 0, 1)))
    chosen = [list(cases)[each] for each in places]
    reads = "; ".join(f"{ratio}: {cases[ratio]}" for ratio in chosen)
    return ExamQuestion(
        level=1,
        ask=f"""{ranks} ranks of data parallelism take {count} equal microbatches each; a
        microbatch's loss is a mean. Three programs have gradients that are {chosen[0]}, {chosen[1]}
        and {chosen[2]} times those of one process, for every parameter. What is wrong in each? Why
        were gradients compared and not weights after a step of Adam? What would you think of a
        ratio that differs between parameters?""",
        answer=f"""{reads}. Adam divides each gradient by its own size, so a constant factor nearly
        vanishes from its step. Where ratios differ, it is no divisor: some parameters lack a sum or
        get one twice, or see other samples.""",
        rubric="""2: each ratio's cause
        1: Adam hides a factor
        1: unequal ratios point at single parameters""",
        wrong="A wrong learning rate: gradients do not depend on it in the first step.",
    )


RATE = ExamQuestion(
    level=2,
    ask="""A team guards its run so. After some days all ranks but one hang, although that one
    reports nothing wrong. What has happened? Write the lines right, and say what they cost.

    ```python
    loss.backward()
    norm = local_norm(model)
    if not norm.isfinite():
        continue                    # skip this step
    average_gradients(model, group, 1 / group.size())
    optimizer.step()
    ```""",
    answer="""One rank's gradient was not finite, so that rank alone skipped the average, went on,
    and is a collective behind: it ends first, or meets another call. All must decide together: a
    maximum of "mine is not finite" over the group, before the test, then all skip or none. That is
    one small all-reduce in each step, and a wait of the host for the GPU. Or all test after the
    average, whose sum carries the NaN to every rank, and so agree without a message.""",
    rubric="""1: the decision differs between ranks, and changes what is called
    2: one all-reduce of a flag, before the test, on all ranks
    1: the price, or that a check after the average needs no message""",
    wrong="Setting that rank's gradient to zero times itself: zero times NaN is NaN.",
)

CIRCLE = ExamQuestion(
    level=3,
    ask="""Ranks 0 to 3 form rows {0, 1}, {2, 3} and columns {0, 2}, {1, 3}. A watchdog reports: 0
    waits in {0, 1}, 1 waits in {1, 3}, 2 waits in {0, 2}, 3 waits in {2, 3}. Has a rank died? A
    colleague finds that the run goes on for weeks on GPUs with the same code. What is the fault,
    how can both be true, and what is the repair?""",
    answer="""No: each rank waits for one that waits in its other group, 0 for 1, 1 for 3, 3 for 2,
    2 for 0: a circle. Ranks 1 and 2 call the column's collective first. On GPUs calls return at
    once and run in streams, so it depends on timing whether they block each other. Every rank must
    call the collectives of all groups in one order, rows first, say.""",
    rubric="""1: follows the circle
    1: two ranks use the opposite order
    1: asynchronous calls make it a matter of timing
    1: one order over all groups""",
    wrong="Longer time-outs: nobody in a circle is slow.",
)

SIGNAL = ExamQuestion(
    level=2,
    ask="""Four logs of a run that ended, and its summary. Which rank is to blame, what probably
    happened on its host, which two things would you look up, and what would you watch in the next
    run? What would the log say if a GPU's memory had been full?

    ```text
    rank 0: RuntimeError: Connection closed by peer
    rank 1: RuntimeError: Connection closed by peer
    rank 2: (ends in the middle of step 8,112)
    rank 3: RuntimeError: Connection reset by peer
    torchrun: rank 0 exitcode: 1, rank 1: 1, rank 2: -9, rank 3: 1
    ```""",
    answer="""Rank 2: signal 9 cannot be caught, so it wrote nothing; the others lost a connection.
    Most often the host's memory was full; or a scheduler's limit. `dmesg -T` on its node, and the
    scheduler's record. Watch the largest peak of host memory over ranks. A full GPU raises an
    exception with a message and a traceback.""",
    rubric="""1: the silent rank, by its exit code
    1: killed from outside: host memory or the scheduler
    1: kernel log or scheduler, then host memory of each rank
    1: a full GPU raises an exception""",
    wrong="Rank 0, whose error comes first: errors of victims come first.",
)

FRESH = ExamQuestion(
    level=3,
    ask="""A parity test compares the outputs of all modules in float64, on one process and on two
    tensor-parallel ranks, for a model as it is initialised: biases 0, norms 1, the last matrix of
    each block 0. They agree. Which mistakes with biases, norms and in a block does each of these
    values hide? Which of your mistakes would gradients show, and which not? Repair the test.""",
    answer="""A bias that both ranks add before a sum: twice zero is zero. A norm's weight that is
    left out: times one changes nothing. Whatever a block computes wrongly, as seen at its output:
    the matrix makes it zero. Gradients show the missing norm, and wrong inputs of the zero matrix.
    They do not show the bias, whose gradient is right, nor a sum that backward lacks inside a
    block, since all gradients before the zero matrix are zero. Draw random numbers for all
    parameters.""",
    rubric="""2: a mistake for each of the three values
    2: gradients: one mistake that they show, one that stays hidden
    1: random numbers in all parameters""",
    wrong="Float64 is too exact, or one step too few: the values hide it.",
)

POISON = ExamQuestion(
    level=2,
    ask="""Step 900: the loss is a number. Step 901: NaN on all 64 ranks, in all weights. The run
    clips by the norm. In which step did a NaN arise, on how many ranks, and how did it reach every
    weight? Where must a check stand that names the rank, and what do you run then?""",
    answer="""In the backward of step 900, on one rank probably: its loss was still finite. The
    average gave that gradient's NaN to all ranks; the norm over all gradients was NaN, and clipping
    multiplied every gradient with it. The check belongs after backward and before the average. Then
    that rank's batch alone, on one process, with anomaly mode.""",
    rubric="""1: the step before, in backward
    1: average to all ranks, clipping to all weights
    1: the check before the average
    1: one rank's batch, alone, with anomaly mode""",
    wrong="Step 901, in forward: NaN shows there, and is a step old.",
)

NETWORK = ExamQuestion(
    level=2,
    ask="""63 of 64 ranks report a time-out in an all-reduce. Why not call the network team
    first?""",
    answer="""Those that report have come; the one that has not may read, download, wait for a lock,
    or be dead. Had the network failed, it would wait in the same call and report it, too. Ask where
    that rank stands, and which collective it called last.""",
    rubric="""2: the missing rank, and what it may be doing
    1: its stack, and the number of its last collective""",
    wrong="63 reports outweigh one: they are all victims.",
    then="All 64 report it, with the same number. What now?",
)

SICK = ExamQuestion(
    level=3,
    ask="""Once in some thousand steps the loss jumps, and no test on one node finds anything. How
    do you find out whether it is the hardware?""",
    answer="""Give all nodes the same deterministic work and compare checksums, for hours; swap the
    node that differs, and see whether the fault moves with it; halve the set of nodes if only the
    whole job shows it. Ask the driver for memory and link errors. Repeat the step on the same data:
    a bug repeats.""",
    rubric="""2: the same work everywhere, and the odd one out
    1: the fault follows a node, or does not
    1: repeats the step, to tell the data and the program from the hardware""",
    wrong="A memory test: wrong sums need no memory error.",
    then="Checksums of replicas agree. Does that acquit the hardware?",
)

WRITTEN = (rarely, blame, paired, missed, factors, RATE, CIRCLE, SIGNAL, FRESH, POISON)
ORAL = (NETWORK, SICK)
