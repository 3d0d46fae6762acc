"""How published trainings of mixtures of experts were cut."""

from dataclasses import dataclass

from shardlab.files.arguments import Count, checked
from shardlab.sharding.layout import Layout

from .rows import rows


@dataclass(frozen=True, kw_only=True)
@checked
class MixtureRow:
    """A layout in training, without tensor parallelism."""

    model: str
    dp: Count
    pp: Count
    ep: Count

    @property
    def layout(self) -> Layout:
        """The layout, with ZeRO-1."""
        return Layout(dp=self.dp, pp=self.pp, ep=self.ep, zero=1)


LAYOUTS: dict[str, Layout] = {row.model: row.layout for row in rows("mixture_layouts", MixtureRow)}
