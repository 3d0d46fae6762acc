"""Released models: their `config.json`, in the fields that matter, and their parameters."""

# Fields that publishers write and on which no size depends.
WRITTEN = {"model_type": "any", "bos_token_id": 1, "eos_token_id": 2, "use_cache": True, "initializer_range": 0.02}
ROTARY = {**WRITTEN, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "torch_dtype": "bfloat16", "attention_dropout": 0.0}


def sizes(vocab, context, width, layers, heads, kv_heads, hidden, **more):
    return {
        **ROTARY,
        "vocab_size": vocab,
        "max_position_embeddings": context,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": hidden,
        "hidden_act": "silu",
        **more,
    }


def llama(*numbers, **more):
    return {"architectures": ["LlamaForCausalLM"], **sizes(*numbers, **more)}


def gemma(version, *numbers, **more):
    return {"architectures": [f"Gemma{version}ForCausalLM"], **sizes(*numbers, head_dim=256, **more)}


def qwen(name, *numbers, **more):
    return {"architectures": [f"Qwen{name}ForCausalLM"], **sizes(*numbers, max_window_layers=28, **more)}


def neox(vocab, width, layers, heads, hidden):
    config = sizes(vocab, 2048, width, layers, heads, heads, hidden, use_parallel_residual=True, rotary_pct=0.25)
    del config["num_key_value_heads"]
    return {**config, "architectures": ["GPTNeoXForCausalLM"], "classifier_dropout": 0.1, "layer_norm_eps": 1e-5}


