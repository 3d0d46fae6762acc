"""The explorers of collectives: an algorithm step by step, and the fastest algorithm by size."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

from shardlab import exchanges
from shardlab.costs import collectives, units
from shardlab.costs.collectives import bounds
from shardlab.costs.collectives import exchanges as counts
from shardlab.costs.facts import hardware
from shardlab.exchanges import ADD, Cell, Plan
from shardlab.figures import collectives as figures
from shardlab.figures import exchanges as drawn

from .explorer import Explorer
from .view import View

Start = Callable[[Plan], list[list[Cell]]]
RANKS = [3, 4, 5, 6, 8]
SIZES = [10 ** (k / 4) for k in range(12, 37)]  # 1 kB to 1 GB
FINE = [
    10 ** (k / 32) for k in range(96, 289)
]  # sizes at which the fastest algorithm is determined


def steps() -> Explorer:
    """Choose an all-reduce, ranks and a step: see what every rank holds and what has just moved."""
    return Explorer(
        steps_view,
        {"algorithm": [*ALL_REDUCES], "ranks": RANKS, "step": [*range(LAST_STEP + 1)]},
        title="An all-reduce, step by step",
        labels={"step": "Step (0: before)"},
        default={"algorithm": "ring", "ranks": 4, "step": 1},
        steps="step",
    )


def relatives() -> Explorer:
    """Choose a broadcast, reduce, reduce-scatter or all-gather, ranks and a step."""
    return Explorer(
        steps_view,
        {"algorithm": [*RELATIVES], "ranks": [4, 5, 8], "step": [*range(11)]},
        title="The relatives of the all-reduce, step by step",
        labels={"algorithm": "Collective", "step": "Step (0: before)"},
        default={"algorithm": "broadcast, binomial tree", "ranks": 8, "step": 1},
        steps="step",
    )


def crossover() -> Explorer:
    """Choose ranks, link and latency: see the time of each algorithm at every size."""
    return Explorer(
        crossover_view,
        {
            "ranks": [4, 6, 8, 64, 100, 1024],
            "link": ["NVLink 4", "InfiniBand NDR", "100 GbE", "10 GbE"],
            "latency": [2, 5, 10, 20, 50],
        },
        title="Latency against bandwidth: which all-reduce is the fastest",
        labels={"link": "Bandwidth of the link", "latency": "Latency of a step"},
        units={"latency": "µs"},
        default={"ranks": 64, "link": "InfiniBand NDR", "latency": 10},
    )


# ---- step by step --------------------------------------------------------------------------------


def pairs(n: int) -> Plan:
    """Plan an all-reduce on two levels, with the smallest groups that fit."""
    return exchanges.hierarchical_all_reduce(
        n, next(size for size in range(2, n + 1) if n % size == 0)
    )


ALL_REDUCES: dict[str, Callable[[int], Plan]] = {**exchanges.ALL_REDUCES, "two levels": pairs}
LAST_STEP = max(len(plan(RANKS[-1]).steps) for plan in ALL_REDUCES.values())
FORMULAS = {**collectives.ALL_REDUCES, "two trees": collectives.two_tree_all_reduce}
RELATIVES: dict[str, tuple[Callable[[int], Plan], Start]] = {
    "broadcast, binomial tree": (exchanges.binomial_broadcast, exchanges.only),
    "broadcast, scatter and all-gather": (exchanges.scatter_all_gather_broadcast, exchanges.only),
    "reduce, binomial tree": (exchanges.binomial_reduce, exchanges.everyones),
    "reduce-scatter, ring": (exchanges.ring_reduce_scatter, exchanges.everyones),
    "reduce-scatter, halving": (exchanges.halving_reduce_scatter, exchanges.everyones),
    "all-gather, ring": (exchanges.ring_all_gather, exchanges.one_piece_each),
    "all-gather, doubling": (exchanges.doubling_all_gather, exchanges.one_piece_each),
}


def steps_view(*, algorithm: str, ranks: int, step: int) -> View:
    """Show one state; after the plan's last step nothing changes any more."""
    make, begin = RELATIVES.get(algorithm, (ALL_REDUCES.get(algorithm), exchanges.everyones))
    assert make is not None
    plan = make(ranks)
    start = begin(plan)
    step = min(step, len(plan.steps))
    held = exchanges.contents(plan, start)[step]
    moves = plan.steps[step - 1] if step else []
    finished = [
        tuple(sorted(rank for row in start for rank in row[piece]))
        for piece in range(plan.num_pieces)
    ]
    figure = drawn.step(
        held, finished, moves, alt=f"{plan.name}, {ranks} ranks, after step {step}."
    )
    return View(figure, _sentence(plan, step, held, finished), _held_table(held))


