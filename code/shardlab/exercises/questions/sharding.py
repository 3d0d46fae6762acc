"""Questions on sharding types: states of values and gradients, products, and missing sums."""

from random import Random

from shardlab.costs.units import text
from shardlab.sharding.types import rules, states
from shardlab.sharding.types.redistribution import redistribution, sent_bytes

from .bank import ExamQuestion

BF16 = 2  # bytes


def moves(draw: Random) -> ExamQuestion:
    """Ask for a redistribution's collective, its mirror, and the bytes of both."""
    arrow = draw.choice(("S(S) -> R", "P -> S(S)", "P -> I", "S(S) -> I", "I -> R"))
    sizes = {"B": 1, "S": draw.choice((2048, 4096, 8192)), "h": draw.choice((4096, 8192))}
    ranks = draw.choice((4, 8))
    change = redistribution("tp", arrow)
    before = {"S": "[B, S/tp, h]", "P": "[B, S, h] P@tp", "I": "[B, S, h]"}[change.source[0]]
    given = states.parse(before)
    sent = sent_bytes(given, change, sizes, {"tp": ranks}, BF16)
    forward, backward = change.verb or "nothing", change.mirror.verb or "nothing"
    return ExamQuestion(
        level=1,
        ask=f"""A tensor of {sizes["S"]:,} tokens and width {sizes["h"]:,}, in 16 bits, goes along
        tp, which has {ranks} ranks, from {change.source} to {change.target}. Which collective is it
        in forward, what happens to the gradient, and how many bytes does a rank send in each
        direction of the step, with rings? By which rule do you find the second without a table?""",
        answer=f"""Forward: {forward}, {text(sent[0], "B")}. The gradient goes
        {change.mirror.source} -> {change.mirror.target}: {backward}, {text(sent[1], "B")}. Read the
        arrow backwards, with R and P exchanged; I and S stay.""",
        rubric="""1: the collective of the values
        1: the arrow of the gradient, with its collective
        1: the bytes of each, as (n - 1) / n of what is gathered or scattered, twice for a sum""",
        wrong="The same collective in both directions: that holds for P -> R alone, or S -> S.",
    )


def factors_and_sums(draw: Random) -> ExamQuestion:
    """Ask what a product leaves along two axes."""
    x, w = draw.choice(
        (
            ("[B/dp, S, h/tp]", "[h/tp, f] R@dp"),
            ("[B/dp, S, h] R@tp", "[h, f/tp] R@dp"),
            ("[B/dp, S/tp, h]", "[h, f] R@dp R@tp"),
            ("[B, S, h/tp] R@dp", "[h/tp, f/dp]"),
        )
    )
    used, weight = states.parse(x), states.parse(w)
    y = rules.product("B S f", [used, weight])
    slope, down = states.gradient(weight), states.gradient(used)
    return ExamQuestion(
        level=2,
        ask=f"""y = x w, summed over h, with x: `{x}` and w: `{w}`. What is the type of y, and
        what are those of the gradients of x and w after backward? Which sum has to follow before an
        activation function may be applied to y, and which before the optimizer may step by the
        gradient of w?""",
        answer=f"""y: `{y}`. Gradients: x `{down}`, w `{slope}`. An activation function needs y
        without P: {_sums(y)}. The optimizer needs w's gradient without P: {_sums(slope)}.""",
        rubric="""1: y: what is kept stays cut, a cut dim that is summed leaves P
        1: gradients, with R and P exchanged along each axis
        1: the two sums, each with its axis""",
        wrong="The gradient is cut and copied as the tensor: copies that differ in use have terms.",
    )


def _sums(sharding: states.Sharding) -> str:
    return f"a sum over {' and '.join(sharding.partial)}" if sharding.partial else "nothing to do"


def counted(draw: Random) -> ExamQuestion:
    """Ask what a bias inside a sum computes."""
    ranks, bias = draw.choice((2, 4, 8)), draw.choice((0.5, 3, 10))
    terms = draw.choice(((1, 2), (4, -1), (2, 5)))
    total = ranks // 2 * sum(terms)
    return ExamQuestion(
        level=1,
        ask=f"""{ranks} ranks hold the terms of a number: half of them {terms[0]}, the others
        {terms[1]}. Each adds a copied bias of {bias:g} and then they sum. What comes out, and what
        is right? Which two states meet in the addition? Name a repair that sends no byte more. Why
        did a test at the start of training see nothing?""",
        answer=f"""{total + ranks * bias:g} in place of {total + bias:g}: the bias counts {ranks}
        times. P meets I or R: refused. Sum first, then add: the same all-reduce, a line earlier.
        Biases start at zero, which may be counted as often as you like.""",
        rubric="""1: both numbers
        1: a partial sum and a copy do not add
        1: the order as repair, and zero as the reason""",
        wrong="Dividing the bias by the ranks: right in value, but a factor that no type checks.",
    )


