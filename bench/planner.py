"""How long the planner takes: every plan for a trillion parameters on 3,072 GPUs, and the three case studies.

Seconds are processor time, the best of ROUNDS: pure Python on one core. Then how well the same sums rank the
layouts of nine published sweeps, how far predicted steps are from published ones, and what each mechanism of the
model explains: the mean error of the rows that it concerns, without it and with it.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean
from typing import Any

import record
from published import fits, products

from shardlab.costs import step
from shardlab.costs.compute import kernels
from shardlab.costs.facts.attention import NEWEST
from shardlab.costs.planning import planner
from shardlab.costs.planning.plans import Question
from shardlab.costs.program import ORDINARY_KERNELS
from shardlab.costs.published import steps, studies
from shardlab.costs.published.sweeps import SWEEPS
from shardlab.files.terminal import no_arguments

ROUNDS = 5
Change = Callable[[step.Run], step.Run]


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A mechanism of the model, and how to switch it off."""

    name: str
    concerns: str
    rows: Sequence[Any]  # published steps, or attempts that have seconds
    off: Change = lambda run: run
    constants: Mapping[str, Any] | None = None  # of `kernels`: values that it has without the mechanism


def program(**changes: Any) -> Change:
    """Change a program."""
    return lambda run: run.by(replace(run.training.program, **changes))


def single_kernels(**changes: Any) -> Change:
    """Change the kernels of a program."""
    return lambda run: program(kernels=replace(run.training.program.kernels, **changes))(run)


def training(**changes: Any) -> Change:
    """Change what a rank computes and keeps."""
    return lambda run: replace(run, training=replace(run.training, **changes))


def without_biases(run: step.Run) -> step.Run:
    """Leave biases away, whose gradients are sums of their own."""
    return training(spec=replace(run.training.spec, bias_places=()))(run)


def unhidden(*size: Any) -> list[kernels.Tiling]:
    """Cover a product by tiles that all write at the end."""
    return [each._replace(waves=1) for each in kernels.tilings(*size)]


def table(*names: str) -> list[Any]:
    """All rows of tables of published steps."""
    return [row for name in names for row in steps.of_table(name)]


def timed_attempts(attempts: Sequence[fits.Attempt], kernels_used: str = "") -> list[fits.Attempt]:
    """Attempts of sweeps whose step was printed."""
    return [each for each in attempts if each.seconds and kernels_used in each.sweep]


