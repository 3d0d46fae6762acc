"""Which piece of each parameter a tensor-parallel rank holds, as plain data.

Megatron-LM (Shoeybi et al. 2019, section 3, https://arxiv.org/abs/1909.08053): queries, keys, values and the first
feed-forward matrix are cut by their outputs, so that each rank has whole heads and whole hidden units; the matrices
that follow are cut by their inputs; embedding and head by tokens of the vocabulary. Norms, and biases that are added
to a sum over ranks, stay whole on every rank.
"""

from dataclasses import dataclass
from math import ceil, prod

from shardlab.spec import TransformerSpec


@dataclass(frozen=True, kw_only=True)
class Cut:
    """One parameter and how it is dealt to `ranks` ranks: in `pieces` of equal size, neighbours sharing a piece."""

    shape: tuple[int, ...]  # of the whole; of a matrix [outputs, inputs], as torch stores it
    ranks: int
    dim: int | None = None  # the dimension that is cut; None: every rank holds all of it
    pieces: int = 1

    @property
    def holders(self) -> int:
        """How many ranks hold the same piece."""
        return self.ranks // self.pieces

    @property
    def size(self) -> int:
        """Rows (or columns) of one piece; where they do not divide, the last pieces are filled up with padding."""
        return 0 if self.dim is None else ceil(self.shape[self.dim] / self.pieces)

    @property
    def local_shape(self) -> tuple[int, ...]:
        """The shape on one rank, padding included."""
        return tuple(self.size if dim == self.dim else length for dim, length in enumerate(self.shape))

    def held(self, rank: int) -> range:
        """The rows (or columns) of the whole that this rank holds, without padding; of a whole parameter, none."""
        if self.dim is None:
            return range(0)
        start, length = rank // self.holders * self.size, self.shape[self.dim]
        return range(min(start, length), min(start + self.size, length))


def block(spec: TransformerSpec, tp: int) -> dict[str, Cut]:
    """The parameters of one layer, by their names in the reference model.

    Where there are fewer key/value heads than ranks, tp / kv_heads neighbours hold the same head. What does not split
    is for `layout.Layout.check` to refuse.
    """
    h, kv, f, bias = spec.hidden_size, spec.kv_size, spec.ffn, spec.style == "gpt2"
    mlp = ("up",) if spec.style == "gpt2" else ("gate", "up")
    return {
        **_norm("attention_norm", spec, tp),
        **_linear("attention.q", h, h, tp, dim=0, bias=bias),
        **_linear("attention.k", kv, h, tp, dim=0, bias=bias, pieces=min(spec.kv_heads, tp)),
        **_linear("attention.v", kv, h, tp, dim=0, bias=bias, pieces=min(spec.kv_heads, tp)),
        **_linear("attention.out", h, h, tp, dim=1, bias=bias),
        **_norm("mlp_norm", spec, tp),
        **{name: cut for first in mlp for name, cut in _linear(f"mlp.{first}", f, h, tp, dim=0, bias=bias).items()},
        **_linear("mlp.down", h, f, tp, dim=1, bias=bias),
    }


def ends(spec: TransformerSpec, tp: int) -> dict[str, Cut]:
    """The parameters before and after the layers; a tied head is the embedding."""
    vocabulary = Cut(shape=(spec.vocab_size, spec.hidden_size), ranks=tp, dim=0, pieces=tp)
    positions = Cut(shape=(spec.context_length, spec.hidden_size), ranks=tp)
    return {
        "embedding.tokens.weight": vocabulary,
        **({"embedding.positions.weight": positions} if spec.style == "gpt2" else {}),
        **_norm("norm", spec, tp),
        **({} if spec.tied else {"head.weight": vocabulary}),
    }


def model(spec: TransformerSpec, tp: int) -> dict[str, Cut]:
    """Every parameter of the reference model, by name; a tied one stands once."""
    layer = block(spec, tp)
    layers = {f"blocks.{i}.{name}": cut for i in range(spec.num_layers) for name, cut in layer.items()}
    return {**ends(spec, tp), **layers}


def num_parameters(spec: TransformerSpec, tp: int) -> int:
    """Numbers that one rank holds, padding and what it shares with others included."""
    first, layer = (sum(prod(cut.local_shape) for cut in cuts(spec, tp).values()) for cuts in (ends, block))
    return first + spec.num_layers * layer


def _linear(
    name: str, outputs: int, inputs: int, tp: int, *, dim: int, bias: bool, pieces: int | None = None
) -> dict[str, Cut]:
    pieces = tp if pieces is None else pieces
    weight = {f"{name}.weight": Cut(shape=(outputs, inputs), ranks=tp, dim=dim, pieces=pieces)}
    if not bias:
        return weight
    along = Cut(shape=(outputs,), ranks=tp, dim=0, pieces=pieces) if dim == 0 else Cut(shape=(outputs,), ranks=tp)
    return {**weight, f"{name}.bias": along}


def _norm(name: str, spec: TransformerSpec, tp: int) -> dict[str, Cut]:
    whole, names = Cut(shape=(spec.hidden_size,), ranks=tp), ("weight", "bias")
    return {f"{name}.{each}": whole for each in names[: 2 if spec.style == "gpt2" else 1]}
