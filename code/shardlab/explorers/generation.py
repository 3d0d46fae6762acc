"""The explorer of a trainer and a generator: the same GPUs in turn, or apart and asynchronous."""

import random
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import ceil, exp, log, sqrt
from statistics import NormalDist

from shardlab.costs import memory, units
from shardlab.costs.compute import flops
from shardlab.costs.facts import hardware, models
from shardlab.costs.generation.copies import GeneratorCopies
from shardlab.costs.generation.decode import ROOM, DecodingRank
from shardlab.costs.generation.hand_over import HandOver
from shardlab.costs.generation.loop import EngineLoop, full_slots, staleness
from shardlab.figures import generation as figures
from shardlab.sharding.layout import Layout

from .explorer import Explorer
from .view import View

CUTS = {"Llama 3 8B": 1, "Llama 3 70B": 4}  # GPUs of a copy
SPREADS = {"even": 0.3, "uneven": 0.6, "very uneven": 1.0}  # deviation over mean
SHARES = {"none": 0.0, "1/8": 1 / 8, "1/4": 1 / 4, "3/8": 3 / 8, "1/2": 1 / 2, "3/4": 3 / 4}
TEXTS, PROMPT = 1024, 500  # of a step; tokens
REACHED = 0.4  # of the chip's peak, by the trainer
PASSES = 4  # forwards: the old log p, and a step of training, which takes as long as three
MOVED = 2 * 12  # bytes per weight: the optimizer's states go to the host and back
STEPS, POINTS = 3, 16  # that are drawn, and points of each step
CONTEXT = 131_072  # tokens that a text may have, as in Llama 3.1
CHIP = hardware.chip("H100 SXM 80 GB")
CARD, NVLINK = hardware.link("InfiniBand NDR").reached, hardware.link("NVLink 4").reached


def explorer() -> Explorer:
    """Choose a model, GPUs and texts: see a step in turn and apart, and what waits for what."""
    return Explorer(
        lanes_view,
        {
            "model": list(CUTS),
            "gpus": [32, 64, 256],
            "generators": list(SHARES),
            "tokens": [500, 2000, 8000],
            "spread": list(SPREADS),
        },
        title="Trainer and generator on the same GPUs, or apart",
        labels={
            "gpus": "H100 GPUs",
            "generators": "GPUs that only generate (none: all do both, in turn)",
            "tokens": "Mean length of an answer",
            "spread": "Lengths of answers",
        },
        units={"gpus": "GPUs", "tokens": "tokens"},
        default={
            "model": "Llama 3 8B",
            "gpus": 64,
            "generators": "none",
            "tokens": 2000,
            "spread": "uneven",
        },
    )


def lengths(tokens: int, spread: float) -> list[int]:
    """List the lengths of a step's answers: quantiles of a log-normal distribution, shuffled."""
    width = log(1 + spread**2)
    normal = NormalDist(log(tokens) - width / 2, sqrt(width))
    found = [exp(normal.inv_cdf((n + 0.5) / TEXTS)) for n in range(TEXTS)]
    random.Random(0).shuffle(found)
    return [max(1, round(length)) for length in found]


