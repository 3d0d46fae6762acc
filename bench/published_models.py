"""Logits of nine published architectures, computed by transformers from weights that a formula gives.

    python -m venv hf && hf/bin/pip install torch transformers safetensors numpy
    hf/bin/python bench/published_models.py

The package does not need transformers. A test fills a folder by the same formula, reads it, and compares. Transformers
computes norms, rotations, routers and the softmax of attention in float32 whatever the model's dtype; here they are
computed in float64.
"""

import json
import math
import tempfile
from pathlib import Path

import record
import safetensors
import torch
from safetensors.torch import load_file, save_file

from shardlab.files.terminal import no_arguments

try:
    import transformers
except ImportError:  # the tests of the package import the formula without it
    transformers = None

FILE = "model.safetensors"
SIZES = {
    "vocab_size": 13,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 36,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
BASE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}}
STRETCHED = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
MIXTURE = {"num_experts_per_tok": 2}
QWEN3_MOE = {**MIXTURE, "num_experts": 4, "moe_intermediate_size": 8, "norm_topk_prob": True}
GPT2 = {"vocab_size": 13, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_inner": 36, "n_positions": 64}
NO_DROPOUT = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
MODELS = {  # model -> architecture, and the fields of its config.json
    "Llama 3": ("LlamaForCausalLM", {**SIZES, "rope_parameters": {**BASE["rope_parameters"], "rope_theta": 500_000.0}}),
    "Llama 3.1": ("LlamaForCausalLM", {**SIZES, "rope_parameters": STRETCHED}),
    "SmolLM2": ("LlamaForCausalLM", {**SIZES, **BASE, "tie_word_embeddings": True}),
    "Mistral": ("MistralForCausalLM", {**SIZES, **BASE, "sliding_window": 64}),
    "Qwen2": ("Qwen2ForCausalLM", {**SIZES, **BASE, "tie_word_embeddings": True}),
    "Qwen3": ("Qwen3ForCausalLM", {**SIZES, **BASE, "head_dim": 8}),
    "Phi-3": ("Phi3ForCausalLM", {**SIZES, **BASE, "sliding_window": None}),
    "GPT-2": ("GPT2LMHeadModel", {**GPT2, **NO_DROPOUT}),
    "Mixtral": ("MixtralForCausalLM", {**SIZES, **BASE, **MIXTURE, "num_local_experts": 4, "sliding_window": None}),
    "Qwen3-MoE": ("Qwen3MoeForCausalLM", {**SIZES, **BASE, **QWEN3_MOE, "head_dim": 8}),
}
TOKENS = [(7 * place + place * place) % 13 for place in range(40)]
LOGITS = 64  # of the last tokens


def filled(name, shape):
    """The weights of a tensor in the files: a wave whose phase is the name's, around 1 where it scales."""
    phase = sum((place + 1) * ord(letter) for place, letter in enumerate(name)) % 1009
    index = torch.arange(math.prod(shape), dtype=torch.float64)
    wave = torch.sin(phase + index * math.sqrt(2) + index * index / 97).view(shape)
    return 1 + wave / 4 if len(shape) == 1 and name.endswith("weight") else wave / 4


def in_float64():
    """Let what transformers computes in float32 be computed in float64, in this process."""
    torch.set_default_dtype(torch.float64)
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double


def recorded(architecture, config):
    """Build a model, fill the tensors of its files by name, and compute its logits after `TOKENS`."""
    kind = getattr(transformers, architecture)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        kind(kind.config_class(**config)).save_pretrained(path)
        shapes = {name: list(tensor.shape) for name, tensor in load_file(path / FILE).items()}
        save_file({name: filled(name, shape) for name, shape in shapes.items()}, path / FILE, {"format": "pt"})
        chosen = {"attn_implementation": "eager", "experts_implementation": "eager"}
        model = kind.from_pretrained(path, dtype=torch.float64, **chosen).eval()
        written = json.loads((path / "config.json").read_text())
    with torch.no_grad():
        found = model(torch.tensor([TOKENS])).logits.flatten()[-LOGITS:]  # [LOGITS]
    return {"config": written, "tensors": shapes, "logits": found.tolist()}


if __name__ == "__main__":
    no_arguments(__doc__)
    if transformers is None:
        print("nothing is recorded: this bench needs transformers; see its first lines")
        raise SystemExit
    in_float64()
    versions = {"transformers": transformers.__version__, "safetensors": safetensors.__version__}
    models = {name: recorded(*model) for name, model in MODELS.items()}
    print(record.write("published_models", {"versions": versions, "tokens": TOKENS, "models": models}))
