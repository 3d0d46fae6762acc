"""Mixtures of experts: their sizes, and their total and active parameters, counted part by part.

A router sends each token to a few of many feed-forward blocks, the experts (Shazeer et al. 2017,
https://arxiv.org/abs/1701.06538). Layers as in Mixtral (https://arxiv.org/abs/2401.04088) and in
DeepSeek-V3 (https://arxiv.org/abs/2412.19437): RMSNorm, SwiGLU, no biases, untied head.
"""

from dataclasses import dataclass, replace
from typing import Any

from shardlab.files.arguments import checked
from shardlab.model.attention import LatentAttention
from shardlab.model.experts import Experts
from shardlab.model.spec import TransformerSpec

from . import models


@dataclass(frozen=True, kw_only=True)
@checked
class PublishedMixture:
    """A published mixture of experts."""

    name: str
    spec: TransformerSpec
    parameters: int | None  # of the released checkpoint
    printed: tuple[float, float]  # total and active, as its authors round them
    date: str  # of publication, year-month
    source: str


@checked
def parameters(spec: TransformerSpec) -> dict[str, int]:
    """Count the parameters of each part of a mixture, exactly, as a released checkpoint has them.

    A bias that balances a router counts as part of the router. No gradient trains it, so
    `models.parameters` and the states of a rank leave it out. Errors: ValueError without experts.
    """
    return _parts(spec, _rules(spec).num_experts)


@checked
def active_parameters(spec: TransformerSpec) -> dict[str, int]:
    """Count the parameters of each part of a mixture that one token uses.

    A token uses one row of the token embedding, so some authors leave that part out. Errors:
    ValueError without experts.
    """
    return _parts(spec, _rules(spec).per_token)


@checked
def published(name: str) -> PublishedMixture:
    """Return the published mixture called `name`. Errors: ValueError that lists the known names."""
    if name not in PUBLISHED:
        raise ValueError(f"no published sizes of {name!r}; known: {', '.join(PUBLISHED)}")
    return PUBLISHED[name]


def _rules(spec: TransformerSpec) -> Experts:
    if spec.experts is None:
        raise ValueError("the model has no experts; count it with models.parameters")
    return spec.experts


def _parts(spec: TransformerSpec, experts: int) -> dict[str, int]:
    """Count the parts; of the routed experts, `experts` in each layer."""
    rules, whole = _rules(spec), models.parameters(spec)
    sparse = spec.num_blocks - spec.num_dense
    biases = (rules.balance == "bias") + ("ffn" in spec.biases)
    router = rules.num_experts * (spec.hidden_size + biases)
    return {
        "token embedding": whole["token embedding"],
        "attention": whole["attention"],
        "dense feed-forward": spec.num_dense * models.feed_forward_parameters(spec.dense),
        "routers": sparse * router,
        "shared experts": sparse * models.shared_parameters(spec),
        "routed experts": sparse * experts * models.expert_parameters(spec),
        "norms": whole["norms"],
        "head": whole["head"],
    }


def _experts(count: int, per_token: int, size: int, shared: int = 0, **rules: Any) -> Experts:
    return Experts(
        num_experts=count, per_token=per_token, expert_size=size, num_shared=shared, **rules
    )


def _llama(**sizes: Any) -> TransformerSpec:
    return TransformerSpec(style="llama", **sizes)


