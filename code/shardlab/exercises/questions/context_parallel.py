"""Questions on context parallelism: merged softmaxes, four ways, equal work, and what hides."""

from random import Random

from shardlab.costs import context_parallel as predict
from shardlab.costs.facts import models
from shardlab.costs.units import percent, text

from .bank import ExamQuestion

LLAMA = models.published("Llama 3 8B").spec


def merge(draw: Random) -> ExamQuestion:
    """Ask for a softmax over keys that two ranks hold."""
    low, high = draw.choice((1, 2, 3)), draw.choice((4, 8, 12))
    values = draw.choice(((10, 50), (20, 60), (0, 80)))
    exact = (low * values[0] + high * values[1]) / (low + high)
    return ExamQuestion(
        level=1,
        ask=f"""For one query, rank 0 finds y = {values[0]} with a log-sum-exp of ln {low}, and rank
        1 finds y = {values[1]} with ln {high}, over other keys. What is attention to all keys, and
        its log-sum-exp? What would the plain mean be? A third rank holds only keys that the mask
        hides from this query: what does it report, and what does the merge make of it?""",
        answer=f"""The sums are {low} and {high}, so the weights are {low}/{low + high} and
        {high}/{low + high}: y = {exact:.3g}, log-sum-exp ln {low + high}. The mean is
        {sum(values) / 2:g}. The third rank has a sum of 0, a log-sum-exp of minus infinity: weight
        0. Only two of those at once give minus infinity minus itself, which is NaN.""",
        rubric="""2: weights from the sums, and both results
        1: the plain mean differs
        1: minus infinity has weight zero""",
        wrong="Weights by the number of keys: a key with a high score then counts too little.",
    )


def ways(draw: Random) -> ExamQuestion:
    """Ask for the bytes of a ring and of an exchange of heads."""
    heads, kv, n = draw.choice((32, 64)), draw.choice((8, 16)), draw.choice((4, 8))
    tokens = draw.choice((4096, 8192))
    a = predict.SplitAttention(
        length=n * tokens, ranks=n, heads=heads, kv_heads=kv, head_size=128
    )
    ring, swap = (sum(predict.sent_bytes(a, way).values()) for way in ("ring", "ulysses"))
    return ExamQuestion(
        level=2,
        ask=f"""{n} ranks hold {tokens:,} tokens each. Attention has {heads} heads of queries and
        {kv} of keys and values, 128 numbers each, all in 16 bits, gradients as well. How many bytes
        does a rank send in one layer, forward and backward, in a ring and with Ulysses? What
        becomes of both if the text is twice as long on twice as many ranks? Which of the two can
        hide, and behind what?""",
        answer=f"""A rank's keys are {text(a.block, "B")}. The ring sends keys and values twice and
        their gradients once, n - 1 steps each: 6 (n - 1) of these, {text(ring, "B")}. Ulysses
        exchanges queries, outputs, keys and values, in both directions: 4 (n - 1)/n times (H + K)
        heads of c tokens, {text(swap, "B")}. On twice as many ranks the ring sends a little more
        than twice as much, Ulysses hardly more. The ring hides behind attention to the block in
        use; an exchange of heads must end before attention begins.""",
        rubric="""2: both sizes, with backward
        1: the ring grows with n at c tokens per rank, Ulysses does not
        1: what can hide""",
        wrong="Backward as forward: a ring sends keys and values again, and gradients behind them.",
    )


def hiding(draw: Random) -> ExamQuestion:
    """Ask how many tokens hide a step of a ring, with tensor parallelism as well."""
    rate, beta = draw.choice((300, 400, 500)), draw.choice((40, 100, 360))
    heads, kv = draw.choice(((32, 8), (64, 8), (128, 8), (32, 32)))
    a = predict.SplitAttention(length=8, ranks=8, heads=heads, kv_heads=kv, head_size=128)
    need = predict.hiding_tokens(a, rate=rate * 1e12, bandwidth=beta * 1e9, causal=True)
    return ExamQuestion(
        level=1,
        ask=f"""Attention reaches {rate} TFLOP/s, and a buffer travels at {beta} GB/s. {heads} heads
        of queries share {kv} heads of keys and values, in 16 bits, in a causal zig-zag. From how
        many tokens per rank on does forward hide a step of the ring, without latency? How many
        without a mask? Does tensor parallelism of degree 4 inside each rank's server change the
        number, if each GPU has a link of its own at this rate?""",
        answer=f"""4 c K e / β against 2 c² H e / F: 2 K/H F/β = {need:,.0f} tokens; without a mask
        twice the work, so half of that, {need / 2:,.0f}. Tensor parallelism divides H and K alike,
        and their ratio stays.""",
        rubric="""2: both times, and the tokens
        1: half without a mask
        1: K/H stays the same""",
        wrong="F/β alone: it forgets shared heads, and the mask.",
    )


