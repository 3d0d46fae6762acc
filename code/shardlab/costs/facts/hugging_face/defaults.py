"""What a field means that a file leaves out: the default of its architecture in transformers.

Each row is read from `configuration_*.py` of the architecture's folder in
https://github.com/huggingface/transformers/tree/v5.24.0/src/transformers/models.
"""

SIZES = (
    *("vocab_size", "max_position_embeddings", "hidden_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "intermediate_size"),
)


def _row(*sizes: int | None, **more: float) -> dict[str, float]:
    """Name the sizes; None is a size that follows from others, or that the architecture lacks."""
    named = zip(SIZES, sizes, strict=True)
    return {name: size for name, size in named if size is not None} | more


# vocabulary, context, width, layers, heads, key/value heads, hidden layer
_LATENT = {"q_lora_rank": 1536, "kv_lora_rank": 512, "v_head_dim": 128}
_LATENT |= {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
_QWEN3 = {"head_dim": 128, "use_sliding_window": False}
_GEMMA = {"head_dim": 256, "sliding_window": 4096}
_DROPS = {"attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1}
_GPT2 = {"n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}
_V3 = {"n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8}
_V3 |= {"moe_intermediate_size": 2048, "first_k_dense_replace": 3}
_V2 = {"n_routed_experts": 64, "n_shared_experts": 2, "first_k_dense_replace": 0}
_V2 |= {"moe_intermediate_size": 1407}
_V32 = {"index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048}
_GLM5 = _V3 | {"q_lora_rank": 2048, "kv_lora_rank": 512, "v_head_dim": 256}
_GLM5 |= {"qk_nope_head_dim": 192, "qk_rope_head_dim": 64}
_GLM5 |= {"index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048}
_GLM = {"n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 8}
_GLM |= {"moe_intermediate_size": 1408, "first_k_dense_replace": 1}
_LLAMA4 = {"head_dim": 128, "num_local_experts": 16, "num_experts_per_tok": 1}
_LLAMA4 |= {"intermediate_size_mlp": 16384, "interleave_moe_layer_step": 1}
_QWEN3_MOE = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
_OSS = {"head_dim": 64, "sliding_window": 128, "num_local_experts": 128, "num_experts_per_tok": 4}
_M2 = {"head_dim": 128, "num_local_experts": 256, "num_experts_per_tok": 8}
_TWO_OF_8 = {"num_local_experts": 8, "num_experts_per_tok": 2}
_NO_QUERIES = {name: size for name, size in _LATENT.items() if name != "q_lora_rank"}
_KIMI = {"num_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8}
_KIMI |= {"moe_intermediate_size": 1024, "first_k_dense_replace": 1}
_DELTA = {"head_dim": 256, "full_attention_interval": 4, "linear_conv_kernel_dim": 4}
_DELTA |= {"linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128}
_DELTA |= {"linear_num_value_heads": 32}
_DELTA_MOE = {**_DELTA, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512}

_GRANITE = {"num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 1024}
_GRANITE |= {"mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4}
_GRANITE |= {"mamba_expand": 2, "mamba_chunk_size": 256}

_NEMOTRON = {"head_dim": 128, "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8}
_NEMOTRON |= {"ssm_state_size": 128, "conv_kernel": 4, "chunk_size": 128}
_NEMOTRON |= {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 7688}
_NEMOTRON |= {"moe_shared_expert_intermediate_size": 7688}

DEFAULTS: dict[str, dict[str, float]] = {
    "LlamaForCausalLM": _row(32000, 2048, 4096, 32, 32, None, 11008),
    "MistralForCausalLM": _row(32000, 131072, 4096, 32, 32, 8, 14336, sliding_window=4096),
    "Ministral3ForCausalLM": _row(131072, 262144, 4096, 34, 32, 8, 14336, head_dim=128),
    "Qwen2ForCausalLM": _row(
        151936, 32768, 4096, 32, 32, 32, 22016, use_sliding_window=False
    ),
    "Qwen3ForCausalLM": _row(151936, 32768, 4096, 32, 32, 32, 22016, **_QWEN3),
    "GemmaForCausalLM": _row(256000, 8192, 3072, 28, 16, 16, 24576, head_dim=256),
    "Gemma2ForCausalLM": _row(256000, 8192, 2304, 26, 8, 4, 9216, **_GEMMA),
    "Gemma3ForCausalLM": _row(262208, 131072, 2304, 26, 8, 4, 9216, **_GEMMA),
    "GPT2LMHeadModel": {"vocab_size": 50257, **_GPT2, **_DROPS},
    "GPTNeoXForCausalLM": _row(50432, 2048, 6144, 44, 64, None, 24576),
    "Phi3ForCausalLM": _row(32064, 4096, 3072, 32, 32, None, 8192),
    "Olmo2ForCausalLM": _row(50304, 2048, 4096, 32, 32, None, 11008),
    "Olmo3ForCausalLM": _row(50304, 2048, 4096, 32, 32, None, 11008, sliding_window=4096),
    "SmolLM3ForCausalLM": _row(
        128256, 32768, 2048, 36, 16, 4, 11008, use_sliding_window=False
    ),
    "Exaone4ForCausalLM": _row(102400, 2048, 4096, 32, 32, 32, 16384, sliding_window=4096),
    "GraniteForCausalLM": _row(32000, 2048, 4096, 32, 32, None, 11008),
    "MixtralForCausalLM": _row(32000, 131072, 4096, 32, 32, 8, 14336, **_TWO_OF_8),
    "Qwen3MoeForCausalLM": _row(
        151936, 32768, 2048, 24, 32, 4, 6144, use_sliding_window=False, **_QWEN3_MOE
    ),
    "GraniteMoeForCausalLM": _row(32000, 2048, 4096, 32, 32, None, 11008, **_TWO_OF_8),
    "Glm4MoeForCausalLM": _row(151552, 131072, 4096, 46, 96, 8, 10944, **_GLM),
    "Llama4ForCausalLM": _row(202048, 131072, 5120, 48, 40, 8, 8192, **_LLAMA4),
    "GptOssForCausalLM": _row(201088, 131072, 2880, 36, 64, 8, 2880, **_OSS),
    "MiniMaxM2ForCausalLM": _row(200064, 196608, 3072, 62, 48, 8, 1536, **_M2),
    "DeepseekV2ForCausalLM": _row(102400, 2048, 4096, 32, 32, None, 11008, **_LATENT, **_V2),
    "DeepseekV3ForCausalLM": _row(129280, 4096, 7168, 61, 128, 128, 18432, **_LATENT, **_V3),
    "DeepseekV32ForCausalLM": _row(
        129280, 163840, 7168, 61, 128, 128, 18432, **_LATENT, **_V3, **_V32
    ),
    "GlmMoeDsaForCausalLM": _row(154880, 202752, 6144, 78, 64, 64, 12288, **_GLM5),
    "KimiLinearForCausalLM": _row(
        163840, 1048576, 2304, 27, 32, 32, 9216, **_NO_QUERIES, **_KIMI
    ),
    "GraniteMoeHybridForCausalLM": _row(32000, 2048, 4096, 32, 32, None, 11008, **_GRANITE),
    "NemotronHForCausalLM": _row(131072, 4096, 4096, None, 32, 8, 21504, **_NEMOTRON),
    "Qwen3NextForCausalLM": _row(
        151936, 32768, 2048, 48, 16, 2, 5632, **_DELTA_MOE, num_experts=512, num_experts_per_tok=10
    ),
    "Qwen3_5ForCausalLM": _row(248320, 32768, 4096, 32, 16, 4, 12288, **_DELTA),
    "Qwen3_5MoeForCausalLM": _row(
        248320, 32768, 2048, 40, 16, 2, None, **_DELTA_MOE, num_experts=256, num_experts_per_tok=8
    ),
}
