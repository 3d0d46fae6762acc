"""The explorers of compute: how long a training takes, and where a product is on the roofline."""

from dataclasses import replace

from shardlab.costs import units
from shardlab.costs.compute import roofline, scaling_laws, time_to_train
from shardlab.costs.compute.roofline import Work
from shardlab.costs.compute.time_to_train import TimeToTrain
from shardlab.costs.facts import hardware, models, recipes
from shardlab.figures import compute as figures
from shardlab.figures.table import cell

from .explorer import Explorer
from .view import View

SEQUENCE = 2048  # tokens; a model with a shorter context takes its whole context
TOKENS = {"300 billion": 300e9, "1.4 trillion": 1.4e12, "15 trillion": 15e12}
CHIPS = ("V100 SXM2 32 GB", "A100 SXM 80 GB", "H100 SXM 80 GB", "B200 SXM 180 GB")
COUNTS = (1, 8, 128, 1024, 4096, 16384)
LONG = 90  # days
FAR = 2.0  # times the best number of parameters, or a part of it

ROWS = (1, 16, 64, 256, 1024, 4096, 16384)
WIDTHS = (128, 1024, 4096, 16384)
ROOFS = ("A100 SXM 80 GB", "H100 SXM 80 GB", "B200 SXM 180 GB", "RTX 4090 24 GB")
INTENSITIES = [10 ** (exponent / 8) for exponent in range(-8, 31)]  # FLOP/byte, from 0.1 to 5,600


def time_explorer() -> Explorer:
    """Choose model, tokens, chips and utilisation: see days, FLOPs, GPU-hours and energy."""
    return Explorer(
        time_view,
        {
            "model": ["GPT-2 XL", "Llama 3 8B", "Llama 3 70B", "GPT-3 175B", "Llama 3 405B"],
            "tokens": list(TOKENS),
            "chip": list(CHIPS),
            "chips": list(COUNTS),
            "utilisation": [20, 30, 40, 50],
        },
        title="Time to train",
        labels={
            "tokens": "Tokens of text",
            "chips": "Number of chips",
            "utilisation": "Model FLOPs utilisation",
        },
        units={"utilisation": "%"},
        default={"model": "GPT-3 175B", "chip": "A100 SXM 80 GB", "chips": 1024, "utilisation": 30},
    )


def time_view(*, model: str, tokens: str, chip: str, chips: int, utilisation: int) -> View:
    """Show one state of the explorer of time."""
    run = training(model, tokens, chip, chips, utilisation)
    lines = {
        name: [replace(run, chip=hardware.chip(name), num_chips=count).days for count in COUNTS]
        for name in CHIPS
    }
    here = {_duration(run.days): (chips, run.days)}
    alt = "Days of the training against the number of chips, for four chips."
    figure = figures.days(COUNTS, lines, here, span=(1 / 1440, 1e8), alt=alt)
    return View(figure, _time_sentence(run), _time_table(run))


def roofline_explorer() -> Explorer:
    """Choose a product, precision and chip: see its place on the roofline and what moves it."""
    return Explorer(
        roofline_view,
        {
            "rows": list(ROWS),
            "inputs": list(WIDTHS),
            "outputs": list(WIDTHS),
            "precision": ["fp32", "tf32", "bf16"],
            "chip": list(ROOFS),
        },
        title="A product of matrices on the roofline",
        labels={
            "rows": "Rows (tokens)",
            "inputs": "Inputs of the layer",
            "outputs": "Outputs of the layer",
        },
        default={
            "rows": 256,
            "inputs": 4096,
            "outputs": 4096,
            "precision": "bf16",
            "chip": "H100 SXM 80 GB",
        },
    )


def roofline_view(*, rows: int, inputs: int, outputs: int, precision: str, chip: str) -> View:
    """Show one state of the explorer of the roofline."""
    one = hardware.chip(chip)
    work = _product(rows, inputs, outputs, precision)
    axis = sorted([*INTENSITIES, roofline.ridge(one, precision)])
    roofs = {chip: roofline.roof(axis, peak=one.peak(precision), bandwidth=one.memory_bandwidth)}
    here = {f"{rows:,} rows": (work.intensity, roofline.attainable(work.intensity, one, precision))}
    alt = f"The roofline of {chip} in {precision}, and the product on it."
    figure = figures.rooflines(axis, roofs, here, span=(1e11, 5e15), alt=alt)
    sentence = _roofline_sentence(work, inputs, outputs, precision, chip)
    return View(figure, sentence, _roofline_table(work, precision, chip))


