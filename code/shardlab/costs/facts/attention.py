"""What kernels of attention reach on a generation of chips: the rows of `attention.csv`."""

from dataclasses import dataclass

from shardlab.files.arguments import Share, checked

from . import tables
from .hardware import Chip

NARROW = 64  # numbers of a head; wider heads reach the whole share
NEWEST = "newest"
OTHER = "any other"  # the generation of chips that have no row of their own


@dataclass(frozen=True, kw_only=True)
@checked
class AttentionCurve:
    """What one pass of attention reaches, over the length of a sequence."""

    long: Share  # of the chip's 16-bit peak, on sequences without end
    keys: float  # pairs of tokens that cost as much as starting a row of queries
    narrow: Share  # the factor of `long` for heads of NARROW numbers and fewer

    def share(self, head_size: int) -> float:
        """Return the share of the peak on long sequences, for heads of `head_size` numbers."""
        return self.long * (self.narrow if head_size <= NARROW else 1)


@dataclass(frozen=True, kw_only=True)
@checked
class AttentionKernel:
    """A kernel of attention on one generation of chips."""

    name: str
    kernel: str
    generation: str
    forward: AttentionCurve
    backward: AttentionCurve
    source: str


KERNELS = {
    (each.kernel, each.generation): each for each in tables.rows("attention", AttentionKernel)
}


@checked
def attention(kernel: str, chip: Chip) -> AttentionKernel:
    """Return what `kernel` reaches on the chip's generation, or else what the newest one does.

    Errors: ValueError that lists the known kernels.
    """
    known = dict.fromkeys(name for name, _ in KERNELS)
    if kernel not in known:
        raise ValueError(f"no kernel of attention is called {kernel!r}; known: {', '.join(known)}")
    generation = chip.generation or OTHER
    own = KERNELS.get((kernel, generation)) or KERNELS.get((NEWEST, generation))
    return own or KERNELS[NEWEST, OTHER]