MEGATRON = table(
    "Megatron 2021, ten sizes", "Megatron 2021, more GPUs",
    "Korthikanti 2022, all layers again", "Korthikanti 2022, selective",
)  # fmt: skip
FSDP = table("torchtitan, FSDP2, H100", "torchtitan, FSDP2, A100", "torchtitan, FSDP2, H200")
HOPPER = table("torchtitan, FSDP2, H100", "torchtitan, FSDP2, H200")
EIGHT_BITS = [row for row in FSDP if row.run.training.precision == "fp8"]
ZERO_3 = table("Megatron 2021, ZeRO-3")
SWEEPS_OF_LAYOUTS = {
    "Hagemann et al.": fits.HAGEMANN, "The Playbook, one node": fits.PLAYBOOK, "BigScience, kept back": fits.JEAN_ZAY,
}  # fmt: skip
HAGEMANN = timed_attempts(fits.HAGEMANN, "rms")
PLAYBOOK = timed_attempts(fits.PLAYBOOK)
KEPT_BACK = (*products.KEPT_ON_A100, *products.KEPT_ON_H100)
COOL = {name: replace(each, ordinary=kernels.ORDINARY) for name, each in kernels.BEST.items()}
UNLIMITED = {**kernels.BEST, "H100 SXM 96 GB, 500 W": kernels.BEST["H100 SXM 80 GB"]}
BEST_OF_2023 = "Hagemann et al., best kernels"
CAUSES = (
    Cause(name="tiles of four sizes", concerns="96 products, A100 and H100", rows=KEPT_BACK,
          constants={"TILES": {(128, 256): 1.0}}),
    Cause(name="tiles of four sizes", concerns="125 products, H100", rows=products.ON_H100,
          constants={"TILES": {(128, 256): 1.0}}),
    Cause(name="the start of a product", concerns="125 products, H100", rows=products.ON_H100,
          constants={"START": 0.0}),
    Cause(name="writing while the next wave computes", concerns="96 products, A100 and H100", rows=KEPT_BACK,
          constants={"_tilings": unhidden}),
    Cause(name="writing while the next wave computes", concerns="125 products, H100", rows=products.ON_H100,
          constants={"_tilings": unhidden}),
    Cause(name="a chip at its power limit", concerns="FSDP2, H100 and H200", rows=HOPPER, constants={"BEST": COOL}),
    Cause(name="gradients of biases", concerns="Megatron-LM, A100", rows=MEGATRON, off=without_biases),
    Cause(name="passes of the optimizer over gradients", concerns="Megatron-LM, A100", rows=MEGATRON,
          off=program(update_passes=0)),
    Cause(name="the rate between nodes in 2021", concerns="Megatron-LM, A100", rows=MEGATRON,
          off=program(between_nodes=0.8)),
    Cause(name="the rate between nodes in 2021", concerns="ZeRO-3, A100", rows=ZERO_3, off=program(between_nodes=0.8)),
    Cause(name="messages of single tensors", concerns="ZeRO-3, A100", rows=ZERO_3, off=program(layer_messages=1)),
    Cause(name="a third gather for recomputed layers", concerns="ZeRO-3, A100", rows=ZERO_3,
          off=program(regathers=False)),
    Cause(name="operations one by one", concerns="FSDP2, eager", off=program(unfused=()),
          rows=[row for row in FSDP if row.run.training.program.unfused]),
    Cause(name="recomputation by operation", concerns="FSDP2", rows=FSDP, off=single_kernels(repeated=())),
    Cause(name="a limit of 500 W", concerns="FSDP2, H100", rows=table("torchtitan, FSDP2, H100"),
          constants={"BEST": UNLIMITED}),
    Cause(name="FlashAttention-2 on Hopper", concerns="FSDP2, H100 and H200", rows=HOPPER,
          off=single_kernels(attention=NEWEST)),
    Cause(name="FlashAttention-2 on Hopper", concerns="The Playbook", rows=PLAYBOOK,
          off=single_kernels(attention=NEWEST)),
    Cause(name="scales that follow from the tensor", concerns="FSDP2, 8 bits", rows=EIGHT_BITS,
          off=single_kernels(scales_anew=False)),
    Cause(name="the first FlashAttention", concerns="llm-foundry", rows=timed_attempts(fits.FOUNDRY),
          off=program(kernels=ORDINARY_KERNELS)),
    Cause(name="operations one by one", concerns=BEST_OF_2023, rows=HAGEMANN, off=program(unfused=())),
    Cause(name="waiting for tensor parallelism", concerns=BEST_OF_2023, rows=HAGEMANN,
          off=program(tensor_overlap="backward")),
    Cause(name="a loss of all words on every rank", concerns=BEST_OF_2023, rows=HAGEMANN,
          off=program(loss="parallel")),
    Cause(name="inputs that are kept gathered", concerns="The Playbook", rows=PLAYBOOK,
          off=program(keeps_gathered=False)),
)  # fmt: skip


def questions() -> dict[str, Question]:
    """The case studies, and a trillion parameters with every choice open."""
    trillion = studies.STUDIES["a trillion on 3,072 A100"].question
    every = replace(
        trillion,
        context=(1, 2, 4),
        zero=(0, 1, 2, 3),
        sequence_parallel=(False, True),
        recomputations=("none", "selective", "full"),
    )
    asked = {name: study.question for name, study in studies.STUDIES.items()}
    return {**asked, "a trillion on 3,072 A100, every choice open": every}


def timed(question: Question) -> dict[str, Any]:
    """Seconds of a search, and what it looked at."""
    seconds = []
    for _ in range(ROUNDS):
        start = time.process_time()
        found = planner.search(question)
        seconds.append(time.process_time() - start)
    return {"seconds": min(seconds), "plans": found.count, "fit": len(found.fitting), "best": found.best.name}


def sweeps() -> dict[str, dict[str, float]]:
    """Kendall's tau and the regret of each published sweep."""
    return {
        f"{sweep.figure}, {sweep.varied}, batch {sweep.batch}": {"tau": sweep.agreement, "regret": sweep.regret}
        for sweep in SWEEPS
    }


