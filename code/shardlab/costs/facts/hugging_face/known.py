"""Fields that change no size, and fields that confirm what the planner assumes anyway.

Transformers' base class has many of them (PretrainedConfig,
https://github.com/huggingface/transformers/blob/v4.57.1/src/transformers/configuration_utils.py),
and `save_pretrained` or a trainer may write them all.
"""

import re
from typing import Any

from shardlab.files.arguments import checked
from shardlab.model.spec import TransformerSpec

IGNORED = frozenset(
    (
        # the file itself, and the programs that wrote it
        *("_name_or_path", "name_or_path", "model_type", "auto_map", "transformers_version"),
        *("unsloth_fixed", "unsloth_version", "_commit_hash", "_attn_implementation_autoset"),
        *("attn_implementation", "_attn_implementation", "_flash_attn_2_enabled", "use_flash_attn"),
        *("dtype", "torch_dtype", "use_cache", "cache_implementation", "task_specific_params"),
        *("return_dict", "return_dict_in_generate", "output_attentions", "output_hidden_states"),
        *("output_scores", "torchscript", "use_bfloat16", "tf_legacy_loss"),
        *("gradient_checkpointing",),
        *("_experts_implementation", "base_model_tp_plan", "pretraining_tp", "ep_size"),
        # tokens with a meaning, and where training began
        *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id"),
        *("forced_bos_token_id", "forced_eos_token_id", "prefix", "tokenizer_class"),
        *("initializer_range", "embedding_initializer_range", "for_llm_compressor"),
        # how positions turn, and what norms, scales and activation functions compute
        *("rope_theta", "rope_scaling", "rope_parameters", "rope_local_base_freq"),
        *("rotary_pct", "rotary_emb_base", "partial_rotary_factor", "rope_interleave"),
        *("rotary_dim", "use_mrope", "full_attn_mod", "interpolate_factor", "nope_layer_interval"),
        *("no_rope_layers", "no_rope_layer_interval"),
        *("original_max_position_embeddings", "initial_context_length", "use_rope"),
        *("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "embedding_multiplier"),
        *("attention_multiplier", "residual_multiplier", "logits_scaling", "swiglu_limit"),
        *("hidden_act", "hidden_activation", "activation_function"),
        *("output_gate_type",),
        # what attention does to its scores, and which tokens it leaves out
        *("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"),
        *("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"),
        *("max_window_layers", "sliding_window_pattern", "sliding_window_size"),
        *("_sliding_window_pattern", "attention_chunk_size", "attn_temperature_tuning"),
        *("attn_scale", "floor_scale"),
        # heads for other tasks than the next token
        *("classifier_dropout", "summary_type", "summary_use_proj", "summary_activation"),
        *("summary_proj_to_labels", "summary_first_dropout", "finetuning_task", "problem_type"),
        *("id2label", "label2id", "num_labels"),
        # how text is generated; an older base class had these
        *("max_length", "min_length", "do_sample", "early_stopping", "num_beams", "top_k", "top_p"),
        *("num_beam_groups", "diversity_penalty", "temperature", "typical_p", "length_penalty"),
        *("repetition_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"),
        *("bad_words_ids", "num_return_sequences", "exponential_decay_length_penalty"),
        *("suppress_tokens", "begin_suppress_tokens", "remove_invalid_values"),
        # how work is cut, and a decoder's place: a causal model is one in any case
        *("chunk_size_feed_forward", "is_decoder"),
        # how a router chooses, and what training adds to the loss
        *("router_aux_loss_coef", "router_jitter_noise", "output_router_logits", "aux_loss_alpha"),
        *("norm_topk_prob", "routed_scaling_factor", "n_group", "topk_group", "seq_aux"),
        *("router_z_loss_coef",),
    )
)
# Names of the number of experts, of different architectures and of one in time.
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
# Field -> the values with which it changes no size, where the architecture has no use for it.
CONFIRMED: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False, None),
    "cross_attention_hidden_size": (None,),
    "is_encoder_decoder": (False, None),
    "tie_encoder_decoder": (False, None),
    "pruned_heads": ({}, None),
    "use_bidirectional_attention": (False, None),
    "attention_bias": (False, None),
    "attention_out_bias": (False, None),
    "mlp_bias": (False, None),
    "use_bias": (False, None),
    "lm_head_bias": (False, None),
}
NORMS = ("use_qk_norm", "qk_layernorm")
# No size is called so: weights of losses, formats, small numbers, tokens, devices and the like.
NO_SIZES = re.compile(
    "(_loss_weight|_loss_coef|_coef|_dtype|_eps|_token_ids?|_token_index|_device|_version"
    "|_implementation|_init_std|_initializer_range)$"
)
# How sizes are called.
SIZES = re.compile(
    "(^|_)(size|dim|dims|rank|num|n|heads?|layers?|experts?|width|depth|length|channels|groups?"
    "|ratio|multiplier|factor|expand|kernel)(_|$)"
)


@checked
def confirmed(spec: TransformerSpec) -> dict[str, tuple[Any, ...]]:
    """Return fields that an architecture has no use for, with the values that change no size."""
    normed, experts = spec.head_norms or spec.whole_norms, spec.experts
    sigmoid = experts is not None and experts.choose == "sigmoid"
    biased = experts is not None and experts.balance == "bias"
    return {
        **CONFIRMED,
        **dict.fromkeys(NORMS, (True, False, None) if normed else (False, None)),
        "qkv_bias": ("qkv" in spec.biases, None),
        "scoring_func": ("sigmoid" if sigmoid else "softmax", None),
        "topk_method": ("noaux_tc", None) if biased else ("greedy", "group_limited_greedy", None),
        "num_key_value_heads": (spec.kv_heads, None),
        "head_dim": (spec.head_size, None),
        **({} if experts else dict.fromkeys(EXPERTS, (0, None))),
    }


DROPOUTS = (
    *("attention_dropout", "hidden_dropout", "embedding_dropout"),
    *("attn_pdrop", "embd_pdrop", "resid_pdrop"),
)
# Kinds of a layer's attention, in `layer_types`.
ATTENTIONS = {"full_attention", "sliding_attention", "chunked_attention"}
