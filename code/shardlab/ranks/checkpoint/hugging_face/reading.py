"""Fill what a rank keeps from a published checkpoint: only those bytes are read.

Without ZeRO every replica reads its own; with it each number is read once, and gathered.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from shardlab import comm
from shardlab.files import given
from shardlab.model.spec import TransformerSpec

from ..boxes import TensorBox
from ..together import together
from . import files
from .files import FLOATS, Reader, Stored
from .names import BUFFERS, OPTIONAL, FilePlace, sources

WEIGHTS = "weights/"
HEAD = "lm_head.weight"  # of tied models some files hold it, and nobody uses it


def read(
    folder: str | Path,
    architecture: str,
    spec: TransformerSpec,
    group: comm.Group,
    boxes: Iterable[TensorBox],
) -> int:
    """Fill the boxes of this rank's weights, and return the bytes read for them; all ranks call it.

    architecture: as in the checkpoint's config.json. Numbers are converted to the dtype of the
    boxes. Errors, raised on all ranks: ValueError for an architecture without a table, and files
    that are damaged or of another model; do not use the boxes then.
    """

    def act() -> int:
        wanted = sources(architecture, spec)
        found = _named(files.tensors(Path(folder)))
        _check(found, wanted, tied=spec.tied)
        with Reader() as reader:
            for box in boxes:
                source = wanted[box.name.removeprefix(WEIGHTS)]
                place = source.place(box.offsets, tuple(box.tensor.shape))
                numbers = reader.read(found[_key(source.name)], *place)
                box.tensor.detach().copy_(numbers.T if source.transposed else numbers)
            return reader.nbytes

    return together(group, act)[group.rank()]


def _key(name: str) -> str:
    return name.removeprefix(OPTIONAL)


def _named(found: Mapping[str, Stored]) -> dict[str, Stored]:
    """Name tensors without the prefix that is optional. Errors: ValueError for a name twice."""
    named = {_key(name): stored for name, stored in found.items()}
    if len(named) < len(found):
        raise ValueError(f"tensors are there with and without {OPTIONAL}; remove one of each pair")
    return named


def _check(found: Mapping[str, Stored], wanted: Mapping[str, FilePlace], *, tied: bool) -> None:
    """Hold the tensors of files to a model. Errors: ValueError with the first that differs."""
    hint = "use the spec and architecture of the checkpoint's config.json"
    used = {HEAD} if tied else set()
    for source in wanted.values():
        name = _key(source.name)
        used.add(name)
        if name not in found:
            raise ValueError(f"the checkpoint has no {name} {list(source.shape)}; {hint}")
        stored = found[name]
        if stored.shape != source.shape or stored.dtype not in FLOATS.values():
            raise ValueError(
                f"{name} is {list(stored.shape)} of {stored.dtype} in the checkpoint, and "
                f"{list(source.shape)} of floating-point numbers in the model; {hint}"
            )
    for name in sorted({*found} - used):
        if not BUFFERS.search(f".{name}"):
            raise ValueError(
                given.line(f"nothing in the model takes the checkpoint's {name}; {hint}")
            )
