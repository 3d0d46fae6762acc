"""Questions on data parallelism: equal steps, bytes behind backward, and what does not shrink."""

from dataclasses import replace
from random import Random

from shardlab.costs import collectives, memory
from shardlab.costs.data_parallel import scaling
from shardlab.costs.facts import hardware, models, network
from shardlab.costs.facts.recipes import recipe
from shardlab.costs.programs import BOOK
from shardlab.costs.step import Run, step
from shardlab.costs.training import Training
from shardlab.costs.units import percent, text
from shardlab.sharding.layout import Layout

from .bank import ExamQuestion

H100 = hardware.chip("H100 SXM 80 GB")
RECIPES = {16: recipe("mixed, 16-bit gradients"), 32: recipe("mixed, fp32 gradients")}


def tokens(draw: Random) -> ExamQuestion:
    """Ask for the tokens that hide an all-reduce, and what they do not depend on."""
    name = draw.choice(("NVLink 4", "InfiniBand NDR", "100 GbE"))
    bits, size = draw.choice((16, 32)), draw.choice((4, 8))
    spec = models.published("GPT-2 XL").spec
    training = Training(spec=spec, layout=Layout(dp=8), microbatch=size, program=BOOK)
    cluster = network.uniform(8, hardware.link(name), H100)
    run = Run(training=replace(training, recipe=RECIPES[bits]), cluster=cluster)
    needed, beta = scaling.tokens_needed(run), hardware.link(name).reached.bandwidth
    return ExamQuestion(
        level=1,
        ask=f"""Each GPU reaches {text(step(run).rate, "FLOP/s")}, and its buffer travels at
        {text(beta, "B/s")} in each direction. Gradients have {bits} bits. How many tokens must a
        rank have in a microbatch, so that backward hides all but the last bucket, on many ranks and
        without latency? What changes with a model of twice as many parameters, and with twice as
        many microbatches in a step?""",
        answer=f"""4 P T / F must be at least 2 b P / β: {float(f"{needed:.3g}"):,.0f} tokens. The
        parameters cancel. Only the last microbatch's backward runs beside the all-reduce, so more
        of them hide no more, but the wait comes once for more work.""",
        rubric="""2: both times, with the right bytes of a gradient, and the tokens
        1: the size of the model cancels
        1: microbatches do not hide more; the share of waiting falls""",
        wrong="6 P T: forward does not run beside the all-reduce, its gradients do not exist yet.",
    )


def sent(draw: Random) -> ExamQuestion:
    """Ask for the bytes that leave a rank, and what sends too many."""
    billions, ranks, count = draw.choice((1, 3, 7)), draw.choice((4, 8, 16)), draw.choice((4, 8))
    nbytes = collectives.ring_all_reduce(4 * billions * 1e9, ranks).sent
    twice = collectives.ring_all_reduce(4 * billions * 1e9, 2 * ranks).sent
    return ExamQuestion(
        level=1,
        ask=f"""{ranks} ranks average {billions} billion fp32 gradients around a ring. How many
        bytes does a rank send in a step, and how many on twice as many ranks? Then the step is cut
        into {count} microbatches, and nothing else in the program changes: each `backward()`
        averages. How many bytes are they now, and how many need they be?""",
        answer=f"""2 (N - 1) / N times 4 P: {text(nbytes, "B")}, and {text(twice, "B")} on
        {2 * ranks} ranks. With {count} averages it is {text(count * nbytes, "B")}. Averaging is
        linear: add the gradients up and average once, {text(nbytes, "B")}.""",
        rubric="""2: both numbers by 2 (N - 1) / N
        1: once for each microbatch
        1: once is enough, since a sum of means is the mean of sums""",
        wrong="P bytes times the ranks: each rank is thought to send its gradient to every other.",
    )


def means(draw: Random) -> ExamQuestion:
    """Ask what unequal shards do to a mean."""
    counts, base = draw.choice(((5, 3, 2), (6, 3, 1), (7, 2, 1))), draw.choice((1, 2, 3))
    found = (base, base + 3, base + 8)
    exact = sum(n * g for n, g in zip(counts, found, strict=True)) / 10
    weights = ", ".join(f"{3 * n / 10:g}" for n in counts)
    return ExamQuestion(
        level=2,
        ask=f"""Three ranks have {counts[0]}, {counts[1]} and {counts[2]} of 10 samples. For one
        parameter the gradients of their mean losses are {found[0]}, {found[1]} and {found[2]}. What
        does averaging them give, and what is the gradient of the batch's mean loss? By which factor
        must each rank multiply its loss, so that averaging stays as it is?""",
        answer=f"""Averaging gives {sum(found) / 3:.4g}; the batch's gradient is {exact:g}. The
        factors are 3 n / 10: {weights}. They sum to 3, so with equal shards each would be 1.""",
        rubric="""1: the mean of means
        1: the mean over samples
        2: the samples of a rank times ranks over the batch""",
        wrong="n / 10 as the factor: averaging divides by the ranks once more.",
    )


