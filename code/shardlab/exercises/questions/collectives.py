"""Questions on collectives: steps and bytes, when each decides, and promises that ranks break."""

from random import Random

from shardlab.costs import collectives
from shardlab.costs.collectives import bounds
from shardlab.costs.facts import hardware
from shardlab.costs.units import text

from .bank import ExamQuestion

CABLE = hardware.link("InfiniBand NDR")
RATES = """Every rank has one link to a switch that slows nobody down, 50 GB/s in each direction,
        and a step has a latency of 14 µs."""


def more_ranks(draw: Random) -> ExamQuestion:
    """Ask what more ranks cost two algorithms."""
    size, ranks, times = draw.choice((2, 4, 8)), draw.choice((8, 16, 32)), draw.choice((4, 8))
    before = collectives.ring_all_reduce(size * 1e9, ranks).seconds(CABLE)
    after = collectives.ring_all_reduce(size * 1e9, ranks * times).seconds(CABLE)
    naive = collectives.parameter_server(size * 1e9, ranks * times).seconds(CABLE)
    return ExamQuestion(
        level=1,
        ask=f"""An all-reduce of {size} GB on {ranks} ranks goes around a ring. {RATES}
        How long does it take? How long on {ranks * times} ranks, and how long would it take there
        through rank 0, which adds up all buffers and sends the sum to each?""",
        answer=f"""2 (N - 1) steps, and 2 (N - 1) / N buffers: {text(before, "s")}, and
        {text(after, "s")} on {ranks * times} ranks. Through rank 0 there are 2 (N - 1) whole
        buffers one after the other: {text(naive, "s")}.""",
        rubric="""1: steps and bytes of the ring
        1: both times: bytes nearly stay, and the latency is small
        1: the time through rank 0, in and out""",
        wrong="The ring's time grows with the ranks: the pieces shrink as their number grows.",
    )


def fused(draw: Random) -> ExamQuestion:
    """Ask what fusing saves, and whether the ring is then the best choice."""
    ranks = draw.choice((64, 128, 256))
    count, each = draw.choice((100, 200)), draw.choice((64, 128))
    alone = count * collectives.ring_all_reduce(each * 1e3, ranks).seconds(CABLE)
    together = collectives.ring_all_reduce(count * each * 1e3, ranks).seconds(CABLE)
    knee = ranks * CABLE.latency * CABLE.bandwidth
    return ExamQuestion(
        level=2,
        ask=f"""{count} gradients of {each} kB each are summed over {ranks} ranks, one ring
        all-reduce after the other. {RATES} How long do they take, and how long if they are fused
        into one buffer? Is the fused buffer long enough for the ring to be a good choice?""",
        answer=f"""A ring has {2 * (ranks - 1)} steps: {text(alone, "s")} alone, and
        {text(together, "s")} together. Steps take as long as bytes where the buffer is the ranks
        times latency times bandwidth, {text(knee, "B")}. The fused buffer has
        {text(count * each * 1e3, "B")}, less than that: steps still decide, and an algorithm with
        fewer of them is faster.""",
        rubric="""1: the time of one short all-reduce is its steps
        1: both results
        2: compares the fused buffer with that size, and concludes""",
        wrong="Fusing saves bytes: the bytes are the same, steps are saved.",
    )


def no_power_of_two(draw: Random) -> ExamQuestion:
    """Ask where halving-doubling loses."""
    ranks, size = draw.choice((6, 12, 24)), draw.choice((100, 200, 400))
    ring = collectives.ring_all_reduce(size * 1e6, ranks)
    halving = collectives.halving_doubling_all_reduce(size * 1e6, ranks)
    meeting = bounds.meeting(halving, ring, size * 1e6, CABLE)
    assert meeting is not None
    return ExamQuestion(
        level=3,
        ask=f"""{ranks} ranks sum {size} MB. {RATES} Halving-doubling folds the ranks beyond the
        next smaller power of two: each hands its whole buffer to a partner and receives the result
        at the end. Compare its steps and serial bytes with those of a ring. From which size on
        is the ring faster, and does the answer change with a power of two?""",
        answer=f"""The ring has {ring.steps} steps and {ring.serial / size / 1e6:.3g} serial
        buffers. Halving-doubling has {halving.steps} steps and {halving.serial / size / 1e6:.3g}
        buffers, two of them for the fold. The ring is faster from {text(meeting, "B")} on; here it
        takes {text(ring.seconds(CABLE), "s")} against {text(halving.seconds(CABLE), "s")}. With
        a power of two both send the same bytes, and the ring with its steps is never faster.""",
        rubric="""2: both pairs of numbers, with the two folded buffers
        1: the size at which the times are equal
        1: with a power of two halving-doubling sends as little""",
        wrong="Halving-doubling, for its few steps: the two whole buffers are forgotten.",
    )