def waits(draw: Random) -> ExamQuestion:
    """Ask what contiguous parts cost on the whole step."""
    n, share = draw.choice((2, 4, 8, 16)), draw.choice((0.4, 0.5, 0.6, 0.8))
    even = predict.balance(2**16, n, "contiguous")
    return ExamQuestion(
        level=2,
        ask=f"""In a causal model, {n} ranks hold contiguous parts of a long text. With equal work
        attention would take {percent(share)} of a step, and everything else the rest. Ranks wait
        for the slowest in each layer. How much longer is a step? How much does a zig-zag gain?
        Name a way of sharing attention that needs no placement, and say why.""",
        answer=f"""The mean is n/(2n - 1) = {even:.3g} of the busiest rank, so attention takes
        {1 / even:.3g} times as long, and the step {1 - share + share / even:.3g} times. A zig-zag
        wins that back. With Ulysses a rank has all tokens of its heads, so all do the same.""",
        rubric="""2: the factor of attention, from its triangle
        1: the factor of the step
        1: heads have equal work, parts of a text have not""",
        wrong="Twice as long: attention only, and only in the limit of many ranks.",
    )


def inputs(draw: Random) -> ExamQuestion:
    """Ask what a long text leaves on a GPU, and what n divides."""
    thousands, n = draw.choice((128, 256, 512)), draw.choice((4, 8, 16))
    length = 1024 * thousands
    a = predict.attention(LLAMA, length=length, ranks=n)
    kept = 32 * 2 * 4096 * length
    ring, gathered = (predict.resident(a, way) for way in ("ring", "gathered"))
    return ExamQuestion(
        level=1,
        ask=f"""A model of 32 layers and width 4,096 has 8 heads of keys and values of 128 numbers,
        and recomputes every layer. It trains on one text of {length:,} tokens in 16 bits. How many
        bytes are the inputs of the layers on {n} ranks? How many bytes of keys and values does a
        rank hold at most for the layer at work, in a ring with a block in use and one that arrives
        beside its own, and if it gathers all and keeps its own apart?""",
        answer=f"""2 x 4,096 bytes per token and layer, over {n}: {text(kept / n, "B")}. A block is
        {text(2 * a.block, "B")}. A ring holds three, {text(ring, "B")}; gathering holds its own and
        all {n}, {text(gathered, "B")}.""",
        rubric="""2: inputs of all layers, divided by the ranks
        2: three blocks, against one more than there are ranks""",
        wrong="Keys in all layers at once: recomputed layers keep only their inputs.",
    )


STEPS = ExamQuestion(
    level=2,
    ask="""A ring on four ranks attends to one block after another, without a mask. All shapes fit
    and the loss is finite. What is wrong with the result? How large is it if all values are 1, and
    which other mistake would a test with such values not find?

    ```python
    y, lse = attend(q, *block)                       # own block
    for _ in range(3):
        block = pass_on(block, group)
        y_b, lse_b = attend(q, *block)
        new = torch.logaddexp(lse, lse_b)
        y = y + (lse_b - new).exp() * y_b
        lse = new
    ```""",
    answer="""The old y is not rescaled by `(lse - new).exp()`, so weights add up to more than 1.
    With values of 1 the result is above 1: the first block keeps weight 1, and each other adds a
    part. Ones do not find wrong weights that add up to 1, such as a plain mean of y: for these,
    compare with one softmax over all keys, in float64.""",
    rubric="""2: the missing factor
    1: above 1 for values of 1
    1: a mean passes with ones, so one softmax is the reference""",
    wrong="The order of blocks matters: a right merge does not depend on it.",
)

POSITIONS = ExamQuestion(
    level=2,
    ask="""Ranks take their tokens in a zig-zag, and ordinary causal attention within the ring gets
    the right mask. Rotary positions are made by `torch.arange(len(mine))` on each rank. Which
    scores are right, which are wrong, and why can the loss fall? Which line repairs it?""",
    answer="""Scores depend on the difference of positions. Within one of a rank's two parts the
    differences are right; between its parts, and between ranks, they are not: two tokens far apart
    may look like neighbours. Only the last rank's two parts are neighbours indeed. The model can
    learn with what is left. `positions = mine`, cut by the same indices as the tokens.""",
    rubric="""2: right inside a part, wrong between parts and ranks
    1: why it is silent
    1: positions are dealt with the tokens""",
    wrong="All are off by a constant: rotary scores would not notice a constant.",
)