def _sentence(plan: Plan, step: int, held: list[list[Cell]], finished: list[Cell]) -> str:
    so_far = _sent(replace(plan, steps=plan.steps[:step]))
    total = f"the busiest rank has sent <b>{so_far}</b> of its buffer"
    if step == 0:
        return (
            "Before the first step. The text in a piece says which ranks' numbers it holds. "
            f"The plan takes <b>{len(plan.steps)} steps</b>."
        )
    moves = plan.steps[step - 1]
    done = sum(cell == full for row in held for cell, full in zip(row, finished, strict=True))
    sizes = {len(move.pieces) for move in moves}
    count = "1 message carries" if len(moves) == 1 else f"{len(moves)} messages carry"
    each = "" if len(moves) == 1 else " each"
    most = "up to " if len(sizes) > 1 else ""
    message = f"{count} {most}{_share(max(sizes), plan)}{each}"
    verb = "added" if moves[0].action == ADD else "copied"
    pieces = f"{done} of {plan.num_ranks * plan.num_pieces} pieces are finished"
    begin = f"<b>Step {step} of {len(plan.steps)}</b>: {message}, which is {verb}. {pieces}"
    if step == len(plan.steps):
        return f"{begin}: {total}."
    return f"{begin}. So far {total}, and in the end it will have sent {_sent(plan)}."


def _sent(plan: Plan) -> str:
    """Return what the rank that sends most sends, as a share of a buffer."""
    sent, _ = counts.bytes_by_rank(plan, [1] * plan.num_pieces)
    return str(Fraction(int(max(sent)), plan.num_pieces))


def _share(pieces: int, plan: Plan) -> str:
    return (
        "the whole buffer"
        if pieces == plan.num_pieces
        else f"{Fraction(pieces, plan.num_pieces)} of the buffer"
    )


def _held_table(held: list[list[Cell]]) -> list[list[str]]:
    header = ["holds numbers of", *(f"piece {piece}" for piece in range(len(held[0])))]
    rows = [
        [f"rank {rank}", *(drawn.named(cell) or "-" for cell in row)]
        for rank, row in enumerate(held)
    ]
    return [header, *rows]


# ---- latency against bandwidth -------------------------------------------------------------------


def crossover_view(*, ranks: int, link: str, latency: int) -> View:
    """Show one state."""
    wire = replace(hardware.link(link), latency=latency * units.us)
    seconds = {
        name: [cost(size, ranks).seconds(wire) for size in SIZES] for name, cost in FORMULAS.items()
    }
    least = [bounds.lower_bound(size, ranks).seconds(wire) for size in SIZES]
    figure = figures.crossover(
        SIZES, seconds, least, alt=f"Time of an all-reduce on {ranks} ranks, by size."
    )
    rows = []
    for size, bound in list(zip(SIZES, least, strict=True))[::4]:
        name = _fastest(size, ranks, wire)
        taken = FORMULAS[name](size, ranks).seconds(wire)
        rows.append([units.text(size, "B"), units.text(taken, "s"), name, units.text(bound, "s")])
    sentence = _winners(ranks, wire) + _why(ranks, wire)
    return View(figure, sentence, [["size", "fastest", "by", "lower bound"], *rows])


def _fastest(size: float, ranks: int, link: hardware.Link) -> str:
    return bounds.fastest({name: cost(size, ranks) for name, cost in FORMULAS.items()}, link)


def _winners(ranks: int, link: hardware.Link) -> str:
    """Say which algorithm is the fastest up to which size."""
    best = [_fastest(size, ranks, link) for size in FINE]
    winners = []
    for name, after in pairwise(best):
        if name != after:
            size = bounds.meeting(
                FORMULAS[name](1.0, ranks), FORMULAS[after](1.0, ranks), 1.0, link
            )
            assert size is not None
            winners.append(f"<b>{name}</b> up to {units.text(size, 'B')}")
    return f"The fastest is {', then '.join([*winners, f'<b>{best[-1]}</b>'])}. "


def _why(ranks: int, link: hardware.Link) -> str:
    """Say below which size a ring takes longer for its steps than for its bytes."""
    ring = collectives.ring_all_reduce(1.0, ranks)
    size = ring.steps * link.latency * link.bandwidth / ring.serial
    text = units.text(size, "B")
    return f"Below {text}, a ring takes longer for its {ring.steps} steps than for its bytes."
