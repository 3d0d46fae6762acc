"""A `config.json` gives the parameters that its publisher counts, and nothing in it is passed over in silence."""

import contextlib
import math
import re

import pytest
from torch import nn

from shardlab.costs.facts import hugging_face, mixtures, models
from shardlab.costs.facts.hugging_face import fields
from shardlab.model.spec import TransformerSpec

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
DENSE = [row for row in RELEASED if row[1]["architectures"][0] not in hugging_face.reading.MIXTURES]
LLAMA = RELEASED[0][1]


@pytest.mark.parametrize(("name", "config", "parameters"), RELEASED, ids=[name for name, *_ in RELEASED])
def test_the_parameters_are_those_of_the_released_checkpoint(name, config, parameters):
    assert hugging_face.read(config).num_parameters == parameters


@pytest.mark.parametrize(("name", "config", "parameters"), DENSE, ids=[name for name, *_ in DENSE])
def test_a_dense_model_can_be_planned(name, config, parameters):
    model = hugging_face.read(config)
    assert models.num_parameters(model.spec) == parameters
    assert model.dropout == (model.architecture == "GPT2LMHeadModel")


def test_every_architecture_is_counted_against_a_checkpoint():
    counted = {config["architectures"][0] for _, config, _ in RELEASED}
    assert counted == hugging_face.ARCHITECTURES.keys()


def test_biases_that_a_file_asks_for_are_counted():
    biased = hugging_face.read({**LLAMA, "attention_bias": True, "mlp_bias": True}).num_parameters
    more = 32 * (4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096)
    assert biased == hugging_face.read(LLAMA).num_parameters + more
    without = hugging_face.read({**neox(64, 8, 2, 2, 32), "attention_bias": False}).spec
    assert without.biases == ("ffn",)


def test_what_times_and_bytes_leave_out_is_noted():
    notes = {name: hugging_face.read(config).notes for name, config, _ in RELEASED}
    assert notes["mistralai/Mistral-7B-v0.1"][0].startswith("sliding_window=4096")
    assert notes["Qwen/Qwen2.5-7B"] == ()
    assert notes["EleutherAI/pythia-70m"][0].startswith("use_parallel_residual")
    assert [note.split("=")[0].split(":")[0] for note in notes["deepseek-ai/DeepSeek-V3"]] == [
        "quantization_config",
        "num_nextn_predict_layers",
    ]


@pytest.mark.parametrize("config", [MIXTRAL, QWEN3_MOE, DEEPSEEK], ids=lambda config: config["architectures"][0])
def test_a_mixture_is_planned_with_as_many_parameters(config):
    """The biases with which DeepSeek's routers balance the load are no states of a rank."""
    model = hugging_face.read(config)
    spec = model.spec
    assert spec.context_length == config["max_position_embeddings"]
    biases = (spec.num_layers - spec.num_dense) * spec.experts.num_experts * (spec.experts.balance == "bias")
    assert models.num_parameters(spec) + biases == model.num_parameters


def test_mixtral_is_the_published_one():
    assert hugging_face.read(MIXTRAL).spec == mixtures.published("Mixtral 8x7B").spec
    assert hugging_face.read(QWEN3_MOE).num_parameters == sum(
        mixtures.parameters(mixtures.published("Qwen3-30B-A3B").spec).values()
    )


def test_normed_attention_counts_what_torch_does():
    h, heads = 6, {"num_heads": 4, "num_kv_heads": 2, "head_dim": 10, "head_norms": True}
    spec = TransformerSpec(vocab_size=1, context_length=1, hidden_size=h, num_layers=1, style="llama", **heads)
    matrices = [nn.Linear(h, 40), nn.Linear(h, 20), nn.Linear(h, 20), nn.Linear(40, h)]
    layer = nn.ModuleList([*matrices, nn.RMSNorm(10), nn.RMSNorm(10)])
    biases = sum(matrix.bias.numel() for matrix in matrices)
    assert models.attention_parameters(spec) == sum(parameter.numel() for parameter in layer.parameters()) - biases


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "the file has no architectures; use the config.json of a language model"),
        ({"architectures": ["BertForMaskedLM"]}, r"architectures=\['BertForMaskedLM'\] is not understood; use one of"),
        ({"architectures": []}, r"architectures=\[\] is not understood"),
        ({"architectures": "LlamaForCausalLM"}, "architectures='LlamaForCausalLM' must be a list"),
        ({**LLAMA, "vocab_size": None}, "the file has no vocab_size"),
        ({**LLAMA, "vocab_size": "32000"}, "vocab_size='32000' must be a whole number"),
        ({**LLAMA, "num_hidden_layers": True}, "num_hidden_layers=True must be a whole number"),
        ({**LLAMA, "num_hidden_layers": 0}, "num_hidden_layers=0 must be a number from 1 to 10,000"),
        ({**LLAMA, "tie_word_embeddings": 1}, "tie_word_embeddings=1 must be true or false"),
        ({**LLAMA, "num_key_value_heads": 5}, "5 key/value heads do not divide 32 heads"),
        ({**LLAMA, "num_experts": 8}, "LlamaForCausalLM has the field num_experts=8, which is not understood"),
        ({**LLAMA, "layer_types": ["linear_attention"]}, "layer_types has 'linear_attention'; known: full_att"),
        ({**LLAMA, "attention_dropout": 0.1, "hidden_dropout": 0.0}, "hidden_dropout=0.0 drops numbers in some places"),
        ({**QWEN3_MOE, "mlp_only_layers": [3]}, r"mlp_only_layers=\[3\] is not understood"),
        ({**MIXTRAL, "tie_word_embeddings": True}, "tie_word_embeddings=True is not understood"),
        ({**DEEPSEEK, "q_lora_rank": None}, "the file has no q_lora_rank"),
        ({**DEEPSEEK, "topk_method": "greedy"}, "topk_method='greedy' is not understood.*only 'noaux_tc'"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(config, message):
    with pytest.raises(ValueError, match=message):
        hugging_face.read(config)


@pytest.mark.parametrize("architecture", hugging_face.ARCHITECTURES)
def test_a_field_that_nobody_knows_is_refused(architecture):
    config = next(config for _, config, _ in RELEASED if config["architectures"] == [architecture])
    with pytest.raises(ValueError, match=re.escape("no_such_field=7, which is not understood")):
        hugging_face.read({**config, "no_such_field": 7})


@pytest.mark.parametrize("name", sorted(fields.IGNORED))
def test_a_field_that_is_ignored_changes_nothing(name):
    for _, config, parameters in RELEASED:
        assert hugging_face.read({**config, name: None}).num_parameters == parameters


BAD = (math.nan, math.inf, -1, 0, 1.5, True, None, "no such thing", [], {}, [None], {"a": 1}, 10**30)


@pytest.mark.parametrize("architecture", hugging_face.ARCHITECTURES)
def test_any_bad_value_is_refused_or_counted_soundly(architecture):
    config = next(config for _, config, _ in RELEASED if config["architectures"] == [architecture])
    for name in config:
        for bad in BAD:
            with contextlib.suppress(ValueError):
                assert hugging_face.read({**config, name: bad}).num_parameters > 0
