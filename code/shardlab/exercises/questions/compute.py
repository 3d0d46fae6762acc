"""Questions on compute: FLOPs, what a utilisation says, and what waits for memory or PCIe."""

from random import Random

from shardlab.costs.compute import flops, roofline, time_to_train
from shardlab.costs.facts import hardware, models
from shardlab.costs.memory.offload import Swap
from shardlab.costs.units import percent, text

from .bank import ExamQuestion

H100 = hardware.chip("H100 SXM 80 GB")
PEAK = "its peak in bf16 is 989 TFLOP/s, dense"


def days(draw: Random) -> ExamQuestion:
    """Ask for the days of a run that recomputes, from its MFU."""
    billions, chips = draw.choice((7, 13, 30)), draw.choice((128, 256, 512))
    trillions, mfu = draw.choice((1, 2)), draw.choice((0.36, 0.39, 0.42))
    found = time_to_train.rule_of_thumb_days(
        billions * 1e9,
        trillions * 1e12,
        num_chips=chips,
        peak=H100.peak_flops,
        utilisation=mfu,
    )
    return ExamQuestion(
        level=1,
        ask=f"""A dense model of {billions} billion parameters reads {trillions},000 billion tokens
        on {chips} H100s; {PEAK}. The program recomputes every layer and reaches an MFU of
        {percent(mfu)}. How many days does the training take, without scores, and what is its
        HFU?""",
        answer=f"""MFU counts model FLOPs, six per parameter and token, with or without
        recomputation: {found:.3g} days. The chips do eight for these six, so the HFU is
        {percent(mfu * 4 / 3)}.""",
        rubric="""2: 6 P D over chips, peak and utilisation; recomputation does not enter
        1: the result in days
        1: the HFU, 8/6 of the MFU""",
        wrong=f"{found * 4 / 3:.3g} days, from 8 P D: recomputation is counted twice.",
    )


def claim(draw: Random) -> ExamQuestion:
    """Ask which peak stands behind a printed utilisation."""
    billions, mfu = draw.choice((8, 13, 34)), draw.choice((0.42, 0.46, 0.5))
    work = flops.six_n_d(billions * 1e9, 1e12)
    hours = float(f"{work / (mfu * H100.peak_flops) / 3600:.2g}")
    true = time_to_train.utilisation(
        work, seconds=3600 * hours, num_chips=1, peak=H100.peak_flops
    )
    return ExamQuestion(
        level=2,
        ask=f"""A report says: "We trained {billions} billion parameters in bf16 on 10^12 tokens in
        {hours:,.0f} H100-hours, at {percent(true / 2)} MFU." Recompute the MFU; the model is dense,
        and scores may be neglected. Which assumption explains the printed number? Is the run
        slow?""",
        answer=f"""6 P D over the hours is {text(work / hours / 3600, "FLOP/s")} for each GPU. That
        is {percent(true)} of the dense peak, 989 TFLOP/s. Half of it comes from dividing by 1,979
        TFLOP/s, the peak with sparsity, which no dense product can reach. The run is not slow:
        well-tuned runs reach 30 to 55 %.""",
        rubric="""2: FLOP/s of a GPU from 6 P D and the hours, over 989 TFLOP/s
        1: the peak with sparsity
        1: compares with what runs reach""",
        wrong="Half of the work is recomputation: that adds a third, and MFU never counts it.",
    )


def rows(draw: Random) -> ExamQuestion:
    """Ask for the intensity of a product with few rows, and the best that it can reach."""
    chip, few = hardware.chip(draw.choice(("A100 SXM 80 GB", H100.name))), draw.choice((16, 32, 64))
    work = roofline.matmul(few, 8192, 8192)
    share = roofline.attainable(work.intensity, chip) / chip.peak_flops
    enough = roofline.least_rows(8192, 8192, chip)
    return ExamQuestion(
        level=1,
        ask=f"""One {chip.name.split()[0]} multiplies {few} rows by a matrix [8192, 8192] in bf16.
        It moves {text(chip.memory_bandwidth, "B/s")} and has a peak of
        {text(chip.peak_flops, "FLOP/s")}. All operands come from memory once. What is the
        arithmetic intensity, and which share of the peak is possible at most? About how many rows
        would suffice for the peak?""",
        answer=f"""2 m k n FLOPs over 2 (m k + k n + m n) bytes are {work.intensity:.3g} FLOP/byte,
        nearly the number of rows. The ridge lies at {roofline.ridge(chip):.0f} FLOP/byte, so at
        most {percent(share)} of the peak. By the roofline {enough} rows are enough.""",
        rubric="""1: the intensity, or that it is about the number of rows
        1: the ridge, and their quotient as the share
        1: rows: the ridge, or slightly more because inputs and results move, too""",
        wrong="Few rows take little time: they take that of reading the whole matrix.",
    )