def mean_error(rows: Sequence[Any], change: Change) -> float:
    """How far predictions of changed runs are from what was measured on average, as a share.

    Products are timed by themselves, so that one factor for all of a chip is taken out.
    """
    if isinstance(rows[0], products.Product):
        of_chips = {row.chip.name: [each for each in rows if each.chip == row.chip] for row in rows}
        return fmean(products.spread(alike) for alike in of_chips.values() for _ in alike)
    return fmean(abs(step.step(change(row.run)).seconds / row.seconds - 1) for row in rows)


@contextmanager
def changed(constants: Mapping[str, Any]) -> Iterator[None]:
    """Give constants of `kernels` other values for a while."""
    before = {name: getattr(kernels, name) for name in constants}
    for values in (constants, before):
        for name, value in values.items():
            setattr(kernels, name, value)
        kernels.matmul_seconds.__wrapped__.cache_clear()
        if values is constants:
            yield


def causes() -> list[dict[str, Any]]:
    """The mean error of the rows that a mechanism concerns, without it and with it."""
    found = []
    for cause in CAUSES:
        with changed(cause.constants or {}):
            without = mean_error(cause.rows, cause.off)
        present = mean_error(cause.rows, lambda run: run)
        named = {"mechanism": cause.name, "rows": cause.concerns, "number": len(cause.rows)}
        found.append({**named, "error without": without, "error with": present})
    return found


def predicted() -> list[dict[str, Any]]:
    """The mean error of every table of steps, and of every sweep of layouts that prints seconds."""
    found = {name: table(name) for name in steps.TABLES}
    found |= {
        f"{BEST_OF_2023}": HAGEMANN,
        "Hagemann et al., other kernels": [each for each in timed_attempts(fits.HAGEMANN) if each not in HAGEMANN],
        "The Playbook, one node": PLAYBOOK,
        "llm-foundry": timed_attempts(fits.FOUNDRY),
        "BigScience, kept back": timed_attempts(fits.JEAN_ZAY),
    }
    return [
        {"table": name, "number": len(rows), "error": fmean(abs(row.error) for row in rows)}
        for name, rows in found.items()
    ]


def choices() -> list[dict[str, Any]]:
    """What the planner would choose in each sweep of layouts: the fastest by its sum of those that it says fit."""
    found = []
    for source, attempts in SWEEPS_OF_LAYOUTS.items():
        for name in dict.fromkeys(each.sweep for each in attempts):
            tried = [each for each in attempts if each.sweep == name]
            ran = [each for each in tried if each.seconds]
            chosen = min((each for each in tried if each.fits), key=lambda each: sequence_seconds(each)[1])
            best = min(sequence_seconds(each)[0] for each in ran)
            found.append({
                "source": source, "sweep": name, "tried": len(tried),
                "told right": sum(each.fits == each.ran for each in tried), "chosen ran": chosen.ran,
                "regret": sequence_seconds(chosen)[0] / best - 1 if chosen.ran else None, "tau": agreement(ran),
            })  # fmt: skip
    return found


def sequence_seconds(each: fits.Attempt) -> tuple[float, float]:
    """Seconds for one sequence, measured and predicted: batches of a sweep differ a little."""
    return each.seconds / each.run.batch, each.predicted.seconds / each.run.batch


def agreement(attempts: Sequence[fits.Attempt]) -> float:
    """Kendall's tau of the measured and the predicted order."""
    pairs = list(combinations(map(sequence_seconds, attempts), 2))
    alike = sum((a[0] - b[0]) * (a[1] - b[1]) > 0 for a, b in pairs)
    return 2 * alike / len(pairs) - 1


def main() -> None:
    result = {name: timed(question) for name, question in questions().items()}
    for name, row in result.items():
        print(f"{name}: {row['plans']:,} plans in {row['seconds']:.2f} s, {row['fit']:,} fit; best {row['best']}")
    ranked = sweeps()
    for name, quality in ranked.items():
        print(f"{name}: tau {quality['tau']:.2f}, regret {quality['regret']:.0%}")
    tables, explained = predicted(), causes()
    for row in tables:
        print(f"{row['table']}, {row['number']} rows: {row['error']:.1%}")
    for row in explained:
        print(f"{row['mechanism']}, {row['rows']}: {row['error without']:.1%} -> {row['error with']:.1%}")
    chosen = choices()
    for row in chosen:
        print(row)
    found = {"rounds": ROUNDS, "questions": result, "sweeps": ranked, "steps": tables, "mechanisms": explained}
    found["choices"] = chosen
    print(f"stored in {record.write('planner', found)}")


if __name__ == "__main__":
    no_arguments(__doc__)
    main()
