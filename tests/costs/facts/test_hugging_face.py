"""A `config.json` gives the parameters that its publisher counts, and nothing in it is passed over in silence."""

import contextlib
import math

import pytest
from torch import nn

from shardlab.costs.facts import hugging_face, mixtures, models
from shardlab.costs.facts.hugging_face import defaults, known, reading, wrappers
from shardlab.model.spec import TransformerSpec

from .released import BUILT, DEEPSEEK, GEMMA_4B, GLM5, MIXTRAL, QWEN3_MOE, RELEASED, neox
from .released_hybrids import GRANITE_SMALL, HYBRIDS, KIMI_LINEAR, NANO_3, NEMOTRON_8B, QWEN3_NEXT

KNOWN = [*RELEASED, *BUILT, *HYBRIDS]
DENSE = [row for row in KNOWN if row[1]["architectures"][0] in reading.DENSE]
LLAMA = RELEASED[0][1]


def without(config, name):
    return {each: value for each, value in config.items() if each != name}


def example(architecture):
    """Return the fields of a released model with the architecture, without their wrapper."""
    files = [wrappers.unwrapped(config)[0] for _, config, _ in KNOWN]
    return next(config for config in files if config["architectures"] == [architecture])


@pytest.mark.parametrize(("name", "config", "parameters"), KNOWN, ids=[name for name, *_ in KNOWN])
def test_the_parameters_are_those_of_the_released_checkpoint(name, config, parameters):
    assert hugging_face.read(config).num_parameters == parameters


@pytest.mark.parametrize(("name", "config", "parameters"), DENSE, ids=[name for name, *_ in DENSE])
def test_a_dense_model_can_be_planned(name, config, parameters):
    model = hugging_face.read(config)
    assert models.num_parameters(model.spec) == parameters
    assert model.dropout == (model.architecture == "GPT2LMHeadModel")


@pytest.mark.parametrize(
    ("name", "printed"), [("zai-org/GLM-4.5", 32), ("zai-org/GLM-4.5-Air", 12), ("zai-org/GLM-5", 40)]
)
def test_a_token_uses_as_many_billions_as_are_printed(name, printed):
    """Abstracts of https://arxiv.org/abs/2508.06471 and 2602.15763, which leave embedding and head out."""
    config = next(config for known, config, _ in BUILT if known == name)
    active = mixtures.active_parameters(hugging_face.read(config).spec)
    used = sum(active.values()) - active["token embedding"] - active["head"]
    assert round(used / 1e9) == printed


def test_a_token_of_nemotron_3_uses_as_many_parameters_as_are_printed():
    """3.2 billion, 3.6 "with embeddings": https://research.nvidia.com/labs/nemotron/Nemotron-3."""
    active = mixtures.active_parameters(hugging_face.read(NANO_3).spec)
    assert round(sum(active.values()) / 1e9, 1) == 3.6
    assert round((sum(active.values()) - active["token embedding"]) / 1e9, 1) == 3.2


@pytest.mark.parametrize("config", [NEMOTRON_8B, NANO_3], ids=["blocks", "experts"])
def test_layers_are_named_by_letters_or_by_words(config):
    """Transformers 5 writes words, and leaves out how many layers there are."""
    words = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
    left = {name: config[name] for name in config.keys() - {"hybrid_override_pattern", "num_hidden_layers"}}
    for names in (words, {**words, "M": "mamba", "*": "attention"}):
        left["layers_block_type"] = [names[letter] for letter in config["hybrid_override_pattern"]]
        assert hugging_face.read(left).spec == hugging_face.read(config).spec
    with pytest.raises(ValueError, match="hybrid_override_pattern='M-' is not understood"):
        hugging_face.read({**left, "hybrid_override_pattern": "M-"})


def test_a_file_says_again_which_layers_have_indexers_and_experts():
    """As transformers 5 writes it."""
    layers = {"layer_types": ["indexed_attention"] * 78, "indexer_types": ["full"] * 78}
    layers["mlp_layer_types"] = ["dense"] * 3 + ["sparse"] * 75
    assert hugging_face.read({**GLM5, **layers}).spec == hugging_face.read(GLM5).spec