def training(model: str, tokens: str, chip: str, chips: int, utilisation: int) -> TimeToTrain:
    spec = models.published(model).spec
    return TimeToTrain(
        spec=spec,
        tokens=TOKENS[tokens],
        chip=hardware.chip(chip),
        num_chips=chips,
        utilisation=utilisation / 100,
        sequence=min(SEQUENCE, spec.context_length),
    )


def _time_sentence(run: TimeToTrain) -> str:
    start = f"It takes <b>{_duration(run.days)}</b> and {_rounded(run.chip_hours)} GPU-hours. "
    return start + _room(run) + _advice(run)


def _room(run: TimeToTrain) -> str:
    """Warn where all chips together cannot hold the states."""
    states = recipes.MIXED.bytes_per_parameter * models.num_parameters(run.spec)
    least = int(-(-states // run.chip.memory))
    if least <= run.num_chips:
        return ""
    held = f"{units.text(states, 'B')} of parameters, gradients and optimizer states"
    return f"But {held} <b>do not fit</b>: only {least:,} such chips can hold them. "


def _advice(run: TimeToTrain) -> str:
    best = scaling_laws.TRAINING_CURVES.best(run.flops)
    count = models.num_parameters(run.spec)
    if run.days > LONG:
        needed = time_to_train.chips_needed(run, LONG)
        return f"With the same utilisation, {needed:,} of these chips would take {LONG} days."
    if best.parameters > FAR * count:
        size = f"{_rounded(best.parameters / 1e9)} billion"
        return f"By Hoffmann's law, {size} parameters and less text are better for the same FLOPs."
    if best.parameters < count / FAR:
        size = f"{_rounded(best.parameters / 1e9)} billion"
        return f"By Hoffmann's law, {size} parameters and more text are better for the same FLOPs."
    return "By Hoffmann's law the model has about the best size for this number of FLOPs."


def _duration(days: float) -> str:
    if days >= 2 * 365:
        return f"{_rounded(days / 365)} years"
    return f"{_rounded(days)} days" if days >= 1 else f"{_rounded(24 * days)} hours"


def _rounded(value: float) -> str:
    """Write `value` with three digits, and never with an exponent."""
    digits = float(f"{value:.3g}")
    return f"{digits:,.0f}" if digits >= 100 else f"{digits:g}"  # noqa: PLR2004


def _time_table(run: TimeToTrain) -> list[list[str]]:
    count = models.num_parameters(run.spec)
    return [
        ["the training", "value"],
        ["parameters", f"{count:,}"],
        ["tokens for each parameter", _rounded(run.tokens / count)],
        ["model FLOPs", f"{run.flops:.3g}"],
        ["peak of all chips", units.text(run.peak, "FLOP/s")],
        ["reached", units.text(run.peak * run.utilisation, "FLOP/s")],
        ["days", cell(run.days)],
        ["GPU-hours", cell(run.chip_hours)],
        ["energy at the chips' power limit", f"{_rounded(run.joules / units.MWh)} MWh"],
    ]


def _product(rows: int, inputs: int, outputs: int, precision: str) -> Work:
    return roofline.matmul(rows, inputs, outputs, element=roofline.ELEMENT[precision])


def _roofline_sentence(work: Work, inputs: int, outputs: int, precision: str, chip: str) -> str:
    one = hardware.chip(chip)
    ridge = roofline.ridge(one, precision)
    share = roofline.attainable(work.intensity, one, precision) / one.peak(precision)
    intensity = _rounded(work.intensity)
    start = f"The product has {intensity} FLOP/byte, and the ridge is at {_rounded(ridge)}: "
    if roofline.bound(work, one, precision) == "arithmetic":
        return f"{start}<b>arithmetic decides</b>, and the peak can be reached."
    most = units.percent(share)
    start += f"<b>memory decides</b>, and the most that can be reached is {most} of the peak. "
    least = roofline.least_rows(inputs, outputs, one, precision)
    if least is not None:
        return (
            f"{start}From {least:,} rows on, arithmetic would decide: "
            "give the chip more tokens at a time."
        )
    return (
        f"{start}No number of rows changes that, because the layer is too narrow: "
        "make it wider, or fuse it with another."
    )


def _roofline_table(work: Work, precision: str, chip: str) -> list[list[str]]:
    one = hardware.chip(chip)
    return [
        ["the product", "value"],
        ["FLOPs", f"{work.flops:.3g}"],
        ["bytes moved", units.text(work.nbytes, "B")],
        ["arithmetic", units.text(work.flops / one.peak(precision), "s")],
        ["memory", units.text(work.nbytes / one.memory_bandwidth, "s")],
        ["shortest time", units.text(roofline.seconds(work, one, precision), "s")],
        [
            "highest rate",
            units.text(roofline.attainable(work.intensity, one, precision), "FLOP/s"),
        ],
    ]
