"""Questions on memory: what fills it, what each way to need less costs, and what it leaves."""

from dataclasses import replace
from random import Random

from shardlab.costs import memory
from shardlab.costs.facts import models
from shardlab.costs.facts.recipes import recipe
from shardlab.costs.memory import activations
from shardlab.costs.training import Training
from shardlab.costs.units import percent, text
from shardlab.model.spec import TransformerSpec

from .bank import ExamQuestion

MIXED = recipe("mixed, 16-bit gradients")


def _gpt(num_layers: int, heads: int, length: int) -> TransformerSpec:
    """Return a GPT whose heads have 128 numbers each."""
    spec = models.published("GPT-2 small").spec
    wide = replace(spec, hidden_size=128 * heads, num_heads=heads)
    return replace(wide, num_layers=num_layers, context_length=length)


def states(draw: Random) -> ExamQuestion:
    """Ask for model states in a recipe that the page does not print, and for the largest model."""
    billions, room = draw.choice((2, 3, 6, 7, 13)), draw.choice((40, 72, 128, 160))
    used = recipe("mixed, fp32 gradients")
    held = sum(memory.model_states(billions * 1e9, used).values())
    return ExamQuestion(
        level=1,
        ask=f"""A program keeps weights in bf16, adds its gradients up in fp32 and frees the 16-bit
        ones at once. Its Adam works in fp32, on master weights. How many bytes do the states of
        {billions} billion parameters take? How large a model's states fit into {room} GB?""",
        answer=f"""2 + 4 + 12 = {used.bytes_per_parameter:.0f} bytes per parameter:
        {text(held, "B")}, and at most {room / used.bytes_per_parameter:.2g} billion parameters.""",
        rubric="""2: the bytes of each state, with master weights and both of Adam's numbers
        1: both results, with units""",
        wrong="16 bytes: the rule was remembered, not its terms. 14: no master weights.",
    )


def two_peaks(draw: Random) -> ExamQuestion:
    """Ask what two measurements say of a third."""
    fixed, each = draw.choice((34, 41, 48, 52)), draw.choice((3, 4, 5))
    return ExamQuestion(
        level=2,
        ask=f"""Forward and backward of a step with four microbatches peak at {fixed + 8 * each} GB
        with 8 texts in each microbatch, and at {fixed + 4 * each} GB with 4. Texts are equally
        long, and nothing else changes. What is the peak with 1 text? Estimate the parameters, with
        16 bytes for each, and say why the estimate is too high rather than too low.""",
        answer=f"""Only the part with the tokens shrinks, by {4 * each} GB for 4 texts, {each} GB a
        text. So the peak is {fixed + each} GB with one, and {fixed} GB do not depend on the texts:
        at most {fixed / MIXED.bytes_per_parameter:.2g} billion parameters. Context, libraries and
        other buffers of fixed size are in the {fixed} GB, too, if they are counted in the peak.""",
        rubric="""2: separates a constant from a term proportional to the texts, and solves for both
        1: the peak with one text
        1: the parameters, and that the constant holds more than states""",
        wrong=f"{(fixed + 8 * each) / 8:.3g} GB: everything is thought to shrink with the batch.",
    )


