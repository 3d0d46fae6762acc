"""Questions on starts and restarts: starts that fail, saves that pay, and runs that resume."""

from random import Random

from shardlab.costs.operations import Reliability, between_failures, write_rate
from shardlab.costs.units import HOUR, text

from .bank import ExamQuestion


def _textbook(run: Reliability, interval: float) -> float:
    """Return the share of the time that the chapter's sum says is lost."""
    return run.save / interval + interval / 2 / run.between + run.restart / run.between


def often(draw: Random) -> ExamQuestion:
    """Ask for the interval between saves, and for what four times as many GPUs change."""
    gpus, save = draw.choice((1024, 2048, 4096)), draw.choice((20, 45, 90))
    hours, restart = draw.choice((20_000, 40_000, 80_000)), draw.choice((300, 600))
    runs = [
        Reliability(between=between_failures(count, hours), save=save, restart=restart)
        for count in (gpus, 4 * gpus)
    ]
    every = [run.young() for run in runs]
    lost = [100 * _textbook(run, each) for run, each in zip(runs, every, strict=True)]
    return ExamQuestion(
        level=1,
        ask=f"""A GPU with its surroundings fails once in {hours:,} hours; all {gpus:,} GPUs stop
        when one does. A save holds training up for {save} s, a restart takes {restart} s. How often
        do you save, and what share of the time is lost, by the chapter's sum? Four times as many
        GPUs, with the same seconds: what happens to the interval, and to each of the three
        losses?""",
        answer=f"""Something fails every {runs[0].between / HOUR:.3g} hours, so a save comes every
        {every[0] / 60:.3g} minutes, and {lost[0]:.2g} % is lost. With four times as many GPUs the
        interval halves, to {every[1] / 60:.3g} minutes; saving and repeating double, the share of
        restarts becomes four times as large: {lost[1]:.2g} %.""",
        rubric="""1: seconds between failures of all GPUs
        1: the root, and the sum of three losses
        2: half the interval, twice the first two, four times the third""",
        wrong="A quarter of the interval: it goes with the root.",
    )


def off(draw: Random) -> ExamQuestion:
    """Ask what a wrong interval costs, and when it matters."""
    save, hours = draw.choice((30, 60, 120)), draw.choice((2, 4, 6))
    factor = draw.choice((2, 3, 4))
    run = Reliability(between=hours * HOUR, save=save)
    best = run.young()
    least, more = (100 * _textbook(run, each) for each in (best, factor * best))
    return ExamQuestion(
        level=2,
        ask=f"""Something fails every {hours} hours on average, a save holds training up for {save}
        s, restarts are left out. A team saves {factor} times as rarely as it should, another
        {factor} times as often. What does each lose, by the chapter's sum, and what is the least
        possible loss? Is it worth measuring the time between failures to within a tenth?""",
        answer=f"""At best every {text(best, "s")}, which loses {least:.3g} %. Both teams lose
        {more:.3g} %, {more / least:.3g} times as much: one of two equal terms grows to {factor}
        times itself, and the other falls to 1/{factor}. A tenth of the time between failures is a
        twentieth of the interval and changes next to nothing: the minimum is flat.""",
        rubric="""1: the least loss
        2: both terms, one times the factor and one over it
        1: a flat minimum: rough numbers suffice""",
        wrong="Saving too rarely is worse than too often: by the sum both cost the same.",
    )


def behind(draw: Random) -> ExamQuestion:
    """Ask what a save in the background changes."""
    save, copy = draw.choice((60, 90, 120)), draw.choice((2, 4))
    hours, restart = draw.choice((2, 3, 4)), draw.choice((300, 480))
    waits = Reliability(between=hours * HOUR, save=save, restart=restart)
    hidden = Reliability(between=hours * HOUR, save=copy, lag=save, restart=restart)
    every = waits.young(), hidden.young()
    lost = _textbook(waits, every[0]), _textbook(hidden, every[1]) + save / hidden.between
    rest = restart / hidden.between
    return ExamQuestion(
        level=2,
        ask=f"""Something fails every {hours} hours. Training waits {save} s for a save, and
        {restart} s for a restart. A save in the background holds it up {copy} s for the copy, and
        is safe {save} s later. What is the best interval before and after, and what share is lost?
        What does the lag cost, and which number would you improve next?""",
        answer=f"""Before: every {text(every[0], "s")}, {100 * lost[0]:.3g} % lost. After: every
        {text(every[1], "s")}, which is longer than the lag, and {100 * lost[1]:.3g} % with the
        lag's {100 * save / hidden.between:.2g} %, which each failure costs once, however often one
        saves. Restarts are {100 * rest:.2g} % of all time, {100 * rest / lost[1]:.0f} % of what is
        lost now: they come next.""",
        rubric="""1: the copy in place of the save in the root
        1: the lag, once for each failure, beside the restart
        1: both losses
        1: restarts are next, by their share""",
        wrong="The lag belongs in the root: it does not hold up training.",
    )