def idle(draw: Random) -> ExamQuestion:
    """Ask why the busiest link does not decide the time."""
    ranks = draw.choice((4, 8, 16, 32))
    naive = collectives.parameter_server(1.0, ranks)
    ring = collectives.ring_all_reduce(1.0, ranks)
    return ExamQuestion(
        level=2,
        ask=f"""On {ranks} ranks with equal links a long buffer is summed through rank 0, and once
        around a ring. How many times as many bytes does the busiest link carry in one direction
        through rank 0? How many times as long does the sum take? Why are the two not equal, and
        what do all ranks send together?""",
        answer=f"""The busiest link carries {naive.sent:g} buffers against {ring.sent:.4g}:
        {naive.sent / ring.sent:g} times as many. The time is {naive.serial / ring.serial:g} times
        as long, because rank 0 first only receives and then only sends, so each direction of its
        link is idle half of the time. Together the ranks send 2 (N - 1) = {2 * (ranks - 1)} buffers
        in both: the same.""",
        rubric="""1: bytes of the busiest link: N - 1 against 2 (N - 1) / N
        1: serial bytes: twice as many through rank 0
        1: the idle direction as the reason
        1: equal totals""",
        wrong="The ring sends less: it spreads the same bytes over all links.",
    )


def two_levels(draw: Random) -> ExamQuestion:
    """Ask what a second level saves of the bytes between servers."""
    servers, size = draw.choice((2, 4, 8)), draw.choice((2, 4, 8))
    inner = collectives.reduce_scatter(size * 1e9, 8).sent
    outer = collectives.ring_all_reduce(size * 1e9 / 8, servers).sent
    moved = size * 1e9 * (servers - 1) / servers
    return ExamQuestion(
        level=3,
        ask=f"""{servers} servers have 8 GPUs each. An all-reduce of {size} GB goes in two levels: a
        reduce-scatter inside each server, an all-reduce among GPUs with the same number in all
        servers, an all-gather inside. How many bytes does one GPU send inside, and how many to
        other servers? Somebody does the same to an all-to-all of {size} GB per GPU. How many bytes
        of a GPU's buffer must leave its server, and does a second level make them fewer?""",
        answer=f"""Inside 7/8 of the buffer twice, {text(2 * inner, "B")}. Between servers an
        all-reduce of an eighth: {text(outer, "B")}. In an all-to-all every piece is different, so
        nothing is summed on the way: {text(moved, "B")} of each GPU's buffer must leave, however
        they travel.""",
        rubric="""1: inside, both halves
        1: between servers: an eighth, and 2 (n - 1) / n of it
        2: an all-to-all: the share of other servers, and no saving because nothing adds up""",
        wrong="An eighth in the all-to-all, too: adding is what makes the sum smaller.",
    )


BATCHES = ExamQuestion(
    level=2,
    ask="""4 ranks deal 1,601 samples among themselves, and each takes batches of 4. The program
    runs for 100 steps and then hangs. One rank is in an all-reduce, and three are in an
    all-gather of the evaluation. Which line is wrong? Give a repair that loses no sample.

    ```python
    own = samples[rank::4]
    for i in range(0, len(own), 4):
        step(own[i : i + 4])      # forward, backward, all-reduce of the gradients
    evaluate()                    # all-gather of the predictions
    ```""",
    answer="""The loop's length depends on the rank: rank 0 has 401 samples and 101 batches, the
    others have 400 and 100. Rank 0's last all-reduce meets the others' all-gather. All ranks must
    take as many steps as the longest: ranks without samples take part with a zero gradient, and
    gradients are weighted with the number of samples of each rank.""",
    rubric="""1: the loop, with 101 and 100 steps
    1: collectives pair by their order, so the all-reduce meets the all-gather
    2: every rank takes part in every step, with a weight for unequal counts""",
    wrong="A barrier before `evaluate`: rank 0's all-reduce would then meet the barrier.",
)

ITEM = ExamQuestion(
    level=2,
    ask="""On GPUs a run hangs, and its stack shows `loss.item()` on all ranks. A colleague removes
    the line, and the run hangs at `torch.cuda.synchronize()`. What does the stack say about
    where the fault is? How do you find it?""",
    answer="""Little: a collective returns when it has been put into a queue, and the next line that
    waits for the GPU is the one that hangs. The fault is an earlier collective which some rank did
    not call, or called in another order. Compare the last collectives of all ranks, by the flight
    recorder or with `TORCH_DISTRIBUTED_DEBUG=DETAIL`: the first that differs is the fault.""",
    rubric="""2: collectives are asynchronous; the line waits and is not the cause
    1: an earlier collective differs between ranks
    1: compares the sequence of collectives of all ranks""",
    wrong="`item` is slow, or its copy fails: the symptom is taken for the cause.",
)