def thin(draw: Random) -> ExamQuestion:
    """Ask whether a larger batch saves a product with a thin matrix."""
    width, thickness = draw.choice((4096, 8192)), draw.choice((8, 16, 32, 64))
    limit = roofline.matmul(10**9, width, thickness).intensity
    return ExamQuestion(
        level=3,
        ask=f"""Beside each frozen matrix a method trains a thin one, [{width}, {thickness}], which
        multiplies the same T rows in bf16, in a kernel of its own, on an H100 (3.35 TB/s, 989
        TFLOP/s dense). A colleague raises T until "it is compute-bound". From which T on? What
        would help?""",
        answer=f"""For no T: the input's {width} numbers of two bytes are read for each row, so the
        intensity stays below {limit:.3g} FLOP/byte, while the ridge lies at
        {roofline.ridge(H100):.0f}. It helps to fuse: read the rows once for both products, or keep
        the thin product on the chip.""",
        rubric="""2: the intensity with T cancelled, about the thickness of the matrix
        1: below the ridge, so never
        1: fewer bytes instead of more rows: fusing""",
        wrong="About 300 rows, the rule for wide matrices: there k and n are much larger than m.",
    )


def swapped(draw: Random) -> ExamQuestion:
    """Ask how many tokens hide a swap, with and without recomputation."""
    share, rate = draw.choice((0.3, 0.4, 0.5)), draw.choice((40, 50, 60))
    link = hardware.host_link(H100)
    tokens = [
        Swap(
            num_parameters=1e9,
            tokens=1,
            chip=H100,
            link=link,
            recomputes=again,
            utilisation=share,
            link_utilisation=rate * 1e9 / link.bandwidth,
        ).tokens_to_hide
        for again in (True, False)
    ]
    return ExamQuestion(
        level=2,
        ask=f"""All parameters, in bf16, live on the host and come in once for forward and once for
        backward; gradients leave meanwhile in the other direction. An H100 reaches
        {percent(share)} of 989 TFLOP/s, its PCIe {rate} GB/s in each direction. Each layer is
        recomputed. From how many tokens per microbatch on does a whole step compute as long as it
        loads? What if activations fit and nothing is recomputed: are more or fewer needed, and is
        the step slower? Does forward alone hide its transfers with as many?""",
        answer=f"""8 P T / F ≥ 4 P / β, so T ≥ F / 2β, which is {round(tokens[0], -1):,.0f} tokens.
        Without recomputation it is 6 P T, so a third more: {round(tokens[1], -1):,.0f} tokens. More
        tokens are needed because less is computed; for as many tokens the step is never slower.
        Forward alone computes 2 P T beside 2 P bytes, so it needs F / β: with fewer it waits,
        unless layers are loaded far ahead.""",
        rubric="""2: FLOPs and bytes of a microbatch, both proportional to P, and the tokens
        1: without recomputation 4/3 as many; hiding more is not being faster
        1: forward alone needs F / β""",
        wrong="Counting gradients with parameters: they use the other direction.",
    )


def scores(draw: Random) -> ExamQuestion:
    """Ask when the rule of six is too coarse."""
    model, length = draw.choice(("Llama 3 8B", "Llama 3 70B")), draw.choice((32768, 65536, 131072))
    spec = models.published(model).spec
    parameters = models.num_parameters(spec)
    sizes = {"num_layers": spec.num_layers, "attention_size": spec.hidden_size}
    whole = flops.palm_per_token(parameters, **sizes, sequence=length)
    rule = flops.six_n_d(parameters, 1)
    return ExamQuestion(
        level=2,
        ask=f"""{model} ({parameters / 1e9:.1f} billion parameters, {spec.num_layers} layers
        of width {spec.hidden_size:,}) is trained on sequences of {length:,} tokens. How many times
        6 P are the model FLOPs of a token, with all pairs of tokens and with half of them? Two
        teams print the MFU of the same run, each with one of these counts. Who is right?""",
        answer=f"""Forward's scores take 4 S h in each layer and three times that in training,
        12 L h S: {whole / rule:.2f} times 6 P with all pairs, {(whole + rule) / 2 / rule:.2f} times
        with half. Both teams are, if they name the count. Only tokens per second compare them.""",
        rubric="""2: 12 L h S for the scores, beside 6 P
        1: both quotients
        1: the count is a convention that has to be named""",
        wrong="4 L h S: backward's scores are forgotten.",
    )