def mean(draw: Random) -> ExamQuestion:
    """Ask for a mean of means."""
    few, many = draw.choice((2, 4)), draw.choice((6, 8, 16))
    first, second = draw.choice((12, 20)), draw.choice((2, 4))
    right = (few * first + many * second) / (few + many)
    return ExamQuestion(
        level=2,
        ask=f"""Replica 0 has {few} tokens that count, with gradients of mean {first}; replica 1 has
        {many}, with mean {second}. Each divides its sum by its own count, and the two are averaged.
        What results, and what is right? In which state is a rank's own count along dp, which rule
        refuses its reciprocal, and why must a checker know the name of the dim for that?""",
        answer=f"""{(first + second) / 2:g} in place of {right:.3g}. The count is a sum over a cut
        dim, so it is P, and one over it is a function of a partial sum. Whoever only knows that the
        count differs between ranks sees a piece like any other and lets it pass. Right: sum counts
        over dp first, divide by that.""",
        rubric="""1: both numbers
        1: a count over a cut dim is P
        1: no function but a linear one takes P
        1: the name tells a sum over a cut dim from a piece""",
        wrong="Weighting by the batch: tokens that count are the unit, not samples.",
    )


def squares(draw: Random) -> ExamQuestion:
    """Ask what norm a rank-wise sum of squares finds."""
    ranks, piece, whole = draw.choice((2, 4, 8)), draw.choice((3, 5)), draw.choice((6, 12))
    right = (ranks * piece**2 + whole**2) ** 0.5
    logged = (ranks * (piece**2 + whole**2)) ** 0.5
    return ExamQuestion(
        level=2,
        ask=f"""{ranks} ranks of tp. Each holds a piece of a gradient whose norm is {piece}, and the
        whole of another one with norm {whole}. Each adds its squares, then an all-reduce and a
        root. What is logged, and what is right? In which states are the two sums of squares before
        the all-reduce, and by which two arrows does the second one count once?""",
        answer=f"""{logged:.4g} in place of {right:.4g}. The squares of the pieces are P, a sum over
        a cut dim; those of the whole gradient are I, equal on all ranks. I -> R -> P counts them
        once, on one rank, and then P + P may be summed.""",
        rubric="""1: both norms
        1: P and I
        2: I -> R -> P, and then one sum for both""",
        wrong="Dividing the sum by the ranks: then the pieces count too little.",
    )


GATHER = ExamQuestion(
    level=2,
    ask="""Each rank of tp holds a slice of the tokens and needs all of them for its own columns of
    a matrix. A colleague writes the gather so. Losses are right. What does backward do, what should
    it do, which arrow of states was written and which was meant? When would the code be right?

    ```python
    def forward(x, group):
        return all_gather(x, group)
    def backward(grad, group):
        return my_slice(grad, group)
    ```""",
    answer="""It keeps this rank's slice of this rank's gradient. Other ranks use the slice as well,
    each with its own columns, so their terms must be added: a reduce-scatter. Written was S -> I,
    meant S -> R. It is right if all ranks go on doing the same with the gathered tokens.""",
    rubric="""1: own slice of own gradient, without a sum
    2: a reduce-scatter was meant: S -> I against S -> R
    1: right where all ranks go on alike""",
    wrong="An all-reduce in backward: each rank would get all gradients, not its slice.",
)

LINES = ExamQuestion(
    level=2,
    ask="""Name the first line that must be refused, with its axis and the states that meet there.
    Which redistribution repairs it, and why would no test of the loss have told? Which line is
    refused next, and what does that repair send in forward and in backward?

    ```text
    1  x = [B/dp, S, h]
    2  up = [h, f/tp] R@dp
    3  down = [f/tp, h] R@dp
    4  a = product(x, up)              # sums over h
    5  b = gelu(a)
    6  c = product(b, down)            # sums over f
    7  y = add(x, c)
    ```""",
    answer="""Line 4: along tp x is I, and up is cut. I -> R of x before the product: nothing in
    forward, so the loss is equal, and an all-reduce of its gradient. Then line 4 leaves f cut, line
    6 leaves P along tp, and line 7 would add P to I. P -> I before it: an all-reduce, and nothing
    in backward.""",
    rubric="""1: line 4, along tp, I with a cut
    1: I -> R, free in forward
    1: line 7, where P meets I; line 6 is allowed
    1: P -> I, with what it sends""",
    wrong="Line 6, as the sum happens there: a product that leaves P is allowed.",
)

