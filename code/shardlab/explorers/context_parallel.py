"""The explorers of context parallelism: the ring turn by turn, and what length fits on how many."""

from dataclasses import replace
from functools import cache

from shardlab.costs import context_parallel as costs
from shardlab.costs import units
from shardlab.costs.facts import hardware, models
from shardlab.costs.step import layer_time
from shardlab.costs.training import Training
from shardlab.figures import context_parallel as figures
from shardlab.figures import memory
from shardlab.sharding import sequences
from shardlab.sharding.layout import Layout

from .explorer import Explorer
from .view import View

RING, PARTS = 8, 8  # ranks, and tokens of each: enough for two runs, few enough to count
TEXTS = {"one document": None, "three documents": (14, 34, 16)}
CHIP = "H100 SXM 80 GB"
MODEL = "Llama 3 8B"
LINKS = {"inside a server": "NVLink 4", "across servers": "InfiniBand NDR"}
HEADS = {"32 (MHA)": 32, "8 (GQA)": 8, "1 (MQA)": 1}  # of keys and values, for 32 of queries
LENGTHS = {"32 k": 2**15, "128 k": 2**17, "256 k": 2**18, "512 k": 2**19, "1 M": 2**20}
RANKS = (1, 2, 4, 8, 16, 32)


def ring_explorer() -> Explorer:
    """Step round the ring: see which tiles each rank computes in which turn."""
    return Explorer(
        ring_view,
        {
            "placement": list(sequences.PLACEMENTS),
            "texts": list(TEXTS),
            "turn": list(range(RING)),
        },
        title="Round the ring, turn by turn",
        labels={"texts": "In the sequence", "turn": "Turn (0: a rank's own keys)"},
        default={"placement": "contiguous", "texts": "one document", "turn": 0},
        steps="turn",
    )


def ring_view(*, placement: str, texts: str, turn: int) -> View:
    """Show one state."""
    length = PARTS * RING
    work = costs.turns(length, RING, placement, TEXTS[texts])
    pairs = [[sum(tile.seen for tile in tiles) for tiles in turns] for turns in work]
    alt = f"Turn {turn} of a ring of {RING} ranks, {placement}, {texts}: tiles and work."
    figure = figures.ring(work, length, turn, alt=alt)
    together = [sum(row) for row in pairs]
    idle = sum(row[turn] == 0 for row in pairs)
    who = "every rank computes"
    if idle:
        who = f"<b>{idle} of {RING} ranks have nothing to compute</b>"
    share = units.percent(sum(together) / RING / max(together))
    sentence = (
        f"In turn {turn}, {who}. After all turns the busiest rank has computed "
        f"{max(together):,} pairs and the least busy {min(together):,}: the ranks work for "
        f"{share} of the time."
    )
    header = ["rank", *(f"turn {number}" for number in range(RING)), "together"]
    rows = [[f"rank {rank}", *row, sum(row)] for rank, row in enumerate(pairs)]
    return View(figure, sentence, [header, *rows])


def length_explorer() -> Explorer:
    """Choose length, ranks, heads and link: see memory, exposed messages, and what would fit."""
    return Explorer(
        length_view,
        {
            "length": list(LENGTHS),
            "ranks": list(RANKS),
            "heads": list(HEADS),
            "link": list(LINKS),
        },
        title="How long a text fits on how many H100",
        most={"xaxis": 160},  # twice what one GPU has
        labels={
            "length": "Tokens of the text",
            "ranks": "Ranks that share it",
            "heads": "Heads of keys and values",
            "link": "Slowest link of the ring",
        },
        default={"length": "1 M", "ranks": 8, "heads": "8 (GQA)", "link": "inside a server"},
    )


def training(length: int, ranks: int, heads: int) -> Training:
    """Describe a model of Llama 3's size whose ranks share a text, with ZeRO's stage 3."""
    spec = replace(models.published(MODEL).spec, context_length=length, num_kv_heads=heads)
    layout = Layout(cp=ranks, zero=3 if ranks > 1 else 0)
    return Training(spec=spec, sequence=length, layout=layout, recomputation="full")


@cache
def times(length: int, ranks: int, heads: int, link: str) -> dict[str, float]:
    """Time one layer's forward: its attention, and messages that hide behind it or do not."""
    one = training(length, ranks, heads)
    a, reached = costs.of(one), hardware.link(LINKS[link]).reached
    computing = layer_time.layer(one, hardware.chip(CHIP)).forward.attention
    exposed = costs.ring_seconds(a, reached, computing=computing)
    sending = costs.ring_seconds(a, reached)
    return {
        "attention": computing,
        "messages, hidden": sending - exposed,
        "messages, exposed": exposed,
    }


@cache
def longest(ranks: int, heads: int) -> int:
    """Return the longest text that fits, in steps of 1024 tokens for each rank; 0 if none does."""
    capacity = hardware.chip(CHIP).memory
    step = 1024 * ranks
    fits, beyond = 0, 1
    while _bytes(beyond * step, ranks, heads) <= capacity:
        fits, beyond = beyond, 2 * beyond
    while beyond - fits > 1:
        middle = (fits + beyond) // 2
        if _bytes(middle * step, ranks, heads) <= capacity:
            fits = middle
        else:
            beyond = middle
    return fits * step


def _bytes(length: int, ranks: int, heads: int) -> float:
    return sum(costs.held(training(length, ranks, heads)).values())


def length_view(*, length: str, ranks: int, heads: str, link: str) -> View:
    """Show one state."""
    tokens, kv_heads = LENGTHS[length], HEADS[heads]
    parts = costs.held(training(tokens, ranks, kv_heads))
    seconds = times(tokens, ranks, kv_heads, link)
    capacity = hardware.chip(CHIP).memory
    name = f"cp = {ranks}"
    alt = f"Memory of a rank and time of one layer, {length} tokens on {ranks} H100."
    whole = seconds["attention"] + seconds["messages, exposed"]
    rows = {"computes": ["attention"], "sends": ["messages, hidden", "messages, exposed"]}
    figure = memory.above_time(
        {name: parts},
        {row: {part: seconds[part] / whole for part in each} for row, each in rows.items()},
        figures.TIMES,
        capacity,
        title=f"share of a layer's {units.text(whole, 's')} (%)",
        alt=alt,
        unit="%",
    )
    total = sum(parts.values())
    verdict = "<b>fit</b>" if total <= capacity else "<b>do not fit</b>"
    most = longest(ranks, kv_heads)
    limit = f"at most {most:,} tokens fit"
    if not most:
        limit = "no length fits, the states alone are too large"
    exposed = seconds["messages, exposed"]
    hidden = "" if ranks == 1 else _hidden(exposed, seconds)
    sentence = (
        f"{tokens:,} tokens on {_ranks(ranks)} {verdict}: "
        f"{units.text(total, 'B')} of {units.text(capacity, 'B')}; {limit}.{hidden}"
    )
    table = [["one rank", name], *([part, units.text(n, "B")] for part, n in parts.items())]
    table += [["memory", units.text(total, "B")], ["longest that fits", f"{most:,} tokens"]]
    table += [[part, units.text(value, "s")] for part, value in seconds.items()]
    return View(figure, sentence, table)


def _hidden(exposed: float, seconds: dict[str, float]) -> str:
    """Say how much of the messages the attention hides."""
    if not exposed:
        return " The ring hides all of its messages behind attention."
    share = units.percent(exposed / (seconds["attention"] + exposed))
    return f" Messages are <b>exposed</b> for {units.text(exposed, 's')} of a layer ({share})."


def _ranks(ranks: int) -> str:
    return f"{ranks} H100" if ranks > 1 else "one H100"
