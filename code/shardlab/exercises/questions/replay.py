"""Questions on record and replay: what a trace keeps, shared wires, bounds, and their limits."""

from random import Random

from shardlab import exchanges
from shardlab.costs import collectives
from shardlab.costs.collectives import bounds
from shardlab.costs.facts import hardware, network, nodes
from shardlab.costs.traces import programs
from shardlab.costs.traces.replay import replay
from shardlab.costs.traces.sharing import Flow, Wires
from shardlab.costs.units import text

from .bank import ExamQuestion

CARD = hardware.link("InfiniBand NDR")  # 50 GB/s, 14 µs
CHIP = hardware.chip("H100 SXM 80 GB")


def _fair(capacities: list[float], paths: list[list[int]]) -> list[float]:
    """Share hops between messages as a replay does."""
    wires = Wires(capacities)
    flows = [Flow(k, [(hop, 1.0) for hop in path], 1.0, 0.0) for k, path in enumerate(paths)]
    for flow in flows:
        wires.add(flow)
    wires.settle(0.0)
    return [flow.rate for flow in flows]


def meeting(draw: Random) -> ExamQuestion:
    """Ask when a chain of two messages ends, and who has waited."""
    starts = draw.choice(((2, 5, 4), (3, 1, 9), (1, 4, 2)))
    size, works = draw.choice((100, 200, 400)), draw.choice((3, 6))
    writers = [programs.Writer(rank) for rank in range(3)]
    for writer, start in zip(writers, starts, strict=True):
        writer.work(start / 1e3)
    a, b, c = writers
    a.wait([a.send(size * 10**6, 1, range(3))])
    b.wait([b.receive(size * 10**6, 0, range(3))])
    b.work(works / 1e3)
    b.wait([b.send(size * 10**6, 2, range(3))])
    c.wait([c.receive(size * 10**6, 1, range(3))])
    events = [event for writer in writers for event in writer.events]
    end = replay(events, network.uniform(3, CARD, CHIP), link_utilisation=1.0).seconds
    first = max(starts[:2]) + 0.014 + size / 50
    return ExamQuestion(
        level=1,
        ask=f"""Three ranks have cards of 50 GB/s; a message waits for 14 µs before it moves. Rank 0
        sends {size} MB to rank 1, which then computes for {works} ms and sends as much to rank 2.
        Ranks reach their first communication after {starts[0]}, {starts[1]} and {starts[2]} ms, and
        each stops there until it has ended. When does rank 0 go on, and when rank 2? How long did
        rank 2 wait? What changes on cards twice as fast, and what does not?""",
        answer=f"""The first message begins at {max(starts[:2])} ms and ends at {first:.3f} ms: then
        rank 0 goes on. Rank 1 is ready to send at {first + works:.3f} ms, so rank 2 goes on at
        {1e3 * end:.3f} ms and has waited for {1e3 * end - starts[2]:.3f} ms. On faster cards only
        the two times of {size / 50:g} ms halve; bytes, order and computing stay.""",
        rubric="""2: a message begins when both ranks are there
        1: all three times
        1: seconds belong to the machine, bytes and order do not""",
        wrong="The message begins when its sender is ready: here nobody buffers it.",
    )


def sharing(draw: Random) -> ExamQuestion:
    """Ask for the rates of three messages on two hops, and those after one has ended."""
    wide, narrow = draw.choice((20, 30, 40)), draw.choice((4, 8, 12))
    paths = [[0], [0, 1], [1]]
    now = _fair([wide, narrow], paths)
    later = _fair([wide, narrow], paths[:2])
    return ExamQuestion(
        level=2,
        ask=f"""Hop 1 carries {wide} GB/s and hop 2 carries {narrow}. A message A crosses hop 1, B
        both, C hop 2. Hops are shared by max-min fairness. At which rates do they move? C
        ends first: what are the rates then? Somebody gives each message an equal share of each of
        its hops, and takes the smaller one: what is wrong with that?""",
        answer=f"""Hop 2 fills first: B and C get {now[1]:g} GB/s each, and A the rest of hop 1,
        {now[0]:g}. Without C, B gets {later[1]:g} and A {later[0]:g} GB/s. Equal shares give A only
        {wide / 2:g} at first, and leave {now[0] - wide / 2:g} GB/s of hop 1 idle, since B cannot
        use its half.""",
        rubric="""2: the narrow hop fills first, and A gets what is left
        1: rates after C, with a new bottleneck if there is one
        1: what B cannot use must not be lost""",
        wrong="In proportion to their bytes: rates rise together, whatever is left to send.",
    )