_MIXTRAL_7B = _llama(
    vocab_size=32000,
    context_length=32768,
    hidden_size=4096,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    experts=_experts(8, 2, 14336),
)
_MIXTRAL_22B = replace(
    _MIXTRAL_7B,
    vocab_size=32768,
    context_length=65536,
    hidden_size=6144,
    num_layers=56,
    num_heads=48,
    experts=_experts(8, 2, 16384),
)
_MLA = LatentAttention(
    num_heads=128, query_rank=1536, kv_rank=512, plain_size=128, rotary_size=64, value_size=128
)
_DEEPSEEK_V2 = _llama(
    vocab_size=102400,
    context_length=131072,
    hidden_size=5120,
    num_layers=60,
    num_heads=128,
    latent=_MLA,
    experts=_experts(160, 6, 1536, shared=2),
    num_dense=1,
    ffn_size=12288,
)
_DEEPSEEK_V3 = _llama(
    vocab_size=129280,
    context_length=131072,
    hidden_size=7168,
    num_layers=61,
    num_heads=128,
    latent=_MLA,
    experts=_experts(256, 8, 2048, shared=1, choose="sigmoid", balance="bias"),
    num_dense=3,
    ffn_size=18432,
)
_KIMI_K2 = replace(
    _DEEPSEEK_V3,
    vocab_size=163840,
    num_heads=64,
    latent=replace(_MLA, num_heads=64),
    experts=_experts(384, 8, 2048, shared=1, choose="sigmoid", balance="bias"),
    num_dense=1,
)
_QWEN3_235B = _llama(
    vocab_size=151936,
    context_length=131072,
    hidden_size=4096,
    num_layers=94,
    num_heads=64,
    num_kv_heads=4,
    head_dim=128,
    head_norms=True,
    experts=_experts(128, 8, 1536),
)
_QWEN3_30B = replace(
    _QWEN3_235B,
    hidden_size=2048,
    num_layers=48,
    num_heads=32,
    experts=_experts(128, 8, 768),
)
_GPT_OSS_120B = _llama(
    vocab_size=201088,
    context_length=131072,
    hidden_size=2880,
    num_layers=36,
    num_heads=64,
    num_kv_heads=8,
    head_dim=64,
    bias_places=("qkv", "out", "ffn"),
    sinks=True,
    experts=_experts(128, 4, 2880),
)
_GPT_OSS_20B = replace(_GPT_OSS_120B, num_layers=24, experts=_experts(32, 4, 2880))
_SCOUT = _llama(
    vocab_size=202048,
    context_length=10_485_760,
    hidden_size=5120,
    num_layers=48,
    num_heads=40,
    num_kv_heads=8,
    experts=_experts(16, 1, 8192, shared=1),
)
_MAVERICK = replace(
    _SCOUT,
    context_length=1_048_576,
    experts=_experts(128, 1, 8192, shared=1),
    num_dense=24,
    ffn_size=16384,
)

_CONFIG = ", and the released config.json"
_MIXTRAL = "https://mistral.ai/news/mixtral-of-experts; Jiang et al. 2024, Table 1 (https://arxiv.org/abs/2401.04088)"
_MIXTRAL_22 = f"https://mistral.ai/news/mixtral-8x22b{_CONFIG}"
_V2 = f"DeepSeek-AI 2024, section 3.1.2 (https://arxiv.org/abs/2405.04434){_CONFIG}"
_V3 = f"DeepSeek-AI 2024, section 4.2 (https://arxiv.org/abs/2412.19437){_CONFIG}"
_QWEN3 = f"Qwen Team 2025, Table 2 (https://arxiv.org/abs/2505.09388){_CONFIG}"
_K2 = f"Kimi Team 2025, Table 2 (https://arxiv.org/abs/2507.20534){_CONFIG}"
_GPT_OSS = f"OpenAI 2025, Table 1 (https://arxiv.org/abs/2508.10925){_CONFIG}"
_LLAMA4 = f"https://ai.meta.com/blog/llama-4-multimodal-intelligence/{_CONFIG}"

# Not counted: in DeepSeek-V3 the module that predicts a second token, in Llama 4 the part that
# reads images; there every second layer of Maverick is dense, not the first ones.
PUBLISHED: dict[str, PublishedMixture] = {
    name: PublishedMixture(
        name=name, spec=spec, parameters=counted, printed=printed, date=date, source=source
    )
    for name, spec, counted, printed, date, source in (
        ("Mixtral 8x7B", _MIXTRAL_7B, 46_702_792_704, (46.7e9, 12.9e9), "2023-12", _MIXTRAL),
        ("Mixtral 8x22B", _MIXTRAL_22B, None, (141e9, 39e9), "2024-04", _MIXTRAL_22),
        ("DeepSeek-V2", _DEEPSEEK_V2, None, (236e9, 21e9), "2024-05", _V2),
        ("DeepSeek-V3", _DEEPSEEK_V3, 671_026_419_200, (671e9, 37e9), "2024-12", _V3),
        ("Llama 4 Scout", _SCOUT, None, (109e9, 17e9), "2025-04", _LLAMA4),
        ("Llama 4 Maverick", _MAVERICK, None, (400e9, 17e9), "2025-04", _LLAMA4),
        ("Qwen3-235B-A22B", _QWEN3_235B, None, (235e9, 22e9), "2025-04", _QWEN3),
        ("Qwen3-30B-A3B", _QWEN3_30B, None, (30.5e9, 3.3e9), "2025-04", _QWEN3),
        ("Kimi K2", _KIMI_K2, None, (1.04e12, 32.6e9), "2025-07", _K2),
        ("gpt-oss-120b", _GPT_OSS_120B, 116_829_156_672, (116.83e9, 5.13e9), "2025-08", _GPT_OSS),
        ("gpt-oss-20b", _GPT_OSS_20B, 20_914_757_184, (20.91e9, 3.61e9), "2025-08", _GPT_OSS),
    )
}
