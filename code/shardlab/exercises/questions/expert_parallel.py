"""Questions on expert parallelism: routes, sums over few ranks, loads, and narrow experts."""

from dataclasses import replace
from math import e
from random import Random

from shardlab.costs import expert_parallel as predict
from shardlab.costs import memory
from shardlab.costs.units import text
from shardlab.model.experts import Experts

from .bank import ExamQuestion


def weights(draw: Random) -> ExamQuestion:
    """Ask for a token's weights by two rules, and what a bias does to them."""
    first, second, third = draw.choice((8, 10, 12)), draw.choice((5, 6)), draw.choice((3, 4))
    total = first + second + third + 1
    return ExamQuestion(
        level=1,
        ask=f"""A router gives one token the scores ln {first}, ln {third}, 0 and ln {second} for
        experts 0 to 3; k = 2. Which experts win, and which weights do they get with a softmax of
        the winners, and with one over all experts? Then a bias of 1 is added to the score of expert
        1 for the choice alone, as balancing does. Who wins now, and what are the weights by the
        first rule?""",
        answer=f"""Experts 0 and 3: {first / (first + second):.2f} and
        {second / (first + second):.2f} after the choice; {first / total:.2f} and
        {second / total:.2f} before it, which add up to less than 1. With the bias expert 1 counts
        as {third} e, {e * third:.1f}, in the choice, more than {second}: experts 0 and 1 win. Their
        weights come from the scores without it: {first / (first + third):.2f} and
        {third / (first + third):.2f}.""",
        rubric="""1: winners and weights by the first rule
        1: weights by the second
        2: the bias changes the choice, never a weight""",
        wrong="The bias within the softmax: then balancing would also bend the output.",
    )


def held(draw: Random) -> ExamQuestion:
    """Ask what a rank holds, and which ranks sum which gradients."""
    routed, rest = draw.choice((96, 192, 384)), draw.choice((4, 6, 8))
    ranks, ep = draw.choice((64, 128)), draw.choice((8, 16, 32))
    nbytes = sum(memory.model_states((rest + routed / ep) * 1e9).values())
    return ExamQuestion(
        level=1,
        ask=f"""A mixture has {routed} billion parameters in routed experts and {rest} billion in
        all else. {ranks} ranks of data parallelism train it with ep = {ep}, 16 bytes of states for
        each parameter, and no ZeRO. How many bytes of states has a rank? Over how many ranks is an
        expert's gradient summed, over how many that of attention, and by what is each divided if
        every rank's loss is the mean of its own tokens and all have equally many? What do twice as
        many ranks at the same ep change?""",
        answer=f"""{rest} + {routed} / {ep} = {rest + routed / ep:g} billion parameters:
        {text(nbytes, "B")}. An expert's gradient is summed over the {ranks} / {ep} = {ranks // ep}
        ranks with the same experts, attention's over all {ranks}; both are divided by {ranks}. With
        twice as many there are more copies: the bytes stay, sums and the divisor double.""",
        rubric="""1: only routed experts are divided by ep
        2: both groups, and the same divisor
        1: more ranks, same bytes""",
        wrong="Dividing by the copies: tokens of ep ranks have already met in one expert.",
    )


def load(draw: Random) -> ExamQuestion:
    """Ask who waits, what a better place gains, and what a capacity drops."""
    most, next_one = draw.choice((28, 32, 36)), draw.choice((20, 24))
    loads = [most, next_one, 12, 8, 8, 6, 6, 100 - most - next_one - 40]
    ranks = [sum(loads[2 * rank : 2 * rank + 2]) for rank in range(4)]
    rising = sorted(loads)  # the largest beside the smallest, and so on
    best = predict.imbalance([rising[k] + rising[7 - k] for k in range(4)])
    limit = 1.25 * 100 / 8
    dropped = sum(max(0.0, each - limit) for each in loads)
    return ExamQuestion(
        level=2,
        ask=f"""Of all choices in a layer, eight experts get {", ".join(map(str, loads[:-1]))} and
        {loads[-1]} %. Four ranks hold two experts each, in this order. How many times as long as
        with an even load do the experts of the layer take? How many times with the best placement
        of whole experts, two on each rank? What share of choices does a capacity factor of 1.25
        drop, and does the load loss that was logged as 1.00 contradict this?""",
        answer=f"""Ranks have {", ".join(map(str, ranks))} %, the even share is 25:
        {predict.imbalance(ranks):.3g} times. No placement beats the first expert with the smallest
        beside it: {best:.3g}. An expert takes at most 15.625 %, so {dropped:g} % are dropped. It
        does not contradict: the loss multiplies the choices with the router's mean shares, and is 1
        wherever those are equal.""",
        rubric="""1: the slowest rank over the mean
        1: the best placement, by its fullest rank
        1: what exceeds 15.625 %
        1: equal shares of the router hide the choices""",
        wrong="The fullest expert over the mean expert: ranks wait for ranks, not for experts.",
    )


