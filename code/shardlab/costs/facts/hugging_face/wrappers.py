"""Files of models that also read images or sound: the language model is their `text_config`."""

from collections.abc import Mapping
from typing import Any

# `model_type` of a language model -> its architecture, where a wrapper does not name that.
MODEL_TYPES = {
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma3n_text": "Gemma3nForCausalLM",
    "glm4v_moe_text": "Glm4MoeForCausalLM",
    "kimi_k2": "DeepseekV3ForCausalLM",
    "llama": "LlamaForCausalLM",
    "llama4_text": "Llama4ForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3_vl_moe_text": "Qwen3MoeForCausalLM",
    "qwen3_vl_text": "Qwen3ForCausalLM",
}
TIED = "tie_word_embeddings"


def unwrapped(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """Return the language model's fields, and what to note about the others.

    The wrapper says whether the head is the embedding; if it does not, its language model does.
    Errors: ValueError for two answers.
    """
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        return config, []
    inner = dict(text)
    kind = str(inner.get("model_type"))
    if "architectures" not in inner and kind in MODEL_TYPES:
        inner["architectures"] = [MODEL_TYPES[kind]]
    if "architectures" not in inner:
        raise ValueError(
            f"text_config has model_type={kind!r}, which is not understood; use one of "
            f"{', '.join(MODEL_TYPES)}, or, if its layers are those of an architecture that is "
            'counted, name that there, as in "architectures": ["LlamaForCausalLM"]'
        )
    if TIED in config and inner.setdefault(TIED, config[TIED]) != config[TIED]:
        raise ValueError(
            f"{TIED} is {config[TIED]} in the file and {inner[TIED]} in its text_config; keep the "
            "one that the checkpoint has"
        )
    others = sorted(set(config) - {"architectures", "model_type", "text_config", TIED})
    return inner, [f"text_config alone is counted; left out: {', '.join(others) or 'nothing'}"]
