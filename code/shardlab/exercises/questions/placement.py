"""Questions on placement: who has which number, what crosses a card, and where the knee lies."""

from random import Random

from shardlab.costs import collectives
from shardlab.costs.traces import knee
from shardlab.costs.units import text
from shardlab.sharding.layout import Layout, groups

from .bank import ExamQuestion

GPUS = 8  # of a server


def numbers(draw: Random) -> ExamQuestion:
    """Ask for the servers on which the groups of each axis lie, in two orders."""
    tp, dp, pp = draw.choice(((4, 4, 2), (2, 4, 4), (4, 2, 4), (2, 8, 2)))
    rank = draw.choice((5, 13, 22, 30))
    layout, lie = Layout(tp=tp, dp=dp, pp=pp), []
    for order in (("tp", "dp", "pp"), ("pp", "dp", "tp")):
        found = groups(layout, order)
        team = next(list(group) for group in found["tp"] if rank in group)
        on = [len({each // GPUS for each in found[axis][0]}) for axis in ("tp", "dp", "pp")]
        lie += [f"{team}; groups lie on {on[0]} (tp), {on[1]} (dp) and {on[2]} (pp)"]
    return ExamQuestion(
        level=1,
        ask=f"""32 ranks run on four servers of eight GPUs, numbers 0 to 7 on the first and so on,
        with tp = {tp}, dp = {dp}, pp = {pp}. The first axis of an order has neighbouring numbers.
        For the orders tp · dp · pp and pp · dp · tp, list the tp group of rank {rank}, and count
        the servers on which a group of each axis lies. Which order would you take, and why?""",
        answer=f"""tp · dp · pp: {lie[0]} servers. pp · dp · tp: {lie[1]} servers. The first: tp
        sends most, 4 all-reduces per layer, and waits for them, so it must stay on NVLink.""",
        rubric="""2: both tp groups, from how far apart neighbours are
        1: the servers of each axis's groups
        1: the order, by what is sent and waited for""",
        wrong="The last axis varies fastest: so it does in torch's mesh, not in this order.",
    )


def teams(draw: Random) -> ExamQuestion:
    """Ask what a card carries if teams share servers, and if they do not."""
    billions, layers, width = draw.choice(((3, 28, 3072), (8, 32, 4096), (13, 40, 5120)))
    tokens = draw.choice((8192, 16_384, 32_768))
    near = collectives.ring_all_reduce(2 * billions * 1e9 / 8, 8).sent
    far = collectives.ring_all_reduce(2.0 * tokens * width, 8).sent * 4 * layers
    return ExamQuestion(
        level=2,
        ask=f"""A model of {billions} billion parameters in {layers} layers of width {width:,} runs
        on eight servers of eight GPUs, with a card of 50 GB/s for each GPU, of which 80 % are
        reached. tp = 8, dp = 8; a team computes {tokens:,} tokens per step in one microbatch.
        Activations and gradients have 16 bits, all-reduces are rings, and nothing hides those of
        tp. What does a card send per step if each team has a server, and if each has one GPU in
        every server? How long does a step wait for the latter, without latency? With how many
        tokens would both send as much, and would the second placement then be as fast?""",
        answer=f"""A GPU holds an eighth of the gradients and sends 7/4 of that: {text(near, "B")}.
        Spread out, it sends 7/4 of all activations, {4 * layers} times: {text(far, "B")}, so it
        waits for {text(far / 40e9, "s")}. With {tokens * near / far:,.0f} tokens bytes are equal.
        The second is still slower: layers wait for activations, and backward hides gradients.""",
        rubric="""1: gradients: an eighth, 7/4 of it
        2: activations: 4 all-reduces per layer, with bytes and seconds
        1: the tokens, as only activations grow with them
        1: what is waited for, and what can hide""",
        wrong="The same in both, as the program sends the same: not over the same hops.",
    )


def exchange(draw: Random) -> ExamQuestion:
    """Ask what a card carries in an all-reduce on two levels, and in an all-to-all."""
    servers, gpus = draw.choice((2, 4, 8, 16)), draw.choice((4, 8))
    size = draw.choice((128, 256, 512))
    summed = collectives.ring_all_reduce(size * 1e6 / gpus, servers).sent
    dealt = collectives.all_to_all(size * 1e6, servers).sent
    return ExamQuestion(
        level=2,
        ask=f"""{servers} servers have {gpus} GPUs, each with a card of its own, and each GPU has a
        buffer of {size} MB. What does a card send for an all-reduce on two levels, and what for an
        all-to-all of different pieces, all equally long? How many times as much is the latter,
        and what does that depend on? What if the GPUs of a server share one card?""",
        answer=f"""All-reduce: the servers all-reduce 1/{gpus} of the buffer through each card,
        {text(summed, "B")}. All-to-all: the share for other servers, {text(dealt, "B")},
        {dealt / summed:g} times as much: half of the GPUs in a server, as only sums shrink there,
        whatever the number of servers. A shared card carries {gpus} times as much in both, so the
        factor stays.""",
        rubric="""1: the all-reduce: twice (n - 1)/n of a GPU's share
        1: the all-to-all: (n - 1)/n of its whole buffer
        2: the factor, by GPUs per server, with one card as with many""",
        wrong="Two levels help both: an all-to-all has nothing to add up.",
    )


def bend(draw: Random) -> ExamQuestion:
    """Ask for the knee, from three measured steps."""
    computing, hidden = draw.choice(((0.5, 0.3), (0.6, 0.4), (0.8, 0.5)))
    sent = draw.choice((0.6, 0.8, 1.0))  # seconds at 0.4 Tb/s

    def seconds(rate: float) -> float:
        return computing + max(0.0, sent * 50e9 / rate - hidden)

    found = 8e-12 * knee.of(seconds)
    return ExamQuestion(
        level=2,
        ask=f"""Servers train with plain data parallelism. With 0.2 Tb/s of network per server a
        step takes {seconds(25e9):.2f} s, with 0.4 Tb/s {seconds(50e9):.2f} s, and with any very
        fast network {computing:.2f} s. Bytes are the same, latency is negligible. How long does it
        send with 0.4 Tb/s, and how long does it compute meanwhile? Where is the knee, at which a
        step takes 5 % longer than at its fastest? What does four times that network buy?""",
        answer=f"""Left of the knee a step is computing + sending - hidden. Sending takes twice as
        long with 0.2 as with 0.4 Tb/s, so the difference is the time with 0.4: {sent:.2f} s, of
        which {hidden:.2f} s are hidden. 5 % longer is {0.05 * computing:.3g} s that show, so
        sending may take {hidden + 0.05 * computing:.3g} s: {found:.2g} Tb/s. Four times as
        much makes a step less than 5 % shorter, as any network does.""",
        rubric="""2: the sending time from the difference, and from it what is hidden
        1: the knee: hidden time and 5 % of computing
        1: a bound on the gain beyond it""",
        wrong="Where sending takes as long as computing: only backward's end can hide it.",
    )


def passes(draw: Random) -> ExamQuestion:
    """Ask how several passes before an average move the knee."""
    count, sent = draw.choice((2, 4, 8)), draw.choice((0.5, 0.6, 0.9))
    computing, hidden = 0.3, draw.choice((0.15, 0.2))

    def lies(scale: float) -> float:  # the knee, in Tb/s of a server
        whole, hides = count * computing, scale * hidden
        return 8e-12 * knee.of(lambda rate: whole + max(0.0, sent * 50e9 / rate - hides))

    shown = [max(0.0, sent - scale * hidden) for scale in (1, count)]
    each = [(count * computing + more) / count for more in shown]
    return ExamQuestion(
        level=3,
        ask=f"""In data parallelism a pass over one sequence computes for {computing} s, of which
        {hidden} s of backward can hide sending the gradients, {sent} s with 0.4 Tb/s per server.
        You may compute {count} sequences before each average, in {count} passes or in one, whose
        times are proportional to its tokens. How long does a step take per sequence in either case
        with this network, and where is its knee, 5 % above the fastest? What limits either?""",
        answer=f"""In {count} passes only the last one hides: {each[0]:.4g} s per sequence, and the
        knee is at {lies(1):.2g} Tb/s. In one pass all of backward hides: {each[1]:.4g} s, and
        {lies(count):.2g} Tb/s. Either needs a batch that may be so large; one pass also needs
        memory for the activations of {count} sequences.""",
        rubric="""2: which pass hides, and both times per sequence
        2: both knees: sending may take what is hidden and 5 % of all computing
        1: batch and memory""",
        wrong="Each pass hides its part: gradients are sent after the last one is added.",
    )


MESH = ExamQuestion(
    level=2,
    ask="""`torchrun` starts 32 processes on four servers of eight GPUs, and gives each server
    neighbouring numbers. Losses are right, and steps take twice as long as on the same servers with
    another program. What is wrong? List the tp group and the dp group of rank 0 as it
    stands, and write the line that you would use.

    ```python
    mesh = init_device_mesh("cuda", (8, 4), mesh_dim_names=("tp", "dp"))
    ```""",
    answer="""In a `DeviceMesh` the last axis has neighbouring numbers. So the dp group of rank 0 is
    0, 1, 2, 3, in one server, and its tp group 0, 4, ..., 28, two GPUs of each server.
    `init_device_mesh("cuda", (4, 8), mesh_dim_names=("dp", "tp"))` makes tp the last axis.""",
    rubric="""1: the axis that has neighbouring numbers
    2: both groups, and on which servers they lie
    1: sizes and names exchanged together""",
    wrong="Exchanging the names only: then tp is 4 and dp 8, another layout.",
)

STRAY = ExamQuestion(
    level=3,
    ask="""Ranks 0 to 7 should be on server a, 8 to 15 on b; tp = 8, dp = 2. A printout shows rank 7
    on b and rank 8 on a, all others as planned. Each GPU has its own card, and collectives are
    rings. What does each card carry in an all-reduce of X bytes of activations? Compare this with
    teams that have four GPUs on each server. Where do gradients go? Which results are wrong?""",
    answer="""A ring through one team enters and leaves the stray GPU by its card, which sends
    2 · 7/8 X and receives as much. With four GPUs on each server four
    rings share the bytes, 7/16 X for each card: two exchanged ranks are four times as bad as
    half of each team. Ranks 7 and 15 are both on b, 0 and 8 on a, so these two averages stay
    inside, the others cross as planned. All results are right.""",
    rubric="""2: the whole ring passes the card of the one stray GPU
    1: four cards share it where teams are halved
    1: gradients, pair by pair
    1: only the time is wrong""",
    wrong="Two of sixteen are wrong, so an eighth is lost: a ring waits for its slowest hop.",
)

LEADERS = ExamQuestion(
    level=2,
    ask="""All ranks of four servers with eight GPUs run this. A rank that is not in a group gets
    its own input back. Which part of the gradient is right afterwards, and which replicas agree?
    Correct the line. Why did a test on one server pass, and what would the network cards show?

    ```python
    shard = reduce_scatter(gradient, inside)   # inside: the eight ranks of this server
    total = all_reduce(shard, across)          # across: the ranks 0, 8, 16, 24
    gradient = all_gather(total, inside)
    ```""",
    answer="""Only the first eighth is summed over all servers; the rest are sums of one server. So
    the ranks of a server agree, and servers drift apart. `across` must be the ranks with the same
    number in their servers, such as 3, 11, 19, 27. On one server nothing is to be summed across.
    One card of eight is at work, where all should carry an eighth each.""",
    rubric="""1: the first eighth
    1: alike inside a server, different between
    1: eight groups across, one for each local number
    1: one server hides it, or one card at work""",
    wrong="Only slower, since leaders have sums: each has the sum of its own eighth only.",
)

SPLIT = ExamQuestion(
    level=3,
    ask="""Servers have four GPUs with NVLink and one network card. A model of 32 layers needs the
    memory of eight GPUs. You may take tp = 8 over two servers, or tp = 4 in each and a pipeline of
    two stages. A microbatch's activations between layers are X bytes. How often does X leave a
    server per microbatch, forward and backward, with rings and without overlap? Which one do you
    take, at which price, and what would make you think again?""",
    answer="""tp = 8: 4 · 32 all-reduces, each with 2 · 7/8 X through the card: 224 X. Pipeline: X
    from the first server, and the gradient X from the second: each card sends X, or 4 X if
    all four ranks of a stage send it whole. So the pipeline, at least 56 times fewer. It costs idle
    time while it fills and drains, which few microbatches make long. Servers whose eight GPUs share
    NVLink would change the choice.""",
    rubric="""2: 128 all-reduces of 7/4 X
    1: one activation or gradient in each direction
    1: the choice, with idle time while it fills and drains
    1: a condition that changes it""",
    wrong="tp = 8, as it has no idle time: it waits for the card in each layer instead.",
)

TOLD = ExamQuestion(
    level=2,
    ask="""A team tests two offers, the same GPUs with 0.4 or with 1.6 Tb/s of network per server,
    by a run with tp = 8 inside servers and data parallelism between them. The dearer one is 2 %
    faster. They conclude that 0.4 Tb/s is enough for this model. Name two changes of the run that
    may refute this and one that cannot, each with its reason.""",
    answer="""Both networks lie right of the knee, or near it, for this program. Plain data
    parallelism on all GPUs sends eight times the gradients per GPU; ZeRO-3 gathers parameters in
    every pass; fewer tokens per pass or a faster chip leave less time to hide behind. More tokens
    in a pass cannot: time to hide grows, and the bytes of gradients stay.""",
    rubric="""1: a knee belongs to a program
    2: two changes to the right, by bytes or time to hide
    1: one to the left""",
    wrong="A larger model, as it sends more: it computes more as well, in the same proportion.",
)

TWICE = ExamQuestion(
    level=2,
    ask="""A job on the same servers as yesterday takes twice as long per step, and its losses are
    as before. What do you look at first, and why can no test of results find it?""",
    answer="""The host of each rank, against what the groups assume: another launcher or order of
    axes may have dealt the teams over servers. Placement changes which hops carry the bytes, not
    what is sent, so results are the same. Then compare the bytes of each card.""",
    rubric="""2: which rank is on which server, against the groups
    1: the same messages over other hops
    1: bytes of each card, or a replay of both placements""",
    wrong="The network is broken: it may be, but the hosts are printed in a minute.",
    then="Every rank is where it should be. What is next?",
)

RULE = ExamQuestion(
    level=3,
    ask="""Why do people say that tensor parallelism must stay within a server? Is it a law?""",
    answer="""It sends in every layer, and the layer waits. Over cards, with tp = 8, a GPT sends
    longer than it computes, unless it is very wide; tokens cancel. What counts is the reach of the
    fast wires: NVLink in a rack moves the border, overlap hides some, wider layers need less.""",
    rubric="""2: bytes and computing of a layer grow alike with tokens, so their quotient decides
    1: it waits in every layer
    1: two conditions under which the rule gives way""",
    wrong="It sends the most bytes: what can hide would not matter, whatever its size.",
    then="The rack has 72 GPUs with NVLink. How far would you go with tp, and what stops you?",
)

WRITTEN = (numbers, teams, exchange, bend, passes, MESH, STRAY, LEADERS, SPLIT, TOLD)
ORAL = (TWICE, RULE)
