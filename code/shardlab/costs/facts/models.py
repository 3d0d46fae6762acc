"""Published models: their sizes, and their parameters counted from the shapes of their layers.

The counts follow the layers of Vaswani et al. 2017 (https://arxiv.org/abs/1706.03762) as GPT-2 and
Llama arrange them.
"""

from dataclasses import dataclass

from shardlab.files.arguments import checked
from shardlab.model.spec import TransformerSpec


@dataclass(frozen=True, kw_only=True)
@checked
class Published:
    """A published model."""

    name: str
    spec: TransformerSpec
    parameters: int | None  # of the released checkpoint; None where none was released
    date: str  # of publication, year-month
    source: str  # of the sizes


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


def _gpt(
    layers: int, width: int, heads: int, context: int = 1024, vocab: int = 50257
) -> TransformerSpec:
    return TransformerSpec(
        vocab_size=vocab,
        context_length=context,
        hidden_size=width,
        num_layers=layers,
        num_heads=heads,
    )


def _llama(
    layers: int,
    width: int,
    heads: int,
    kv_heads: int,
    ffn: int,
    vocab: int,
    context: int,
    tied: bool = False,
) -> TransformerSpec:
    return TransformerSpec(
        vocab_size=vocab,
        context_length=context,
        hidden_size=width,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        ffn_size=ffn,
        style="llama",
        tied_head=tied,
    )


# Family -> date of publication, source.
_GPT2 = (
    "2019-02",
    "Radford et al. 2019, Table 2, and the released checkpoints (https://github.com/openai/gpt-2)",
)
# Table 2.1 prints 24 heads of 128 for a width of 2048 (1.3B), and a width of 5140 for 40 heads of
# 128 (13B). 16 heads and a width of 5120 are consistent and give the counts of Table D.1.
_GPT3 = "2020-05", "Brown et al. 2020, Table 2.1 (https://arxiv.org/abs/2005.14165)"
_MEGATRON = "2021-04", "Narayanan et al. 2021, Table 1 (https://arxiv.org/abs/2104.04473)"
_RECOMPUTE = "2022-05", "Korthikanti et al. 2022, Table 3 (https://arxiv.org/abs/2205.05198)"
_L1 = (
    "2023-02",
    "Touvron et al. 2023, Table 2 (https://arxiv.org/abs/2302.13971), and the released params.json",
)
_L2 = (
    "2023-07",
    "Touvron et al. 2023 (https://arxiv.org/abs/2307.09288), and the released config.json",
)
_LLAMA_3 = (
    "Llama Team 2024, Table 3 (https://arxiv.org/abs/2407.21783), and the released config.json"
)
_L3 = "2024-04", _LLAMA_3
_L31 = "2024-07", _LLAMA_3
_L32_1B = "2024-09", "https://huggingface.co/meta-llama/Llama-3.2-1B (config.json)"
_L32_3B = "2024-09", "https://huggingface.co/meta-llama/Llama-3.2-3B (config.json)"

PUBLISHED: dict[str, Published] = {
    name: Published(name=name, spec=spec, parameters=count, date=date, source=source)
    for name, spec, count, (date, source) in (
        ("GPT-2 small", _gpt(12, 768, 12), 124_439_808, _GPT2),
        ("GPT-2 medium", _gpt(24, 1024, 16), 354_823_168, _GPT2),
        ("GPT-2 large", _gpt(36, 1280, 20), 774_030_080, _GPT2),
        ("GPT-2 XL", _gpt(48, 1600, 25), 1_557_611_200, _GPT2),
        ("GPT-3 125M", _gpt(12, 768, 12, 2048), None, _GPT3),
        ("GPT-3 350M", _gpt(24, 1024, 16, 2048), None, _GPT3),
        ("GPT-3 760M", _gpt(24, 1536, 16, 2048), None, _GPT3),
        ("GPT-3 1.3B", _gpt(24, 2048, 16, 2048), None, _GPT3),
        ("GPT-3 2.7B", _gpt(32, 2560, 32, 2048), None, _GPT3),
        ("GPT-3 6.7B", _gpt(32, 4096, 32, 2048), None, _GPT3),
        ("GPT-3 13B", _gpt(40, 5120, 40, 2048), None, _GPT3),
        ("GPT-3 175B", _gpt(96, 12288, 96, 2048), None, _GPT3),
        ("Megatron 1.7B", _gpt(24, 2304, 24, 2048, 51200), None, _MEGATRON),
        ("Megatron 3.6B", _gpt(30, 3072, 32, 2048, 51200), None, _MEGATRON),
        ("Megatron 7.5B", _gpt(36, 4096, 32, 2048, 51200), None, _MEGATRON),
        ("Megatron 18.4B", _gpt(40, 6144, 48, 2048, 51200), None, _MEGATRON),
        ("Megatron 22B", _gpt(48, 6144, 64, 2048, 51200), None, _RECOMPUTE),
        ("Megatron 39.1B", _gpt(48, 8192, 64, 2048, 51200), None, _MEGATRON),
        ("Megatron 76.1B", _gpt(60, 10240, 80, 2048, 51200), None, _MEGATRON),
        ("Megatron 145.6B", _gpt(80, 12288, 96, 2048, 51200), None, _MEGATRON),
        ("Megatron 175B", _gpt(96, 12288, 96, 2048, 51200), None, _RECOMPUTE),
        ("Megatron 310.1B", _gpt(96, 16384, 128, 2048, 51200), None, _MEGATRON),
        ("Megatron 529.6B", _gpt(105, 20480, 128, 2048, 51200), None, _MEGATRON),
        ("Megatron 1008B", _gpt(128, 25600, 160, 2048, 51200), None, _MEGATRON),
        ("Llama 1 7B", _llama(32, 4096, 32, 32, 11008, 32000, 2048), 6_738_415_616, _L1),
        ("Llama 1 13B", _llama(40, 5120, 40, 40, 13824, 32000, 2048), 13_015_864_320, _L1),
        ("Llama 1 33B", _llama(60, 6656, 52, 52, 17920, 32000, 2048), 32_528_943_616, _L1),
        ("Llama 1 65B", _llama(80, 8192, 64, 64, 22016, 32000, 2048), 65_285_660_672, _L1),
        ("Llama 2 7B", _llama(32, 4096, 32, 32, 11008, 32000, 4096), 6_738_415_616, _L2),
        ("Llama 2 13B", _llama(40, 5120, 40, 40, 13824, 32000, 4096), 13_015_864_320, _L2),
        ("Llama 2 70B", _llama(80, 8192, 64, 8, 28672, 32000, 4096), 68_976_648_192, _L2),
        ("Llama 3 8B", _llama(32, 4096, 32, 8, 14336, 128256, 8192), 8_030_261_248, _L3),
        ("Llama 3 70B", _llama(80, 8192, 64, 8, 28672, 128256, 8192), 70_553_706_496, _L3),
        ("Llama 3 405B", _llama(126, 16384, 128, 8, 53248, 128256, 131072), 405_853_388_800, _L31),
        (
            "Llama 3.2 1B",
            _llama(16, 2048, 32, 8, 8192, 128256, 131072, True),
            1_235_814_400,
            _L32_1B,
        ),
        (
            "Llama 3.2 3B",
            _llama(28, 3072, 24, 8, 8192, 128256, 131072, True),
            3_212_749_824,
            _L32_3B,
        ),
    )
}
