"""Which piece of each parameter a tensor-parallel rank holds, as plain data.

Megatron-LM (Shoeybi et al. 2019, section 3, https://arxiv.org/abs/1909.08053) cuts queries, keys,
values and the first feed-forward matrix by their outputs, so that each rank has whole heads and
whole hidden units. It cuts the matrices that follow by their inputs, and embedding and head by
tokens of the vocabulary. Norms, and biases that are added to a sum over ranks, stay whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, prod

from shardlab.arguments import Count, checked, within
from shardlab.spec import TransformerSpec


@dataclass(frozen=True, kw_only=True)
@checked
class Cut:
    """How one parameter is dealt to `ranks` ranks: in `pieces` of equal size.

    Where there are fewer pieces than ranks, neighbours hold the same piece.
    """

    shape: tuple[int, ...]  # of the whole; of a matrix [outputs, inputs], as torch stores it
    ranks: Count
    dim: int | None = None  # the dimension that is cut; None: every rank holds all of it
    pieces: Count = 1

    def __post_init__(self) -> None:
        if self.dim is not None:
            within("dim", self.dim, len(self.shape))
        if self.ranks % self.pieces:
            raise ValueError(f"pieces={self.pieces} must divide ranks={self.ranks}")

    @property
    def holders(self) -> int:
        """The number of ranks that hold the same piece."""
        return self.ranks // self.pieces

    @property
    def size(self) -> int:
        """Rows (or columns) of one piece; where they do not divide, the last pieces are padded."""
        return 0 if self.dim is None else ceil(self.shape[self.dim] / self.pieces)

    @property
    def local_shape(self) -> tuple[int, ...]:
        """The shape on one rank, padding included."""
        shape = list(self.shape)
        if self.dim is not None:
            shape[self.dim] = self.size
        return tuple(shape)

    def held(self, rank: int) -> range:
        """Return the rows (or columns) of the whole that `rank` holds, without padding.

        The range is empty for a parameter that is not cut.
        """
        within("rank", rank, self.ranks)
        if self.dim is None:
            return range(0)
        length = self.shape[self.dim]
        start = rank // self.holders * self.size
        return range(min(start, length), min(start + self.size, length))


@checked
def block(spec: TransformerSpec, tp: Count) -> dict[str, Cut]:
    """Cut the parameters of one layer, by their names in the reference model.

    With fewer key/value heads than ranks, tp / kv_heads neighbours hold the same head. A `tp` that
    does not split the layer is refused by `layout.Layout.check`, not here.
    """
    hidden = spec.hidden_size
    linear = _Linear(tp=tp, bias=spec.style == "gpt2")
    kv_pieces = min(spec.kv_heads, tp)
    first = ("up",) if spec.style == "gpt2" else ("gate", "up")
    cuts = {
        **_norm("attention_norm", spec, tp),
        **linear.by_outputs("attention.q", hidden, hidden),
        **linear.by_outputs("attention.k", spec.kv_size, hidden, pieces=kv_pieces),
        **linear.by_outputs("attention.v", spec.kv_size, hidden, pieces=kv_pieces),
        **linear.by_inputs("attention.out", hidden, hidden),
        **_norm("mlp_norm", spec, tp),
    }
    for name in first:
        cuts |= linear.by_outputs(f"mlp.{name}", spec.ffn, hidden)
    return cuts | linear.by_inputs("mlp.down", hidden, spec.ffn)


@checked
def ends(spec: TransformerSpec, tp: Count) -> dict[str, Cut]:
    """Cut the parameters before and after the layers. A tied head is the embedding: not listed."""
    hidden = spec.hidden_size
    vocabulary = Cut(shape=(spec.vocab_size, hidden), ranks=tp, dim=0, pieces=tp)
    cuts = {"embedding.tokens.weight": vocabulary}
    if spec.style == "gpt2":
        cuts["embedding.positions.weight"] = Cut(shape=(spec.context_length, hidden), ranks=tp)
    cuts |= _norm("norm", spec, tp)
    if not spec.tied:
        cuts["head.weight"] = vocabulary
    return cuts


@checked
def model(spec: TransformerSpec, tp: Count) -> dict[str, Cut]:
    """Cut every parameter of the reference model, by name; a tied one is listed once."""
    cuts = ends(spec, tp)
    layer = block(spec, tp)
    for index in range(spec.num_layers):
        cuts |= {f"blocks.{index}.{name}": cut for name, cut in layer.items()}
    return cuts


@checked
def num_parameters(spec: TransformerSpec, tp: Count) -> int:
    """Count the numbers that one rank holds, with padding and what other ranks hold as well."""
    return _held(ends(spec, tp)) + spec.num_layers * _held(block(spec, tp))


def _held(cuts: Mapping[str, Cut]) -> int:
    return sum(prod(cut.local_shape) for cut in cuts.values())


@dataclass(frozen=True)
class _Linear:
    """Cuts the linear layers of a block: weight [outputs, inputs] and, with `bias`, [outputs]."""

    tp: int
    bias: bool

    def by_outputs(
        self, name: str, outputs: int, inputs: int, pieces: int | None = None
    ) -> dict[str, Cut]:
        """Cut weight and bias into `pieces` (None: one for each rank), each with whole outputs."""
        pieces = self.tp if pieces is None else pieces
        weight = Cut(shape=(outputs, inputs), ranks=self.tp, dim=0, pieces=pieces)
        bias = Cut(shape=(outputs,), ranks=self.tp, dim=0, pieces=pieces)
        return self._named(name, weight, bias)

    def by_inputs(self, name: str, outputs: int, inputs: int) -> dict[str, Cut]:
        """Cut the weight by its inputs; the bias is added to a sum over ranks and stays whole."""
        weight = Cut(shape=(outputs, inputs), ranks=self.tp, dim=1, pieces=self.tp)
        bias = Cut(shape=(outputs,), ranks=self.tp)
        return self._named(name, weight, bias)

    def _named(self, name: str, weight: Cut, bias: Cut) -> dict[str, Cut]:
        named = {f"{name}.weight": weight}
        return {**named, f"{name}.bias": bias} if self.bias else named


def _norm(name: str, spec: TransformerSpec, tp: int) -> dict[str, Cut]:
    """LayerNorm has a weight and a bias, RMSNorm a weight; every rank holds all of them."""
    whole = Cut(shape=(spec.hidden_size,), ranks=tp)
    parts = ("weight", "bias") if spec.style == "gpt2" else ("weight",)
    return {f"{name}.{part}": whole for part in parts}