def disk(draw: Random) -> ExamQuestion:
    """Ask what a file system must take, and how long one node's copy waits."""
    billions, nodes = draw.choice((70, 180, 405)), draw.choice((64, 128, 256))
    rate, seconds = draw.choice((50, 100, 200)), draw.choice((30, 60))
    nbytes = write_rate(billions * 10**9, 1)
    needed = write_rate(billions * 10**9, seconds)
    lag = nbytes / (rate * 1e9)
    return ExamQuestion(
        level=1,
        ask=f"""{billions} billion parameters train with AdamW in mixed precision on {nodes} nodes.
        A save holds what the next step needs and cannot be computed from the rest. How many bytes
        is it in all, and per node if each number is written once and evenly? Which rate must the
        file system take for a save in {seconds} s? It takes {rate} GB/s: what does that mean for
        saves in the background?""",
        answer=f"""12 bytes per parameter, master weight and both averages in fp32:
        {text(nbytes, "B")}, {text(nbytes / nodes, "B")} per node. {text(needed, "B/s")} for
        {seconds} s. At {rate} GB/s a save is safe after {text(lag, "s")} and more: no interval can
        be shorter, and a failure before falls back to the save before.""",
        rubric="""1: 12 bytes, since the 16-bit copy can be made anew
        1: all bytes, the node's, and the rate
        1: the lag, as a bound of the interval and a loss for each failure""",
        wrong="16 bytes: gradients are not part of a save, they are computed anew.",
    )


def share(draw: Random) -> ExamQuestion:
    """Ask how long restarts may be for a goodput."""
    gpus, hours = draw.choice((8192, 16_384, 24_576)), draw.choice((30_000, 50_000))
    target, save = draw.choice((90, 92)), draw.choice((2, 5, 10))
    run = Reliability(between=between_failures(gpus, hours), save=save)
    rest = 1 - target / 100 - _textbook(run, run.young())
    return ExamQuestion(
        level=3,
        ask=f"""{gpus:,} GPUs fail once in {hours:,} hours each, and {target} % of the time must
        count. A save holds training up for {save} s; leave its lag out. How long may a restart be,
        all told? What is in it, and which part of a restart on all nodes would you expect to be
        largest where nobody has looked? What if twice as many GPUs must reach the same share?""",
        answer=f"""Saves and repeated steps lose at least {100 * (1 - target / 100 - rest):.2g} %,
        so {100 * rest:.2g} % remain: {text(rest * run.between, "s")} of the
        {text(run.between, "s")} between failures. In it: to notice, to replace the node, to start,
        to load, to reach the old speed. Noticing a hang: NCCL's time-out alone is ten minutes. With
        twice as many GPUs less than half of that time is left, or nothing, since saves and repeated
        steps lose more, too.""",
        rubric="""1: the loss of saves at the best interval
        1: the remainder, times the time between failures
        1: parts of a restart, with the time to notice a hang
        1: less than half for twice as many GPUs""",
        wrong="All of the remainder to 100 %: saves and repeated steps were forgotten.",
    )


KEYS = ExamQuestion(
    level=2,
    ask="""Node 0's log, after half an hour: `wait timeout after … keys: /default_pg`. Node 3's log
    has an older traceback: `ModuleNotFoundError`. At which of the four meetings did it fail, which
    log is right, and how do you find it among 500? What would you start first the next time, and
    what could that not tell you under torchrun?""",
    answer="""The second: the ranks form a group. A rank of node 3 died at import, so its key never
    came; node 0 is healthy and reports the absence. Take the first traceback of all nodes, by its
    time; so gather the output of every rank. A preflight, started exactly like the run, shows it in
    a minute. It cannot name a missing agent, for then torchrun starts no rank.""",
    rubric="""1: the meeting of the ranks
    1: the earliest traceback, of another node
    1: a preflight under the run's own conditions
    1: a missing agent""",
    wrong="The network: a missing key reads like a lost message.",
)

