"""Where the parameters of the reference model lie in a published checkpoint: one table a family.

A table goes from plain modules to modules in the files. Parameters whose modules have one name
there lie in it one after another, such as the rows of q, k and v.
Source: modeling_*.py in https://github.com/huggingface/transformers/tree/v5.24.0/src/transformers/models
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from shardlab.model.spec import TransformerSpec
from shardlab.sharding import cuts
from shardlab.sharding.layout import listed

Numbers = tuple[int, ...]
LAYER = "model.layers.{layer}."
LLAMA = {
    "embedding.tokens": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "attention_norm": LAYER + "input_layernorm",
    "attention.q": LAYER + "self_attn.q_proj",
    "attention.k": LAYER + "self_attn.k_proj",
    "attention.v": LAYER + "self_attn.v_proj",
    "attention.out": LAYER + "self_attn.o_proj",
    "attention.q_scale": LAYER + "self_attn.q_norm",
    "attention.k_scale": LAYER + "self_attn.k_norm",
    "mlp_norm": LAYER + "post_attention_layernorm",
    "mlp.gate": LAYER + "mlp.gate_proj",
    "mlp.up": LAYER + "mlp.up_proj",
    "mlp.down": LAYER + "mlp.down_proj",
    "mlp.router": LAYER + "mlp.gate",
    "mlp.experts.gate": LAYER + "mlp.experts.{expert}.gate_proj",
    "mlp.experts.up": LAYER + "mlp.experts.{expert}.up_proj",
    "mlp.experts.down": LAYER + "mlp.experts.{expert}.down_proj",
}
MIXTRAL = LLAMA | {
    "mlp.router": LAYER + "block_sparse_moe.gate",
    "mlp.experts.gate": LAYER + "block_sparse_moe.experts.{expert}.w1",
    "mlp.experts.up": LAYER + "block_sparse_moe.experts.{expert}.w3",
    "mlp.experts.down": LAYER + "block_sparse_moe.experts.{expert}.w2",
}
PHI3 = LLAMA | {
    **{f"attention.{each}": LAYER + "self_attn.qkv_proj" for each in "qkv"},
    **{f"mlp.{each}": LAYER + "mlp.gate_up_proj" for each in ("gate", "up")},
}
GPT2 = {
    "embedding.tokens": "transformer.wte",
    "embedding.positions": "transformer.wpe",
    "norm": "transformer.ln_f",
    "head": "lm_head",
    "attention_norm": "transformer.h.{layer}.ln_1",
    **{f"attention.{each}": "transformer.h.{layer}.attn.c_attn" for each in "qkv"},
    "attention.out": "transformer.h.{layer}.attn.c_proj",
    "mlp_norm": "transformer.h.{layer}.ln_2",
    "mlp.up": "transformer.h.{layer}.mlp.c_fc",
    "mlp.down": "transformer.h.{layer}.mlp.c_proj",
}
FAMILIES = {
    "LlamaForCausalLM": LLAMA,  # and SmolLM, SmolLM2
    "MistralForCausalLM": LLAMA,
    "Qwen2ForCausalLM": LLAMA,
    "Qwen3ForCausalLM": LLAMA,
    "Qwen3MoeForCausalLM": LLAMA,
    "MixtralForCausalLM": MIXTRAL,
    "Phi3ForCausalLM": PHI3,
    "GPT2LMHeadModel": GPT2,
}
OPTIONAL = "transformer."  # GPT-2's first files have their names without it
# Buffers that older files hold beside the parameters.
BUFFERS = re.compile(r"(rotary_emb\.inv_freq|\.attn\.bias|\.attn\.masked_bias)$")
_PLAIN = re.compile(r"(?:blocks\.(\d+)\.)?(.+)\.(weight|bias)")
_EXPERT = re.compile(r"mlp\.experts\.(\d+)\.")


@dataclass(frozen=True, kw_only=True)
class FilePlace:
    """Where a parameter lies in a tensor of the files."""

    name: str  # of the tensor
    shape: Numbers  # of the tensor
    begin: int = 0  # the row (or column, if transposed) at which the parameter begins
    transposed: bool = False  # whether it is stored [inputs, outputs]

    def place(self, offsets: Numbers, sizes: Numbers) -> tuple[Numbers, Numbers]:
        """Turn offsets and sizes of a box of the parameter into those in the tensor."""
        offsets = (offsets[0] + self.begin, *offsets[1:])
        return (offsets[::-1], sizes[::-1]) if self.transposed else (offsets, sizes)


def sources(architecture: str, spec: TransformerSpec) -> dict[str, FilePlace]:
    """Find the source of each parameter of the plain model; a tied head has none of its own.

    Errors: ValueError for an architecture without a table, or parameters that it does not name.
    """
    if architecture not in FAMILIES:
        raise ValueError(f"no table of names for {architecture!r}; use one of {listed(FAMILIES)}")
    table = FAMILIES[architecture]
    shapes = {name: cut.shape for name, cut in cuts.model(spec, 1).items()}
    named = {name: _there(name, table, architecture) for name in shapes}
    rows: dict[str, int] = {}
    begins = {}
    for name, there in named.items():
        begins[name] = rows.get(there, 0)
        rows[there] = begins[name] + shapes[name][0]
    found = {}
    for name, there in named.items():
        shape = (rows[there], *shapes[name][1:])
        transposed = table is GPT2 and name.startswith("blocks.") and len(shape) > 1
        found[name] = FilePlace(
            name=there,
            shape=shape[::-1] if transposed else shape,
            begin=begins[name],
            transposed=transposed,
        )
    return found


def _there(name: str, table: Mapping[str, str], architecture: str) -> str:
    """Return the name in the files of a plain parameter. Errors: ValueError if it has none."""
    parts = _PLAIN.fullmatch(name)
    layer, module, kind = parts.groups() if parts else ("", name, "")
    expert = _EXPERT.match(module)
    plain = _EXPERT.sub("mlp.experts.", module)
    if plain not in table:
        raise ValueError(
            f"{architecture} has no {name}; use the spec that belongs to the checkpoint's "
            "config.json"
        )
    there = table[plain].format(layer=layer, expert=expert[1] if expert else "")
    return f"{there}.{kind}"
