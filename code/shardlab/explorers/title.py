"""The picture of the title page: one model is cut until every GPU can hold its part.

title.js draws it from what stands in the page, and turns to the step that the reader has come to.
"""

from __future__ import annotations

import html
from dataclasses import dataclass, replace
from functools import cached_property

from shardlab.costs import step, units
from shardlab.costs.facts import mixtures, models, nodes
from shardlab.costs.programs import LLAMA_2024
from shardlab.costs.step import Run, Step
from shardlab.costs.training import Training
from shardlab.sharding.layout import Layout, expert_degrees

from .moving import MovingPicture, moving
from .page import table

MODEL, MIXTURE, NODE = "Llama 3 405B", "Llama 4 Maverick", "DGX H100"
# Tokens of a step, of a sequence and of a long one: Llama Team 2024, Table 4
# (https://arxiv.org/abs/2407.21783).
BATCH, SEQUENCE, LONG = 2**24, 2**13, 2**17
CHUNKS = 8  # of a pipeline stage
WAITS = {  # a part of a step -> what a GPU waits for
    "tensor parallel": "sums inside a layer",
    "context parallel": "keys and values",
    "expert parallel": "tokens for experts",
    "pipeline messages": "activations",
    "data parallel": "sums of gradients",
    "ZeRO": "parameters",
    "waiting for stages": "other stages",
}

# The drawing has 8 x 8 tiles for the batch (sequences, tokens) and for the model (layers, width):
# 2 for what a GPU holds, 1 for what it fetches, 0 for what other GPUs hold and compute.
WHOLE = "2" * 64
ROW = "2" * 8 + "0" * 56
TILE = "2" + "0" * 63
DIAGONAL = "".join("1" * n + "2" + "1" * (7 - n) for n in range(8))
COLUMN = "20000000" + "10000000" * 7
EXPERTS = ("1" * 8 + "11200000") * 4  # every second layer has experts


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One way to cut the model, and what the reader is told about it."""

    cut: str
    method: str
    chapter: str  # the name of its page
    words: str  # HTML, in which {per_gpu} and the other `numbers` stand
    layout: Layout
    batch: str = ROW
    model: str = WHOLE
    name: str = MODEL
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
        reason = WAITS[max(WAITS, key=self.step.parts.__getitem__)]
        return f"{self.numbers['waiting']}, most of all {reason}"

    @property
    def numbers(self) -> dict[str, str]:
        """Write the numbers of the step as the reader sees them."""
        return {
            "gpus": f"{self.layout.ranks:,}",
            "per_gpu": units.text(self.step.memory, "B"),
            "capacity": units.text(self.step.run.cluster.node.chip.memory, "B"),
            "fits": "yes" if self.step.fits else "no",
            "seconds": duration(self.step.seconds),
            "waiting": units.percent(self.step.waiting / self.step.seconds),
        }

    def item(self) -> str:
        """Return the step as an item of the page's list, with what title.js draws."""
        step, numbers = self.step, self.numbers
        held = step.memory / step.run.cluster.node.chip.memory
        data = {
            "held": f"{held:.4f}",
            "share": f"{step.waiting / step.seconds:.4f}",
            "fits": "{fits}: {per_gpu} in {capacity}".format(**numbers),
            "waits": self.waits,
            "batch": self.batch,
            "model": self.model,
        }
        about = " ".join(f'data-{key}="{html.escape(text)}"' for key, text in data.items())
        link = f'<a href="{self.chapter}.html">{self.method}</a>'
        whole = {key: text.replace(" ", "\u00a0") for key, text in numbers.items()}
        words = self.words.format(**whole)
        return f"<li {about}><p><strong>{self.cut}</strong></p><p>{words} {link}</p></li>"


def predicted(name: str, layout: Layout, sequence: int) -> Step:
    """Predict a step of BATCH tokens on NODEs, every layer recomputed."""
    mixture = name in mixtures.PUBLISHED
    spec = mixtures.published(name).spec if mixture else models.published(name).spec
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