SCALE = ExamQuestion(
    level=2,
    ask="""Four ranks of context parallelism hold 6, 6, 6 and 5 tokens of a text of 23. Each takes
    the mean loss of its own tokens; gradients are averaged over the ranks. By which factors is a
    token weighted wrongly? Then padding fills the last rank with one token that has no target, so
    that all have six. Is it right now? Give a repair that always works.""",
    answer="""A token counts 1/24 on three ranks and 1/20 on the last, in place of 1/23: 23/24 and
    23/20 times. With padding nothing changes if the mean leaves the padding out; if it divides by
    six, every token counts 1/24, all 23/24 of what they should. Divide each rank's sum of losses by
    the 23 tokens of the text, and add gradients up, or average them times four.""",
    rubric="""1: both factors
    1: padding alone repairs nothing
    2: sums over all tokens, then a sum of gradients""",
    wrong="Equal shapes make equal weights: tokens without a target still do not count.",
)

LAYOUT = ExamQuestion(
    level=3,
    ask="""A model has 32 heads of queries and 8 of keys and values. 64 GPUs in eight servers of
    eight shall train on one text at a time, too long for fewer. A colleague proposes Ulysses over
    all 64. What stands against it? Propose a layout with Ulysses and a ring, and say which of them
    goes between servers, and why. What limits tp beside it?""",
    answer="""64 ranks exceed 32 heads of queries, and beyond 8 keys and values must be repeated.
    Its all-to-alls hide behind nothing and would cross servers. Ulysses over the 8 GPUs of a
    server, a ring over eight servers: a step of the ring hides behind attention if a rank has
    enough tokens. Tensor parallelism cuts the same heads, so tp times Ulysses may be 8 here without
    repeating.""",
    rubric="""1: heads end first
    2: exchange inside, ring outside, and what can hide
    1: tp and Ulysses share the heads""",
    wrong="A ring inside, because NVLink is fast: what cannot hide needs the fast links.",
)

DOCUMENTS = ExamQuestion(
    level=3,
    ask="""A run with cp = 8 packs documents of 1,000 to 60,000 tokens into sequences of 65,536, in
    a zig-zag over the sequence, and attention sees only its own document. GPUs show 100 % use, the
    step is 30 % slower than with single long texts, though there are fewer pairs. Explain all
    three observations, and name two remedies with a drawback each.""",
    answer="""Pairs fall, since a query sees its document only. But the zig-zag balances one
    triangle, not several: who holds a long document works longest, and all wait in each turn. A
    rank that waits in a receive counts as busy. Blocks may also travel past queries that see
    nothing of them, which hides less. Remedies: a zig-zag within each document, which makes short
    parts; groups of cp sized by the longest document, which needs sorting; fewer ranks of cp.""",
    rubric="""1: what a query no longer sees
    1: a balance for one triangle only
    1: waiting in a receive counts as use
    2: two remedies, each with its drawback""",
    wrong="The network: bytes of a ring do not depend on documents, though what hides them does.",
)

WHICH = ExamQuestion(
    level=2,
    ask="""When do you take context parallelism, and when tensor parallelism with slices, against
    activations that do not fit?""",
    answer="""Slices send four sums of all tokens in each layer, hide badly, and end with the server
    or the heads; they divide weights too. Context parallelism sends keys and values only, which
    hide from some length on, works between servers, and divides no weights: ZeRO must. So slices
    first, inside a server, where the model needs tp anyway; context parallelism for long texts.""",
    rubric="""1: what each sends
    1: what each divides
    2: lengths and links for which each is right""",
    wrong="They are the same, since both cut the sequence: slices end at each matrix.",
    then="Why does more data parallelism not help, and what must the batch have for it to help?",
)

PROOF = ExamQuestion(
    level=3,
    ask="""The loss of a new ring attention equals that of one GPU in all digits of fp32. What is
    still not shown?""",
    answer="""Backward is another program: gradients, by parameter, in float64, with sharp scores,
    since a fresh model attends almost equally. And both may share a mistake, such as a causal mask
    in place of documents: no gradient may pass from one document to another. Lengths that ranks do
    not divide, grouped heads, and a rank without any key for a query.""",
    rubric="""2: gradients, compared by name
    1: a test of meaning, not of parity
    1: cases at the border""",
    wrong="More steps: a wrong gradient may train well for a long time.",
    then="Which parameters would be wrong if only the gradients of keys were lost on their way?",
)

WRITTEN = (merge, hiding, inputs, ways, waits, STEPS, POSITIONS, SCALE, LAYOUT, DOCUMENTS)
ORAL = (WHICH, PROOF)
