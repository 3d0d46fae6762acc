"""Questions on interconnects: rates and their units, paths, busiest hops, and what a log says."""

from random import Random

from shardlab.costs.facts import hardware, hops, nodes
from shardlab.costs.traces import traffic
from shardlab.costs.units import text

from .bank import ExamQuestion


def units(draw: Random) -> ExamQuestion:
    """Ask for rates of one GPU, in one direction, in bytes."""
    nvlink = hardware.link(draw.choice(("NVLink 3", "NVLink 4", "NVLink 5")))
    card, cards = draw.choice((200, 400)), draw.choice((2, 4, 8))
    share = cards * card / 8 / 8
    return ExamQuestion(
        level=1,
        ask=f"""A maker sells a server of 8 GPUs with "{2 * nvlink.bandwidth / 1e9:.0f} GB/s of
        NVLink per GPU" and "{cards * card / 1e3:g} Tb/s of network", by {cards} cards. What can one
        GPU send per second over each, in GB/s, if all send at once? How many times as wide is
        NVLink? What does the network's number become if only one GPU sends, through one card?""",
        answer=f"""GPUs are sold with both directions added: {nvlink.bandwidth / 1e9:.0f} GB/s.
        The network counts bits in one direction: {cards * card / 8:g} GB/s for the server,
        {share:g} for each GPU. NVLink is {nvlink.bandwidth / 1e9 / share:.3g} times as wide.
        Alone a GPU has one card, {card / 8:g} GB/s.""",
        rubric="""1: half of NVLink's number
        1: bits to bytes, and an eighth of the server's
        1: one card for one GPU""",
        wrong="Halving both: network makers quote one direction.",
    )


def shared(draw: Random) -> ExamQuestion:
    """Ask for the busiest hop where GPUs share one."""
    count, size, card = draw.choice((2, 4)), draw.choice((1, 2, 5)), draw.choice((25, 50))
    busiest = max(size / card, count * size / 63)
    alone = max(size / card, size / 63)
    return ExamQuestion(
        level=2,
        ask=f"""{count} GPUs of a server each send {size} GB to another server, all at the same
        time. Each has a card of {card} GB/s, and the server there has as many. GPUDirect is off, so
        all data pass one hop from the PCIe switch to the processor, of 63 GB/s in that direction,
        and come back down by its other direction. How long does it take at least? How long
        with GPUDirect? Does a second program that only receives slow the first one down?""",
        answer=f"""The hop up carries {count * size} GB: {text(count * size / 63, "s")}; a card
        {size} GB: {text(size / card, "s")}. So {text(busiest, "s")} at least, and
        {text(alone, "s")} with GPUDirect, where the cards decide. What arrives goes up and down
        again as well, so it shares the hop with what is sent: without GPUDirect it does.""",
        rubric="""1: bytes of all messages that cross the shared hop
        1: the longest of all hops' times
        1: without the detour each card or slot decides
        1: received data use the same hops without GPUDirect""",
        wrong="Adding up the hops' times: all hops stream at the same time.",
    )


def rings(draw: Random) -> ExamQuestion:
    """Ask which hop bounds rings through two servers."""
    name = draw.choice(("DGX A100", "DGX H100", "HGX B200"))
    node, load = nodes.node(name), traffic.rings(nodes.cluster(name, 2), range(16))
    rates = nodes.rates_of_a_gpu(node)
    alone = traffic.rings(nodes.cluster(name), range(8)).bandwidth
    return ExamQuestion(
        level=2,
        ask=f"""Two servers, model {name}, have 8 GPUs each and {text(rates["NVLink"], "B/s")} of
        NVLink for each, in one direction. The network cards of a server carry
        {text(node.network_bandwidth, "B/s")} together. Rings through all 16 GPUs share the cards
        equally. What is the highest bus bandwidth at full rates, by which hop, and what
        is it inside one server? What do you expect if one of eight cards fails?""",
        answer=f"""All bytes of the rings cross the cards once: {text(load.bandwidth, "B/s")}. That
        is less than NVLink allows, so the cards are the busiest hops. Inside a server NVLink alone
        decides, {text(alone, "B/s")}. Without one of eight cards the rest carry 7/8 of that at
        best.""",
        rubric="""1: the cards' sum, and not one card
        1: compares with NVLink
        1: inside the server
        1: 7/8 at best""",
        wrong="The mean of NVLink and network: a ring is as fast as its busiest hop.",
    )