PREFIX = ExamQuestion(
    level=2,
    ask="""A trainer saves so, from all ranks. What does a kill leave in each line? Put the lines
    into an order that always leaves a checkpoint, and name what is missing altogether.

    ```python
    if rank == 0:
        delete_all_saves_but(folder, name)
        point_latest_to(folder / name)
    write_my_part(folder / name, state)
    dist.barrier()
    ```""",
    answer="""In the first two lines a kill leaves no save, or a `latest` that points at nothing;
    while parts are written, at a part of a save. Right: all ranks write under a provisional name
    and flush to the disk; the barrier; then one rank renames the folder and flushes that, then
    points `latest` at it, and only then deletes old ones. Flushing, the provisional name and
    checksums are missing.""",
    rubric="""1: what a kill leaves, in two places
    2: write, flush, meet, name, delete
    1: a flush, and a provisional name or a marker written last""",
    wrong="A barrier at the top: it changes nothing about the order of name and bytes.",
)

RESUMED = ExamQuestion(
    level=2,
    ask="""A run is compared with one that never stopped; both have the same layout and
    deterministic kernels. After a restart at step 1,000 its losses differ as listed, in three
    programs. What did each forget? Which test finds all three, and how many steps must it compare?

    | program | step 1,001 | step 1,002 | samples of the epoch |
    |---|---|---|---|
    | A | equal | differs | each once |
    | B | differs a little | differs a little | each once |
    | C | differs | differs | half twice, half never |""",
    answer="""A: the optimizer's states or the place in the learning rate's schedule; the loss of
    1,001 is computed before the first wrong update. B: the random states, of dropout, say. C: the
    place in the data. A run that is killed and resumed against one that is not, bit for bit, over
    two steps at least, with the samples counted.""",
    rubric="""2: A and its delay by a step
    1: B and C
    1: bitwise, two steps or more, and a count of samples""",
    wrong="A is right, as its first loss is equal.",
)

FLEET = ExamQuestion(
    level=3,
    ask="""Two clusters with the same GPU report a failure in 20,000 and in 55,000 hours of a GPU.
    You plan a run on 4,096 GPUs for a month. May you take the mean? What else moves with the owner?
    Which decisions depend on the number, and which hardly do?""",
    answer="""No: take your own, or both as a range, with failures every 4.9 to 13.4 hours. Owners
    count differently and differ in age, cooling, tests, network and software. The number of spare
    nodes, the effort for restarts and the date depend on it directly; the interval only by its
    root, a factor of 1.66, and its loss is flat there.""",
    rubric="""1: a range, or a measurement, in place of the mean
    1: what is counted, and how the cluster is run
    2: decisions that depend in proportion, and the interval by its root""",
    wrong="The mean of the hours: rates would have to be averaged, and owners differ anyway.",
)

PLACE = ExamQuestion(
    level=2,
    ask="""Data are read by worker processes that shuffle with their own state. A restart must work
    with 48 nodes in place of 64. Which of these can a checkpoint hold so that the run goes on
    reading each sample once: the workers' states; a number of batches per rank; the step and a
    seed? The global batch stays. Which trap is there with workers that are already running?""",
    answer="""Step and seed: the batch of step k follows from both, for any number of ranks, and
    each rank takes its share of it. States of workers and batches per rank belong to 64 nodes.
    Workers that start before the place is loaded go on with what they were given, so load first, or
    tell them.""",
    rubric="""1: step and seed
    1: the others belong to a number of ranks
    1: workers start after the place is loaded""",
    wrong="The workers' states, as the most complete: for other ranks they mean nothing.",
)

SILENT = ExamQuestion(
    level=2,
    ask="""A job on 64 nodes prints nothing for ten minutes. What do you look at, in which
    order?""",
    answer="""The last message of every node: it names the meeting. Agents that wait for others: is
    node 0 up, its name and port right, does another log differ? Ranks that wait: the first
    traceback anywhere. Nothing at all: somebody accepts the connection and never answers. Then one
    command, from that node; and short time-outs until it works.""",
    rubric="""2: which meeting, by the logs of all nodes
    1: a command that decides between causes, run on the right node""",
    wrong="Longer time-outs: whoever looks for a fault wants to hear of it early.",
    then="Node 0 says that 63 of 64 have joined. Where do you go now, and why not to node 0?",
)

DAILY = ExamQuestion(
    level=1,
    ask="""Somebody saves once a day, because it has always been enough. On which runs is that
    right?""",
    answer="""Where failures are so rare that the root of twice save and time between failures is
    about a day: at a minute for a save a failure in two years, about three GPUs of 50,000 hours.
    With thousands of GPUs a failure comes within hours, and hardly a day is ever saved.""",
    rubric="""2: relates the interval to failures and save, with an order of magnitude
    1: a large run hardly ever finishes an interval""",
    wrong="On small models: the time between failures and the save decide, not the size.",
    then="And what if a scheduler ends the job after four hours in any case?",
)

WRITTEN = (often, off, disk, behind, share, KEYS, PREFIX, RESUMED, FLEET, PLACE)
ORAL = (SILENT, DAILY)
