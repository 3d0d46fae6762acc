"""From the contents of a `config.json` to sizes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shardlab.arguments import checked
from shardlab.model.spec import TransformerSpec
from shardlab.sharding.layout import listed

from .. import mixtures, models
from .dense import DENSE
from .fields import Fields
from .mixtures import MIXTURES

ARCHITECTURES: dict[str, Callable[[Fields], TransformerSpec]] = {**DENSE, **MIXTURES}


@dataclass(frozen=True, kw_only=True)
@checked
class HuggingFaceModel:
    """What a `config.json` says about a model's sizes."""

    architecture: str
    spec: TransformerSpec
    dropout: bool = False
    notes: tuple[str, ...] = ()  # fields that the times and bytes of a plan leave out

    @property
    def parameters(self) -> dict[str, int]:
        """The number of parameters of each part."""
        count = mixtures.parameters if self.spec.experts else models.parameters
        return count(self.spec)

    @property
    def num_parameters(self) -> int:
        """The number of all parameters."""
        return sum(self.parameters.values())


@checked
def read(config: Mapping[str, Any]) -> HuggingFaceModel:
    """Turn the contents of a `config.json` into sizes.

    Errors: ValueError that names the field that is missing, of a wrong kind, or not understood.
    """
    fields = Fields(config)
    named = fields.take("architectures", list)
    if len(named) != 1 or str(named[0]) not in ARCHITECTURES:
        raise ValueError(
            f"architectures={named} is not understood; use one of {listed(ARCHITECTURES)}, or "
            "write the sizes as a TransformerSpec"
        )
    spec = ARCHITECTURES[named[0]](fields)
    dropout = fields.dropout()
    fields.note()
    fields.refuse_others(named[0])
    return HuggingFaceModel(
        architecture=named[0],
        spec=spec,
        dropout=dropout,
        notes=tuple(fields.notes),
    )
