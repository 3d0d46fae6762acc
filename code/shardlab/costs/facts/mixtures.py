"""Mixtures of experts: their sizes, and their total and active parameters, counted part by part.

A router sends each token to a few of many feed-forward blocks, the experts (Shazeer et al. 2017,
https://arxiv.org/abs/1701.06538). Layers as in Mixtral (https://arxiv.org/abs/2401.04088) and in
DeepSeek-V3 (https://arxiv.org/abs/2412.19437): RMSNorm, SwiGLU, no biases, untied head.
"""

from dataclasses import dataclass

from shardlab.arguments import Count, checked

SWIGLU = 3  # matrices of a feed-forward block: gate, up, down


@dataclass(frozen=True, kw_only=True)
@checked
class GroupedAttention:
    """Query heads that share keys and values (Ainslie et al. 2023, https://arxiv.org/abs/2305.13245)."""

    num_heads: Count
    num_kv_heads: Count
    head_size: Count

    def parameters(self, hidden_size: Count) -> int:
        """Count one layer's parameters: queries and output, keys and values."""
        return hidden_size * 2 * (self.num_heads + self.num_kv_heads) * self.head_size


@dataclass(frozen=True, kw_only=True)
@checked
class LatentAttention:
    """Multi-head latent attention: queries, keys and values pass a narrow layer with a norm.

    DeepSeek-AI 2024, section 2.1 (https://arxiv.org/abs/2405.04434). Part of each query and key is
    rotated by its position; all heads share the rotated part of the key, which is computed directly
    from the input.
    """

    num_heads: Count
    query_rank: Count
    kv_rank: Count
    plain_size: Count  # of a head's query and key, the part without positions
    rotary_size: Count
    value_size: Count

    def parameters(self, hidden_size: Count) -> int:
        """Count one layer's parameters, including the two norms of the narrow layers."""
        queries = (hidden_size + 1) * self.query_rank
        queries += self.query_rank * self.num_heads * (self.plain_size + self.rotary_size)
        keys_and_values = hidden_size * (self.kv_rank + self.rotary_size) + self.kv_rank
        keys_and_values += self.kv_rank * self.num_heads * (self.plain_size + self.value_size)
        return queries + keys_and_values + self.num_heads * self.value_size * hidden_size


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
    num_dense_layers: int = 0  # the first layers: one block of dense_size and no router
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


def _mixtral(width: int, layers: int, heads: int, expert: int, vocab: int) -> MixtureSpec:
    return MixtureSpec(
        vocab_size=vocab,
        hidden_size=width,
        num_layers=layers,
        attention=GroupedAttention(num_heads=heads, num_kv_heads=8, head_size=128),
        num_experts=8,
        experts_per_token=2,
        expert_size=expert,
    )


def _deepseek(heads: int, experts: int, dense_layers: int, vocab: int) -> MixtureSpec:
    return MixtureSpec(
        vocab_size=vocab,
        hidden_size=7168,
        num_layers=61,
        attention=LatentAttention(
            num_heads=heads,
            query_rank=1536,
            kv_rank=512,
            plain_size=128,
            rotary_size=64,
            value_size=128,
        ),
        num_experts=experts,
        experts_per_token=8,
        expert_size=2048,
        num_shared_experts=1,
        num_dense_layers=dense_layers,
        dense_size=18432,
        router_bias=True,
    )


_QWEN3_235B = MixtureSpec(
    vocab_size=151936,
    hidden_size=4096,
    num_layers=94,
    attention=GroupedAttention(num_heads=64, num_kv_heads=4, head_size=128),
    num_experts=128,
    experts_per_token=8,
    expert_size=1536,
)
_MIXTRAL = "https://mistral.ai/news/mixtral-of-experts; Jiang et al. 2024, Table 1 (https://arxiv.org/abs/2401.04088)"
_MIXTRAL_22 = "https://mistral.ai/news/mixtral-8x22b, and the released config.json"
_V3 = (  # without the module that predicts a second token
    "DeepSeek-AI 2024, section 4.2 (https://arxiv.org/abs/2412.19437), and the released config.json"
)
_QWEN3 = (  # without the norms of queries and keys, 256 numbers a layer
    "Qwen Team 2025, Table 2 (https://arxiv.org/abs/2505.09388), and the released config.json"
)
_K2 = "Kimi Team 2025, Table 2 (https://arxiv.org/abs/2507.20534), and the released config.json"

PUBLISHED: dict[str, PublishedMixture] = {
    mixture.name: mixture
    for mixture in (
        PublishedMixture(
            name="Mixtral 8x7B",
            spec=_mixtral(4096, 32, 32, 14336, 32000),
            parameters=46_702_792_704,
            printed=(46.7e9, 12.9e9),
            date="2023-12",
            source=_MIXTRAL,
        ),
        PublishedMixture(
            name="Mixtral 8x22B",
            spec=_mixtral(6144, 56, 48, 16384, 32768),
            parameters=None,
            printed=(141e9, 39e9),
            date="2024-04",
            source=_MIXTRAL_22,
        ),
        PublishedMixture(
            name="DeepSeek-V3",
            spec=_deepseek(128, 256, 3, 129280),
            parameters=671_026_419_200,
            printed=(671e9, 37e9),
            date="2024-12",
            source=_V3,
        ),
        PublishedMixture(
            name="Qwen3-235B-A22B",
            spec=_QWEN3_235B,
            parameters=None,
            printed=(235e9, 22e9),
            date="2025-04",
            source=_QWEN3,
        ),
        PublishedMixture(
            name="Kimi K2",
            spec=_deepseek(64, 384, 1, 163840),
            parameters=None,
            printed=(1.04e12, 32.6e9),
            date="2025-07",
            source=_K2,
        ),
    )
}
