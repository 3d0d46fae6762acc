"""From the contents of a `config.json` to sizes."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from shardlab.files import given
from shardlab.files.arguments import checked
from shardlab.model.spec import TransformerSpec
from shardlab.sharding.layout import listed

from .. import mixtures, models
from .dense import DENSE
from .fields import Fields, short
from .hybrids import DELTA
from .latent import LATENT
from .mamba import MAMBA
from .mixtures import MIXTURES
from .wrappers import unwrapped

ARCHITECTURES: dict[str, Callable[[Fields], TransformerSpec]] = {
    **DENSE,
    **MIXTURES,
    **LATENT,
    **DELTA,
    **MAMBA,
}
_STATES = "layers that keep a state instead of keys and values"
# Architecture -> what its layers have that a TransformerSpec cannot say.
LACKING = {
    "Gemma3nForCausalLM": "parameters for each layer and token, and layers that share keys",
    "MiniMaxText01ForCausalLM": f"{_STATES} (lightning attention)",
    "MiniMaxForCausalLM": f"{_STATES} (lightning attention)",
}


@dataclass(frozen=True, kw_only=True)
@checked
class HuggingFaceModel:
    """What a `config.json` says about a model's sizes."""

    architecture: str
    spec: TransformerSpec
    dropout: bool = False
    notes: tuple[str, ...] = ()  # fields that the times and bytes of a plan leave out
    ignored: tuple[str, ...] = ()  # fields not understood: if one is a size, all counts are wrong

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
@given.in_one_line()
def read(
    config: Mapping[str, Any],
    *,
    like: str | None = None,
    ignore_unknown: bool = False,
    ignore_sizes: Collection[str] = (),
) -> HuggingFaceModel:
    """Turn the contents of a `config.json` into sizes.

    like: the architecture whose layers a model under another name has; all sizes must be given.
    ignore_unknown: ignore fields that are not understood, instead of refusing the file, unless
    they may be sizes. ignore_sizes: names of those to ignore, too.

    Errors: ValueError that names the fields that are missing, of a wrong kind, or not understood.
    """
    text, notes = unwrapped(config)
    architecture = _same_layers(text, like) if like else _architecture(text)
    fields = Fields(text, architecture)
    fields.notes += notes
    fields.ignore("architectures")
    spec = ARCHITECTURES[architecture](fields)
    if like and fields.assumed:
        raise ValueError(
            f"--like {like}: the file leaves out {listed(fields.assumed)}, and the defaults are "
            "those of another model; add what the checkpoint has to a copy of the file"
        )
    dropout = fields.dropout()
    fields.note()
    ignored = fields.refuse_others(architecture, spec, ignore_unknown, ignore_sizes)
    return HuggingFaceModel(
        architecture=architecture,
        spec=spec,
        dropout=dropout,
        notes=tuple(fields.notes),
        ignored=ignored,
    )


def _architecture(config: Mapping[str, Any]) -> str:
    """Return the one architecture of a file. Errors: ValueError for one that is not counted."""
    named = Fields(config).take("architectures", list)
    name = str(named[0]) if len(named) == 1 else ""
    if name in LACKING:
        raise ValueError(
            f"{name} has {LACKING[name]}, which this planner does not count; no plan of its size "
            "would be honest"
        )
    if name not in ARCHITECTURES:
        raise ValueError(
            f"architectures={short(named)} is not understood; use one of {listed(ARCHITECTURES)}, "
            "or --like with the one whose layers the model has, or, in Python, write the sizes as "
            "a TransformerSpec"
        )
    return name


def _same_layers(config: Mapping[str, Any], like: str) -> str:
    """Return `like`. Errors: ValueError if it is not counted, or the file's own architecture is."""
    if like not in ARCHITECTURES:
        raise ValueError(f"--like {like} is not understood; use one of {listed(ARCHITECTURES)}")
    named = config.get("architectures")
    for name in map(str, named if isinstance(named, list) else ()):
        if name in ARCHITECTURES or name in LACKING:
            raise ValueError(f"--like {like}: {name} is known, with its own layers; leave it out")
    return like
