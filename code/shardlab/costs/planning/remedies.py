"""What to change when a step does not fit on its chip: the least invasive change first."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, groupby

from shardlab.files.arguments import checked
from shardlab.schedules import CHUNKED
from shardlab.sharding.layout import Layout, divisors, expert_degrees, tensor_degrees

from .. import memory, units
from ..facts import recipes
from ..training import Training

GPUS_PER_SERVER = 8  # with more ranks, tensor parallelism waits for the network
LONG = 8192  # tokens of a sequence for each rank that shares it: fewer would be for no long text
# as many as trained Llama 3 405B (Llama Team 2024, https://arxiv.org/abs/2407.21783)
MOST_RANKS = 2**14


@dataclass(frozen=True, kw_only=True)
@checked
class Remedy:
    """Changes that make a step fit."""

    training: Training  # after the changes
    changes: tuple[str, ...]  # in words; empty: it fits as it is
    nbytes: float  # on a rank of the fullest stage


Changes = Iterator[tuple[str, Training]]
Kind = Callable[[Training], Changes]  # yields its options, the smallest first
Change = tuple[tuple[str, ...], Training]


@checked
@cache
def smallest(training: Training, capacity: float) -> Remedy | None:
    """Find the first change that fits into `capacity` bytes.

    None where no combination that is tried fits.

    Changes that need no further rank come first, those of AT_ONCE before 8-bit Adam; then as few
    ranks as possible, and as few pipeline stages. Few changes come before many, in the order of
    AT_ONCE, which is by cost; each change is as small as suffices.
    """

    def hopeful(base: Training) -> bool:
        return any(_fits(each, capacity) for each in _leanest(base))

    for changes, changed in _changes(training, hopeful):
        if _fits(changed, capacity):
            return Remedy(training=changed, changes=changes, nbytes=memory.total(changed))
    return None


@checked
def verdict(training: Training, capacity: float) -> str:
    """Say in a sentence that a step fits, or what does not, and the smallest change that helps.

    Either way the sentence names the overhead and the margin in it.
    """
    stage = memory.worst_stage(training)
    held = memory.per_rank(training, stage)
    whole = sum(held.values())
    states = sum(held[part] for part in memory.CUT_FROM)
    working = whole - states - held["overhead"]
    beside = f"{units.text(held['overhead'], 'B')} of overhead"
    beside += f" with a margin of {100 * training.program.margin:.0f} %"
    where = units.text(capacity, "B")
    if training.layout.pp > 1:
        where += f" (stage {stage}, the fullest)"
    if whole <= capacity:
        return f"fits: {units.text(whole, 'B')} of {where}, {beside} included"
    parts = f"{units.text(states, 'B')} of states, {units.text(working, 'B')} of activations and "
    parts += f"buffers, and {beside}"
    return f"does not fit: {parts} in {where}; {_way_out(smallest(training, capacity))}"


def _way_out(remedy: Remedy | None) -> str:
    if remedy is None:
        return "no change that was tried helps"
    *first, last = remedy.changes
    listed = f"{', '.join(first)} and {last}" if first else last
    return f"{listed} would fit: {units.text(remedy.nbytes, 'B')}"


def _changes(training: Training, hopeful: Callable[[Training], bool]) -> Iterator[Change]:
    """Yield every change to try, in order.

    hopeful: whether anything without further ranks could help.
    """
    yield (), training
    if hopeful(training):
        for count in range(1, len(AT_ONCE)):
            yield from _combined(training, AT_ONCE, count)
    for adam, smaller in filter(lambda change: hopeful(change[1]), _eight_bit(training)):
        for count in range(len(AT_ONCE)):
            for words, changed in _combined(smaller, AT_ONCE, count):
                yield (*words, adam), changed
    grown = sorted(_larger(training), key=_size)
    for _, alike in groupby(grown, key=lambda change: change[1].layout.ranks):
        larger = [change for change in alike if hopeful(change[1])]
        for count in (0, 1, 2):
            for words, more_ranks in larger:
                for more, changed in _combined(more_ranks, AT_ONCE, count):
                    yield (*words, *more), changed


def _size(change: Change) -> tuple[int, int, int]:
    """Order changes by their ranks, then by their stages, then by tp."""
    layout = change[1].layout
    return layout.ranks, layout.pp, layout.tp


def _fits(training: Training, capacity: float) -> bool:
    return memory.total(training) <= capacity


def _leanest(training: Training) -> Iterator[Training]:
    """Yield the leanest trainings that AT_ONCE reaches, one for each ep and stage of ZeRO.

    Larger ones need not be leaner: their buffers and communicators may outweigh what they cut.
    """
    for kind in AT_ONCE:
        if kind not in (_experts, _zero):
            *_, (_, training) = [("", training), *kind(training)]
    for dealt in (training, *(each for _, each in _experts(training))):
        yield dealt
        yield from (cut for _, cut in _zero(dealt))


def _larger(training: Training) -> Iterator[Change]:
    for count in range(1, 1 + len(WITH_MORE_RANKS)):
        yield from _combined(training, WITH_MORE_RANKS, count)


def _combined(training: Training, kinds: tuple[Kind, ...], count: int) -> Iterator[Change]:
    """Yield every choice of `count` kinds, and of one option for each."""
    for chosen in combinations(kinds, count):
        yield from _in_turn(training, chosen)


def _in_turn(training: Training, chosen: tuple[Kind, ...]) -> Iterator[Change]:
    if not chosen:
        yield (), training
        return
    for words, changed in chosen[0](training):
        for more, last in _in_turn(changed, chosen[1:]):
            yield (words, *more), last


# ---- kinds of change -----------------------------------------------------------------------------


def _flash(training: Training) -> Changes:
    if training.attention == "stored":
        yield "FlashAttention", replace(training, attention="flash")


def _sequence_parallel(training: Training) -> Changes:
    layout = training.layout
    splits = training.tokens_per_sequence % (layout.tp * layout.cp) == 0
    if layout.tp > 1 and not layout.sequence_parallel and splits:
        yield (
            "sequence parallelism",
            replace(training, layout=replace(layout, sequence_parallel=True)),
        )


def _smaller_microbatch(training: Training) -> Changes:
    for size in reversed(divisors(training.microbatch)[:-1]):
        count = training.num_microbatches * training.microbatch // size
        words = f"{units.counted(size, 'sequence')} at a time"
        yield words, replace(training, microbatch=size, num_microbatches=count)


def _experts(training: Training) -> Changes:
    layout = training.layout
    for ep in expert_degrees(training.spec, layout.dp):
        changed = replace(layout, ep=ep)
        if ep > layout.ep and ep % layout.ep == 0 and _deals(training, changed):
            yield f"ep={ep}", replace(training, layout=changed)


def _deals(training: Training, layout: Layout) -> bool:
    """Whether the experts of a mixture, if any, split over the ranks of a layout."""
    experts = training.spec.experts
    return experts is None or experts.num_experts % layout.expert_ranks == 0


def _zero(training: Training) -> Changes:
    layout = training.layout
    if layout.replicas == 1:
        return
    for stage in range(layout.zero + 1, 4):
        changed = replace(layout, zero=stage)
        yield f"ZeRO-{stage} over {layout.replicas} ranks", replace(training, layout=changed)


def _recompute(training: Training) -> Changes:
    if training.recomputation == "none" and training.attention == "stored":
        yield "selective recomputation", replace(training, recomputation="selective")
    if training.recomputation != "full":
        yield "full recomputation", replace(training, recomputation="full")


def _eight_bit(training: Training) -> Changes:
    small = recipes.recipe("mixed, 8-bit Adam")
    if training.recipe.bytes_per_parameter > small.bytes_per_parameter:
        yield "Adam in 8 bits", replace(training, recipe=small)


def _tensor(training: Training) -> Changes:
    layout = training.layout
    length = training.tokens_per_sequence
    for tp in tensor_degrees(training.spec):
        if layout.tp < tp and tp % layout.tp == 0 == GPUS_PER_SERVER % tp:
            slices = layout.sequence_parallel and length % (tp * layout.cp) == 0
            changed = replace(layout, tp=tp, sequence_parallel=slices or layout.whole_experts)
            if slices == changed.sequence_parallel and _deals(training, changed):
                yield f"tp={tp}", replace(training, layout=changed)


def _context(training: Training) -> Changes:
    layout = training.layout
    cp = 2 * layout.cp
    while cp * LONG <= training.tokens_per_sequence:
        if training.tokens_per_sequence % (cp * layout.tp) == 0:
            yield f"cp={cp}", replace(training, layout=replace(layout, cp=cp))
        cp *= 2


def _pipeline(training: Training) -> Changes:
    layout = training.layout
    pp = 2 * training.layout.pp
    while pp <= training.spec.num_layers and training.schedule not in CHUNKED:
        count = max(training.num_microbatches, pp)  # fewer would leave stages idle
        changed = replace(layout, pp=pp)
        yield f"pp={pp}", replace(training, layout=changed, num_microbatches=count)
        pp *= 2


def _data(training: Training) -> Changes:
    layout = training.layout
    dp = 2 * training.layout.dp
    while dp * layout.ranks // layout.dp <= MOST_RANKS:
        yield f"dp={dp}", replace(training, layout=replace(layout, dp=dp))
        dp *= 2


AT_ONCE: tuple[Kind, ...] = (
    _flash,
    _sequence_parallel,
    _smaller_microbatch,
    _zero,
    _experts,
    _recompute,
)
WITH_MORE_RANKS: tuple[Kind, ...] = (_data, _context, _tensor, _pipeline)
