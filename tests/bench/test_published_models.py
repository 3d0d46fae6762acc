"""The reference model has the logits that transformers computes, from files as transformers writes them."""

import json

import published_models
import pytest
import record
import torch

from shardlab.costs.facts import hugging_face
from shardlab.launch import run
from shardlab.ranks import train, transformer
from shardlab.ranks.checkpoint import tensors
from shardlab.ranks.checkpoint.hugging_face import names
from shardlab.ranks.memory import hollow
from shardlab.ranks.mesh import Mesh
from shardlab.schedules import make
from shardlab.sharding.layout import Layout
from tests.ranks import training
from tests.ranks.tolerance import EXACT

RECORDED = json.loads((record.RESULTS / "published_models.json").read_text())
LAYOUTS = [Layout(), Layout(tp=2, pp=2)]


def gathered(group, folder, architecture, spec, layout):
    model = hollow.build(spec, torch.float64)
    made = train.Trainer(model, Mesh(layout, group), make("1F1B", layout.pp, 2), training.adamw)
    made.read(folder, architecture)
    return made.gather()


def logits(tmp_path, name, layout, change=lambda config: None, turn=None):
    """Fill a folder with the recorded tensors, let ranks read it, and compute the recorded logits."""
    model = RECORDED["models"][name]
    named = {each: published_models.filled(each, shape) for each, shape in model["tensors"].items()}
    if turn:
        named[turn] = named[turn].T.contiguous()
    tensors.write(tmp_path / published_models.FILE, named)
    config = json.loads(json.dumps(model["config"]))
    change(config)
    architecture, spec = hugging_face.read_whole(config)
    ranks = layout.ranks
    found = run(gathered, tmp_path, architecture, spec, layout, world_size=ranks, ranks="threads")[0]
    whole = transformer.Transformer(spec).double()
    whole.load_state_dict(found, strict=False)
    with torch.no_grad():
        flat = whole(torch.tensor([RECORDED["tokens"]])).flatten()    # [S * V]
    return flat[-published_models.LOGITS :], torch.tensor(model["logits"], dtype=torch.float64)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", RECORDED["models"])
@pytest.mark.parity("composition", "a published checkpoint, read by ranks, has the logits of transformers")
def test_the_reference_model_has_the_logits_of_the_original(tmp_path, name, layout):
    ours, theirs = logits(tmp_path, name, layout)
    assert theirs.std() > 100 * EXACT["atol"]
    torch.testing.assert_close(ours, theirs, **EXACT)


def slower(config):
    config["rope_parameters"]["rope_theta"] *= 1.01


def rounder(config):
    config["rms_norm_eps"] *= 1.01


WRONG = {
    "another rotary base": ("Llama 3.1", slower, None),
    "another epsilon": ("Qwen2", rounder, None),
    "no stretch": ("Llama 3.1", lambda config: config["rope_parameters"].update(rope_type="default"), None),
    "weights that are not normalized": ("Qwen3-MoE", lambda config: config.update(norm_topk_prob=False), None),
    "exact GELU": ("GPT-2", lambda config: config.update(activation_function="gelu"), None),
    "a square matrix that is turned": ("GPT-2", lambda config: None, "transformer.h.1.attn.c_proj.weight"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_that_fits_every_shape_is_seen_in_the_logits(tmp_path, mistake):
    name, change, turn = WRONG[mistake]
    ours, theirs = logits(tmp_path, name, Layout(), change, turn)
    assert (ours - theirs).abs().max() > 1000 * EXACT["atol"]


REFUSED = {
    "rope_type='yarn' is not computed": ("Llama 3", lambda config: config["rope_parameters"].update(rope_type="yarn")),
    "no rms_norm_eps": ("Mistral", lambda config: config.pop("rms_norm_eps")),
    "no rope_theta": ("Qwen3", lambda config: config.pop("rope_parameters")),
    "hidden_act='gelu'": ("Phi-3", lambda config: config.update(hidden_act="gelu")),
    "scale_attn_weights=False": ("GPT-2", lambda config: config.update(scale_attn_weights=False)),
    "SmolLM3ForCausalLM can be": ("Llama 3", lambda config: config.update(architectures=["SmolLM3ForCausalLM"])),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_the_reference_model_does_not_compute_is_refused_by_name(words):
    name, change = REFUSED[words]
    config = json.loads(json.dumps(RECORDED["models"][name]["config"]))
    change(config)
    with pytest.raises(ValueError, match=words):
        hugging_face.read_whole(config)


def test_what_a_config_can_name_has_a_table_of_names_in_files():
    assert hugging_face.details.WINDOWED.keys() == names.FAMILIES.keys()
