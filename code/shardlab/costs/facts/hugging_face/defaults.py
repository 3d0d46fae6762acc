"""What a field means that a file leaves out: the rows of `defaults.csv`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shardlab.files.arguments import checked

from .. import tables


@dataclass(frozen=True, kw_only=True)
@checked
class Defaults:
    """The defaults of an architecture in transformers."""

    name: str  # of the architecture
    sizes: Mapping[str, int]
    more: Mapping[str, bool | int | float] | None = None


DEFAULTS: dict[str, dict[str, float]] = {
    each.name: {**each.sizes, **(each.more or {})}
    for each in tables.rows("defaults", Defaults, Path(__file__).parent)
}
