"""The explorer of operations: how often to save, and what is lost all the same."""

from shardlab.costs import units
from shardlab.costs.facts.machines import RENT
from shardlab.costs.operations import Losses, Reliability, between_failures
from shardlab.figures import operations as figures

from .explorer import Explorer
from .view import View

MINUTE = 60.0  # s
COPY = 2.0  # s for which training stands still while its state is copied to the host's memory
MINUTES = [0.1 * 10 ** (step / 10) for step in range(39)]  # 6 s to 10 h
SAVES = {"training waits": False, "in the background": True}


def goodput() -> Explorer:
    """Choose a machine, its saves and restarts: see what is lost, and the best interval."""
    return Explorer(
        goodput_view,
        {
            "gpus": [64, 1024, 16_384, 100_000],
            "hours": [10_000, 30_000, 50_000],
            "save": [10, 60, 300],
            "saves": list(SAVES),
            "restart": [1, 10, 30],
            "interval": [1, 5, 10, 30, 60, 180],
        },
        title="What a run loses, by how often it saves",
        labels={
            "gpus": "GPUs",
            "hours": "Hours of one GPU between failures",
            "save": "Time to write a save",
            "saves": "Saves",
            "restart": "From a failure to the next step",
            "interval": "Training between two saves",
        },
        units={"hours": "h", "save": "s", "restart": "min", "interval": "min"},
        default={"gpus": 16_384, "hours": 50_000, "save": 60, "restart": 10, "interval": 30},
    )


def goodput_view(
    *, gpus: int, hours: int, save: int, saves: str, restart: int, interval: int
) -> View:
    """Show one state: losses against the interval, the chosen one and the best one."""
    between = between_failures(gpus, hours)
    behind = SAVES[saves]
    run = Reliability(
        between=between,
        save=min(COPY, save) if behind else save,
        lag=save if behind else 0.0,
        restart=restart * MINUTE,
    )
    train = max(interval * MINUTE, run.lag)
    lost, best = run.losses(train), run.best_interval()
    minutes = [each for each in MINUTES if each * MINUTE >= run.lag]
    found = [run.losses(each * MINUTE) for each in minutes]
    shares = {name: [getattr(each, name) for each in found] for name in Losses._fields[1:]}
    shares["together"] = [1 - each.useful for each in found]
    sentence = (
        f"Something fails every {_time(between)}. With {_time(train)} of training between saves "
        f"<b>{100 * (1 - lost.useful):.1f} %</b> is lost; with {_time(best)}, the best, "
        f"{100 * (1 - run.goodput(best)):.1f} %."
    )
    each = {**dict(zip(Losses._fields[1:], lost[1:], strict=True)), "together": 1 - lost.useful}
    rows = [
        ["lost to", "of the time", "GPU-hours a day", f"dollars a day, at {RENT:g} an hour"],
        *(_row(name, share, share * gpus * units.DAY / units.HOUR) for name, share in each.items()),
    ]
    return View(figures.losses(minutes, shares, (train / MINUTE, 1 - lost.useful)), sentence, rows)


def _row(name: str, share: float, hours: float) -> list[str]:
    return [name, f"{100 * share:.1f} %", f"{hours:,.0f}", f"{hours * RENT:,.0f}"]


def _time(seconds: float) -> str:
    """Write seconds, minutes or hours, whichever is short."""
    for unit, size in (("h", units.HOUR), ("min", MINUTE)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