def missing(draw: Random) -> ExamQuestion:
    """Ask what a bus bandwidth says about cards."""
    used = draw.choice((1, 2, 3))
    printed = used * draw.choice((46, 47, 48))
    return ExamQuestion(
        level=2,
        ask=f"""Four servers with eight InfiniBand cards of 400 Gb/s each run nccl-tests with
        `NCCL_ALGO=RING`. NVLink has 450 GB/s for each GPU. It prints a bus bandwidth of {printed}
        GB/s. What should it print? What is the likeliest fault, and what do you look for in which
        log? How would that log show TCP in place of InfiniBand?""",
        answer=f"""About 360 GB/s where rings close over NVLink, at 0.8, and up to 390 where they
        alternate between cards, which together carry about 0.95 of 400. A card gives 46 to 48 GB/s,
        so NCCL uses {used} of eight: others are down, or hidden by a container or `NCCL_IB_HCA`.
        NCCL's log with `NCCL_DEBUG=INFO` lists the cards in use. "NET/Socket", the ordinary
        Ethernet, would give much less for each card.""",
        rubric="""1: what healthy servers print
        2: the number of cards, from the rate of one
        1: the log, and what it would show for TCP""",
        wrong="GPUDirect is off: rings through the hosts reach some 200 GB/s with these servers.",
    )


def message(draw: Random) -> ExamQuestion:
    """Ask for the time of one message, and when its latency matters."""
    name, size = draw.choice(("DGX A100", "DGX H100")), draw.choice((1, 10, 100, 400))
    path = nodes.cluster(name, 2).path(0, 8)
    rate, latency = hops.bandwidth(path), hops.latency(path)
    return ExamQuestion(
        level=1,
        ask=f"""A message of {size} MB goes from a GPU of one {name} to one of another, alone on its
        path. The hops of a path have, in GB/s,
        {", ".join(f"{hop.bandwidth / 1e9:.3g}" for hop in path)}. A step over the network has a
        latency of {text(latency, "s")}. How long does it take? From which size on is the latency
        less than a tenth of the time?""",
        answer=f"""The narrowest hop has {text(rate, "B/s")}, so
        {text(latency + size * 1e6 / rate, "s")}. Latency is a tenth where the bytes take nine times
        as long: from {text(9 * latency * rate, "B")} on.""",
        rubric="""1: the narrowest hop, once
        1: latency plus bytes over it
        1: the size: nine times latency times bandwidth""",
        wrong="A sum over hops: a message streams, it is not stored at each.",
    )


TWO_AND_FOUR = ExamQuestion(
    level=2,
    ask="""The same benchmark prints 470 GB/s on two servers of eight H100s with 400 GB/s of cards
    each, and 366 on four. A colleague opens a ticket: "the switch loses 22 %". Another says that
    470 is a bug, because it is more than the cards have. Judge both, and say how to test it.""",
    answer="""Bus bandwidth is computed as if a ring had run. On two nodes NCCL takes a tree in
    which the switch inside adds, and sums cross the network once in each direction, so the number
    may exceed the cards. On four the ring is back, near what NVLink allows at 0.8. So neither is
    shown.
    Force rings on both, `NCCL_ALGO=RING`, and compare those.""",
    rubric="""2: bus bandwidth assumes a ring; another algorithm ran on two nodes
    1: 366 is what healthy rings reach
    1: the same algorithm for both""",
    wrong="Averages of several runs: the number is stable, its meaning changes.",
)

MATRIX = ExamQuestion(
    level=2,
    ask="""Read this matrix. Which ring would you lay through the four GPUs? Which hop bounds it?
    Which two GPUs should share the layers of a model? What does an all-reduce on GPUs 0 and 1 say
    about one on all four?

    ```text
            GPU0  GPU1  GPU2  GPU3
    GPU0     X    SYS   NV12  SYS
    GPU1    SYS    X    SYS   NV12
    GPU2    NV12  SYS    X    SYS
    GPU3    SYS   NV12  SYS    X
    ```""",
    answer="""0, 2, 1, 3 and back to 0, or the same reversed: two hops by NVLink and two across the
    processors, which bound it. Any ring crosses between the pairs at least twice. Layers
    should be shared by 0 and 2, or 1 and 3. GPUs 0 and 1 have no NVLink, so their all-reduce
    crosses the processors as well, and shows about what all four reach.""",
    rubric="""1: a ring with both NVLink pairs
    1: SYS, the path across processors, bounds it
    1: the pairs 0 and 2, or 1 and 3
    1: 0 and 1 use the slow path, too""",
    wrong="0, 1, 2, 3 by number: all of its hops are SYS.",
)

