"""The planner's cloud: every plan for a model by memory and time, cut by the edge of the card.

planner.js draws the cloud and the wall that the reader moves; what stands left of it fits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from math import ceil, log

from shardlab.costs import memory, step, units
from shardlab.costs.facts import models, nodes
from shardlab.costs.planning import planner, plans
from shardlab.costs.planning.plans import Plans, Question, TrainingPlan

from .moving import MovingPicture, moving, radios
from .page import table

GB = 1e9  # bytes
CARDS = (*range(40, 137, 8), 141, 160, 176, 192)  # GB, where the wall can stand
START = CARDS.index(80)  # what an H100 has
MOST = 240  # GB: where the picture ends, three times an H100
FREE = 0.05  # of a card's memory stays free
SLOWEST = 4  # how many times as long as the fastest a plan may take to be drawn
ROW = 1.015  # how much longer a step takes from one row of dots to the next
BELOW = 18  # rows under the fastest plan, for the names of changes
TIE = 1.04  # no prediction tells a plan from one that takes as much longer, says the chapter
MOST_CHUNKS = 8  # our sum charges too little for more
BATCH, SEQUENCE = 512, 8192  # sequences, and tokens in each
WASTES = {  # what is told: the parts of `Step.summary` that it adds up
    "recomputation": ("recomputation",),
    "messages of tp": ("tensor, context, experts",),
    "messages of dp": ("data parallel and ZeRO",),
    "waiting for stages": ("waiting for stages",),
    "narrow kernels": ("matrices", "attention", "norms, embedding, head", "update"),
}
Choice = tuple[int, int, int, int, str, int]  # tp, pp, ZeRO, microbatch, schedule, chunks


@dataclass(frozen=True)
class ModelOnGpus:
    """A model on a cluster of H100, whose memory alone may be another."""

    model: str
    gpus: int

    @property
    def name(self) -> str:
        """Say what is trained where."""
        return f"{self.model} on {self.gpus:,} H100"

    @cached_property
    def question(self) -> Question:
        """Ask for plans on cards of MOST GB."""
        cluster = nodes.cluster("DGX H100", self.gpus // nodes.node("DGX H100").gpus)
        chip = replace(cluster.node.chip, memory=MOST * GB)
        return Question(
            spec=models.published(self.model).spec,
            cluster=replace(cluster, node=replace(cluster.node, chip=chip)),
            batch=BATCH,
            sequence=SEQUENCE,
            sequence_parallel=(True,),  # it saves memory and sends no byte more
            schedules=("1F1B", "interleaved"),
            most_chunks=MOST_CHUNKS,
            headroom=FREE,
        )

    def search(self, card: int) -> Plans:
        """Search for plans on cards of so many GB; the rest up to MOST counts as headroom."""
        return planner.search(replace(self.question, headroom=1 - (1 - FREE) * card / MOST))

    @cached_property
    def found(self) -> list[Plans]:
        """Return the plans on each of CARDS."""
        return [self.search(card) for card in CARDS]

    @cached_property
    def cloud(self) -> dict[tuple[Choice, str], TrainingPlan]:
        """Return the plans that recompute all layers or none, by their choices."""
        asked = [replace(self.question, recomputations=(each,)) for each in ("none", "full")]
        found = sorted(plan for question in asked for plan in planner.search(question).fitting)
        most = SLOWEST * found[0].seconds
        return {(choice(it), it.recomputation): it for it in found if it.seconds <= most}

    @cached_property
    def lowest(self) -> float:
        """Return the seconds at the bottom of the picture."""
        return min(plan.seconds for plan in self.cloud.values()) / ROW**BELOW

    def place(self, plan: TrainingPlan) -> tuple[int, int]:
        """Return the smallest card in GB on which a plan fits, and its row from below."""
        return ceil(plan.nbytes / (1 - FREE) / GB), round(log(plan.seconds / self.lowest, ROW))

    @cached_property
    def dots(self) -> dict[tuple[int, int], TrainingPlan]:
        """Return the fastest plan at each place; a dot stands for all that lie there."""
        ordered = sorted(self.cloud.values(), reverse=True)
        return {self.place(plan): plan for plan in ordered}

    def columns(self) -> list[list[tuple[int, TrainingPlan]]]:
        """List the dots of each card that is just large enough: rows and plans."""
        found: list[list[tuple[int, TrainingPlan]]] = [[] for _ in range(MOST + 1)]
        for (card, row), plan in sorted(self.dots.items()):
            found[card].append((row, plan))
        return found

    @cached_property
    def parts(self) -> dict[TrainingPlan, dict[str, float]]:
        """Return the parts of a step of every plan that is drawn with its waste."""
        drawn = {*self.dots.values(), *(each.best for each in self.found)}
        return {
            plan: step.step(plans.run_of(self.question, plan)).summary for plan in sorted(drawn)
        }

    @cached_property
    def useful(self) -> float:
        """Return the seconds of the arithmetic in the plan whose kernels are fastest."""
        kernels = WASTES["narrow kernels"]
        return min(sum(parts[each] for each in kernels) for parts in self.parts.values())

    def wastes(self, plan: TrainingPlan) -> dict[str, float]:
        """Return the seconds of a step beside `useful`, by what they are lost to."""
        parts = self.parts[plan]
        lost = {name: sum(parts[each] for each in some) for name, some in WASTES.items()}
        return lost | {"narrow kernels": lost["narrow kernels"] - self.useful}

    def largest(self, plan: TrainingPlan) -> str:
        """Name the largest waste."""
        lost = self.wastes(plan)
        return max(lost, key=lost.__getitem__)

    def neighbours(self, plan: TrainingPlan) -> dict[str, TrainingPlan]:
        """Return the plans at one change that the picture has room for, by the change."""
        found = {}
        for words, chosen in changes(plan):
            made = self.made(plan, chosen)
            if made and made.nbytes <= self.question.capacity:
                found[words] = made
        now = "some" if plan.recomputed_layers else plan.recomputation
        for word, kept in {"none": "none", "all": "full"}.items():
            other = self.cloud.get((choice(plan), kept))
            if other and kept != now:
                found[f"recompute {word}"] = other
        return found

    def made(self, plan: TrainingPlan, chosen: Choice) -> TrainingPlan | None:
        """Return a plan that recomputes as many of its layers; None where nothing splits so."""
        if not plan.recomputed_layers:
            return self.cloud.get((chosen, plan.recomputation))
        legal = self.cloud.get((chosen, "full"))
        if legal is None:
            return None
        layers = step.stages_of(self.question.spec.num_layers, legal.pp, legal.chunks).most
        some, rest = divmod(plan.recomputed_layers * layers, plan.layers)
        if rest:
            return None
        mixed = legal._replace(recomputed_layers=some, layers=layers)
        seconds = step.step(plans.run_of(self.question, mixed)).seconds
        nbytes = memory.total(plans.training_of(self.question, mixed))
        return mixed._replace(seconds=seconds, nbytes=nbytes)

    def told(self, plan: TrainingPlan) -> tuple[str, str]:
        """Say how long a step takes and what it holds, and what it loses most to."""
        name = self.largest(plan)
        share = units.percent(self.wastes(plan)[name] / plan.seconds)
        held = f"{units.text(plan.seconds, 's')} a step, {units.text(plan.nbytes, 'B')}"
        return held, f"{name}, {share}"

    def counts(self, at: int) -> tuple[int, int]:
        """Count the plans that fit on a card, and those that tie with the fastest of them."""
        fitting = self.found[at].fitting
        return len(fitting), sum(plan.seconds <= TIE * fitting[0].seconds for plan in fitting) - 1

    def drawn(self) -> dict[str, object]:
        """Return what planner.js draws; a dot is six times its row, and the number of its waste."""
        names = list(WASTES)
        bests = list(dict.fromkeys(each.best for each in self.found))
        lit = [
            {
                "name": plan.name,
                "told": self.told(plan),
                "at": self.place(plan),
                "near": [(words, *self.place(it)) for words, it in self.neighbours(plan).items()],
            }
            for plan in bests
        ]
        return {
            "lowest": self.lowest,
            "count": self.found[0].count,
            "stand": len(self.cloud),
            "dots": [
                "".join(f"{6 * row + names.index(self.largest(plan)):03x}" for row, plan in some)
                for some in self.columns()
            ],
            "lit": lit,
            "walls": [
                (bests.index(each.best), *self.counts(at)) for at, each in enumerate(self.found)
            ],
        }

    def rows(self) -> Iterator[list[str]]:
        """Yield a row for each plan that is the fastest on some cards."""
        for plan, group in groupby(range(len(CARDS)), key=lambda at: self.found[at].best):
            walls = list(group)
            ends = [walls[0], walls[-1]][: len(walls)]
            fits, ties = zip(*(self.counts(at) for at in ends), strict=True)
            near = [f"{words}: {self.held(it)}" for words, it in self.neighbours(plan).items()]
            spans = [" to ".join(f"{n:,}" for n in some) for some in (fits, ties)]
            cards = " to ".join(str(CARDS[at]) for at in ends)
            yield [self.name, cards, *spans, plan.name, *self.told(plan), "; ".join(near)]

    def held(self, plan: TrainingPlan) -> str:
        """Write the time and memory of a neighbour."""
        return f"{plan.seconds:.3g} s, {plan.nbytes / GB:.0f} GB"


CASES = (
    ModelOnGpus("Llama 3 70B", 64),
    ModelOnGpus("Llama 3 70B", 512),
    ModelOnGpus("Llama 3 405B", 1024),
)


def choice(plan: TrainingPlan) -> Choice:
    """Return what is chosen of a plan beside its recomputation; the GPUs leave no choice of dp."""
    return plan.tp, plan.pp, plan.zero, plan.microbatch, plan.schedule, plan.chunks


def changes(plan: TrainingPlan) -> Iterator[tuple[str, Choice]]:
    """Yield what differs in one choice that is halved or doubled, or in one stage of ZeRO.

    dp takes the GPUs that remain; a single stage has nothing to interleave.
    """
    now = {"tp": plan.tp, "pp": plan.pp, "ZeRO": plan.zero, "microbatch": plan.microbatch}
    if plan.pp > 1:
        now["chunks"] = plan.chunks
    for name, old in now.items():
        for new in (old - 1, old + 1) if name == "ZeRO" else (old // 2, 2 * old):
            tp, pp, zero, size, *chunks = (now | {name: new}).values()
            each = chunks[0] if chunks and pp > 1 else 1
            schedule = "interleaved" if each > 1 else "1F1B"
            yield f"{name} {old} to {new}", (tp, pp, zero, size, schedule, each)


class Cloud(MovingPicture):
    """All plans for three clusters: a picture on a page, a table in a kernel."""

    def html(self) -> str:
        """Return picture and table for a page; without JavaScript there is no picture."""
        data = {
            "cards": CARDS,
            "start": START,
            "most": MOST,
            "row": ROW,
            "rows": ceil(log(SLOWEST, ROW)) + BELOW + 2,
            "wastes": list(WASTES),
            "cases": [case.drawn() for case in CASES],
        }
        packed = json.dumps(data, separators=(",", ":")).replace("'", "&#39;")
        hands = radios("planner-model", "Train", [case.name for case in CASES])
        picture = (
            '<p class="planner-state" aria-live="polite"></p>'
            '<input type="range" aria-label="Memory of a card" min="0" step="1" autocomplete="off">'
            f"<div class=\"planner-picture\" data-planner='{packed}'></div>"
        )
        return moving("planner", "All plans of a search", picture, self.table(), hands=hands)

    def table(self) -> str:
        """Return the numbers as an HTML table."""
        header = ["training", "card (GB)", "plans that fit", "ties", "the fastest", "takes"]
        header += ["largest waste", "after one change"]
        return table([header, *(row for case in CASES for row in case.rows())])
