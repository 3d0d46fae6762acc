"""Questions on composition: groups of a mesh, factors, norms, and bytes by axis."""

from math import sqrt
from random import Random

from shardlab.costs import collectives, composition, memory
from shardlab.costs.facts import models
from shardlab.costs.programs import BOOK
from shardlab.costs.training import Training
from shardlab.costs.units import text
from shardlab.sharding.layout import AXES_3D, Layout, coordinates, groups

from .bank import ExamQuestion

NODE = 8  # GPUs


def place(draw: Random) -> ExamQuestion:
    """Ask for the place of a rank, and for its groups."""
    layout = Layout(tp=4, dp=draw.choice((2, 3, 6)), pp=4)
    rank = draw.choice((5, 11, 18, 22, 30))
    at, later = (coordinates(rank, layout, order) for order in (AXES_3D, ("tp", "pp", "dp")))
    mine = {
        axis: next(list(group) for group in each if rank in group)
        for axis, each in groups(layout, AXES_3D).items()
    }
    return ExamQuestion(
        level=1,
        ask=f"""A mesh has tp = 4, dp = {layout.dp} and pp = 4, and ranks are numbered along tp
        first, then dp, then pp. Where is rank {rank}, and which ranks are in its three groups?
        Where is it if pp comes before dp?""",
        answer=f"""At tp {at["tp"]}, dp {at["dp"]}, pp {at["pp"]}. Its groups: tp {mine["tp"]}, dp
        {mine["dp"]}, pp {mine["pp"]}. With pp before dp it is at tp {later["tp"]}, pp
        {later["pp"]}, dp {later["dp"]}.""",
        rubric="""1: the three coordinates
        2: the three groups, from the strides 1, t and t d
        1: the coordinates in the other order""",
        wrong="Consecutive ranks in every group: only the innermost axis has them.",
    )


def norm(draw: Random) -> ExamQuestion:
    """Ask for the norm of a gradient, and for the one that a careless sum finds."""
    tp, dp = draw.choice((2, 4, 8)), draw.choice((2, 4, 8))
    piece, gain, table = draw.choice((3, 5)), draw.choice((4, 6)), draw.choice((2, 7))
    right = sqrt(2 * (tp * piece + gain) + tp * table)
    naive = sqrt(dp * 2 * tp * (piece + gain + table))
    return ExamQuestion(
        level=2,
        ask=f"""tp = {tp}, dp = {dp}, pp = 2, no ZeRO and no sequence parallelism; all gradients are
        complete. Every rank has a piece of a cut matrix, with the sum of squares {piece}, a copied
        norm with {gain}, and a piece of the tied embedding, which both stages hold, with {table}.
        What is the norm of the model's gradient? What does the root of the sum over all ranks give?
        Gradients are clipped to norm 1: how much too short are they then?""",
        answer=f"""Two stages with {tp} pieces and one norm each, and {tp} pieces of one table: 2 ·
        ({tp} · {piece} + {gain}) + {tp} · {table}, so the norm is {right:.3g}. All ranks' squares
        give {naive:.3g}: replicas, copies along tp and the second table count again. Clipped
        gradients are {naive / right:.2f} times too short.""",
        rubric="""2: replicas and copies count once, the pieces all
        1: the tied table counts at one end
        1: both norms, and their ratio as the error of clipping""",
        wrong="Dividing the sum by all ranks, or by dp only: each tensor has holders of its own.",
    )


def sends(draw: Random) -> ExamQuestion:
    """Ask for the bytes along each axis, and for what a larger batch changes."""
    pp, dp, m = draw.choice((2, 4, 8)), draw.choice((4, 8, 16)), draw.choice((8, 16, 32))
    run = Training(
        spec=models.published("Llama 3 70B").spec,
        layout=Layout(tp=8, pp=pp, dp=dp, sequence_parallel=True),
        sequence=4096,
        num_microbatches=m,
        program=BOOK,
    )
    tensor = composition.sent(run)["tp"]["layers"]
    border = m * run.message_bytes
    replicas = collectives.ring_all_reduce(2 * 70e9 / (8 * pp), dp).sent
    return ExamQuestion(
        level=2,
        ask=f"""70 billion parameters in 80 layers of width 8,192 train with tp = 8 and sequence
        parallelism, pp = {pp} and dp = {dp}. A replica has {m} microbatches of 4,096 tokens;
        numbers have 16 bits, gradients too; nothing is recomputed or gathered twice. How many bytes
        does a GPU send in a step: along tp in its layers, along pp over one border in one
        direction, along dp without ZeRO, if all GPUs hold equally many parameters? Which of the
        three grow if the batch has twice as many microbatches?""",
        answer=f"""Along tp m L / p · 8 T h · 7/8 numbers: {text(tensor, "B")}. Over a border m T h
        / 8 numbers, as every GPU sends its slice: {text(border, "B")}. Along dp 2 (d - 1) / d of P
        / (t p) gradients: {text(replicas, "B")}. With twice as many microbatches the first
        two double, and the gradients stay.""",
        rubric="""2: tp, with L / p layers and every microbatch
        2: a border, with the slice of an eighth; dp, with the parameters of one GPU
        1: what grows with microbatches""",
        wrong="All three double: gradients are averaged once in a step, however many microbatches.",
    )