@dataclass(frozen=True)
class EnginePlacement:
    """Both engines on some GPUs; generators: GPUs that only generate, 0 if all do both in turn."""

    model: str
    gpus: int
    generators: int
    tokens: int
    spread: str

    @cached_property
    def texts(self) -> GeneratorCopies:
        """The generator, with a step's texts."""
        spec = replace(models.published(self.model).spec, context_length=CONTEXT)
        layout = Layout(tp=CUTS[self.model])
        return GeneratorCopies(
            decoding=DecodingRank(spec=spec, chip=CHIP, layout=layout, link=NVLINK),
            copies=(self.generators or self.gpus) // layout.tp,
            prompt=PROMPT,
            lengths=lengths(self.tokens, SPREADS[self.spread]),
        )

    @property
    def weights(self) -> int:
        """Weights of the model."""
        return models.num_parameters(self.texts.decoding.spec)

    @cached_property
    def loop(self) -> EngineLoop:
        """The GPU-seconds of a step."""
        texts = self.texts
        work = flops.forward(texts.decoding.spec, batch=1, sequence=PROMPT + self.tokens)
        sending = HandOver(
            whole=2 * self.weights,
            cut=CUTS[self.model],
            copies=texts.copies,
            trainers=self.gpus - self.generators,
        ).seconds(CARD)
        moving = MOVED * self.weights / self.gpus / hardware.host_link(CHIP).bandwidth
        return EngineLoop(
            generating=texts.generating,
            training=PASSES * TEXTS * sum(work.values()) / (REACHED * CHIP.peak_flops),
            gpus=self.gpus,
            full=texts.full,
            switch=moving + sending,
            hand_over=sending,
        )

    @property
    def fits(self) -> bool:
        """Whether the trainer's states fit into its GPUs."""
        states = sum(memory.model_states(self.weights).values())
        return states <= ROOM * CHIP.memory * (self.gpus - self.generators)

    @property
    def seconds(self) -> float:
        """Seconds of a step."""
        return self.loop.apart(self.generators) if self.generators else self.loop.same_gpus

    @property
    def split(self) -> dict[str, float]:
        """Where the GPU-seconds of a step go, by the names of `figures.PARTS`."""
        loop, generators = self.loop, self.generators
        busy = {"generate": loop.generating, "train": loop.training}
        if not generators:
            empty = loop.generating * (1 / loop.full - 1)
            return {**busy, "empty slots": empty, "switch, hand over": loop.switch * loop.gpus}
        handed = loop.hand_over * generators
        waited = self.seconds * loop.gpus - sum(busy.values()) - handed
        return {**busy, "wait for the other": waited, "switch, hand over": handed}

    def drawn(self) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
        """Return the generator's share of full slots, and the trainer's blocks, in steps."""
        loop, whole = self.loop, self.seconds
        writing = self.texts.writing
        curve = [*writing[: -1 : ceil(len(writing) / POINTS)], writing[-1]]
        begin, end = whole - loop.training / loop.gpus, whole
        if self.generators:
            lanes = loop.lanes(self.generators)
            curve = [(0.0, 1.0), (lanes["generator"] - loop.hand_over, 0.0)]
            begin, end = 0.0, lanes["trainer"]
        writing = [(step + at / whole, share) for step in range(STEPS) for at, share in curve]
        training = [(step + begin / whole, step + end / whole) for step in range(STEPS)]
        return [*writing, (float(STEPS), 0.0)], training


@cache
def placement(model: str, gpus: int, share: str, tokens: int, spread: str) -> EnginePlacement:
    """Return the placement of one state."""
    return EnginePlacement(model, gpus, round(SHARES[share] * gpus), tokens, spread)


def lanes_view(*, model: str, gpus: int, generators: str, tokens: int, spread: str) -> View:
    """Show one state."""
    every = {share: placement(model, gpus, share, tokens, spread) for share in SHARES}
    able = {share: each for share, each in every.items() if each.fits}
    turn, apart = every["none"], {share: each for share, each in able.items() if each.generators}
    best = min(apart, key=lambda share: apart[share].seconds)
    chosen = generators if generators in able else best
    shown = chosen if able[chosen].generators else best
    rows = {"in turn": turn, f"{shown} apart": able[shown]}
    figure = figures.lanes(
        *able[chosen].drawn(),
        {name: each.split for name, each in rows.items()},
        step=units.text(able[chosen].seconds, "s"),
        alt=f"Three steps of {model} on {gpus} GPUs, and where their GPU-seconds go.",
    )
    words = _words(generators, every, best)
    table = [["part of a step", *(f"{name}, GPU-s" for name in rows)]]
    table += [
        [part, *(f"{each.split.get(part, 0.0):,.0f}" for each in rows.values())]
        for part in figures.PARTS
    ]
    table.append(["one step", *(units.text(each.seconds, "s") for each in rows.values())])
    return View(figure, words, table)


def _words(generators: str, every: dict[str, EnginePlacement], best: str) -> str:
    turn, each = every["none"], every[generators]
    fastest = f"apart with {best} it would take at least {units.text(every[best].seconds, 's')}"
    if not each.fits:
        left = each.gpus - each.generators
        return (
            f"<b>The trainer's states do not fit</b> into {left} GPUs; {fastest}, which is shown."
        )
    took = units.text(each.seconds, "s")
    if not each.generators:
        slots = full_slots(each.texts.lengths, each.texts.slots)
        return (
            f"A step takes at least <b>{took}</b>. On average {units.percent(slots)} of the slots "
            f"are full until the last text has ended; {fastest}."
        )
    ratio = turn.seconds / each.seconds
    lanes = each.loop.lanes(each.generators)
    waiting, slower = sorted(lanes, key=lambda lane: lanes[lane])
    waits = units.percent(1 - lanes[waiting] / each.seconds)
    texts = each.texts
    old = staleness(texts.slots, TEXTS)
    longest = max(texts.lengths) * texts.token(texts.slots)
    return (
        f"A step takes at least <b>{took}</b>, {ratio:.2g} times as fast as in turn; the {waiting} "
        f"waits {waits} of it for the {slower}. Texts in slots are {old:.1f} steps old on average "
        f"when they end, the longest {longest / each.seconds:.1f}; {fastest}."
    )