GPT2 = {
    **WRITTEN,
    "architectures": ["GPT2LMHeadModel"],
    **{"vocab_size": 50257, "n_positions": 1024, "n_ctx": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12},
    **{"attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1, "layer_norm_epsilon": 1e-5},
}
MIXTRAL = {
    **sizes(32000, 32768, 4096, 32, 32, 8, 14336, sliding_window=None, tie_word_embeddings=False),
    **{"architectures": ["MixtralForCausalLM"], "num_local_experts": 8, "num_experts_per_tok": 2},
    **{"output_router_logits": False, "router_aux_loss_coef": 0.02},
}
QWEN3_MOE = {
    **qwen("3Moe", 151936, 40960, 2048, 48, 32, 4, 6144, head_dim=128, attention_bias=False),
    **{"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768},
    **{"decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True, "tie_word_embeddings": False},
}
DEEPSEEK = {
    **sizes(129280, 163840, 7168, 61, 128, 128, 18432, attention_bias=False, num_nextn_predict_layers=1),
    **{"architectures": ["DeepseekV3ForCausalLM"], "q_lora_rank": 1536, "kv_lora_rank": 512, "v_head_dim": 128},
    **{"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "n_routed_experts": 256, "n_shared_experts": 1},
    **{"num_experts_per_tok": 8, "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "moe_layer_freq": 1},
    **{"topk_method": "noaux_tc", "scoring_func": "sigmoid", "n_group": 8, "topk_group": 4, "norm_topk_prob": True},
    **{"quantization_config": {"quant_method": "fp8"}, "tie_word_embeddings": False, "routed_scaling_factor": 2.5},
}
# Name, config.json, parameters of the released checkpoint. They are in the metadata of its safetensors files, which
# https://huggingface.co/NAME prints as "model size", except where a comment names another source.
RELEASED = [
    ("meta-llama/Llama-3.1-8B", llama(128256, 131072, 4096, 32, 32, 8, 14336), 8_030_261_248),
    (
        "meta-llama/Llama-3.2-1B",
        llama(128256, 131072, 2048, 16, 32, 8, 8192, head_dim=64, tie_word_embeddings=True),
        1_235_814_400,
    ),
    (
        "mistralai/Mistral-7B-v0.1",
        {**llama(32000, 32768, 4096, 32, 32, 8, 14336, sliding_window=4096), "architectures": ["MistralForCausalLM"]},
        7_241_732_096,
    ),
    ("Qwen/Qwen2.5-0.5B", qwen(2, 151936, 32768, 896, 24, 14, 2, 4864, tie_word_embeddings=True), 494_032_768),
    (
        "Qwen/Qwen2.5-7B",
        qwen(2, 152064, 131072, 3584, 28, 28, 4, 18944, sliding_window=131072, use_sliding_window=False),
        7_615_616_512,
    ),
    (
        "Qwen/Qwen3-0.6B",
        qwen(3, 151936, 40960, 1024, 28, 16, 8, 3072, head_dim=128, tie_word_embeddings=True),
        596_049_920,
    ),
    ("Qwen/Qwen3-8B", qwen(3, 151936, 40960, 4096, 36, 32, 8, 12288, head_dim=128), 8_190_735_360),
    # google/gemma-2b to -3-1b: also "params" of https://github.com/keras-team/keras-hub, gemma_presets.py
    ("google/gemma-2b", gemma("", 256000, 8192, 2048, 18, 8, 1, 16384), 2_506_172_416),
    ("google/gemma-7b", gemma("", 256000, 8192, 3072, 28, 16, 16, 24576), 8_537_680_896),
    ("google/gemma-2-9b", gemma(2, 256000, 8192, 3584, 42, 16, 8, 14336, sliding_window=4096), 9_241_705_984),
    ("google/gemma-3-1b-pt", gemma(3, 262144, 32768, 1152, 26, 4, 1, 6912, sliding_window=512), 999_885_952),
    ("openai-community/gpt2", GPT2, 124_439_808),
    ("EleutherAI/pythia-70m", neox(50304, 512, 6, 8, 2048), 70_426_624),  # https://github.com/EleutherAI/pythia
    ("EleutherAI/pythia-410m", neox(50304, 1024, 24, 16, 4096), 405_334_016),  # likewise
    ("EleutherAI/gpt-neox-20b", neox(50432, 6144, 44, 64, 24576), 20_554_567_680),  # its model card
    ("mistralai/Mixtral-8x7B-v0.1", MIXTRAL, 46_702_792_704),
    ("Qwen/Qwen3-30B-A3B", QWEN3_MOE, 30_532_122_624),
    ("deepseek-ai/DeepSeek-V3", DEEPSEEK, 671_026_419_200),  # as costs.facts.mixtures has it
]


def phi(*numbers, **more):
    rest = {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "sliding_window": None, "attention_bias": False}
    return named("Phi3", *numbers, **rest, **more)


def named(name, *numbers, **more):
    return {"architectures": [f"{name}ForCausalLM"], **sizes(*numbers, **more)}


GLM = {"attention_bias": True, "head_dim": 128, "n_shared_experts": 1, "num_experts_per_tok": 8}
GLM |= {"n_group": 1, "topk_group": 1, "norm_topk_prob": True, "num_nextn_predict_layers": 1}
OSS = {"head_dim": 64, "attention_bias": True, "experts_per_token": 4, "num_experts_per_tok": 4, "swiglu_limit": 7.0}
OSS |= {"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"], "initial_context_length": 4096}
MINIMAX = {"head_dim": 128, "num_local_experts": 256, "num_experts_per_tok": 8, "attn_type_list": [1] * 62}
MINIMAX |= {"use_qk_norm": True, "qk_norm_type": "per_layer", "use_routing_bias": True, "scoring_func": "sigmoid"}
MINIMAX |= {"use_mtp": True, "num_mtp_modules": 3, "shared_intermediate_size": 0, "mlp_intermediate_size": 8192}
NARROW = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
V2 = {**NARROW, "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1, "moe_layer_freq": 1}
V2 |= {"scoring_func": "softmax"}
MOONLIGHT = {**NARROW, "q_lora_rank": None, "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6}
MOONLIGHT |= {"moe_intermediate_size": 1408, "first_k_dense_replace": 1, "topk_method": "noaux_tc", "ep_size": 1}
LLAMA4 = sizes(202048, 10485760, 5120, 48, 40, 8, 8192, head_dim=128, intermediate_size_mlp=16384, use_qk_norm=True)
LLAMA4 |= {"model_type": "llama4_text", "num_experts_per_tok": 1, "attention_chunk_size": 8192, "attn_scale": 0.1}


def llama4(experts, every):
    text = {**LLAMA4, "num_local_experts": experts, "interleave_moe_layer_step": every}
    outer = {"vision_config": {"hidden_size": 1408}, "image_token_index": 200092, "tie_word_embeddings": False}
    return {"architectures": ["Llama4ForConditionalGeneration"], "text_config": text, **outer}


KIMI_K2 = {**DEEPSEEK, **{"vocab_size": 163840, "num_attention_heads": 64, "num_key_value_heads": 64}}
KIMI_K2 |= {"n_routed_experts": 384, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0}
DEEPSEEK_32 = {**DEEPSEEK, "architectures": ["DeepseekV32ForCausalLM"], "index_n_heads": 64}
DEEPSEEK_32 |= {"index_head_dim": 128, "index_topk": 2048}
GLM5 = {"q_lora_rank": 2048, "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256}
GLM5 |= {"qk_head_dim": 256, "head_dim": 64, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8}
GLM5 |= {"moe_intermediate_size": 2048, "first_k_dense_replace": 3, "moe_layer_freq": 1, "topk_method": "noaux_tc"}
GLM5 |= {"scoring_func": "sigmoid", "index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048}
GLM5 |= {"indexer_rope_interleave": True, "num_nextn_predict_layers": 1, "attention_bias": False}
GLM5 |= named("GlmMoeDsa", 154880, 202752, 6144, 78, 64, 64, 12288)
# Of the file of gemma-3-4b-it, which leaves out what is as in transformers.
GEMMA_4B = {"architectures": ["Gemma3ForConditionalGeneration"], "vision_config": {}, "mm_tokens_per_image": 256}
GEMMA_4B["text_config"] = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240}
GEMMA_4B["text_config"] |= {"num_hidden_layers": 34, "sliding_window": 1024}
# Name, config.json, parameters: as many as the model has that transformers 5.24 builds on the meta device,
# `AutoModelForCausalLM.from_config`, with the biases of its routers, which are buffers there.
BUILT = [
    ("microsoft/phi-4", phi(100352, 16384, 5120, 40, 40, 10, 17920), 14_659_507_200),
    (
        "microsoft/Phi-4-mini-instruct",
        phi(200064, 131072, 3072, 32, 24, 8, 8192, tie_word_embeddings=True, full_attn_mod=1, interpolate_factor=1),
        3_836_021_760,
    ),
    ("allenai/OLMo-2-1124-7B", named("Olmo2", 100352, 4096, 4096, 32, 32, 32, 11008), 7_298_617_344),
    ("allenai/OLMo-2-0325-32B", named("Olmo2", 100352, 4096, 5120, 64, 40, 8, 27648), 32_234_279_936),
    ("allenai/Olmo-3-1025-7B", named("Olmo3", 100278, 65536, 4096, 32, 32, 32, 11008), 7_298_011_136),
    (
        "HuggingFaceTB/SmolLM3-3B",
        named("SmolLM3", 128256, 65536, 2048, 36, 16, 4, 11008, no_rope_layer_interval=4, mlp_bias=False),
        3_075_098_624,
    ),
    (
        "LGAI-EXAONE/EXAONE-4.0-32B",
        named("Exaone4", 102400, 131072, 5120, 64, 40, 8, 27392, head_dim=128, sliding_window_pattern="LLLG"),
        32_003_216_384,
    ),
    (
        "ibm-granite/granite-3.3-8b-instruct",
        named("Granite", 49159, 131072, 4096, 40, 32, 8, 12800, tie_word_embeddings=True, logits_scaling=16.0),
        8_170_864_640,
    ),
    (
        "ibm-granite/granite-3.1-3b-a800m-instruct",
        named("GraniteMoe", 49155, 131072, 1536, 32, 24, 8, 512, tie_word_embeddings=True, num_local_experts=40,
              num_experts_per_tok=8),
        3_298_793_472,
    ),
    (
        "mistralai/Devstral-2-123B-Instruct-2512",
        named("Ministral3", 131072, 262144, 12288, 88, 96, 8, 28672, head_dim=128),
        125_025_988_608,
    ),
    (  # 355B of its report and 358B of its page have the module that predicts a second token, 5.5B
        "zai-org/GLM-4.5",
        named("Glm4Moe", 151552, 131072, 5120, 92, 96, 8, 12288, **GLM, n_routed_experts=160, use_qk_norm=True,
              moe_intermediate_size=1536, first_k_dense_replace=3),
        352_797_829_024,
    ),
    (  # likewise: 106B of its report are without that module, 110B of its page with it
        "zai-org/GLM-4.5-Air",
        named("Glm4Moe", 151552, 131072, 4096, 46, 96, 8, 10944, **GLM, n_routed_experts=128, use_qk_norm=False,
              moe_intermediate_size=1408, first_k_dense_replace=1),
        106_852_251_264,
    ),
    # gpt-oss: OpenAI 2025, Table 1 (https://arxiv.org/abs/2508.10925)
    (
        "openai/gpt-oss-20b",
        named("GptOss", 201088, 131072, 2880, 24, 64, 8, 2880, **OSS, num_local_experts=32),
        20_914_757_184,
    ),
    (
        "openai/gpt-oss-120b",
        named("GptOss", 201088, 131072, 2880, 36, 64, 8, 2880, **OSS, num_local_experts=128),
        116_829_156_672,
    ),
    (
        "MiniMaxAI/MiniMax-M2",
        named("MiniMaxM2", 200064, 196608, 3072, 62, 48, 8, 1536, **MINIMAX),
        228_689_764_864,
    ),
    # 109B and 400B include what reads images, 0.9B
    ("meta-llama/Llama-4-Scout-17B-16E", llama4(16, 1), 107_769_861_120),
    ("meta-llama/Llama-4-Maverick-17B-128E", llama4(128, 2), 400_711_848_960),
    (
        "deepseek-ai/DeepSeek-V2",
        named("DeepseekV2", 102400, 163840, 5120, 60, 128, 128, 12288, **V2, q_lora_rank=1536, n_routed_experts=160,
              moe_intermediate_size=1536, topk_method="group_limited_greedy"),
        235_741_434_880,
    ),
    (
        "deepseek-ai/DeepSeek-V2-Lite",
        named("DeepseekV2", 102400, 163840, 2048, 27, 16, 16, 10944, **V2, q_lora_rank=None, n_routed_experts=64,
              moe_intermediate_size=1408, topk_method="greedy"),
        15_706_484_224,
    ),
    ("moonshotai/Moonlight-16B-A3B", named("DeepseekV3", 163840, 8192, 2048, 27, 16, 16, 11264, **MOONLIGHT),
     15_960_110_208),
    ("moonshotai/Kimi-K2-Base", KIMI_K2, 1_026_408_232_448),
    ("deepseek-ai/DeepSeek-V3.2", DEEPSEEK_32, 671_877_944_064),  # 685B: with 14B that predict a second token
    ("zai-org/GLM-5", GLM5, 743_911_199_232 + 19_200),  # 744B: https://arxiv.org/abs/2602.15763
    ("google/gemma-3-4b-it", GEMMA_4B, 3_880_263_168),
]