def waiting(draw: Random) -> ExamQuestion:
    """Ask what accumulation does to the share of waiting."""
    backward, more = draw.choice((0.2, 0.3, 0.4)), draw.choice((0.4, 0.6, 0.8))
    count = draw.choice((4, 8))
    shares = [more / (1.5 * backward * m + more) for m in (1, count)]
    return ExamQuestion(
        level=2,
        ask=f"""A microbatch's forward takes {backward / 2:.2g} s and its backward {backward} s; the
        all-reduce takes {backward + more:.2g} s and begins with backward. Leave out the update, and
        let nothing slow anything down. Which share of a step does a rank wait, with one microbatch
        and with {count}, if gradients are sent once? What does the second choice cost?""",
        answer=f"""{more} s stay exposed in both, since only the last backward hides anything. With
        one microbatch that is {percent(shares[0])} of {1.5 * backward + more:.3g} s, with {count}
        it is {percent(shares[1])} of {1.5 * backward * count + more:.3g} s. The global batch is
        {count} times as large, or each microbatch smaller, which would compute worse and hide
        less.""",
        rubric="""1: the exposed seconds
        2: both shares, with one wait for all microbatches
        1: the price: a larger batch""",
        wrong="All backwards hide the all-reduce, so nothing is left: the sum is not ready before.",
    )


def shrinks(draw: Random) -> ExamQuestion:
    """Ask which part of memory more ranks divide."""
    billions, kept = draw.choice((3, 4, 6, 7)), draw.choice((16, 24, 32))
    held = sum(memory.model_states(billions * 1e9, dp=64).values())
    fits = "fits" if held + kept * 1e9 / 8 < H100.memory else "does not fit"
    return ExamQuestion(
        level=1,
        ask=f"""On 8 GPUs of 80 GB each rank has {kept} GB of activations, and a model of {billions}
        billion parameters in mixed precision, 16 bytes for each. What does a rank hold on 8 and on
        64 GPUs, at the same global batch and length? Does it fit? Neglect overhead. Which model can
        no number of GPUs train this way?""",
        answer=f"""States stay at {text(held, "B")}, activations fall to an eighth, {kept / 8:g} GB:
        {text(held + kept * 1e9, "B")} on 8, {text(held + kept * 1e9 / 8, "B")} on 64, which {fits}.
        No model of more than 80 / 16 = 5 billion parameters.""",
        rubric="""1: states are the same on any number of ranks
        1: activations follow the samples of a rank
        1: the limit of five billion""",
        wrong="Everything divides by eight: the replica is taken for a share.",
    )


CLIP = ExamQuestion(
    level=2,
    ask="""Two ranks have gradients of 3 and -1 for the only parameter, and the norm is limited to
    1. Which step does this program take, and which one should it take? Repair it.

    ```python
    loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    average_gradients(net, group)
    optimizer.step()
    ```""",
    answer="""It clips to 1 and -1, and averages to 0: no step. The mean gradient is 1, which need
    not be clipped. Average first, then clip: the ranks then clip alike, because all hold the same
    gradient.""",
    rubric="""2: 0 in place of 1
    1: swaps the two lines
    1: why ranks still agree after clipping""",
    wrong="Clip both before and after: the first still bends the mean.",
)

START = ExamQuestion(
    level=2,
    ask="""Four ranks train with SGD, without momentum. Which line makes this no data parallelism?
    How far apart are the weights of two ranks after 1,000 steps, and how would you notice?

    ```python
    torch.manual_seed(group.rank())
    net = make_model()
    for x, y in own_batches:
        net.zero_grad()
        loss_of(net(x), y).backward()
        average_gradients(net, group)
        step(net, lr=0.1)
    ```""",
    answer="""The seed, since nobody copies rank 0's weights afterwards. All ranks add the same mean
    gradient, so they stay as far apart as they began, but for rounding. There is no error, and
    losses may fall. Compare a checksum of the weights between ranks, now and then. Seed alike for
    the weights, or copy them; and seed differently after that, for dropout.""",
    rubric="""1: different starts without a copy
    2: the distance does not change, since all take equal steps
    1: compares weights between ranks""",
    wrong="Averaged gradients make the weights equal in time: steps are equal, not weights.",
)