def across(draw: Random) -> ExamQuestion:
    """Ask how many servers a group spans in two orders."""
    tp, dp, pp = draw.choice(((4, 4, 4), (4, 8, 2), (2, 8, 4), (8, 4, 2)))
    order = draw.choice((("dp", "tp", "pp"), ("dp", "pp", "tp"), ("pp", "tp", "dp")))
    layout = Layout(tp=tp, dp=dp, pp=pp)
    spans = []
    for each in (AXES_3D, order):
        first = {axis: found[0] for axis, found in groups(layout, each).items()}
        nodes = {axis: len({rank // NODE for rank in group}) for axis, group in first.items()}
        spans += [", ".join(f"{axis} {nodes[axis]}" for axis in AXES_3D)]
    return ExamQuestion(
        level=2,
        ask=f"""tp = {tp}, dp = {dp} and pp = {pp} on servers of 8 GPUs, one rank on each GPU, with
        the numbers of ranks in order. Over how many servers does rank 0's group of each axis extend
        with the order {", ".join(AXES_3D)} (neighbours first), and how many with
        {", ".join(order)}? Which order do you choose, and does any result change?""",
        answer=f"""With the first order: {spans[0]}. With the second: {spans[1]}. No result changes
        but for rounding. tp first: it sends most, and waits for it in every layer.""",
        rubric="""2: the servers of each axis, from stride and size
        1: no number of the training changes
        1: tp innermost, with the reason""",
        wrong="The axis with most ranks goes inside: bytes and waiting decide, not the degree.",
    )


def fits(draw: Random) -> ExamQuestion:
    """Ask for the fewest stages, where stages take GPUs from the replicas."""
    billions, gpus = draw.choice((70, 100, 130)), draw.choice((128, 256, 512))
    room = draw.choice((20, 24, 32))

    def held(pp: int) -> float:
        pieces = memory.model_states(billions * 1e9 / (NODE * pp), dp=gpus // (NODE * pp), zero=1)
        return sum(pieces.values())

    least = next(pp for pp in (1, 2, 4, 8, 16) if held(pp) <= room * 1e9)
    return ExamQuestion(
        level=3,
        ask=f"""{billions} billion parameters in mixed precision, with 2 bytes for a weight, 2 for a
        gradient and 12 for the optimizer, train on {gpus} GPUs with tp = 8 and ZeRO-1. States may
        take {room} GB of a GPU. Which is the smallest pp, as a power of two? All stages are equally
        large. Which part of the states does a larger pp not make smaller, and why?""",
        answer=f"""P / (8 pp) · (4 + 12 / dp), with dp = {gpus} / (8 pp): pp = {least}, where states
        take {text(held(least), "B")}. The optimizer's 12 P / {gpus} =
        {text(12e9 * billions / gpus, "B")} stay: twice the stages leave half of the replicas to
        share their states.""",
        rubric="""2: states of a GPU with ZeRO-1, at the dp that follows from pp
        1: the smallest pp, with its gigabytes
        1: the optimizer's part is spread over all GPUs in any case""",
        wrong="All states divided by pp, at a dp that stays: then there were more GPUs.",
    )


LOADER = ExamQuestion(
    level=2,
    ask="""Four ranks, tp = 2 and dp = 2, no sequence parallelism, the embedding not cut. The loss
    hardly falls. Which line is wrong? What does the first all-reduce of a block add up? What would
    the same line do with pp = 2 in place of tp = 2?

    ```python
    rank, size = dist.get_rank(), dist.get_world_size()
    rows = batch[rank * len(batch) // size : (rank + 1) * len(batch) // size]
    loss = trainer.step(rows[:, :-1], rows[:, 1:])
    ```""",
    answer="""The first: rank and size must be those of dp. As it stands the two ranks of a tp group
    read different rows of the same shape, and the sum adds half of the heads of one text to the
    other half of another. With pp the first stage reads inputs of one text and the last one the
    targets of another.""",
    rubric="""1: the coordinate along dp, and its degree
    2: the sum joins parts that belong to different texts
    1: with pp: inputs and targets of different texts""",
    wrong="Samples are read twice: here each is read once, but by ranks that share one model.",
)

GROUP = ExamQuestion(
    level=2,
    ask="""Gradients are averaged in groups of these ranks. They pass every test with tp = 1. With
    tp = 2, dp = 4 and tp innermost nothing fails, and the model is wrong. What is averaged with
    what? Are the four replicas equal after a step? Write the right line.

    ```python
    def averaged_with(rank, tp, dp):
        return range(rank // dp * dp, rank // dp * dp + dp)
    ```""",
    answer="""Rank 0 averages with 1, 2 and 3: both tp ranks of the replicas 0 and 1. So the left
    half of a matrix is averaged with its right half, of the same shape, and replicas 2 and 3 drift
    from 0 and 1. Right: ranks that differ along dp only, `range(rank % tp, tp * dp, tp)`.""",
    rubric="""1: the members of a wrong group, as coordinates
    2: halves of equal shape are mixed, so nothing fails; replicas are no longer equal
    1: a stride of tp, starting at the place along tp""",
    wrong="The average needs another divisor: the group is wrong, no factor repairs it.",
)

REPORT = ExamQuestion(
    level=2,
    ask="""A table compares gradients after backward and averaging with those of one process, in
    float64. Which mistake is it, in one line of code? The team had compared five losses under Adam,
    without clipping, and found them equal to five digits. Why? What would have shown it?

    | layout | gradient, as a multiple of one process's |
    |---|---|
    | dp = 4 | 1 |
    | tp = 4 | 1/4 |
    | dp = 2, pp = 2 | 1/2 |
    | tp = 2, pp = 2 | 1/4 |""",
    answer="""The average divides by the number of all ranks in place of dp: the multiple is 1 / (t
    p). Adam divides each gradient by its own size, so steps are nearly equal as long as its eps is
    small. The gradient's norm shows it, or one step of SGD.""",
    rubric="""2: reads 1 / (t p) from the rows, and names the right divisor
    1: Adam hides a constant factor
    1: the norm or the gradients, compared between layouts""",
    wrong="tp's all-reduce forgets a factor: then pp alone would be right.",
)

COPIES = ExamQuestion(
    level=3,
    ask="""A model with biases has tp = 4 and two key/value heads, so two ranks share each of them.
    For which of these parameters must gradients be summed along tp, over which ranks, with sequence
    parallelism and without: `mlp.up.weight`, `mlp.up.bias`, `mlp.down.bias`, a norm's weight, the
    keys' matrix? `up` is cut by columns, `down` by rows.""",
    answer="""`mlp.up.weight` and its bias: never, each rank has a piece of its own. `mlp.down.bias`
    and the norm: over all four with sequence parallelism, since each rank applies them to its slice
    of the tokens; without it each has the whole gradient already. The keys' matrix: over the two
    ranks that share a head, in both cases, since they use it for different queries.""",
    rubric="""1: pieces need no sum, the bias of a column cut included
    2: bias after the sum, and norm: with sequence parallelism only
    1: shared heads: over the pair, in both cases""",
    wrong="All biases: that of a column cut is itself cut.",
)

SEEDS = ExamQuestion(
    level=2,
    ask="""tp = 4, dp = 2, pp = 2, with dropout. Which coordinates must enter the seed of a mask on
    the attention weights of a rank's heads; on a block's output after its all-reduce; on the same
    output after a reduce-scatter, with sequence parallelism? What happens if all coordinates enter
    the second seed?""",
    answer="""dp and pp always: samples differ along dp, layers along pp. Heads are cut along tp, so
    tp enters the first. After the all-reduce the output is copied along tp, so tp must not enter.
    After the reduce-scatter each rank has its own tokens, so it enters. If it entered the second,
    the copies would differ: ranks of one layer would work on different inputs, without an
    error.""",
    rubric="""2: dp and pp in all three, tp in the first and the third
    2: the second without it, or copies differ and nothing says so""",
    wrong="One seed per rank: right for what is cut, and fatal for what is copied.",
)

ALONE = ExamQuestion(
    level=3,
    ask="""Data parallelism passed its parity test on 4 ranks, tensor parallelism and the pipeline
    too, each alone. A colleague starts the run with tp = 8, pp = 8, dp = 8. What is untested?""",
    answer="""Where methods meet: which ranks average, the divisor, the norm with replicas and
    copies, tied tables under ZeRO, gradients of copies with sequence parallelism, which ranks read
    the same samples. With one axis many of these mistakes cannot be seen, as all groups are the
    whole world.""",
    rubric="""2: three meeting places, each with a mistake that one axis hides
    1: with one axis each group is the whole world""",
    wrong="Only the speed: each method is thought to be right in any company.",
    then="You have four ranks for a minute. Which layouts do you run, and what do you compare?",
)

FACTOR = ExamQuestion(
    level=2,
    ask="""Why does the gradient get a factor for dp, and none for tp or pp?""",
    answer="""Replicas see different samples, and the loss is the mean over all: each replica's
    gradient is a term that counts its share. Ranks of tp compute one and the same loss, and stages
    one backward of it: nothing is averaged there, and partial sums are only added.""",
    rubric="""1: the mean over samples as the origin of the factor
    2: the same loss along tp, one chain of derivatives along pp""",
    wrong="Because tp's all-reduce is a mean: it is a sum of terms.",
    then="And for context parallelism, where each rank has a part of every sequence?",
)

WRITTEN = (place, fits, norm, sends, across, LOADER, GROUP, REPORT, COPIES, SEEDS)
ORAL = (ALONE, FACTOR)