ORDER = ExamQuestion(
    level=2,
    ask="""After a change there is no error, and losses are slightly worse. Gradients are summed so:

    ```python
    for name in {n for n, p in net.named_parameters() if p.requires_grad}:
        gradients[name] = all_reduce(gradients[name], group)
    ```

    What is wrong, and why does a check of shape, dtype and operation not find it? Why may a test
    with ranks that are forked from one process pass?""",
    answer="""A set of strings can have another order in each process. Collectives pair by order and
    not by name, so gradients of different parameters are added where their shapes agree, as those
    of equal layers do. Where shapes differ a check would fail at once. Forked processes have the
    same seed of the hash, so their sets have the same order. Use one order for all, such as sorted
    names.""",
    rubric="""1: the order of the set
    2: pairing by order; equal shapes of different layers
    1: forked processes share the hash's seed""",
    wrong="Rounding: another order of adding within one sum, not sums of other parameters.",
)

BITS = ExamQuestion(
    level=2,
    ask="""A run is repeated with the same seed and the same global batch, and its loss differs in
    the fifth digit. Which of these changes explain it, and which would be a fault: 32 ranks in
    place of 64; another version of NCCL; another bucket size; a rank that is slower than before?
    And what if the weights of two ranks of the same run differ in one bit?""",
    answer="""The first three change the order in which numbers are added: the rings, the algorithm,
    the place of a number in the buffer. A slow rank must change nothing, because a plan fixes who
    adds what, whichever message comes first. Replicas that differ are a fault, however small the
    difference: each sum must be computed once and copied, or alike on all ranks. They drift
    apart.""",
    rubric="""2: which changes alter the order of additions, with the reason for each
    1: arrival times do not
    1: equal bits on all ranks are a promise of the all-reduce""",
    wrong="All are rounding, and so harmless: between replicas no difference is.",
)

COUNT = ExamQuestion(
    level=1,
    ask="""Eight ranks hold buffers of 800 MB. Say how many bytes each rank sends, and what it ends
    with: a ring reduce-scatter; a ring all-gather of the results; an all-to-all, pair by pair.
    Which two of these together are an all-reduce, and what can be done between them?""",
    answer="""Each sends 7/8 of a buffer, 700 MB. After the reduce-scatter a rank has its eighth of
    the sum, after the all-gather the whole sum. After an all-to-all it has the eighth with its
    number of every rank's buffer. The first two are an all-reduce. Between them each number of
    the sum is on one rank: it can be changed there once, such as by the optimizer.""",
    rubric="""1: 700 MB three times
    1: what a rank holds after each
    1: work on the pieces between the two halves""",
    wrong="100 MB in the reduce-scatter: what a rank keeps is taken for what it sends.",
)

PROVE = ExamQuestion(
    level=3,
    ask="""Why can no all-reduce of four ranks, which add, send fewer than six buffers in all? And
    why is that no bound for a switch that adds?""",
    answer="""Look at one number. Until some rank first has the sum, three ranks must each have sent
    a message with their part, and those three do not have the sum yet, so each must still receive
    one: 2 · 3 messages. A switch adds without being a rank that must send its own part: each rank
    sends its buffer once and receives the sum once.""",
    rubric="""2: the first rank with the sum, and three messages before it
    1: three more messages after that
    1: where the switch breaks the assumption""",
    wrong="The ring needs six, so no other algorithm can do with less.",
    then="How many at least must each rank send, if all send alike? Which algorithm reaches that?",
)

CHOOSE = ExamQuestion(
    level=2,
    ask="""Your library lets you choose an algorithm for all-reduces. You have gigabytes of
    gradients and a norm of four bytes, on 512 ranks. What do you choose, and what do you
    measure?""",
    answer="""For gigabytes a ring, or anything that sends about two buffers; for four bytes the
    fewest steps, recursive doubling or trees. The border is near ranks times latency times
    bandwidth, and grows with the ranks. Measure both by the times of a short and a long buffer, on
    these links and not on one machine.""",
    rubric="""2: a choice for each, by bytes and by steps
    1: the border, and that it grows with the ranks
    1: how latency and bandwidth are measured""",
    wrong="The ring for both, because it is optimal: only in bytes.",
    then="The 512 ranks are 64 servers with fast links inside. What changes?",
)

WRITTEN = (COUNT, more_ranks, idle, fused, no_power_of_two, two_levels, BATCHES, ITEM, ORDER, BITS)
ORAL = (PROVE, CHOOSE)
