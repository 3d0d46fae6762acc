"""The largest numbers that a reader may give: more is a mistake, and takes long to plan."""

SIZE = 10**9  # of a model, such as its vocabulary
LAYERS = 10_000
GPUS_OF_A_NODE = 72  # as in NVL72 racks; routes between more take seconds to find
GPUS = 10**6  # of all nodes together
BATCH = 10**10  # tokens of a step
TRAINING = 10**18  # tokens
PLANS = 100  # that are printed; each is timed under many rates
NUMBER = 10**9  # dollars, watts, GB/s, TFLOPs; its inverse is the smallest


def hold(name: str, value: float, most: float, least: float = 1) -> None:
    """Refuse a number that is not from `least` to `most`. Errors: ValueError with all three."""
    if not least <= value <= most:
        raise ValueError(f"{name}={value} must be a number from {least:g} to {most:,}")
