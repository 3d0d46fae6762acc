"""Mixtures of experts: their sizes, and their total and active parameters, counted part by part.

A router sends each token to a few of many feed-forward blocks, the experts (Shazeer et al. 2017,
https://arxiv.org/abs/1701.06538). Layers as in Mixtral (https://arxiv.org/abs/2401.04088) and in
DeepSeek-V3 (https://arxiv.org/abs/2412.19437): RMSNorm, SwiGLU, no biases, untied head.
"""

from dataclasses import dataclass, replace

from shardlab.arguments import Count, checked
from shardlab.attention import GroupedAttention, LatentAttention
from shardlab.experts import Experts
from shardlab.spec import TransformerSpec

SWIGLU = 3  # matrices of a feed-forward block: gate, up, down


@dataclass(frozen=True, kw_only=True)
@checked
class MixtureSpec:
    """One decoder-only mixture of experts, as plain numbers."""

    vocab_size: Count
    hidden_size: Count
    num_layers: Count
    attention: GroupedAttention | LatentAttention
    num_experts: Count
    experts_per_token: Count
    expert_size: Count  # width of the hidden layer of one expert
    num_shared_experts: int = 0  # every token uses them
    num_dense_layers: int = 0  # with one block of dense_size and no router
    dense_size: int = 0
    router_bias: bool = False  # one number per expert, with which the router balances the load

    def __post_init__(self) -> None:
        if not 1 <= self.experts_per_token <= self.num_experts:
            raise ValueError(
                f"a token cannot use {self.experts_per_token} of {self.num_experts} experts; "
                f"use experts_per_token = 1 to {self.num_experts}"
            )
        if not 0 <= self.num_dense_layers <= self.num_layers:
            raise ValueError(
                f"{self.num_dense_layers} of {self.num_layers} layers cannot be dense; "
                f"use 0 to {self.num_layers}"
            )

    @property
    def experts(self) -> Experts:
        """The mixture of one layer."""
        return Experts(
            num_experts=self.num_experts,
            per_token=self.experts_per_token,
            expert_size=self.expert_size,
            num_shared=self.num_shared_experts,
        )


@dataclass(frozen=True, kw_only=True)
@checked
class PublishedMixture:
    """A published mixture of experts."""

    name: str
    spec: MixtureSpec
    parameters: int | None  # of the released checkpoint
    printed: tuple[float, float]  # total and active, as its authors round them
    date: str  # of publication, year-month
    source: str


@checked
def parameters(spec: MixtureSpec) -> dict[str, int]:
    """Count the parameters of each part, exactly."""
    return _parts(spec, spec.num_experts)


@checked
def active_parameters(spec: MixtureSpec) -> dict[str, int]:
    """Count the parameters of each part that one token uses.

    A token uses one row of the token embedding, so some authors leave that part out.
    """
    return _parts(spec, spec.experts_per_token)


@checked
def published(name: str) -> PublishedMixture:
    """Return the published mixture called `name`. Errors: ValueError that lists the known names."""
    if name not in PUBLISHED:
        raise ValueError(f"no published sizes of {name!r}; known: {', '.join(PUBLISHED)}")
    return PUBLISHED[name]


@checked
def transformer(spec: MixtureSpec, context_length: Count) -> TransformerSpec:
    """Return the same model as a TransformerSpec, which is timed and planned.

    What balances a router by a bias are no parameters there. Errors: ValueError for heads of an odd
    size.
    """
    heads = spec.attention
    return TransformerSpec(
        vocab_size=spec.vocab_size,
        context_length=context_length,
        hidden_size=spec.hidden_size,
        num_layers=spec.num_layers,
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads if isinstance(heads, GroupedAttention) else None,
        head_dim=heads.head_size if isinstance(heads, GroupedAttention) else None,
        head_norms=isinstance(heads, GroupedAttention) and heads.head_norms,
        latent=None if isinstance(heads, GroupedAttention) else heads,
        style="llama",
        experts=_rules(spec),
        num_dense=spec.num_dense_layers,
        ffn_size=spec.dense_size if spec.num_dense_layers else None,
    )


def _rules(spec: MixtureSpec) -> Experts:
    """Return the mixture of one layer, chosen as DeepSeek-V3 does where a bias balances it."""
    if not spec.router_bias:
        return spec.experts
    return replace(spec.experts, choose="sigmoid", balance="bias")


def _parts(spec: MixtureSpec, experts: int) -> dict[str, int]:
    h = spec.hidden_size
    sparse = spec.num_layers - spec.num_dense_layers
    expert = SWIGLU * h * spec.expert_size
    return {
        "token embedding": spec.vocab_size * h,
        "attention": spec.num_layers * spec.attention.parameters(h),
        "dense feed-forward": spec.num_dense_layers * SWIGLU * h * spec.dense_size,
        "routers": sparse * spec.num_experts * (h + spec.router_bias),
        "shared experts": sparse * spec.num_shared_experts * expert,
        "routed experts": sparse * experts * expert,
        "norms": (2 * spec.num_layers + 1) * h,
        "head": spec.vocab_size * h,
    }