def copies(draw: Random) -> ExamQuestion:
    """Ask how many copies of a token cross the network."""
    nodes, per_token = draw.choice((4, 8)), draw.choice((4, 6, 8))
    rules = Experts(num_experts=64 * nodes, per_token=per_token, expert_size=8)
    traffic = predict.TokenTraffic(
        experts=rules, hidden_size=4096, tokens=4096, ep=8 * nodes, per_node=8
    )
    flat, near = (predict.copies(traffic, way)["across"] for way in ("flat", "nodes"))
    two = replace(traffic, most_nodes=2)
    limited = predict.copies(two, "nodes")["across"]
    return ExamQuestion(
        level=2,
        ask=f"""Tokens choose {per_token} of {64 * nodes} experts at random, spread over {nodes}
        nodes of eight GPUs, ep = {8 * nodes}. How many copies of a token leave its node on average,
        with a copy for each expert and with one for each node? A token has width 4,096 and 16 bits:
        how many bytes does the second way send across for 4,096 tokens, there and back? What does a
        limit of two nodes for each token gain, and what does it cost?""",
        answer=f"""A copy leaves with probability {nodes - 1}/{nodes}: {flat:.3g}. A given node is
        missed with nearly (1 - 1/{nodes})^{per_token}, so each of {nodes - 1} others is hit with
        {near / (nodes - 1):.2f}: {near:.2g} copies, 4 x 4,096 x 4,096 bytes for each, so about
        {text(float(f"{near * 4 * 4096 * 4096:.2g}"), "B")}. With two nodes about {limited:.2g}
        copies leave; the router then chooses among fewer experts, which may cost quality.""",
        rubric="""1: copies of the first way
        2: nodes that are hit, without the own one
        1: bytes in both directions
        1: the limit, with its price""",
        wrong="One for each node, the own one included: a copy inside never meets the network.",
    )


def narrowest(draw: Random) -> ExamQuestion:
    """Ask for the narrowest expert that hides its tokens, and what fp8 does."""
    nodes, beta = draw.choice((4, 8, 16)), draw.choice((40, 80))
    rate = draw.choice((300, 450, 600))
    rules = Experts(num_experts=256, per_token=8, expert_size=8)
    traffic = predict.TokenTraffic(
        experts=rules, hidden_size=4096, tokens=4096, ep=8 * nodes, per_node=8
    )
    least, eight = (
        predict.hiding_width(each, "flat", rate=rate * 1e12, bandwidth=beta * 1e9)
        for each in (traffic, replace(traffic, dispatch_bytes=1))
    )
    return ExamQuestion(
        level=2,
        ask=f"""Experts with three matrices stand on {nodes} nodes of eight GPUs. Each GPU reaches
        {rate} TFLOP/s, and its card {beta} GB/s. Each chosen expert gets a copy of the token, in 16
        bits there and back. How wide must an expert be, so that another microbatch's experts
        compute as long as tokens travel across? What changes with one byte for a number on the way
        there, with products twice as fast, and with twice the tokens?""",
        answer=f"""2/3 (n - 1)/n F/β = {least:,.0f}. With one byte there, 3 bytes travel in place of
        4: {eight:,.0f}. Products twice as fast leave half the time to hide in: {2 * least:,.0f}.
        Twice the tokens change nothing, since both times grow.""",
        rubric="""2: both times, with the share that leaves the node, and the width
        1: three quarters, not a half
        1: faster products make it worse
        1: tokens cancel""",
        wrong="fp8 everywhere helps: it halves bytes at best, and halves the time that hides them.",
    )


BIAS = ExamQuestion(
    level=2,
    ask="""Each of eight ranks runs this after every step; `chosen` are the choices of its own
    tokens. Which line is missing? What differs between ranks afterwards, although all gradients are
    averaged, and what happens to a checkpoint that rank 0 writes?

    ```python
    counts = torch.bincount(chosen.flatten(), minlength=E).float()
    bias += 0.001 * (counts.mean() - counts).sign()
    ```""",
    answer="""`counts = comm.all_reduce(counts, world)` before the second line. Without it each rank
    balances its own tokens, and the biases drift apart: the same token would choose other experts
    on another rank. Weights stay equal, since a bias has no gradient. The checkpoint has rank 0's
    bias, and routes everybody's tokens by it.""",
    rubric="""1: the sum over all ranks, before the sign
    2: biases differ, weights do not
    1: one rank's bias for all tokens""",
    wrong="Average the biases now and then: signs of local loads are no sign of the whole load.",
)

