"""Released models some of whose layers keep states: their `config.json` and parameters, as in `released`.

The parameters are those of the model that transformers 5.24 builds on the meta device from the text model's fields:

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[model_type](**fields))
    sum(parameter.numel() for parameter in model.parameters())
"""

from .released import named

DELTA = {"head_dim": 256, "full_attention_interval": 4, "linear_conv_kernel_dim": 4, "linear_num_key_heads": 16}
DELTA |= {"linear_key_head_dim": 128, "linear_value_head_dim": 128, "attention_bias": False}
MORE = {"attn_output_gate": True, "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1}
MORE |= {"mtp_use_dedicated_embeddings": False}
QWEN3_NEXT = {
    **named("Qwen3Next", 151936, 262144, 2048, 48, 16, 2, 5120, **DELTA, linear_num_value_heads=32),
    **{"num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512, "norm_topk_prob": True},
    **{"shared_expert_intermediate_size": 512, "decoder_sparse_step": 1, "mlp_only_layers": []},
}


def wrapped(name, kind, *numbers, **more):
    """Return a file of Qwen3.5: what reads text is its `text_config`, whose layers are listed."""
    text = {**named("", *numbers, **DELTA, **MORE, **more), "model_type": kind}
    layers = text["num_hidden_layers"]
    text["layer_types"] = (["linear_attention"] * 3 + ["full_attention"]) * (layers // 4)
    del text["architectures"]
    return {"architectures": [name], "text_config": text, "vision_config": {}, "tie_word_embeddings": False}


def dense(*numbers, heads):
    return wrapped("Qwen3_5ForConditionalGeneration", "qwen3_5_text", *numbers, linear_num_value_heads=heads)


def sparse(*numbers, heads, experts, chosen, width):
    text = {"num_experts": experts, "num_experts_per_tok": chosen, "moe_intermediate_size": width}
    text |= {"shared_expert_intermediate_size": width, "linear_num_value_heads": heads}
    file = wrapped("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe_text", *numbers, **text)
    del file["text_config"]["intermediate_size"]
    return file


FULL = [4, 8, 12, 16, 20, 24, 27]
KIMI_LINEAR = named("KimiLinear", 163840, 0, 2304, 27, 32, 32, 9216, head_dim=72, model_max_length=1048576)
KIMI_LINEAR |= {"q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
KIMI_LINEAR |= {"v_head_dim": 128, "mla_use_nope": True, "num_experts": 256, "num_experts_per_token": 8}
KIMI_LINEAR |= {"num_shared_experts": 1, "moe_intermediate_size": 1024, "first_k_dense_replace": 1}
KIMI_LINEAR |= {"moe_layer_freq": 1, "moe_router_activation_func": "sigmoid", "moe_renormalize": True}
KIMI_LINEAR |= {"use_grouped_topk": True, "num_expert_group": 1, "topk_group": 1, "num_nextn_predict_layers": 0}
KIMI_LINEAR["linear_attn_config"] = {
    **{"full_attn_layers": FULL, "kda_layers": [place for place in range(1, 28) if place not in FULL]},
    **{"head_dim": 128, "num_heads": 32, "short_conv_kernel_size": 4},
}
del KIMI_LINEAR["max_position_embeddings"]


def granite(width, heads, kv_heads, hidden, shared, *, experts, chosen, states):
    file = named("GraniteMoeHybrid", 100352, 131072, width, 40, heads, kv_heads, hidden, num_local_experts=experts)
    file |= {"num_experts_per_tok": chosen, "shared_intermediate_size": shared, "position_embedding_type": "nope"}
    file |= {"mamba_n_heads": states, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_d_conv": 4}
    file |= {"mamba_expand": 2, "mamba_chunk_size": 256, "mamba_conv_bias": True, "mamba_proj_bias": False}
    layers = ["attention" if place % 10 == 5 else "mamba" for place in range(40)]
    return {**file, "layer_types": layers, "tie_word_embeddings": True, "normalization_function": "rmsnorm"}


GRANITE_SMALL = granite(4096, 32, 8, 768, 1536, experts=72, chosen=10, states=128)
PERIOD = "M-M-M-M-M*-"
NEMOTRON_52 = "M-M-M-M*-" + 3 * PERIOD + "M-M-M-M-M-"
NEMOTRON_56 = "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-"
NEMOTRON_98 = "M-M-M-M-M-M-M-M-M*-M-M-M-M-M-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-M-M---MM---M-M*-M-M-M-M-M-"
NEMOTRON_118 = "M-M-M-M*-" + 9 * PERIOD + "M-M-M-M-M-"


def nemotron(pattern, width, heads, hidden, states, size, keys):
    file = named("NemotronH", 131072, 8192, width, len(pattern), heads, 8, hidden, attention_head_dim=128)
    file |= {"hybrid_override_pattern": pattern, "mamba_num_heads": states, "mamba_head_dim": size, "n_groups": 8}
    file |= {"ssm_state_size": keys, "conv_kernel": 4, "expand": 2, "chunk_size": 128, "mlp_hidden_act": "relu2"}
    return {**file, "use_bias": False, "use_conv_bias": True, "mamba_proj_bias": False, "residual_in_fp32": False}


NANO_3 = nemotron("MEMEM*E" + 4 * "MEMEM*E" + "MEMEMEM*EMEMEMEME", 2688, 32, 1856, 64, 64, 128)
NANO_3 |= {"num_key_value_heads": 2, "max_position_embeddings": 262144, "n_routed_experts": 128}
NANO_3 |= {"num_experts_per_tok": 6, "n_shared_experts": 1, "moe_intermediate_size": 1856}
NANO_3 |= {"moe_shared_expert_intermediate_size": 3712}
NEMOTRON_8B = nemotron(NEMOTRON_52, 4096, 32, 21504, 128, 64, 128)
HYBRIDS = [
    ("nvidia/Nemotron-H-8B-Base-8K", NEMOTRON_8B, 8_100_852_736),
    ("nvidia/Nemotron-H-47B-Base-8K", nemotron(NEMOTRON_98, 8192, 64, 30720, 256, 64, 256), 46_791_554_816),
    ("nvidia/Nemotron-H-56B-Base-8K", nemotron(NEMOTRON_118, 8192, 64, 32768, 256, 64, 256), 56_324_350_464),
    ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", nemotron(NEMOTRON_56, 4480, 40, 15680, 128, 80, 128), 8_888_227_328),
    # 31.6B: https://research.nvidia.com/labs/nemotron/Nemotron-3; with 2,944 biases of its routers, which are buffers
    ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", NANO_3, 31_577_937_344 + 2_944),
    # with 6,656 biases of its routers, which are buffers in transformers
    ("moonshotai/Kimi-Linear-48B-A3B-Base", KIMI_LINEAR, 49_122_675_072 + 6_656),
    ("ibm-granite/granite-4.0-h-small", GRANITE_SMALL, 32_207_337_984),
    ("Qwen/Qwen3-Next-80B-A3B-Instruct", QWEN3_NEXT, 79_674_391_296),
    ("Qwen/Qwen3.5-9B", dense(248320, 262144, 4096, 32, 16, 4, 12288, heads=32), 8_953_803_264),
    ("Qwen/Qwen3.5-27B", dense(248320, 262144, 5120, 64, 24, 4, 17408, heads=48), 26_895_998_464),
    (
        "Qwen/Qwen3.5-35B-A3B",
        sparse(248320, 262144, 2048, 40, 16, 2, 0, heads=32, experts=256, chosen=8, width=512),
        34_660_610_688,
    ),
    (
        "Qwen/Qwen3.5-397B-A17B",
        sparse(248320, 262144, 4096, 60, 32, 2, 0, heads=64, experts=512, chosen=10, width=1024),
        396_346_350_336,
    ),
]