def cards(draw: Random) -> ExamQuestion:
    """Ask for the bytes of the busiest card, on one ring and on two levels."""
    servers, size = draw.choice((2, 4)), draw.choice((32, 64, 128))
    cluster, sent = nodes.cluster("DGX H100", servers), []
    ranks = 8 * servers
    for plan in (exchanges.ring_all_reduce(ranks), exchanges.hierarchical_all_reduce(ranks, 8)):
        played = replay(programs.of_plan(plan, size * 10**6), cluster)
        uses = [use for use in played.links.values() if use.hop.name.endswith("→ network")]
        sent += [max(use.nbytes for use in uses)]
    return ExamQuestion(
        level=2,
        ask=f"""{ranks} GPUs in {servers} servers all-reduce {size} MB. Each GPU has a card of 50
        GB/s, of which a replay allows 80 %. How many bytes leave through the busiest card on one
        ring, which enters each server once, and how many on two levels? Which time can no replay of
        them go below? A replay of the ring says {text(sent[0] / 120e9, "s")}: what now?""",
        answer=f"""Ring: 2 (N - 1)/N of the buffer, {text(sent[0], "B")}, at least
        {text(sent[0] / 40e9, "s")}. Two levels: an eighth of the buffer, all-reduced between
        {servers} servers, {text(sent[1], "B")}, at least {text(sent[1] / 40e9, "s")}. A third of
        the bound is impossible on these wires: check on which GPUs the ranks were placed, and which
        hop was the busiest.""",
        rubric="""2: both numbers of bytes
        1: bounds at 40 GB/s
        1: placement, by the busiest hop""",
        wrong="All ranks send as much, so all cards do: on a ring most messages stay inside.",
    )


def sizes(draw: Random) -> ExamQuestion:
    """Ask for the size at which two algorithms are equally fast, and what a small replay hides."""
    ranks, megabytes = draw.choice((8, 16, 32)), draw.choice((16, 64, 256))
    ring, doubling = (
        each(megabytes * 1e6, ranks)
        for each in (collectives.ring_all_reduce, collectives.recursive_doubling_all_reduce)
    )
    equal = bounds.meeting(ring, doubling, megabytes * 1e6, CARD)
    return ExamQuestion(
        level=2,
        ask=f"""{ranks} ranks have a card of 50 GB/s each, and 14 µs pass before each message. The
        ring takes 2 (N - 1) steps with an N-th of the buffer, recursive doubling log2 N steps with
        all of it, and every latency shows. At which size are they equally fast? Somebody replayed
        both with 64 kB, to save time, and took the winner for {megabytes} MB. Which one was it, and
        how long does it take there beside the other?""",
        answer=f"""They meet at {text(equal or 0, "B")}. With 64 kB latencies decide, for recursive
        doubling; with {megabytes} MB bytes do: it takes {text(doubling.seconds(CARD), "s")}, the
        ring {text(ring.seconds(CARD), "s")}. A trace holds for its sizes; a written program costs
        nothing at the real one.""",
        rubric="""2: both times as functions of the size, and where they meet
        1: the winner at 64 kB, by its few steps
        1: both times at the real size""",
        wrong="Both grow with the buffer, so their order stays: latencies do not grow.",
    )


def verdicts(draw: Random) -> ExamQuestion:
    """Ask what measured times above and below a replay say."""
    played, slow, quick = draw.choice((4, 6, 8)), draw.choice((1.2, 1.4)), draw.choice((0.5, 0.6))
    bound = played * draw.choice((0.8, 0.9))
    return ExamQuestion(
        level=2,
        ask=f"""A replay takes {played} ms; its busiest hop carries X = {bound * 40:g} MB at a
        usable β of 40 GB/s. On the cluster program A takes {slow * played:g} ms and program B, said
        to be the same, {quick * played:g} ms. Compute X/β, and say of each if it contradicts the
        replay. For the one that does, name two explanations and how to tell them apart.""",
        answer=f"""X/β = {bound:g} ms. A does not: replayed times are what wires allow, and kernels,
        processors and congestion add to them. B is below the bound of the busiest hop, so it sends
        other bytes or on other wires: another algorithm, such as more rings or sums in the switch,
        or another placement. Count the bytes of each card, and ask each rank for its host. A card
        that reaches more than 80 % explains a fifth at most.""",
        rubric="""1: the bound
        1: longer is normal
        2: shorter than the bound: another program or machine, with a check""",
        wrong="Both are within what a simulation can do: an error below a bound has a reason.",
    )


KEEPS = ExamQuestion(
    level=1,
    ask="""Eight ranks on a laptop record a step, to be replayed on H100s. Which of these can be
    taken from the recording, and which not: (a) bytes of each message; (b) their order on a rank;
    (c) seconds of a matrix product; (d) FLOPs of it; (e) who sent first where a rank takes
    whichever message comes; (f) the algorithm that NCCL would choose?""",
    answer="""(a), (b) and (d) are the program's. (c) belongs to the laptop: divide FLOPs by the
    chip's rate. (e) depends on times, so the program itself would differ. (f) depends on size and
    wiring there, and gloo's choice says nothing of it.""",
    rubric="""1: the three that hold
    1: seconds from FLOPs
    2: programs that look at time, and libraries that look at wires""",
    wrong="Seconds scaled by one factor: products, messages and latencies scale differently.",
)

