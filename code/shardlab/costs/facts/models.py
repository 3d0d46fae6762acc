"""Published models: their sizes, and their parameters counted from the shapes of their layers.

The models are the rows of `models.csv`. The counts follow the layers of Vaswani et al. 2017
(https://arxiv.org/abs/1706.03762) as GPT-2 and Llama arrange them.
"""

from dataclasses import dataclass

from shardlab.files.arguments import checked
from shardlab.model.spec import TransformerSpec

from . import tables


@dataclass(frozen=True, kw_only=True)
@checked
class Published:
    """A published model."""

    name: str
    spec: TransformerSpec
    parameters: int | None  # of the released checkpoint; None where none was released
    date: str  # of publication, year-month
    source: str  # of the sizes


PUBLISHED = {each.name: each for each in tables.rows("models", Published)}


@checked
def parameters(spec: TransformerSpec) -> dict[str, int]:
    """Count the parameters of each part, exactly. A tied head has none of its own."""
    layers = spec.num_layers
    return {
        "token embedding": spec.vocab_size * spec.hidden_size,
        "position embedding": learned_positions(spec) * spec.hidden_size,
        "attention": spec.num_attention * attention_parameters(spec)
        + spec.num_recurrent * recurrent_parameters(spec),
        "feed-forward": (spec.num_blocks - spec.num_dense) * feed_forward_parameters(spec)
        + spec.num_dense * feed_forward_parameters(spec.dense),
        "norms": (spec.num_norms * layers + 1) * norm_parameters(spec),
        "head": 0 if spec.tied else spec.vocab_size * spec.hidden_size,
    }


@checked
def num_parameters(spec: TransformerSpec) -> int:
    """Count all parameters of the model."""
    return sum(parameters(spec).values())


@checked
def learned_positions(spec: TransformerSpec) -> int:
    """Count the positions that have a vector of their own: all of the context, or none."""
    return spec.context_length if spec.positions == "learned" else 0


@checked
def attention_parameters(spec: TransformerSpec) -> int:
    """Count one layer's attention: queries, keys, values, norms, and the output projection.

    Of a hybrid it is a layer with attention; `recurrent_parameters` has the others.
    """
    h = spec.hidden_size
    if spec.latent:
        return spec.latent.parameters(h)
    entering = spec.attention_size + 2 * spec.kv_size
    biases = entering * ("qkv" in spec.biases) + h * ("out" in spec.biases)
    beside = biases + spec.sinks * spec.num_heads + query_norm_parameters(spec)
    return h * (entering + (1 + spec.output_gate) * spec.attention_size) + beside


@checked
def recurrent_parameters(spec: TransformerSpec) -> int:
    """Count what stands in place of attention in a layer with states; 0 where there is none."""
    return spec.recurrent.parameters(spec.hidden_size) if spec.recurrent else 0


@checked
def attention_matrices(spec: TransformerSpec) -> int:
    """Count the parameters of one layer's attention that multiply: no norms, no biases."""
    if spec.latent:
        return spec.latent.matrices(spec.hidden_size)
    queries = (2 + spec.output_gate) * spec.attention_size
    return spec.hidden_size * (queries + 2 * spec.kv_size)


@checked
def query_norm_parameters(spec: TransformerSpec) -> int:
    """Count one layer's norms of queries and keys: shared by all heads, or over all of them."""
    width = 2 * spec.head_size * spec.head_norms
    width += (spec.attention_size + spec.kv_size) * spec.whole_norms
    return width * (norm_parameters(spec) // spec.hidden_size)


@checked
def feed_forward_parameters(spec: TransformerSpec) -> int:
    """Count one layer's feed-forward block: two matrices, or three with a gate.

    A mixture stands in its place: its router, all routed experts and the shared ones.
    """
    if spec.experts:
        router = spec.experts.num_experts * (spec.hidden_size + ("ffn" in spec.biases))
        routed = spec.experts.num_experts * expert_parameters(spec)
        return router + routed + shared_parameters(spec)
    return _block(spec, spec.ffn)


@checked
def expert_parameters(spec: TransformerSpec) -> int:
    """Count one routed expert, 0 in a model without experts."""
    return _block(spec, spec.experts.expert_size) if spec.experts else 0


@checked
def shared_parameters(spec: TransformerSpec) -> int:
    """Count one layer's shared experts, which are one block; 0 where there are none."""
    if not spec.experts or not spec.experts.num_shared:
        return 0
    gate = spec.hidden_size * spec.experts.shared_gate
    return _block(spec, spec.experts.shared_size) + gate


def _block(spec: TransformerSpec, width: int) -> int:
    """Count a block's matrices: those that read its input, one that leaves it; and their biases."""
    h, readers = spec.hidden_size, 1 + spec.has_gate
    return (readers + 1) * h * width + (readers * width + h) * ("ffn" in spec.biases)


@checked
def norm_parameters(spec: TransformerSpec) -> int:
    """Count the parameters of one norm: LayerNorm scales and shifts, RMSNorm only scales."""
    return 2 * spec.hidden_size if spec.style == "gpt2" else spec.hidden_size


@checked
def layer_parameters(spec: TransformerSpec) -> int:
    """Count the parameters of one layer, including its norms.

    Of a mixture it is one with experts, of a hybrid one with attention.
    """
    norms = spec.num_norms * norm_parameters(spec)
    return attention_parameters(spec) + feed_forward_parameters(spec) + norms


@checked
def published(name: str) -> Published:
    """Return the published model called `name`. Errors: ValueError that lists the known names."""
    if name not in PUBLISHED:
        raise ValueError(f"no published sizes of {name!r}; known: {', '.join(PUBLISHED)}")
    return PUBLISHED[name]