NORM = ExamQuestion(
    level=3,
    ask="""Eight ranks of data parallelism train a mixture with ep = 4. After all gradients are
    summed and divided, each rank clips by this norm. What does it compute? Repair it. Would ranks
    agree if each used its own sum of squares?

    ```python
    squares = sum(p.grad.square().sum() for p in model.parameters())
    norm = comm.all_reduce(squares, world).sqrt()
    ```""",
    answer="""Everything but experts has a copy on all eight ranks and counts eight times; each
    expert has two copies and counts twice. Add experts' squares up over the four ranks that share
    them, and the others' once. With its own squares each rank would find another norm, because it
    holds other experts, and copies of attention would take different steps.""",
    rubric="""2: eight times and twice
    1: one sum over the ranks of ep, for experts only
    1: ranks with different norms drift apart""",
    wrong="Divide the sum by eight: experts then count a quarter.",
)

IDENTITY = ExamQuestion(
    level=3,
    ask="""Somebody tests a dispatcher: all experts are the identity, a token's weights add up to 1,
    and each token comes home unchanged. Which of these mistakes does the test find, and which not:
    (a) results return in the wrong order; (b) tokens reach the wrong expert; (c) one of k results
    is lost; (d) the experts' gradients are summed over the wrong ranks? Change the test so that it
    finds (b).""",
    answer="""It finds (a) and (c): another token, or less than the whole, comes home. It does not
    find (b), since all experts are alike, nor (d), since nothing is learned. Let expert i multiply
    by i + 1, and expect the weighted sum of the numbers chosen.""",
    rubric="""2: which two it finds, and why
    1: the other two, and why
    1: experts that differ""",
    wrong="(b) as well: identical experts cannot be told apart.",
)

AVERAGES = ExamQuestion(
    level=2,
    ask="""A report says: "fullest rank over the mean, from loads averaged over 1,000 steps and all
    40 layers: 1.04. So balance costs 4 % of the experts' time." A profiler shows ranks waiting for
    a quarter of it. Who is right, and what should be logged? What else grows with the fullest rank
    in a dropless run?""",
    answer="""The profiler. Ranks wait anew in each layer of each microbatch, whose fullest rank is
    another one each time; an average of loads cancels what the waits add up. Log max over mean for
    each layer and microbatch, and average that. Memory grows too: the fullest rank keeps the
    activations of all tokens that came, so a run may stop for it.""",
    rubric="""2: the mean of maxima is no maximum of means
    1: what to log
    1: memory of the fullest rank""",
    wrong="The profiler sees the network: waiting for the fullest rank looks the same, so test it.",
)

EIGHT = ExamQuestion(
    level=2,
    ask="""A mixture has 8 experts of width 16,384 in each layer, k = 2, and shall train on 16 GPUs
    in two servers. Compare ep = 16, ep = 8 inside each server, and experts cut over two ranks with
    tensor parallelism. What does each send, and which do you take?""",
    answer="""ep = 16 leaves half of the ranks without a whole expert: it is not possible. ep = 8 in
    a server keeps tokens on NVLink; each expert has two copies, whose gradients cross the network
    once in a step, and can hide. Cutting experts sends every token to both ranks of a pair, and
    sums: it fits wide experts, and is needed only if one expert's states do not fit. So ep = 8,
    with ZeRO over the copies.""",
    rubric="""1: ep cannot exceed the experts
    2: tokens inside, gradients across
    1: a decision with its condition""",
    wrong="ep across both servers: tokens then cross in each layer, gradients only once.",
)

ZERO3 = ExamQuestion(
    level=3,
    ask="""Why not simply train a large mixture with ZeRO-3, as a dense model?""",
    answer="""ZeRO-3 gathers every weight for every microbatch, and nearly all of them are experts
    of which a token uses few. The tokens that hide a gather are F/β for a dense model, but E/k
    times as many where only k of E experts work on a token. Moving tokens costs bytes by the token
    instead.""",
    rubric="""2: bytes of all weights against work of few
    1: tokens needed grow by E/k
    1: tokens travel in place of weights""",
    wrong="Memory: ZeRO-3 would cut it as far, or further.",
    then="From how many tokens on a rank would gathering the experts be the cheaper way after all?",
)

MORE = ExamQuestion(
    level=2,
    ask="""You double ep, and data parallelism stays. What becomes smaller, what larger?""",
    answer="""A rank holds half as many experts, and each sees tokens of twice as many ranks, so the
    rows of a rank stay the same in fewer, larger products. Fewer copies, so smaller sums. Fewer
    experts on a rank balance worse. Beyond one server more copies of a token leave the node, at
    most k: from one server to two, that step is the dear one.""",
    rubric="""1: experts and states of a rank
    1: rows for an expert, and for a rank
    2: traffic across nodes, and balance""",
    wrong="Tokens of a rank double: they come from twice as many ranks for half as many experts.",
    then="Where would you stop for a model with 64 experts on servers of eight?",
)

WRITTEN = (weights, held, load, copies, narrowest, BIAS, AVERAGES, EIGHT, NORM, IDENTITY)
ORAL = (ZERO3, MORE)