LAPTOP = ExamQuestion(
    level=1,
    ask="""Eight ranks on one laptop all-reduce 16 MB. In two levels this took 1.3 times as long as
    on a ring, and the median of 50 runs says so, too. What does it show about a cluster? What can
    the same 50 runs show, and what would you compare in place of the time?""",
    answer="""Nothing about a cluster: ranks share cores and memory, where every message is a copy,
    wherever it goes. The runs show that results agree, and how many bytes went from whom to whom.
    Compare the bytes on the busiest hop of the cluster, or replay the trace there.""",
    rubric="""2: one memory stands for all wires, so the median is exact and useless
    2: what a recording keeps, and a comparison by hop""",
    wrong="More runs: noise is not what is wrong with this clock.",
)

FIT = ExamQuestion(
    level=2,
    ask="""A report says: "we chose the share of a link's rate, the latency and the chip's rate so
    that the replay meets our five measured steps; the error is 1 %, so the replay is right for the
    new cluster as well." Judge it, and propose a better test with the same five steps.""",
    answer="""Three constants fitted to five numbers leave little to be wrong; that says nothing of
    sharing, order or placement. Fit on one or two steps, or on single messages and products, and
    predict the others, which should differ in size, layout and placement. The new cluster has other
    constants, and needs measurements of its own.""",
    rubric="""2: fitting is no test
    1: hold steps back that differ in what matters
    1: constants belong to a machine""",
    wrong="More decimal places: agreement with what was fitted cannot become evidence.",
)

LARGER = ExamQuestion(
    level=3,
    ask="""Somebody has a recording of 8 ranks with a microbatch of 1, to find out how 256
    ranks do with 4. They multiply all bytes and FLOPs by four and give the ranks of 32 copies to a
    cluster. What is wrong with it, and what is the way to do it?""",
    answer="""Gradients do not grow with the batch, activations do. 32 copies of a group of 8 never
    send to each other, so the all-reduce over 256 ranks, its steps and its hops are missing. Tiles
    and buckets change with sizes, too. Write the program of a step for 256 ranks with these sizes;
    check the writer against recordings of 8 ranks.""",
    rubric="""1: which bytes grow with the batch
    2: groups must grow, not be copied
    1: a written program
    1: tested where one can record""",
    wrong="Bandwidth of 256 ranks as for 8: even that is not what the copies would use.",
)

HALF = ExamQuestion(
    level=2,
    ask="""The code replays what four ranks recorded. Which line is wrong, what would the replay say
    to it, and what would it say if ranks 0 and 1 never sent to ranks 2 and 3?

    ```python
    recorded = launch.run(record, plan, world_size=4)     # a list of events from each rank
    events = recorded[0] + recorded[1]
    print(replay(events, pair, placement=[0, 1, 8, 9]).seconds)
    ```""",
    answer="""The sum must take all four ranks. A send to rank 2 has no receive, so the trace does
    not match, and the replay refuses it. Without such messages it would play two ranks as if
    nobody else used their wires: too fast wherever a hop is shared.""",
    rubric="""1: all ranks
    1: a send without its receive
    2: missing ranks leave wires empty""",
    wrong="Rank 0 stands for all: so it does for its bytes, but not for what shares a hop.",
)

REASON = ExamQuestion(
    level=2,
    ask="""You have a profiler's timeline from the cluster. What can a replay tell you that it
    cannot, and the other way round?""",
    answer="""A timeline has seconds of one machine and says where they went, launches and hot chips
    included. A replay changes the machine, the placement or the algorithm, and names the busiest
    hop, but knows only what its rules contain.""",
    rubric="""2: what would be elsewhere, against what was here
    1: what only a measurement contains
    1: a use of both together""",
    wrong="They are two displays of the same thing, since both have bars and ranks.",
    then="How would you use the timeline to find out which of the replay's rules is wrong?",
)

BUY = ExamQuestion(
    level=3,
    ask="""A replay says that a network twice as fast makes your step 20 % shorter. What do you want
    to know before you buy it?""",
    answer="""Whether the busiest hop is that network; whether the replay meets the present step;
    what it leaves out: congestion, latency by length, processors that communication takes, what
    NCCL chooses; whether another placement, larger batch or algorithm gains as much.""",
    rubric="""2: what the claim rests on, and how it was checked
    1: what is left out, with its direction
    1: cheaper ways""",
    wrong="Its price: first comes whether the 20 % are true.",
    then="Which of the things left out make the gain larger, and which smaller?",
)

WRITTEN = (KEEPS, LAPTOP, meeting, sharing, cards, sizes, verdicts, FIT, LARGER, HALF)
ORAL = (REASON, BUY)