def test_every_architecture_is_counted_against_a_checkpoint():
    counted = {hugging_face.read(config).architecture for _, config, _ in KNOWN}
    assert counted == hugging_face.ARCHITECTURES.keys()


def test_biases_that_a_file_asks_for_are_counted():
    biased = hugging_face.read({**LLAMA, "attention_bias": True, "mlp_bias": True}).num_parameters
    more = 32 * (4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096)
    assert biased == hugging_face.read(LLAMA).num_parameters + more
    without = hugging_face.read({**neox(64, 8, 2, 2, 32), "attention_bias": False}).spec
    assert without.biases == ("ffn",)


def test_what_a_file_leaves_out_is_as_in_transformers_and_said():
    """Mistral's class has 8 key/value heads; a null field has as many as there are query heads."""
    mistral = next(config for name, config, _ in RELEASED if name == "mistralai/Mistral-7B-v0.1")
    short = {name: value for name, value in mistral.items() if name != "num_key_value_heads"}
    model = hugging_face.read(short)
    assert model.spec == hugging_face.read(mistral).spec
    assert model.notes[0] == "left out, so as in transformers: num_key_value_heads=8"
    assert hugging_face.read({**short, "num_key_value_heads": None}).spec.kv_heads == 32
    gpt2 = example("GPT2LMHeadModel")
    without = {name: value for name, value in gpt2.items() if not name.endswith("_pdrop")}
    assert hugging_face.read(without).dropout


def test_the_wrapper_of_a_language_model_says_whether_its_head_is_tied():
    text = hugging_face.read(GEMMA_4B)
    assert text.spec.tied
    assert text.notes[0] == "text_config alone is counted; left out: mm_tokens_per_image, vision_config"
    untied = hugging_face.read({**GEMMA_4B, "tie_word_embeddings": False})
    assert untied.num_parameters == text.num_parameters + 262208 * 2560
    inner = {**GEMMA_4B["text_config"], "tie_word_embeddings": True}
    with pytest.raises(ValueError, match="tie_word_embeddings is False in the file and True in its text_config"):
        hugging_face.read({**GEMMA_4B, "text_config": inner, "tie_word_embeddings": False})


NOVA = {**LLAMA, "architectures": ["NovaForCausalLM"]}


def test_a_model_under_another_name_is_read_like_the_one_whose_layers_it_has():
    nova, llama = hugging_face.read(NOVA, like="LlamaForCausalLM"), hugging_face.read(LLAMA)
    assert (nova.spec, nova.num_parameters) == (llama.spec, llama.num_parameters)
    with pytest.raises(ValueError, match=r"NovaForCausalLM'\] is not understood; .* or --like with the one"):
        hugging_face.read(NOVA)


@pytest.mark.parametrize(
    ("file", "like", "said"),
    [
        (NOVA, "NovaForCausalLM", "--like NovaForCausalLM is not understood; use one of LlamaForCausalLM"),
        (LLAMA, "Qwen2ForCausalLM", "--like Qwen2ForCausalLM: LlamaForCausalLM is known, with its own layers"),
        ({**NOVA, "num_experts": 8}, "LlamaForCausalLM", "num_experts=8 is not understood"),
        ({**NOVA, "memory_slots": 64}, "LlamaForCausalLM", "fields that are not understood: memory_slots=64"),
        (without(NOVA, "intermediate_size"), "LlamaForCausalLM", "leaves out intermediate_size, and the defaults"),
    ],
)
def test_a_model_like_another_has_its_own_sizes_and_no_others(file, like, said):
    with pytest.raises(ValueError, match=said):
        hugging_face.read(file, like=like)