def recomputing(draw: Random) -> ExamQuestion:
    """Ask which of two programs is faster."""
    lower = draw.choice((40, 42, 44))
    higher = lower + draw.choice((6, 8, 10))
    return ExamQuestion(
        level=2,
        ask=f"""Two programs train the same model on the same GPUs. A recomputes every layer and
        prints an HFU of {higher} %. B recomputes nothing and prints {lower} %, also HFU. Which one
        processes more tokens per second, and by how much? Leave out the scores.""",
        answer=f"""A does eight FLOPs where six are needed: its MFU is {higher * 0.75:.3g} %. B's
        MFU is its HFU, {lower} %. B is {lower / higher / 0.75:.2f} times as fast.""",
        rubric="""2: turns A's HFU into MFU, by 6/8
        1: tokens per second are proportional to MFU, and the factor""",
        wrong="A, because its number is higher: work that is done twice is taken for progress.",
    )


CLOCK = ExamQuestion(
    level=1,
    ask="""On an H100 this prints 21,000 TFLOP/s for a large product in bf16. What is missing, and
    in which two places? Which third thing would you change before you publish the number?

    ```python
    start = time.perf_counter()
    y = a @ b
    seconds = time.perf_counter() - start
    print(2 * m * k * n / seconds / 1e12)
    ```""",
    answer="""`torch.cuda.synchronize()` before each of the two readings of the clock: the product
    is only started, and what was started before it may still run. Then warm up, repeat, and
    print a median: the first call loads kernels.""",
    rubric="""1: the kernel is only started
    1: synchronises before the second reading, and before the first
    1: warm-up or repetition""",
    wrong="The FLOPs are wrong by a factor: 21 times the peak suggests that nothing was timed.",
)

FROZEN = ExamQuestion(
    level=3,
    ask="""A run trains the top quarter of a model's layers and freezes all others; embedding and
    head are small. Its report computes an MFU of 52 % from 6 P D, with P of the whole model. What
    is the MFU? What would it be if the bottom quarter were trained instead?""",
    answer="""Every layer runs forward: 2 P D. The top quarter needs both products of backward,
    4 P D / 4, and nothing below it runs backward: 3 P D, so 26 %. With the bottom quarter the
    gradient must pass through all layers, 2 P D, and a quarter has gradients of weights,
    2 P D / 4: 4.5 P D, so 39 %.""",
    rubric="""1: forward in all layers
    2: backward ends at the lowest trained layer: 3 P D, 26 %
    2: the gradient of inputs passes through frozen layers above: 4.5 P D, 39 %""",
    wrong="13 %, a quarter: forward through frozen layers is forgotten. The same for both: so is \
the way of the gradient.",
)

EIGHT = ExamQuestion(
    level=2,
    ask="""A product on an H100 waits for memory in bf16. Someone says: "fp8 doubles the peak, and
    with it the ridge; so the product is even further from it, and fp8 gains nothing." What is
    right and what is wrong here, if operands and result are all in fp8? What about a norm whose
    tensors stay in bf16?""",
    answer="""The ridge doubles. But the bytes halve, so the intensity doubles, too: the product
    stays as far left of the ridge as before, and takes half of the time, because half of the bytes
    move. The norm moves as many bytes as before and gains nothing from a higher peak.""",
    rubric="""1: the ridge doubles
    2: the intensity doubles as well; half of the bytes, half of the time
    1: the norm gains nothing, and why""",
    wrong="The product gains nothing since more FLOP/s do not help: the bytes were forgotten.",
)

SLIDE = ExamQuestion(
    level=3,
    ask="""A slide says: "our system trains at 65 % utilisation". What do you ask before you
    believe it, or buy it?""",
    answer="""MFU or HFU; which peak, dense or sparse, in which precision; which scores count, and
    for a mixture which parameters, which should be the active ones; whether restarts and lost work
    are in the time; which model, length and number of GPUs. 65 % is above what most published runs
    in 16 bits reach as MFU, so one of these probably differs.""",
    rubric="""2: three of these conventions, each with its direction
    1: the range of published runs
    1: a measure that needs no convention: tokens per second for the same model and length""",
    wrong="The kernels must be better: a share is taken for a rate.",
    then="A GPU of twice the peak comes, and utilisation falls to 45 %. Good or bad?",
)

ONE_ROW = ExamQuestion(
    level=2,
    ask="""Why is a product with one row slow on every chip, however good its kernel?""",
    answer="""Each number of the matrix is read for one multiplication and one addition: in 16 bits
    an intensity of one FLOP/byte, against ridges of hundreds. The time is that of reading the
    matrix. With more rows each number that is read serves all of them.""",
    rubric="""2: intensity: FLOPs and bytes of one weight
    1: compares with the ridge
    1: rows share what is read""",
    wrong="The chip has too few FLOP/s, or the launch is slow: true for small matrices only.",
    then="Where does training have few rows, and what do you do about it?",
)

WRITTEN = (days, claim, recomputing, rows, thin, swapped, scores, CLOCK, FROZEN, EIGHT)
ORAL = (SLIDE, ONE_ROW)