def scenes() -> list[Scene]:
    """List the steps of the title page, each of which repairs what the one before it lacks."""
    batch = BATCH // SEQUENCE
    pipelines = Layout(tp=8, pp=16, dp=128, zero=1, sequence_parallel=True)
    alone = predicted(MODEL, pipelines, LONG)
    unshared = units.percent(alone.waiting / alone.seconds)
    experts = mixtures.published(MIXTURE)
    total, active = (f"{count / 1e9:.0f} billion" for count in experts.printed)
    each = expert_degrees(experts.spec, batch)[-1]  # one of a layer's experts on each GPU
    return [
        Scene(
            cut="One model, one GPU",
            method="What needs the memory",
            chapter="memory",
            words=f"To train {MODEL} takes <b>{{per_gpu}}</b>, and an H100 has {{capacity}}. Even "
            f"if it did fit, one step of {BATCH / 1e6:.1f} million tokens would take {{seconds}}.",
            layout=Layout(),
            batch=WHOLE,
        ),
        Scene(
            cut="Cut the batch",
            method="Data parallelism",
            chapter="data_parallel",
            words="Give each of {gpus} GPUs one sequence. A step would take {seconds}, but every "
            "GPU needs a copy of the whole model: still <b>{per_gpu}</b>.",
            layout=Layout(dp=batch),
        ),
        Scene(
            cut="Cut the copies",
            method="ZeRO",
            chapter="zero",
            words="Let each GPU keep a {gpus}th of the parameters, gradients and optimizer states, "
            "and fetch a layer when its turn comes. That leaves <b>{per_gpu}</b>: close.",
            layout=Layout(dp=batch, zero=3),
            model=DIAGONAL,
        ),
        Scene(
            cut="Cut the width",
            method="Tensor parallelism",
            chapter="tensor_parallel",
            words="The eight GPUs of a server share every matrix. <b>{per_gpu}</b> fit. Now {gpus} "
            "GPUs spend {waiting} of {seconds} waiting, mostly for parameters to arrive.",
            layout=Layout(tp=8, dp=batch, zero=3, sequence_parallel=True),
            model=COLUMN,
        ),
        Scene(
            cut="Cut the depth",
            method="Pipeline parallelism",
            chapter="pipeline",
            words="Sixteen groups hold different layers, so that parameters can stay where they "
            "are. The same {gpus} GPUs wait <b>{waiting}</b> of a step of {seconds}.",
            layout=pipelines,
            model=TILE,
        ),
        Scene(
            cut="Cut the tokens",
            method="Context parallelism",
            chapter="context_parallel",
            words=f"The batch holds only {BATCH // LONG} texts of {LONG:,} tokens. With one for "
            f"each pipeline, GPUs would wait {unshared} of a step; where sixteen share each text, "
            "<b>{waiting}</b>.",
            layout=replace(pipelines, cp=16, dp=8),
            batch=TILE,
            model=TILE,
            sequence=LONG,
        ),
        Scene(
            cut="Cut by experts",
            method="Expert parallelism",
            chapter="expert_parallel",
            words=f"{MIXTURE} is as large, {total} parameters, but a token uses {active} of them. "
            f"Each GPU holds one of {each} experts in a layer, and {{gpus}} GPUs take "
            "<b>{seconds}</b> for a step.",
            layout=Layout(dp=batch, ep=each, zero=3),
            model=EXPERTS,
            name=MIXTURE,
        ),
    ]


def rows(shown: list[Scene]) -> list[list[str]]:
    """Return the numbers of the steps as a table, its header first."""
    keys = ("gpus", "per_gpu", "fits", "seconds")
    body = [[scene.cut, *(scene.numbers[key] for key in keys), scene.waits] for scene in shown]
    fits = f"fits in {shown[0].numbers['capacity']}"
    return [["", "GPUs", "per GPU", fits, "one step", "waits for"], *body]


class Cuts(MovingPicture):
    """The steps of the title page: a picture on a page, a table in a kernel."""

    def __init__(self) -> None:
        self.scenes = scenes()

    def html(self) -> str:
        """Return stage, list and table for a page; without JavaScript there is no stage."""
        items = "".join(scene.item() for scene in self.scenes)
        picture = '<div class="cuts-picture" aria-hidden="true"></div>'
        return moving("cuts", picture, self.table(), text=f"<ol>{items}</ol>")

    def table(self) -> str:
        """Return the numbers as an HTML table."""
        return table(rows(self.scenes))