def test_an_architecture_that_is_lacking_is_not_also_read():
    assert not reading.LACKING.keys() & hugging_face.ARCHITECTURES.keys()
    assert set(wrappers.MODEL_TYPES.values()) <= reading.LACKING.keys() | hugging_face.ARCHITECTURES.keys()
    assert defaults.DEFAULTS.keys() == hugging_face.ARCHITECTURES.keys()


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
        ({**LLAMA, "num_experts": 8}, "num_experts=8 is not understood; with this architecture only 0, None can"),
        ({**LLAMA, "layer_types": ["linear_attention"]}, "layer_types has 'linear_attention'; known: chunked"),
        ({**LLAMA, "attention_dropout": 0.1, "hidden_dropout": 0.0}, "hidden_dropout=0.0 drops numbers in some places"),
        ({**QWEN3_MOE, "mlp_only_layers": [3]}, r"mlp_only_layers=\[3\] is not understood"),
        ({**LLAMA, "new": 1, "pruned": [0] * 99, "old": 2}, r"new=1, old=2, pruned=\[0, 0, .*, \.\.\.; if no size"),
        ({**LLAMA, "add_cross_attention": True}, "add_cross_attention=True is not understood.*only False"),
        ({**LLAMA, "pruned_heads": {"0": [1]}}, "pruned_heads={'0': .*only {}, None"),
        ({**QWEN3_MOE, "attention_bias": True}, "attention_bias=True is not understood"),
        ({"architectures": ["MiniMaxForCausalLM"]}, r"has layers that keep a state .*\(lightning attention\), which"),
        ({**NEMOTRON_8B, "hybrid_override_pattern": "ME*"}, "must have M, .*each of num_hidden_layers=52"),
        ({**NEMOTRON_8B, "hybrid_override_pattern": "M-*E" * 13}, "must have M, .* and either - or E"),
        ({**NEMOTRON_8B, "layers_block_type": ["mamba", "conv"]}, "hybrid_override_pattern=.* is not understood"),
        ({**NANO_3, "moe_latent_size": 1024}, "moe_latent_size=1024 is not understood"),
        ({**NANO_3, "moe_shared_expert_intermediate_size": 1857}, "=1857 must be a multiple of moe_.*=1856"),
        ({**NEMOTRON_8B, "mlp_hidden_act": "silu"}, "mlp_hidden_act='silu' is not understood"),
        ({**GRANITE_SMALL, "layer_types": ["mamba"] * 39}, "layer_types must be mamba or attention, .*=40"),
        ({**GRANITE_SMALL, "mamba_d_head": 32}, "=128 of mamba_d_head=32 must be mamba_expand times hidden_size"),
        ({**GRANITE_SMALL, "shared_intermediate_size": 1000}, "=1000 must be a multiple of intermediate_size=768"),
        ({**GRANITE_SMALL, "mamba_conv_bias": False}, "mamba_conv_bias=False is not understood"),
        ({**QWEN3_NEXT, "layer_types": ["linear_attention"]}, "layer_types must be .*num_hidden_layers=48"),
        ({**KIMI_LINEAR, "num_hidden_layers": 28}, "kda_layers and full_attn_layers must name each of num_hidden_lay"),
        ({**QWEN3_NEXT, "full_attention_interval": 1}, "and some linear_attention"),
        ({**QWEN3_NEXT, "shared_expert_intermediate_size": 700}, "=700 must be a multiple of moe_.*=512"),
        ({"text_config": {"model_type": []}}, r"text_config has model_type='\[\]', which is not understood; use"),
        ({"text_config": {"model_type": "beit"}}, "text_config has model_type='beit', which is not understood; use"),
        ({**GLM5, "indexer_types": ["full"] * 77 + ["shared"]}, "'full' can be counted at index 77, not 'shared'"),
        ({**GLM5, "index_topk_freq": 4}, "index_topk_freq=4 is not understood"),
        ({**GLM5, "mlp_layer_types": ["sparse"] * 77}, "only 78 entries can be counted, and it has 77"),
        ({**QWEN3_MOE, "num_local_experts": 64}, "num_experts=128 and num_local_experts=64 name the same size"),
        ({**KIMI_LINEAR, "n_routed_experts": 64}, "n_routed_experts=64 and num_experts=256 name the same size"),
        ({**DEEPSEEK, "topk_method": "greedy"}, "topk_method='greedy' is not understood.*only 'noaux_tc'"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(config, message):
    with pytest.raises(ValueError, match=message):
        hugging_face.read(config)


@pytest.mark.parametrize("architecture", hugging_face.ARCHITECTURES)
def test_a_field_that_nobody_knows_is_refused(architecture):
    config = example(architecture)
    file = {**config, "no_such_field": "x"}
    with pytest.raises(ValueError, match=r"not understood: no_such_field='x'; .* or use --ignore-unknown"):
        hugging_face.read(file)
    model = hugging_face.read(file, ignore_unknown=True)
    assert model.spec == hugging_face.read(config).spec
    assert model.ignored == ("no_such_field='x'",)


def inside(config, field):
    return {**config, "linear_attn_config": {**config["linear_attn_config"], **field}}


@pytest.mark.parametrize(
    ("file", "size"),
    [
        ({**KIMI_LINEAR, "routed_expert_hidden_size": 1152}, "routed_expert_hidden_size"),
        (inside(KIMI_LINEAR, {"num_value_heads": 8}), "linear_attn_config.num_value_heads"),
        ({**LLAMA, "mlp_ratio": 0.5}, "mlp_ratio"),
        ({**LLAMA, "wide": 1.5}, "wide"),
        ({**LLAMA, "memory_slots": [4, 4]}, "memory_slots"),
        ({**LLAMA, "adapter": {"r": 8}}, "adapter"),
        ({**LLAMA, "num_registers": 1}, "num_registers"),
    ],
)
def test_what_may_be_a_size_is_ignored_only_by_its_name(file, size):
    """Of experts that read half the width, the count would be nearly twice too large."""
    file = {**file, "fused": True}
    for unknown in (False, True):
        with pytest.raises(ValueError, match=f"{size}=.*--ignore-size {size}, which leaves the count in doubt"):
            hugging_face.read(file, ignore_unknown=unknown)
    with pytest.raises(ValueError, match="not understood: fused=True"):
        hugging_face.read(file, ignore_sizes=[size])
    ignored = hugging_face.read(file, ignore_unknown=True, ignore_sizes=[size]).ignored
    assert sorted(each.split("=")[0] for each in ignored) == sorted(["fused", size])
    with pytest.raises(ValueError, match=f"--ignore-size no: the file has no such field .* it has .*{size}"):
        hugging_face.read(file, ignore_sizes=["no"])


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("Qwen/Qwen3-8B", {"use_qk_norm": True}),
        ("Qwen/Qwen2.5-7B", {"qkv_bias": True, "num_experts": 0}),
        ("EleutherAI/pythia-70m", {"num_key_value_heads": 8, "head_dim": 64}),
        ("zai-org/GLM-4.5", {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "num_local_experts": 160}),
        ("zai-org/GLM-4.5", {"mlp_layer_types": ["dense"] * 3 + ["sparse"] * 89}),
        ("deepseek-ai/DeepSeek-V3", {"num_local_experts": 256, "moe_topk": 8}),
        ("meta-llama/Llama-3.1-8B", {"mtp_loss_weight": 0.1, "move_model_to_device": True, "router_dtype": "fp32"}),
    ],
)
def test_a_field_that_confirms_a_size_or_changes_none_is_read(name, more):
    config = next(config for known, config, _ in KNOWN if known == name)
    assert hugging_face.read({**config, **more}) == hugging_face.read(config)