DIRECT = ExamQuestion(
    level=2,
    ask="""NCCL's log says `via NET/IB/0` where another cluster of the same servers says
    `via NET/IB/0/GDRDMA`. Each of eight H100s has a card of 50 GB/s and a hop of 63 GB/s to its
    processor, and rings reach hardly more than half of what they reach there. Each hop is wider
    than the card: how can that be? Name two causes. Are the gradients wrong?""",
    answer="""All data pass the host's memory. What a GPU sends goes up that hop, and so does what
    its card receives, so the hop carries twice the bytes: 126 for a share of 63. The driver does
    not offer the GPU's memory to the card, or the card is too far away for NCCL
    (`NCCL_NET_GDR_LEVEL`). Gradients are right; only time is lost.""",
    rubric="""1: the detour through the host
    2: sent and received data share a direction of the hop
    1: a cause, and right results""",
    wrong="The memory of the host is slow: it is the hop to it that carries everything twice.",
)

SLOT = ExamQuestion(
    level=3,
    ask="""You can replace the cards of a server, 400 Gb/s each in a slot of PCIe 5.0 with 16 lanes
    (63 GB/s), by cards of 800 Gb/s. How much faster does a long message become at most? What
    does an old card gain or lose in a slot of 8 lanes? When is the purchase worth nothing at all?
    Neglect protocols.""",
    answer="""From 50 to 63 GB/s, 1.26 times: the slot is narrower than the 100 GB/s of the card. In
    8 lanes, 31.5 GB/s, the old card loses 37 %, and a new one would do no better. It is worth
    nothing where another hop is busiest, such as NVLink or the other end's card, or where messages
    hide behind computing or are so short that latency decides.""",
    rubric="""1: bytes, and the smaller of card and slot
    1: 1.26
    1: 8 lanes: the slot decides
    2: two cases in which another limit holds""",
    wrong="Twice as fast: only one hop of the path was looked at.",
)

ADDS = ExamQuestion(
    level=3,
    ask="""Eight GPUs of a server with 450 GB/s of NVLink each print an all-reduce of 480 GB/s bus
    bandwidth, and an all-gather of 360. Explain both numbers. Does ZeRO, which replaces an
    all-reduce by a reduce-scatter and an all-gather, keep the advantage?""",
    answer="""The switch adds: each GPU sends and receives 9/8 of its buffer and not 14/8 as in a
    ring, and bus bandwidth still counts 14/8. So 480 means less than 450 on the wire: 480 · 9/14 is
    309. An all-gather adds nothing; every GPU must receive all other pieces: 0.8 of 450.
    So the gather of ZeRO gains nothing from it.""",
    rubric="""2: 9/8 against 14/8, so that the printed number exceeds the wire's
    1: an all-gather has nothing to add
    1: the gather half keeps its price""",
    wrong="A measuring error, as no link can carry more than its rate.",
)

THIRD = ExamQuestion(
    level=2,
    ask="""A program is fast on two GPUs of a server and slower on three. Nothing is broken. What do
    you think of first, and what do you ask the machine?""",
    answer="""GPUs may be joined in pairs by NVLink. With the third the ring must take another path,
    over PCIe or across processors, and a ring is as fast as its slowest hop. `nvidia-smi topo -m`
    shows which pairs have NVLink.""",
    rubric="""2: links are not equal, and the slowest hop decides
    1: the matrix, and what its letters say
    1: a benchmark of this very set of GPUs""",
    wrong="More ranks have more to send: in a ring each sends hardly more.",
    then="How would you place a model on the four GPUs of such a server?",
)

BEFORE = ExamQuestion(
    level=2,
    ask="""You get 16 servers for a month. What do you run in the first hour, which number do you
    expect, and what do you do if one is a tenth of that?""",
    answer="""nccl-tests inside each server, then on all of them with rings forced. Inside, 0.8 of
    NVLink; between, the cards' sum at 0.92 to 0.96 with InfiniBand, but no more than NVLink gives
    where rings close over it. A tenth suggests one card, or TCP: read the log for cards, "GDRDMA"
    and "NET/Socket"; halve the set of servers to find a bad one.""",
    rubric="""1: a benchmark on all nodes of the run
    1: expected numbers, with what bounds them
    2: a search from log to cards, paths and single servers""",
    wrong="Starting the training and watching its speed: a wrong path gives right results.",
    then="All servers pass alone, and together they are slow. What is left?",
)

WRITTEN = (units, message, shared, rings, missing, TWO_AND_FOUR, MATRIX, DIRECT, SLOT, ADDS)
ORAL = (THIRD, BEFORE)
