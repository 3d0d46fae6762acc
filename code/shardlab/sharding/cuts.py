"""Which piece of each parameter a tensor-parallel rank holds, as plain data.

Megatron-LM (Shoeybi et al. 2019, section 3, https://arxiv.org/abs/1909.08053) cuts queries, keys,
values and the first feed-forward matrix by their outputs, so that each rank has whole heads and
whole hidden units. It cuts the matrices that follow by their inputs, and embedding and head by
tokens of the vocabulary. Norms, and biases that are added to a sum over ranks, stay whole.

Each expert of a mixture is cut like a feed-forward block, or stays whole and is dealt to one rank;
its router stays whole. Which experts a rank of expert parallelism holds is in no cut: it holds
those, and no piece of the others.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, prod

from shardlab.files.arguments import Count, checked, within
from shardlab.model.attention import LatentAttention
from shardlab.model.experts import Experts
from shardlab.model.recurrent import Recurrent
from shardlab.model.spec import TransformerSpec

from .hybrids import by_layer


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
def block(spec: TransformerSpec, tp: Count, *, whole_experts: bool = False) -> dict[str, Cut]:
    """Cut the parameters of one layer, by their names in the reference model.

    Of a mixture it is a layer with experts; `TransformerSpec.dense` has the others. Of a hybrid it
    is a layer with attention; `TransformerSpec.layer_kinds` has the others.

    With fewer key/value heads than ranks, tp / kv_heads neighbours hold the same head. With whole
    experts each of them is on one rank. A `tp` that does not split the layer is refused by
    `layout.Layout.check`, not here.
    """
    hidden = spec.hidden_size
    kv_pieces = min(spec.kv_heads, tp)
    entering, leaving, ffn = (
        _Linear(tp=tp, bias=place in spec.biases) for place in ("qkv", "out", "ffn")
    )
    heads = {
        **entering.by_outputs("attention.q", spec.attention_size, hidden),
        **entering.by_outputs("attention.k", spec.kv_size, hidden, pieces=kv_pieces),
        **entering.by_outputs("attention.v", spec.kv_size, hidden, pieces=kv_pieces),
        **leaving.by_inputs("attention.out", hidden, spec.attention_size),
    }
    if spec.output_gate:
        heads |= entering.by_outputs("attention.gate", spec.attention_size, hidden)
    if spec.sinks:
        heads["attention.sinks"] = Cut(shape=(spec.num_heads,), ranks=tp, dim=0, pieces=tp)
    if spec.latent:
        heads = _latent(spec, spec.latent, tp)
    if spec.states_only:
        heads = _recurrent(spec.states_only, hidden, tp)
    else:
        heads |= _query_norms(spec, tp)
    heads |= _norm("attention_norm", spec, tp)
    if not spec.num_blocks:
        return heads
    cuts = _norm("mlp_norm", spec, tp) | ({} if spec.blocks_only else heads)
    cuts |= _post_norms(spec, tp)
    if spec.experts:
        return cuts | _mixture(spec, spec.experts, ffn, whole_experts)
    return cuts | ffn.feed_forward("mlp", spec, spec.ffn)


def _latent(spec: TransformerSpec, latent: LatentAttention, tp: int) -> dict[str, Cut]:
    """Cut what makes heads from the narrow layers; those, norms and an indexer stay whole."""
    hidden, heads, linear = spec.hidden_size, latent.num_heads, _Linear(tp=tp, bias=False)
    keys = heads * (latent.plain_size + latent.value_size)
    whole = {
        "attention.kv_narrow.weight": (latent.kv_rank + latent.rotary_size, hidden),
        "attention.kv_scale": (latent.kv_rank,),
    }
    if latent.query_rank:
        whole["attention.q_narrow.weight"] = (latent.query_rank, hidden)
        whole["attention.q_scale"] = (latent.query_rank,)
    if latent.indexer and latent.query_rank:
        whole["attention.index_q.weight"] = (latent.index_size, latent.query_rank)
        whole["attention.index_narrow.weight"] = (latent.indexer.narrow_size, hidden)
        whole["attention.index_scale"] = (2 * latent.indexer.head_size,)
    inputs = latent.query_rank or hidden
    return {
        **{name: Cut(shape=shape, ranks=tp) for name, shape in whole.items()},
        **linear.by_outputs("attention.q", heads * latent.query_size, inputs),
        **linear.by_outputs("attention.kv", keys, latent.kv_rank),
        **linear.by_inputs("attention.out", hidden, heads * latent.value_size),
    }


def _recurrent(recurrent: Recurrent, hidden: int, tp: int) -> dict[str, Cut]:
    """Cut what belongs to heads; the norm of one head and narrow layers stay whole."""
    return {
        f"attention.{name}": Cut(shape=shape, ranks=tp, dim=dim, pieces=tp if dim in (0, 1) else 1)
        for name, (shape, dim) in recurrent.shapes(hidden).items()
    }


def _mixture(
    spec: TransformerSpec, experts: Experts, linear: "_Linear", whole: bool
) -> dict[str, Cut]:
    """Cut the router, the experts by their numbers, and the shared ones, which are one block."""
    cuts: dict[str, Cut] = {}
    hidden = spec.hidden_size
    for number in range(experts.num_experts):
        cuts |= linear.feed_forward(f"mlp.experts.{number}", spec, experts.expert_size)
    if whole:
        cuts = {name: Cut(shape=cut.shape, ranks=1) for name, cut in cuts.items()}
    if experts.num_shared:
        cuts |= linear.feed_forward("mlp.shared", spec, experts.shared_size)
    if experts.shared_gate:
        cuts["mlp.shared_gate.weight"] = Cut(shape=(1, hidden), ranks=linear.tp)
    cuts["mlp.router.weight"] = Cut(shape=(experts.num_experts, hidden), ranks=linear.tp)
    if linear.bias:
        cuts["mlp.router.bias"] = Cut(shape=(experts.num_experts,), ranks=linear.tp)
    return cuts


@checked
def ends(spec: TransformerSpec, tp: Count) -> dict[str, Cut]:
    """Cut the parameters before and after the layers. A tied head is the embedding: not listed."""
    hidden = spec.hidden_size
    vocabulary = Cut(shape=(spec.vocab_size, hidden), ranks=tp, dim=0, pieces=tp)
    cuts = {"embedding.tokens.weight": vocabulary}
    if spec.positions == "learned":
        cuts["embedding.positions.weight"] = Cut(shape=(spec.context_length, hidden), ranks=tp)
    cuts |= _norm("norm", spec, tp)
    if not spec.tied:
        cuts["head.weight"] = vocabulary
    return cuts


@checked
def model(spec: TransformerSpec, tp: Count, *, whole_experts: bool = False) -> dict[str, Cut]:
    """Cut every parameter of the reference model, by name; a tied one is listed once."""
    cuts = ends(spec, tp)
    layers = by_layer(spec)
    cut = {kind: block(kind, tp, whole_experts=whole_experts) for kind in {*layers}}
    for index, kind in enumerate(layers):
        cuts |= {f"blocks.{index}.{name}": each for name, each in cut[kind].items()}
    return cuts


@checked
def num_parameters(spec: TransformerSpec, tp: Count) -> int:
    """Count the numbers that one rank holds, with padding and what other ranks hold as well."""
    if spec.layer_kinds:
        return round(sum(share * num_parameters(kind, tp) for share, kind in spec.layer_kinds))
    sparse = spec.num_layers - spec.num_dense
    layers = sparse * _held(block(spec, tp)) + spec.num_dense * _held(block(spec.dense, tp))
    return _held(ends(spec, tp)) + layers


def _held(cuts: Mapping[str, Cut]) -> int:
    return sum(prod(cut.local_shape) for cut in cuts.values())


@dataclass(frozen=True)
class _Linear:
    """Cuts the linear layers of a block: weight [outputs, inputs] and, with `bias`, [outputs]."""

    tp: int
    bias: bool

    def feed_forward(self, block: str, spec: TransformerSpec, width: int) -> dict[str, Cut]:
        """Cut the matrices into the hidden layer, one or two, and the one out of it."""
        hidden, cuts = spec.hidden_size, dict[str, Cut]()
        for name in ("gate", "up") if spec.has_gate else ("up",):
            cuts |= self.by_outputs(f"{block}.{name}", width, hidden)
        return cuts | self.by_inputs(f"{block}.down", hidden, width)

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


def _query_norms(spec: TransformerSpec, tp: int) -> dict[str, Cut]:
    """Cut the norms of queries and keys: of one head, or over all of them."""
    norms: dict[str, Cut] = {}
    if spec.head_norms:
        for name in ("attention.q_scale", "attention.k_scale"):
            norms |= _norm(name, spec, tp, spec.head_size)
    if spec.whole_norms:
        widths = {"attention.q_scale": (spec.attention_size, tp)}
        widths["attention.k_scale"] = spec.kv_size, min(spec.kv_heads, tp)
        for name, (width, pieces) in widths.items():
            norms[name] = Cut(shape=(width,), ranks=tp, dim=0, pieces=pieces)
    return norms


def _post_norms(spec: TransformerSpec, tp: int) -> dict[str, Cut]:
    """Cut the norms after each half of a layer: every rank holds them."""
    norms: dict[str, Cut] = {}
    if spec.post_norms:
        for name in ("attention_post_norm", "mlp_post_norm"):
            norms |= _norm(name, spec, tp)
    return norms


def _norm(name: str, spec: TransformerSpec, tp: int, width: int | None = None) -> dict[str, Cut]:
    """LayerNorm has a weight and a bias, RMSNorm a weight; every rank holds all of them."""
    whole = Cut(shape=(width or spec.hidden_size,), ranks=tp)
    parts = ("weight", "bias") if spec.style == "gpt2" else ("weight",)
    return {f"{name}.{part}": whole for part in parts}