@pytest.mark.parametrize("ignore", [False, True])
def test_the_number_of_experts_has_another_name_in_transformers_5(ignore):
    """Qwen3-MoE: https://github.com/huggingface/transformers/blob/v5.24.0/src/transformers/models/qwen3_moe."""
    former = ("num_experts", "rope_theta", "torch_dtype")
    file = {name: value for name, value in QWEN3_MOE.items() if name not in former}
    file |= {"num_local_experts": 64, "rope_parameters": {"rope_theta": 1e6}, "dtype": "bfloat16"}
    spec = hugging_face.read(file, ignore_unknown=ignore).spec
    assert spec == hugging_face.read({**QWEN3_MOE, "num_experts": 64}).spec


@pytest.mark.parametrize("name", sorted(known.IGNORED))
def test_a_field_that_is_ignored_changes_nothing(name):
    for _, config, parameters in RELEASED:
        assert hugging_face.read({**config, name: None}).num_parameters == parameters


BAD = (math.nan, math.inf, -1, 0, 1.5, True, None, "no such thing", [], {}, [None], {"a": 1}, 10**30)


@pytest.mark.parametrize("architecture", hugging_face.ARCHITECTURES)
def test_any_bad_value_is_refused_or_counted_soundly(architecture):
    config = example(architecture)
    for name in config:
        for bad in BAD:
            with contextlib.suppress(ValueError):
                assert hugging_face.read({**config, name: bad}).num_parameters > 0