def recomputation(draw: Random) -> ExamQuestion:
    """Ask what full recomputation leaves at the peak: all inputs, and one whole layer."""
    layers, width = draw.choice((16, 24, 32, 48)), draw.choice((2048, 3072, 4096))
    run = Training(spec=_gpt(layers, width // 128, 2048), dropout=True)
    one = sum(activations.layer(run).values())
    again = replace(run, recomputation="full")
    inputs = layers * sum(activations.layer(again).values())
    peak = inputs + memory.recomputed(again)
    return ExamQuestion(
        level=2,
        ask=f"""A GPT has {layers} layers of width {width:,}, in 16 bits with FlashAttention and
        dropout, and computes one text of 2,048 tokens at a time. How many bytes of layers'
        activations are in memory at most without recomputation, and with full recomputation? Leave
        out the logits and gradients of activations.""",
        answer=f"""A layer keeps about 34 bytes per token and unit of width, {text(one, "B")} for
        the text. Without recomputation all {layers} layers do: {text(layers * one, "B")}. With it
        each keeps its input, 2 bytes, together {text(inputs, "B")}; while backward works on one
        layer, the other 32 bytes of that layer are there as well: about {text(peak, "B")},
        which is {layers * one / peak:.1f} times less.""",
        rubric="""1: 34 bytes per token and unit of width, and the product
        1: the inputs that are kept: 2 bytes
        2: adds the one layer that is recomputed at the moment""",
        wrong="A seventeenth, 34 / 2: the layer at work was forgotten.",
    )


def scores(draw: Random) -> ExamQuestion:
    """Ask for the share of stored scores, and where they overtake all other activations."""
    heads, length = draw.choice((16, 32, 64)), draw.choice((1024, 2048, 4096))
    run = Training(spec=_gpt(2, heads, length), dropout=True, attention="stored")
    parts = activations.whole_layer(run)
    share = parts["attention: scores"] / sum(parts.values())
    return ExamQuestion(
        level=2,
        ask=f"""A GPT in 16 bits stores its attention scores, and has dropout. Its {heads} heads
        have 128 numbers each, and its texts {length:,} tokens. What share of a layer's kept
        activations are scores? At which length are they half, and does that length depend on the
        number of heads?""",
        answer=f"""Five bytes per head and pair of tokens: {5 * heads * length:,} per token, beside
        34 bytes per unit of width, {34 * 128 * heads:,}. That is {percent(share)}. They are half at
        34 · 128 / 5, about {34 * 128 / 5:.0f} tokens. The width is 128 times the heads, so the
        number of heads cancels.""",
        rubric="""2: 5 bytes per head and pair, so 5 H S per token, against 34 h
        1: the share, to a few percent
        1: the length, and that only the size of a head matters""",
        wrong="""Two bytes per score: the mask and the scores after dropout are kept, too.""",
    )


def pieces(draw: Random) -> ExamQuestion:
    """Ask how many pieces of the loss are worth having."""
    model, cut = draw.choice(("Llama 3 8B", "Llama 3 70B", "Llama 3.2 1B")), draw.choice((4, 8, 16))
    run = Training(spec=models.published(model).spec, sequence=8192)
    whole = activations.logits(run) + activations.loss(run)
    layers = run.spec.num_layers * sum(activations.layer(run).values())
    gain = "little" if whole / cut < layers / 10 else "something yet"
    return ExamQuestion(
        level=1,
        ask=f"""{model} has a vocabulary of 128,256 words. One text of 8,192 tokens is computed at a
        time, with logits in fp32. How many bytes do logits and loss need at most, and how many if
        the loss is computed in {cut} pieces? The layers keep {text(layers, "B")}. Would you
        take more pieces?""",
        answer=f"""12 bytes per token and word, the logits and two gradients of them:
        {text(whole, "B")}, and {text(whole / cut, "B")} in {cut} pieces. These are
        {percent(whole / cut / layers)} of what the layers keep, so more pieces save {gain}, but
        each makes the head's products smaller.""",
        rubric="""2: 12 bytes, as 4 for the logits and 8 for the gradients before and after softmax
        1: compares the remainder with the layers, and decides by that""",
        wrong="4 bytes per word: what the loss's backward needs beside the logits is not counted.",
    )


def stuck(draw: Random) -> ExamQuestion:
    """Ask which steps a bf16 weight ignores."""
    exponent, rate = draw.choice((-4, -5, -6, -7)), draw.choice((3e-4, 6e-4))
    weight, distance = 1.5 * 2.0**exponent, 2.0 ** (exponent - 7)
    return ExamQuestion(
        level=2,
        ask=f"""Weights are in bf16, without master weights. The learning rate falls from {rate:g}
        to a hundredth of that. Does Adam move a weight of {weight:g} at the start, and at the end?
        Below which step does the weight stay where it is? What does the loss curve show? Take
        Adam's step as long as the learning rate.""",
        answer=f"""Eight significant bits: between {2.0**exponent:g} and {2.0 ** (exponent + 1):g}
        neighbours are {distance:.2g} apart, and steps below half of that, {distance / 2:.2g}, are
        rounded away. The weight moves at {rate:g}, and no longer at {rate / 100:g}. Larger weights
        stop earlier, small ones later, so the loss flattens without a jump and looks converged.""",
        rubric="""2: the distance of neighbours from the significant bits and the weight's size
        1: half of it as the limit, applied to both rates
        1: weights stop one after another, and nothing reports it""",
        wrong="bf16 has the range of fp32, so small steps stay: range is taken for precision.",
    )


def card(draw: Random) -> ExamQuestion:
    """Ask which ways help a model whose states alone do not fit."""
    billions = draw.choice((3, 4, 5))
    short = memory.model_states(billions * 1e9, recipe("mixed, 8-bit Adam"))
    whole = memory.model_states(billions * 1e9)
    return ExamQuestion(
        level=3,
        ask=f"""You have one card of 24 GB and train all {billions} billion parameters of a model
        with Adam. Judge each proposal by a number: microbatches of one text; full recomputation;
        Adam in 8 bits, with fp32 master weights; states on the host. What would
        you do, and what does it cost?""",
        answer=f"""The states take {text(sum(whole.values()), "B")}. Microbatches and recomputation
        only shrink activations, so neither is enough. With 8-bit Adam the states take
        {text(sum(short.values()), "B")} or more. So the states must leave the card, or the model
        must be cut over several cards. On the host all states fit, and the weights cross the bus
        twice for each microbatch: many tokens must use each transfer.""",
        rubric="""1: the states, and that they alone exceed the card
        1: two of the proposals touch activations only
        1: a number for 8-bit Adam
        1: a decision, with its price: time on the bus, or more cards""",
        wrong="Recomputation saves most of the memory: of activations, not the problem here.",
    )


ACCUMULATION = ExamQuestion(
    level=2,
    ask="""Texts of unequal length are padded, and `net` returns the mean loss of the tokens that
    count. The loss differs from that of one large batch. Which line is wrong, and for which data
    would it be right?

    ```python
    optimizer.zero_grad()
    for x, y in microbatches:
        loss = net(x, y)
        (loss / len(microbatches)).backward()
    optimizer.step()
    ```""",
    answer="""The division: each mean must be weighted by its microbatch's share of all tokens that
    count in the batch, which must therefore be known before the first backward. As it stands, a
    token in a short text weighs more than one in a long text. It would be right where every
    microbatch has equally many tokens that count.""",
    rubric="""1: names the line
    2: weights by tokens that count, over the whole batch
    1: the case in which both agree""",
    wrong="Weighting by the number of texts, or of all tokens: then padding is counted.",
)

SCALE = ExamQuestion(
    level=2,
    ask="""A run in fp16 clips its gradients to norm 1, and its log says that every step was
    clipped. Which line is missing, and where? What happens to the gradient that the optimizer
    sees, if the scale is 65,536 and the true norm is 0.5?

    ```python
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    ```""",
    answer="""`scaler.unscale_(optimizer)` between backward and clipping. As it stands the norm is
    32,768, so clipping divides by that, and `scaler.step` divides by 65,536 once more. The
    optimizer sees a norm of 1/65,536 in place of 0.5, where nothing should have been clipped.""",
    rubric="""1: the line, before clipping
    1: clipping meets scaled gradients: a norm of 32,768
    1: and the unscaled result has norm 1/65,536""",
    wrong="The line after clipping: the limit still meets scaled gradients.",
)

LEAK = ExamQuestion(
    level=2,
    ask="""After 1,000 steps a report says: "`nvidia-smi` shows 61 GB, `max_memory_allocated` 52 GB,
    so 9 GB leak." Is that shown? Name three things in the difference, one measurement that tells
    fragmentation from the others, and one that would show a leak.""",
    answer="""It is not: the difference does not say that anything grows. It holds the CUDA context
    and loaded kernels, the buffers of NCCL, and blocks that the caching allocator keeps reserved.
    `memory_reserved` far above `memory_allocated`, taken at the same time, shows how much is
    reserved and free, in pieces where requests fail. A leak shows as allocated bytes that grow at
    the same place of successive steps, once the optimizer has its states.""",
    rubric="""1: a difference at one time is no growth
    1: three parts of the overhead
    1: reserved against allocated
    1: allocated, at the same place of several steps""",
    wrong="Comparing `nvidia-smi` over time: a caching allocator keeps its peak, leak or no leak.",
)

FITS = ExamQuestion(
    level=2,
    ask="""A first step ran on a small input, and somebody says: "it fits". What has this step not
    shown?""",
    answer="""Before the first `backward` there are no gradients, and before the first `step` no
    Adam states: with accumulated gradients or a late `zero_grad` the second forward meets both. The
    longest text, and evaluation under autograd, may hold more; fragments build up over steps.""",
    rubric="""2: what appears later: gradients and states, with the moment at which each appears
    2: inputs, other phases of the program, or fragmentation""",
    wrong="Only a larger batch: activations are known to grow, not when the states appear.",
    then="Which two or three steps would you run to be sure, and what would you record in each?",
)

HALVED = ExamQuestion(
    level=3,
    ask="""A manager has read that mixed precision halves memory. Your run is in fp32 with Adam.
    What do you tell the manager?""",
    answer="""The states stay at 16 bytes per parameter: 4 + 4 + 8 becomes 2 + 2 + 12, because the
    master weights are added. Most activations halve, the logits do not. So what is saved depends on
    the share of activations; the reason to do it is speed.""",
    rubric="""2: both sums of 16, term by term
    1: which activations halve
    1: that the gain depends on the tokens at a time, and that speed is the reason""",
    wrong="Half: master weights are not thought of, or are thought to be optional.",
    then="When would you leave out the master weights, and how would you notice the damage?",
)

WRITTEN = (states, two_peaks, recomputation, scores, pieces, ACCUMULATION, SCALE, LEAK, stuck, card)
ORAL = (FITS, HALVED)