TWICE = ExamQuestion(
    level=2,
    ask="""A gain is whole on every rank of tp, and each multiplies it with its own tokens. One
    author writes the layer, with I -> R before the product. Another writes the reducer, which sums
    all gradients of gains over tp before the optimizer steps. Each is right. What is wrong
    together, by which factor, and which test sees it? What if neither does it?""",
    answer="""The mirror of I -> R sums in backward, and the reducer sums equal gradients once more:
    the gain's gradient is t times too large. Adam hides it, and the loss is no witness: compare
    gradients, or the norm, with one process. If neither sums, each rank steps by its own tokens and
    the copies drift apart. Either I with the arrow, or R with the reducer.""",
    rubric="""1: summed twice: factor t
    1: gradients or the norm against one process
    1: summed never: copies drift
    1: one agreement on who sums, as a type""",
    wrong="Summing twice is harmless, since all ranks agree: they agree on a wrong gradient.",
)

BLIND = ExamQuestion(
    level=3,
    ask="""Which of these does a checker of types refuse, and for which do you need another test,
    and which one? (a) The loss is divided by dp twice. (b) Along dp no gradient is ever summed. (c)
    All ranks of tp draw their pieces of a matrix from one seed. (d) Softmax over a cut dim. (e)
    Rank 3 has a batch less than the others. (f) Queries and keys are put together in another order
    of heads on each rank.""",
    answer="""Refused: (b), the optimizer would step by P; (d), it needs all numbers of the dim. Not
    refused: (a) a factor, (c) seeds and (f) an order, all three matters of values: all ranks in one
    process, compared with one rank; (e) lengths decide who takes part, so only a run on real ranks
    shows it.""",
    rubric="""2: (b) and (d), each with its rule
    2: (a), (c) and (f): values, compared with one rank
    1: (e): real ranks""",
    wrong="(a), as gradients are wrong there: a factor changes no state.",
)

CHOOSE = ExamQuestion(
    level=3,
    ask="""A partial sum y [S, h] P@tp must become whole. First reader: every rank multiplies y by
    its own columns. Second: every rank computes the same loss from y. Third: a norm works on each
    token by itself, before columns follow. Choose a target state for each, say which collective
    runs in forward and in backward, and where a wrong choice between I and R would show.""",
    answer="""First: R, or P -> I and then I -> R, which says the same: all-reduce in forward,
    all-reduce in backward. Second: I, all-reduce and nothing: with R all gradients would be N times
    too large. Third: S(S), reduce-scatter, and all-gather in backward; S -> R before the columns. A
    wrong choice shows in gradients only: forward is equal.""",
    rubric="""1: first: R, with a sum in backward
    1: second: I, nothing in backward
    2: third: a slice of tokens, reduce-scatter and all-gather, then S -> R
    1: only gradients tell I from R""",
    wrong="R in all three, as the values are equal: the second is N times too large.",
)

EQUAL = ExamQuestion(
    level=2,
    ask="""Two tensors have the same numbers on all ranks. Why can they have different types, and
    what follows?""",
    answer="""In I all ranks go on alike, so each computes the whole gradient; in R each does
    something else, so each has a term. R needs a sum in backward, I must not have one. The values
    do not say which it is: what is done with them does.""",
    rubric="""2: whole gradients against terms, from the use
    1: a sum that is needed, or is too much""",
    wrong="Because one is a copy in memory: both are.",
    then="What is the type of a linear layer's weight along dp, and what along pp?",
)

MIRROR = ExamQuestion(
    level=3,
    ask="""Why does an all-gather come back as a reduce-scatter, at times, and as nothing at
    others?""",
    answer="""The gathered tensor is R or I. In R each rank has a term of the gradient of all
    pieces: terms are added, and each rank keeps its piece. In I each rank has the whole gradient
    already, and takes its piece of it.""",
    rubric="""1: two all-gathers, by what follows
    2: terms are summed and cut; whole gradients are only cut""",
    wrong="It depends on the library: it depends on what the ranks do next.",
    then="And an all-to-all? Why has it no second form?",
)

WRITTEN = (moves, counted, factors_and_sums, mean, squares, GATHER, LINES, TWICE, CHOOSE, BLIND)
ORAL = (EQUAL, MIRROR)