def _grouped(num_heads: int, num_kv_heads: int, head_size: int) -> GroupedAttention:
    return GroupedAttention(num_heads=num_heads, num_kv_heads=num_kv_heads, head_size=head_size)


_MIXTRAL_7B = MixtureSpec(
    vocab_size=32000,
    hidden_size=4096,
    num_layers=32,
    attention=_grouped(32, 8, 128),
    num_experts=8,
    experts_per_token=2,
    expert_size=14336,
)
_MIXTRAL_22B = replace(
    _MIXTRAL_7B,
    vocab_size=32768,
    hidden_size=6144,
    num_layers=56,
    attention=_grouped(48, 8, 128),
    expert_size=16384,
)
_MLA = LatentAttention(
    num_heads=128, query_rank=1536, kv_rank=512, plain_size=128, rotary_size=64, value_size=128
)
_DEEPSEEK_V2 = MixtureSpec(
    vocab_size=102400,
    hidden_size=5120,
    num_layers=60,
    attention=_MLA,
    num_experts=160,
    experts_per_token=6,
    expert_size=1536,
    num_shared_experts=2,
    num_dense_layers=1,
    dense_size=12288,
)
_DEEPSEEK_V3 = MixtureSpec(
    vocab_size=129280,
    hidden_size=7168,
    num_layers=61,
    attention=_MLA,
    num_experts=256,
    experts_per_token=8,
    expert_size=2048,
    num_shared_experts=1,
    num_dense_layers=3,
    dense_size=18432,
    router_bias=True,
)
_KIMI_K2 = replace(
    _DEEPSEEK_V3,
    vocab_size=163840,
    attention=replace(_MLA, num_heads=64),
    num_experts=384,
    num_dense_layers=1,
)
_QWEN3_235B = MixtureSpec(
    vocab_size=151936,
    hidden_size=4096,
    num_layers=94,
    attention=_grouped(64, 4, 128),
    num_experts=128,
    experts_per_token=8,
    expert_size=1536,
)
_QWEN3_30B = replace(
    _QWEN3_235B,
    hidden_size=2048,
    num_layers=48,
    attention=_grouped(32, 4, 128),
    expert_size=768,
)
_GPT_OSS_120B = MixtureSpec(
    vocab_size=201088,
    hidden_size=2880,
    num_layers=36,
    attention=_grouped(64, 8, 64),
    num_experts=128,
    experts_per_token=4,
    expert_size=2880,
)
_GPT_OSS_20B = replace(_GPT_OSS_120B, num_layers=24, num_experts=32)
_SCOUT = MixtureSpec(
    vocab_size=202048,
    hidden_size=5120,
    num_layers=48,
    attention=_grouped(40, 8, 128),
    num_experts=16,
    experts_per_token=1,
    expert_size=8192,
    num_shared_experts=1,
)
_MAVERICK = replace(_SCOUT, num_experts=128, num_dense_layers=24, dense_size=16384)

_CONFIG = ", and the released config.json"
_MIXTRAL = "https://mistral.ai/news/mixtral-of-experts; Jiang et al. 2024, Table 1 (https://arxiv.org/abs/2401.04088)"
_MIXTRAL_22 = f"https://mistral.ai/news/mixtral-8x22b{_CONFIG}"
_V2 = f"DeepSeek-AI 2024, section 3.1.2 (https://arxiv.org/abs/2405.04434){_CONFIG}"
_V3 = f"DeepSeek-AI 2024, section 4.2 (https://arxiv.org/abs/2412.19437){_CONFIG}"
_QWEN3 = f"Qwen Team 2025, Table 2 (https://arxiv.org/abs/2505.09388){_CONFIG}"
_K2 = f"Kimi Team 2025, Table 2 (https://arxiv.org/abs/2507.20534){_CONFIG}"
_GPT_OSS = f"OpenAI 2025, Table 1 (https://arxiv.org/abs/2508.10925){_CONFIG}"
_LLAMA4 = f"https://ai.meta.com/blog/llama-4-multimodal-intelligence/{_CONFIG}"

# Not counted: in DeepSeek-V3 the module that predicts a second token, in Qwen3 the norms of queries
# and keys, in gpt-oss the biases, in Llama 4 the part that reads images.
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
        ("gpt-oss-120b", _GPT_OSS_120B, None, (116.83e9, 5.13e9), "2025-08", _GPT_OSS),
        ("gpt-oss-20b", _GPT_OSS_20B, None, (20.91e9, 3.61e9), "2025-08", _GPT_OSS),
    )
}