BF16 = ExamQuestion(
    level=2,
    ask="""On 8 GPUs a run learns as expected; on 512, at the same global batch, a little worse.
    Gradients are all-reduced in bf16, each divided by the ranks before the sum. A colleague says
    "divide afterwards, so that small numbers do not get lost". Judge this, find a likelier cause,
    and name the repair with its price.""",
    answer="""bf16 has the range of fp32, so dividing first loses nothing: it changes the exponent.
    But partial sums have eight significant bits, and a ring rounds at each of its steps: after
    hundreds of additions small terms vanish. Reduce in fp32: twice the bytes, so twice the tokens
    are needed to hide them.""",
    rubric="""1: dividing changes the exponent only
    2: rounding of partial sums, more often with more ranks
    1: fp32, and what it costs""",
    wrong="Overflow, as in fp16: bf16 has no small range.",
)

BUCKETS = ExamQuestion(
    level=2,
    ask="""Your library sends gradients in buckets. What is lost with one bucket for all gradients,
    and what with one for each parameter? Which of the two loses more with a network of high
    latency, and which with few tokens per rank? Why must all ranks send the buckets in the
    same order?""",
    answer="""One bucket is full when backward ends, so nothing overlaps. One for each parameter
    pays a latency for each, which is worse the higher the latency. With few tokens backward is
    short and can hide little in any case, so one bucket loses less than with many tokens.
    Messages pair up by order alone: gradients of different parameters would be added, without an
    error where buckets are equally long.""",
    rubric="""1: no overlap with one bucket
    1: latencies with many, and that they grow with the latency of the network
    1: overlap is worth what backward can hide
    1: pairing by order""",
    wrong="Larger is always better, for bandwidth: the last bucket is what a rank waits for.",
)

NOISE = ExamQuestion(
    level=3,
    ask="""A network has batch normalisation and dropout. A test in float64 compares one step on
    four ranks with one step of a single process on the whole batch, and they differ by 3 %. Which
    of the two is to blame, and how do you tell? Is data parallelism wrong? What do you do
    about each?""",
    answer="""Either can be. Normalisation takes the statistics of the shard, so the loss is no mean
    over samples that do not see each other; dropout draws other masks. Switch one off at a time.
    For the test, no dropout. `SyncBatchNorm` takes the statistics of the whole batch and makes the
    step equal. Dropout is no fault: seed ranks differently, so that their masks are independent,
    and do not expect equal steps.""",
    rubric="""1: batch statistics break the mean over samples
    1: masks differ
    1: separates them by switching one off
    2: a repair for the first, and why the second needs none""",
    wrong="Rounding: in float64 it is far smaller than 3 %.",
)

PROOF = ExamQuestion(
    level=3,
    ask="""A colleague has written data parallelism, and asks you to believe that it is right. The
    loss falls. What test do you demand?""",
    answer="""One process with the whole batch against two to four ranks with shards: float64,
    different data on each rank, different seeds before the copy of the weights, unequal shards,
    plain SGD, every parameter after every step, within rounding. Add frozen and tied parameters,
    and accumulation.""",
    rubric="""2: an exact reference, float64, every parameter
    1: different data and starts
    1: a case in which averaging goes wrong: unequal shards, tied weights, accumulation""",
    wrong="Equal loss curves: a wrong scale or a missing copy hardly shows there.",
    then="Why is Adam with a tiny `eps` a poor optimizer for this test?",
)

STRONG = ExamQuestion(
    level=2,
    ask="""From 64 to 512 GPUs a run became only twice as fast, at the same global batch. What
    happened?""",
    answer="""Each rank has an eighth of the tokens, so backward is an eighth as long, while the
    all-reduce sends as many bytes and has more steps. Below b/2 · F/β tokens the rank waits, and
    the step cannot become shorter than the all-reduce.""",
    rubric="""2: tokens per rank fall, bytes stay
    1: the threshold in tokens
    1: the update, too, takes as long on any number of ranks, or latency grows""",
    wrong="The network is overloaded by 512 ranks: each link carries hardly more than before.",
    then="Which changes help: a larger batch, fewer bits, ZeRO, another network?",
)

WRITTEN = (sent, tokens, means, waiting, shrinks, CLIP, START, BF16, BUCKETS, NOISE)
ORAL = (PROOF, STRONG)
