"""Questions on tensor parallelism: two cuts, four sums in a layer, and where it must end."""

from dataclasses import replace
from random import Random

from shardlab.costs import collectives
from shardlab.costs import tensor_parallel as predict
from shardlab.costs.facts import hardware, models
from shardlab.costs.memory import activations
from shardlab.costs.programs import BOOK
from shardlab.costs.training import Training
from shardlab.costs.units import text
from shardlab.model.spec import TransformerSpec
from shardlab.sharding.layout import Layout

from .bank import ExamQuestion

H100 = hardware.chip("H100 SXM 80 GB")
AGAIN = replace(BOOK, keeps_gathered=False)


def _gpt(width: int, ffn: int = 4) -> TransformerSpec:
    """Return a GPT whose heads have 128 numbers each, and whose blocks are `ffn` times as wide."""
    spec = models.published("GPT-3 175B").spec
    return replace(spec, hidden_size=width, num_heads=width // 128, ffn_size=ffn * width)


def sums(draw: Random) -> ExamQuestion:
    """Ask for the bytes of a microbatch, and what recomputation and a longer text add."""
    width, tp, layers = draw.choice((4096, 8192, 12_288)), draw.choice((2, 4, 8)), 32
    run = Training(spec=_gpt(width), layout=Layout(tp=tp), sequence=2048)
    plain = layers * predict.sent_bytes(run)
    again = layers * predict.sent_bytes(replace(run, recomputation="full"))
    return ExamQuestion(
        level=1,
        ask=f"""{tp} ranks share every layer of a GPT of {layers} layers and width {width:,}. A
        microbatch has 2,048 tokens; activations and their gradients have 16 bits, and sums travel
        around a ring. How many bytes does a rank send for the layers of one microbatch? How many
        with all of forward recomputed? Would feed-forward blocks twice as wide change that?""",
        answer=f"""Four all-reduces of T h numbers for each layer, each sending 2 (t - 1) / t times
        as many: {text(plain, "B")}. Recomputing repeats the two of forward: {text(again, "B")}.
        Wider blocks change neither: what is summed is what leaves them, of width h.""",
        rubric="""2: four sums in a layer, with the factor of a ring, and 2 bytes for a number
        1: half as much again with recomputation
        1: the width between blocks counts, not the parameters""",
        wrong="P / t parameters: those are bytes of data parallelism. Two sums: backward left out.",
    )


def wider(draw: Random) -> ExamQuestion:
    """Ask for the largest degree of a layer that is not 4 times as wide inside."""
    width, ffn = draw.choice((4096, 8192, 12_288)), draw.choice((6, 8))
    name = draw.choice(("NVLink 3", "NVLink 4", "NVLink 5"))
    link, run = hardware.link(name).reached, Training(spec=_gpt(width, ffn), layout=Layout(tp=2))
    weights, limit = 4 + 2 * ffn, predict.most_ranks(run, H100, link, 0.2)
    return ExamQuestion(
        level=2,
        ask=f"""A GPT of width {width:,} has feed-forward blocks that are {ffn} times as wide
        inside. Its chips reach {text(predict.rate(run, H100), "FLOP/s")} each, and a buffer travels
        at {text(link.bandwidth, "B/s")} in one direction, in 16 bits. Communication may take a
        fifth of the time of arithmetic. Derive the largest t, without latency and without the
        scores of attention. What do a batch twice as large, and one server more, change?""",
        answer=f"""A layer has 4 + 2 x {ffn} = {weights} times h² weights: 6 x {weights} T h² / (t
        F) seconds, against 16 T h (t - 1) / (t β). So t is at most 1 + 0.2 x {6 * weights}/16 h β /
        F = {limit:.2g}. The tokens cancel, so the batch changes nothing; a second server only adds
        a hop that is no faster.""",
        rubric="""1: the weights of this layer
        2: both times, and the limit
        2: tokens cancel, and another server brings no faster link""",
        wrong="The factor 9/2: it belongs to 12 h² weights, and was remembered, not derived.",
    )


def slices(draw: Random) -> ExamQuestion:
    """Ask what sequence parallelism saves, and what gathering again costs."""
    width, tp = draw.choice((4096, 8192, 12_288)), draw.choice((2, 4, 8))
    whole = Training(spec=_gpt(width), sequence=2048, dropout=True, program=BOOK)
    cut = replace(whole, layout=Layout(tp=tp))
    slim = replace(cut, layout=Layout(tp=tp, sequence_parallel=True), program=AGAIN)
    parts = [activations.layer(run).items() for run in (whole, cut, slim)]
    kept = [sum(size for name, size in each if "statistics" not in name) for each in parts]
    sent = predict.sent_bytes(slim) / predict.sent_bytes(cut)
    return ExamQuestion(
        level=2,
        ask=f"""A GPT's layer in 16 bits keeps about 34 bytes per token and unit of width, dropout
        and FlashAttention included. 10 belong to what lies between pairs of matrices, and to
        each pair's input. With width {width:,} and one text of 2,048 tokens, what does a rank
        keep on one rank, on {tp} with tensor parallelism, and with sequence parallelism as well, if
        the input of a pair is gathered again in backward? By which factor do the bytes sent grow in
        the last step?""",
        answer=f"""All 34 on one rank: {text(kept[0], "B")}. Only 24 are divided by {tp}:
        {text(kept[1], "B")}. With slices all 34 are: {text(kept[2], "B")}. Eight halves of an
        all-reduce become ten, {sent:.3g} times the bytes: one gather more for each pair.""",
        rubric="""2: 10 + 24 / t, then 34 / t, with the bytes of all three
        2: ten halves in place of eight, and which two are new""",
        wrong=f"A factor of {tp} at once: norms, masks and inputs are whole on every rank.",
    )


def words(draw: Random) -> ExamQuestion:
    """Ask for the bytes of a loss with gathered and with cut logits."""
    tokens, tp = draw.choice((4096, 8192, 16_384)), draw.choice((4, 8))
    count = draw.choice((32_000, 128_256, 151_936))
    gathered = collectives.all_gather(4 * tokens * count, tp).sent
    three = collectives.ring_all_reduce(4 * 3 * tokens, tp).sent
    return ExamQuestion(
        level=1,
        ask=f"""{tp} ranks hold a head of {count:,} words, cut by words; a microbatch has {tokens:,}
        tokens, and logits have fp32. How many bytes does a rank send on a ring if all logits are
        gathered for the loss, and how many if each rank keeps its own? How many all-reduces take
        the second way's numbers, and why not one? What does backward send in the loss?""",
        answer=f"""Gathered: T V numbers times (t - 1) / t, {text(gathered, "B")}. Cut: three
        numbers per token in all-reduces, {text(three, "B")}. Two: the maximum first,
        because exponentials are taken relative to it; then their sum together with the target's
        logit. In backward the loss sends nothing: a rank has its own words' probabilities.""",
        rubric="""2: both sizes, with the factors of an all-gather and of an all-reduce
        2: the maximum before the sum; nothing in backward, and why""",
        wrong="One number, each rank's loss: a logarithm of a sum is no sum of logarithms.",
    )


def two_servers(draw: Random) -> ExamQuestion:
    """Ask for the bubble at which a pipeline is no better than twice as many ranks a layer."""
    width, slow = draw.choice((6144, 8192, 12_288)), draw.choice((160e9, 320e9))
    run, link = Training(spec=_gpt(width), layout=Layout(tp=2)), hardware.link("NVLink 4").reached
    second = predict.communication_ratio(run, H100, link)  # what each rank after the first adds
    eight, sixteen = 7 * second, 15 * second * link.bandwidth / slow
    most = 1 - (1 + eight) / (1 + sixteen)
    return ExamQuestion(
        level=3,
        ask=f"""Sixteen GPUs in two servers share a GPT of width {width:,} in 16 bits. Each reaches
        {text(predict.rate(run, H100), "FLOP/s")}; a buffer travels at 360 GB/s round a server, and
        at {slow / 1e9:g} GB/s round both, over {slow / 40e9:g} cards that reach 40 GB/s each.
        Compare tp = 16 with tp = 8 in two pipeline stages. Nothing is hidden, F is the same in
        both, pipeline messages and latency are left out. Above which bubble, as a share of all
        time, is tp = 16 faster? How many microbatches keep 1F1B below it? What else hurts tp =
        16?""",
        answer=f"""Sums take (t - 1) 2 F / (9 h β) of the arithmetic: {eight:.2f} for 8 ranks and
        {sixteen:.2f} for 16. The pipeline takes {1 + eight:.2f} / (1 - bubble), the other
        {1 + sixteen:.2f}: equal at {100 * most:.0f} %. On two stages the bubble is 1/(m + 1), so
        m is at least {int(1 / most)}. Left out: latency in each sum; narrower products.""",
        rubric="""2: both ratios of the sums
        2: the bubble at which they are equal, and its microbatches
        1: a disadvantage that was left out""",
        wrong="tp = 16 has half the arithmetic per rank: so has a stage, with half of the layers.",
    )


FUSED = ExamQuestion(
    level=3,
    ask="""A gated block computes silu(X G) * (X U), then a product with D. Somebody puts G and U
    side by side into one matrix, and cuts it on two ranks. Training from scratch learns; a
    checkpoint trained on one GPU gives nonsense. What does rank 0 compute? Repair it. Why does
    training from scratch hide it?

    ```python
    both = torch.cat([gate, up], dim=1)            # [h, 2f]
    mine = both.chunk(2, dim=1)[group.rank()]      # [h, f]
    g, u = (x @ mine).chunk(2, dim=-1)             # [T, f/2] each
    y = comm.all_reduce((silu(g) * u) @ down_rows, group)
    ```""",
    answer="""Rank 0 has all of G and nothing of U: it multiplies the first half of X G with the
    second half of X G; rank 1 does so with U. Cut each matrix by columns first, and join the
    pieces that belong to a rank. From scratch the program simply trains another function, which is
    as large; only a comparison with one rank, or a checkpoint, shows that it depends on t.""",
    rubric="""2: rank 0 pairs columns of G with columns of G
    1: cut first, then join
    2: it is another function of the same size, and what would have shown that""",
    wrong="A sum is missing: all sums are there, but each rank has columns of one matrix.",
)

RESIDUAL = ExamQuestion(
    level=2,
    ask="""On one rank this half of a layer is right. What does it compute on four, and what does
    the output tend to after many layers? Repair it in one line. Would sequence parallelism make
    the same line right?

    ```python
    partial = gelu(enter(norm(x)) @ up_columns) @ down_rows
    y = leave(x + partial)                # leave: an all-reduce in forward
    ```""",
    answer="""4 x plus the block's output: every rank adds its whole copy of x before the sum. The
    residual stream grows four times in each such half, and drowns what blocks add. `y = x +
    leave(partial)`. With slices the line fails: x has a part of the tokens, `partial` all.""",
    rubric="""2: x counts once for each rank, and grows like a power
    2: add after the sum, which slices force one to do""",
    wrong="The gradient of x is wrong, forward right: forward already counts x four times.",
)

KEYS = ExamQuestion(
    level=2,
    ask="""A Llama with 32 query heads and 4 of keys and values runs on 8 ranks. Before the first
    step all is as on one rank; after it, the query matrices still are, the key matrices are not.
    What was forgotten, and between which ranks? Why did the forward not show it?""",
    answer="""Two ranks each hold a copy of one key/value head, for four query heads each. A copy
    gets the gradient of its own queries only: ranks 0 and 1, 2 and 3, and so on must add theirs.
    Equal copies make the forward right until the first update makes them differ.""",
    rubric="""1: copies of heads, two of each
    2: each has a part of the gradient, so pairs must sum
    1: forward needs equal copies, which they are before the step""",
    wrong="A sum over all ranks: that adds gradients of other heads, of other weights.",
)

SEEDS = ExamQuestion(
    level=2,
    ask="""Ranks of tensor parallelism, without slices, call `torch.manual_seed(seed +
    group.rank())` once and then use dropout on attention's weights, and on the output of each half
    of a layer, after the sum. Which of the two is right, and what does the other do to the ranks'
    activations, losses and weights? What would the same seed everywhere do?""",
    answer="""On attention's weights ranks have different heads, so different masks are right.
    After the sum all ranks must drop the same numbers: now their copies of the residual stream
    differ, so do their losses, and copies of norms drift apart. The same seed repairs that, but
    drops in the same pattern on each rank's heads. Two random states are needed.""",
    rubric="""2: equal masks for copies, and what differs without
    2: different masks for different heads: two random states""",
    wrong="Different seeds are always right, as in data parallelism: there samples differ.",
)

LOOKUP = ExamQuestion(
    level=3,
    ask="""An embedding is cut by words over four ranks. It runs, and training learns almost as
    well as on one rank. Which line is missing? What does a token of rank 1's words get? Why does
    this hardly hurt the loss, and which rows of the table would you look at?

    ```python
    row = tokens - group.rank() * len(rows)
    x = rows[row.clamp(0, len(rows) - 1)]     # rows: this rank's part of the table
    x = comm.all_reduce(x, group)
    ```""",
    answer="""Other ranks' tokens must become zeros: `x[(row < 0) | (row >= len(rows))] = 0` before
    the sum. Now the token gets its own row, plus the last row of rank 0 and the first rows of ranks
    2 and 3: the same offset for all words of rank 1, with which a model learns. But the first and
    last rows of each part collect the gradients of all those tokens.""",
    rubric="""1: the line, before the sum
    2: which rows are added, and that they depend on the part alone
    2: why a model can live with it, and that rows at the borders show it""",
    wrong="Random rows are added, so nothing learns: clamping always finds the same two rows.",
)

NO_GELU = ExamQuestion(
    level=3,
    ask="""Why columns first and rows second, and not the other way round? Is that so for every
    function between the two matrices?""",
    answer="""After rows each rank has a term of a sum, and the function of a sum is not the sum of
    the functions, so a sum must come between, unless the function is linear. After columns each
    rank has final numbers, and any function of single numbers will do; one of a whole row, such as
    a norm over f, needs another message.""",
    rubric="""2: partial sums against final columns
    2: a linear function, and a function of whole rows""",
    wrong="Columns are contiguous in memory: storage decides speed, never the result.",
    then="What does a softmax over a whole row cost, if its columns are cut? Where does one occur?",
)

SERVING = ExamQuestion(
    level=3,
    ask="""You serve one user, who gets one token at a time. How does the choice of tp differ from
    the choice in training?""",
    answer="""Forward only: two sums in each layer, of h numbers. Their bytes do not matter, their
    latency does. The arithmetic is tiny, and most time goes into reading weights from memory, which
    t ranks do side by side: weights / (t x memory bandwidth) plus the latency of 2 L sums. So t may
    grow until those weigh as much.""",
    rubric="""1: two sums in forward, short ones
    2: memory bandwidth and latency take the places of F and β
    1: what bounds t now""",
    wrong="The same inequality: tokens cancel there only while β and F decide.",
    then="What changes with a hundred users at a time?",
)

WRITTEN = (sums, words, slices, wider, KEYS, RESIDUAL, SEEDS, LOOKUP, FUSED, two_servers)
ORAL = (NO_GELU, SERVING)
