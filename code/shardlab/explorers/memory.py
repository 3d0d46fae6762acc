"""The explorers of memory: what one GPU holds in training, and what each GPU of a cluster holds."""

from shardlab.costs import memory, units
from shardlab.costs.facts import hardware, models, recipes
from shardlab.costs.planning import remedies
from shardlab.costs.training import Training
from shardlab.figures import memory as figures
from shardlab.sharding.layout import Layout

from .explorer import Explorer
from .view import View

KEPT = {  # what a layer keeps for backward -> attention and recomputation of a `Training`
    "everything, all scores too": ("stored", "none"),
    "all but the scores (FlashAttention)": ("flash", "none"),
    "its input only (full recomputation)": ("flash", "full"),
}
MICROBATCHES = 2  # on one device: the second is at its peak beside the gradients of the first
LONGEST = 4096  # tokens of a sequence on the cluster, or the model's context where that is shorter
ROUNDS = 2  # microbatches per step and pipeline stage: enough to fill the pipeline
CLUSTER_CHIP = "H100 SXM 80 GB"


def one_device() -> Explorer:
    """Choose a model, a chip and a recipe: see bytes by part, now and after a change that fits."""
    return Explorer(
        device_view,
        {
            "model": ["GPT-2 small", "GPT-2 XL", "Llama 3.2 1B", "Llama 3 8B"],
            "chip": ["RTX 4090 24 GB", "H100 SXM 80 GB", "B200 SXM 180 GB"],
            "recipe": ["fp32 Adam", "mixed, 16-bit gradients", "mixed, 8-bit Adam"],
            "kept": list(KEPT),
            "microbatch": [1, 4, 16],
            "sequence": [1024, 4096],
        },
        title="Does it fit on one GPU?",
        most={"xaxis": 240},  # more than the largest chip has
        labels={
            "recipe": "Precision and optimizer",
            "kept": "Each layer keeps",
            "microbatch": "Each of two microbatches",
            "sequence": "Sequence length",
        },
        units={"microbatch": "sequences", "sequence": "tokens"},
        default={
            "model": "GPT-2 XL",
            "chip": "H100 SXM 80 GB",
            "recipe": "mixed, 16-bit gradients",
            "microbatch": 16,
        },
    )


def device_view(
    *, model: str, chip: str, recipe: str, kept: str, microbatch: int, sequence: int
) -> View:
    """Show one state of the explorer of one device."""
    spec, capacity = models.published(model).spec, hardware.chip(chip).memory
    (attention, recomputation) = KEPT[kept]
    training = Training(
        spec=spec,
        recipe=recipes.recipe(recipe),
        microbatch=microbatch,
        num_microbatches=MICROBATCHES,
        sequence=min(sequence, spec.context_length),
        attention=attention,
        recomputation=recomputation,
    )
    found = remedies.smallest(training, capacity)
    held = {"as it is": memory.per_rank(training)}
    if found is not None and found.changes:
        held["after the change"] = memory.per_rank(
            found.training, memory.worst_stage(found.training)
        )
    rows: dict[str, dict[str, float]] = {"as it is": {}, "after the change": {}}  # empty or not
    figure = figures.by_part(
        rows | held, capacity=capacity, alt=f"Memory of {model} on one {chip}, by part."
    )
    words = remedies.verdict(training, capacity)
    most = f", with the {spec.context_length:,} tokens that it reads at most,"
    read = most if sequence > spec.context_length else ""
    return View(figure, f"{model} on one {chip}{read} {_stressed(words)}.", _table(held))


def cluster() -> Explorer:
    """Choose a model, tp, pp, dp and a ZeRO stage: see bytes by part on each pipeline stage."""
    return Explorer(
        cluster_view,
        {
            "model": ["GPT-2 XL", "Llama 3 8B", "Llama 3 70B", "GPT-3 175B", "Llama 3 405B"],
            "tp": [1, 2, 4, 8],
            "pp": [1, 4, 16],
            "zero": [0, 1, 2, 3],
            "dp": [1, 8, 64],
        },
        title="Does it fit on a cluster of H100 GPUs?",
        most={"yaxis": 160},  # twice what one GPU has
        labels={
            "tp": "Tensor parallel (tp)",
            "pp": "Pipeline stages (pp)",
            "dp": "Replicas (dp)",
            "zero": "ZeRO stage",
        },
        default={"model": "Llama 3 70B", "tp": 4, "pp": 4, "dp": 8, "zero": 0},
    )


def cluster_view(*, model: str, tp: int, pp: int, dp: int, zero: int) -> View:
    """Show one state of the explorer of a cluster."""
    spec = models.published(model).spec
    capacity = hardware.chip(CLUSTER_CHIP).memory
    try:
        training = Training(
            spec=spec,
            layout=Layout(tp=tp, pp=pp, dp=dp, zero=zero, sequence_parallel=tp > 1),
            num_microbatches=ROUNDS * pp,
            sequence=min(LONGEST, spec.context_length),
        )
    except ValueError as why:
        return View(
            figures.stages([{}], capacity=capacity),
            f"<b>Impossible</b>: {why}.",
            [["memory", "value"], ["impossible", str(why)]],
        )
    held = [memory.per_rank(training, stage) for stage in range(pp)]
    figure = figures.stages(
        held, capacity=capacity, alt=f"Memory of a rank of each stage of {model}, by part."
    )
    where = f"{model} on {units.counted(training.layout.ranks, 'GPU')}"
    words = remedies.verdict(training, capacity)
    shown = {f"stage {stage}": held[stage] for stage in sorted({0, pp - 1})}
    return View(figure, f"{where} {_stressed(words)}.", _table(shown))


def _stressed(verdict: str) -> str:
    return verdict.replace("does not fit", "<b>does not fit</b>").replace("fits:", "<b>fits</b>:")


def _table(held: dict[str, dict[str, float]]) -> list[list[str]]:
    parts = next(iter(held.values()))
    rows = [[part, *(units.text(each[part], "B") for each in held.values())] for part in parts]
    return [
        ["memory", *held],
        *rows,
        ["sum", *(units.text(sum(each.values()), "B") for each in held.values())],
    ]
