"""The picture of the title page: one model is cut until every GPU can hold its part.

title.js draws model, batch and GPUs, and cuts what the reader's knife cuts.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from shardlab.costs import step, units
from shardlab.costs.facts import mixtures, nodes
from shardlab.costs.programs import LLAMA_2024
from shardlab.costs.step import Run, Step
from shardlab.costs.training import Training
from shardlab.sharding.layout import Layout, expert_degrees

from .moving import MovingPicture, moving
from .page import table

MODELS = ("Llama 3 405B", "Megatron 1008B")  # the largest dense ones whose runs are published
GPUS = (16_384, 8_192)  # of both runs in Table 4
MIXTURE, NODE, CARD = "Llama 4 Maverick", "DGX H100", "H100"
# Tokens of a step, of a sequence and of a long one: Llama Team 2024, Table 4
# (https://arxiv.org/abs/2407.21783).
BATCH, SEQUENCE, LONG = 2**24, 2**13, 2**17
CUTS_PARAMETERS = 3  # the stage of ZeRO
CHUNKS = 8  # of a pipeline stage
CLOSE = 1.2  # times what a GPU has: only just too much
WAITS = {  # a part of a step -> what a GPU waits for
    "tensor parallel": "sums inside a layer",
    "context parallel": "keys and values",
    "expert parallel": "tokens for experts",
    "pipeline messages": "activations",
    "data parallel": "sums of gradients",
    "ZeRO": "parameters",
    "waiting for stages": "other stages",
}

# The block has 16 plates (layers, the last on top) of 8 columns (width): 2 for what the first GPU
# holds, 1 for what it fetches, 0 for what other GPUs hold and compute.
PLATES, COLUMNS = 16, 8
WHOLE = "2" * PLATES * COLUMNS
DIAGONAL = "".join("1" * (n % 8) + "2" + "1" * (7 - n % 8) for n in range(PLATES))
COLUMN = "20000000" + "10000000" * (PLATES - 1)
TILE = "2" + "0" * (PLATES * COLUMNS - 1)
EXPERTS = ("1" * 8 + "11200000") * (PLATES // 2)  # every second layer has experts


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One way to cut the model, and what the reader is told about it."""

    cut: str
    method: str
    chapter: str  # the name of its page
    words: str  # HTML, in which {per_gpu} and the other `numbers` stand
    layout: Layout
    block: str = WHOLE
    name: str
    most: int  # GPUs that there are
    sequence: int = SEQUENCE

    @cached_property
    def step(self) -> Step:
        """Predict the step of this layout, with every layer recomputed."""
        return predicted(self.name, self.layout, self.sequence)

    @property
    def waits(self) -> str:
        """Say what share of the step a GPU waits in all, and what for most of all."""
        if self.layout.ranks == 1:
            return "no other GPU"
        return f"{self.numbers['waiting']}, most of all {self.reason}"

    @property
    def reason(self) -> str:
        """Name what a GPU waits for most of all."""
        return WAITS[max(WAITS, key=self.step.parts.__getitem__)]

    @property
    def held(self) -> float:
        """Return what a GPU should hold, in memories of a GPU."""
        return self.step.memory / self.step.run.cluster.node.chip.memory

    @property
    def numbers(self) -> dict[str, str]:
        """Write the numbers of the step as the reader sees them."""
        return {
            "gpus": f"{self.layout.ranks:,}",
            "most": f"{self.most:,}",
            "idle": f"{self.most - self.layout.ranks:,}",
            "per_gpu": units.text(self.step.memory, "B"),
            "capacity": units.text(self.step.run.cluster.node.chip.memory, "B"),
            "fits": "yes" if self.step.fits else "no",
            "verdict": "it fits"
            if self.step.fits
            else "close"
            if self.held < CLOSE
            else "too much",
            "seconds": duration(self.step.seconds),
            "waiting": units.percent(self.step.waiting / self.step.seconds),
            "reason": self.reason,
        }

    @property
    def cuts(self) -> list[str]:
        """List what this layout cuts."""
        its = self.layout
        degrees = {"batch": its.dp, "width": its.tp, "depth": its.pp, "tokens": its.cp}
        degrees |= {"experts": its.ep, "copies": its.dp * its.cp // self.copies}
        return [name for name, degree in degrees.items() if degree > 1]

    @property
    def knife(self) -> str:
        """Return the name of what is cut, in `cuts` and in the address."""
        return self.cut.split()[-1]

    @property
    def copies(self) -> int:
        """Return how many copies of the parameters there are."""
        its = self.layout
        return 1 if its.zero == CUTS_PARAMETERS else its.dp * its.cp

    def told(self, words: str) -> str:
        """Return the words with their numbers, none of which is torn."""
        whole = {key: text.replace(" ", "\u00a0") for key, text in self.numbers.items()}
        return words.format(**whole)

    def drawn(self) -> dict[str, object]:
        """Return what title.js draws and says."""
        spec = self.step.run.training.spec
        copies = f"{self.copies:,} copies" if self.copies > 1 else "one copy"
        return {
            "name": self.name,
            "words": self.told(self.words),
            "held": round(self.held, 4),
            "share": round(self.step.waiting / self.step.seconds, 4),
            "gpus": self.layout.ranks,
            "most": self.most,
            "hall": self.told("{gpus} of {most} GPUs"),
            "fits": self.told("{fits}: {per_gpu} in {capacity}"),
            "waits": self.waits,
            "block": self.block,
            "cuts": self.cuts,
            "copies": self.copies,
            "model": f"{copies}: {spec.num_layers} layers, {spec.hidden_size:,} wide",
            "batch": f"{BATCH // self.sequence:,} sequences of {self.sequence:,} tokens",
        }

    def item(self) -> str:
        """Return the step as an item of the page's list: its name, its words and its chapter."""
        link = f'<a href="{self.chapter}.html">{self.method}</a>'
        return f"<li data-knife={self.knife}><strong>{self.cut}</strong><p>{self.told(self.words)}</p>{link}</li>"


def predicted(name: str, layout: Layout, sequence: int) -> Step:
    """Predict a step of BATCH tokens on NODEs, every layer recomputed."""
    spec = mixtures.spec_of(name)
    training = Training(
        spec=replace(spec, context_length=max(sequence, spec.context_length)),
        layout=layout,
        num_microbatches=BATCH // sequence // layout.dp,
        sequence=sequence,
        recomputation="full",
        schedule="interleaved" if layout.pp > 1 else "1F1B",
        chunks=CHUNKS if layout.pp > 1 else 1,
        program=LLAMA_2024,
    )
    node = nodes.node(NODE)
    num_nodes = -(-layout.ranks // node.gpus)
    return step.step(Run(training=training, cluster=nodes.cluster(NODE, num_nodes)))


def duration(seconds: float) -> str:
    """Write a time in hours or seconds."""
    hours = seconds / units.HOUR
    return f"{hours:.0f} hours" if hours > 1 else units.text(seconds, "s")


def scenes(name: str = MODELS[0], most: int = GPUS[0]) -> list[Scene]:
    """List the cuts of a model, each of which repairs what the one before it lacks.

    name: one of MODELS. most: GPUs that there are, one of GPUS.
    """
    batch = BATCH // SEQUENCE
    pipelines = Layout(tp=8, pp=16, dp=most // 128, zero=1, sequence_parallel=True)
    alone = predicted(name, pipelines, LONG)
    unshared = units.percent(alone.waiting / alone.seconds)
    experts = mixtures.published(MIXTURE)
    total, active = (f"{count / 1e9:.0f} billion" for count in experts.printed)
    each = expert_degrees(experts.spec, batch)[-1]  # one of a layer's experts on each GPU
    chosen = Scene(
        cut="One GPU",
        method="Memory",
        chapter="memory",
        words=f"To train {name} takes <b>{{per_gpu}}</b>, and an {CARD} has {{capacity}}. Even "
        f"if it did fit, one step of {BATCH / 1e6:.1f} million tokens would take {{seconds}}.",
        layout=Layout(),
        name=name,
        most=most,
    )
    return [
        chosen,
        replace(
            chosen,
            cut="Cut the batch",
            method="Data parallelism",
            chapter="data_parallel",
            words="Give each of {gpus} GPUs one sequence; {idle} get none. A step would take "
            "{seconds}, but every GPU needs a copy of the whole model: still <b>{per_gpu}</b>.",
            layout=Layout(dp=batch),
        ),
        replace(
            chosen,
            cut="Cut the copies",
            method="ZeRO",
            chapter="zero",
            words="Let each GPU keep a {gpus}th of the parameters, gradients and optimizer states, "
            "and fetch a layer when its turn comes. That leaves <b>{per_gpu}</b>: {verdict}.",
            layout=Layout(dp=batch, zero=3),
            block=DIAGONAL,
        ),
        replace(
            chosen,
            cut="Cut the width",
            method="Tensor parallelism",
            chapter="tensor_parallel",
            words="The eight GPUs of a server share every matrix. <b>{per_gpu}</b>: {verdict}. Now "
            "{gpus} GPUs spend {waiting} of {seconds} waiting, most of all for {reason}.",
            layout=Layout(tp=8, dp=most // 8, zero=3, sequence_parallel=True),
            block=COLUMN,
        ),
        replace(
            chosen,
            cut="Cut the depth",
            method="Pipeline parallelism",
            chapter="pipeline",
            words="Sixteen groups hold different layers, so that parameters can stay where they "
            "are. The same {gpus} GPUs wait <b>{waiting}</b> of a step of {seconds}.",
            layout=pipelines,
            block=TILE,
        ),
        replace(
            chosen,
            cut="Cut the tokens",
            method="Context parallelism",
            chapter="context_parallel",
            words=f"The batch holds only {BATCH // LONG} texts of {LONG:,} tokens. With one for "
            f"each pipeline, GPUs would wait {unshared} of a step; where sixteen share each text, "
            "<b>{waiting}</b>.",
            layout=replace(pipelines, cp=16, dp=pipelines.dp // 16),
            block=TILE,
            sequence=LONG,
        ),
        replace(
            chosen,
            cut="Cut by experts",
            method="Expert parallelism",
            chapter="expert_parallel",
            words=f"{MIXTURE} has {total} parameters, but a token uses {active}. Each GPU holds "
            f"one of a layer's {each} experts; {{gpus}} GPUs take <b>{{seconds}}</b> a step.",
            layout=Layout(dp=batch, ep=each, zero=3),
            block=EXPERTS,
            name=MIXTURE,
        ),
    ]


def row(scene: Scene) -> tuple[str, ...]:
    """Return the numbers of a scene in the order of the table."""
    keys = ("gpus", "per_gpu", "fits", "seconds")
    return scene.cut, scene.name, *(scene.numbers[key] for key in keys), scene.waits


class Cuts(MovingPicture):
    """A model and its cuts: a picture on a page, a table in a kernel."""

    def __init__(self) -> None:
        self.cases = {(name, most): scenes(name, most) for name in MODELS for most in GPUS}

    def html(self) -> str:
        """Return picture, list and table for a page; without JavaScript there is no picture.

        The items of the list are the knives: the script makes buttons of their names.
        """
        first = self.cases[MODELS[0], GPUS[0]]
        drawn = [[scene.drawn() for scene in shown] for shown in self.cases.values()]
        packed = html.escape(json.dumps(drawn, separators=(",", ":"), ensure_ascii=False))
        hands = (
            f'<p class="cuts-choice">Train {select("model", "Model", MODELS)} on '
            f"{select('gpus', 'GPUs', [f'{most:,}' for most in GPUS])} {CARD}</p>"
        )
        picture = (
            f'<p class="cuts-state" aria-live="polite">{first[0].told(first[0].words)}</p>'
            f'<div class="cuts-picture" data-cuts="{packed}"></div>'
        )
        items = "".join(scene.item() for scene in first)
        return moving(
            "cuts",
            "A model is cut until it fits",
            picture,
            self.table(),
            hands=hands,
            text=f"<ol>{items}</ol>",
        )

    def rows(self) -> list[tuple[str, ...]]:
        """List the numbers with their header; what two cases have in common stands once."""
        body = dict.fromkeys(row(scene) for shown in self.cases.values() for scene in shown)
        fits = f"fits in {self.cases[MODELS[0], GPUS[0]][0].numbers['capacity']}"
        return [("", "model", "GPUs", "per GPU", fits, "one step", "waits for"), *body]

    def table(self) -> str:
        """Return the numbers as an HTML table."""
        return table(self.rows())


def select(name: str, label: str, texts: Iterable[str]) -> str:
    """Return a list of which one is chosen."""
    options = "".join(f"<option>{text}</option>" for text in texts)
    return f'<select name="title.{name}" aria-label="{label}" autocomplete="off">{options}</select>'
