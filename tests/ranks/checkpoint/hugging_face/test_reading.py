"""Ranks of any layout read a published checkpoint: the model is the origin's, the bytes are predicted."""

import json
import math
import re

import pytest
import torch

from shardlab.costs.memory import loading
from shardlab.launch import run
from shardlab.model.details import Details
from shardlab.model.experts import Experts
from shardlab.model.spec import TransformerSpec
from shardlab.ranks import train, transformer
from shardlab.ranks.checkpoint import tensors
from shardlab.ranks.memory import hollow
from shardlab.ranks.mesh import Mesh
from shardlab.schedules import make
from shardlab.sharding import cuts
from shardlab.sharding.layout import Layout
from tests.ranks import training
from tests.ranks.tolerance import EXACT

SIZES = {"vocab_size": 13, "context_length": 24, "hidden_size": 24, "num_layers": 2, "num_heads": 12}
ROTARY = {**SIZES, "style": "llama", "num_kv_heads": 2, "details": Details(pairs="halves", epsilon=1e-6)}
LLAMA = TransformerSpec(**ROTARY, ffn_size=36)
WIDTH = 8  # bytes of a number in these files
EXPERTS = Experts(num_experts=4, per_token=2, expert_size=12)
CASES = {  # architecture -> spec
    "LlamaForCausalLM": LLAMA,
    "Qwen2ForCausalLM": TransformerSpec(**ROTARY, ffn_size=36, bias_places=("qkv",), tied_head=True),
    "Qwen3ForCausalLM": TransformerSpec(**ROTARY, ffn_size=36, head_dim=4, head_norms=True),
    "Phi3ForCausalLM": LLAMA,
    "GPT2LMHeadModel": TransformerSpec(**SIZES, ffn_size=36),
    "MixtralForCausalLM": TransformerSpec(**ROTARY, experts=EXPERTS),
    "Qwen3MoeForCausalLM": TransformerSpec(**ROTARY, experts=EXPERTS, head_norms=True),
}
LAYOUTS = [
    Layout(),
    Layout(cp=3, zero=2),
    Layout(tp=4),  # two ranks share a key/value head
    Layout(tp=2, pp=2),
    Layout(dp=2, cp=2, zero=3),
    Layout(dp=2, tp=2, zero=1),
    Layout(dp=2, pp=2, zero=2),
]
MIXED = [
    Layout(dp=2, ep=2),
    Layout(dp=2, tp=2, ep=2, zero=1),
    Layout(dp=2, tp=2, ep=2, whole_experts=True, sequence_parallel=True),
]


def plain(architecture):
    torch.manual_seed(0)
    model = transformer.Transformer(CASES[architecture]).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


def put(there, name, *modules, turn=False):
    """Add weights and biases of modules, one after another, and turned as Conv1D has them."""
    for kind in ("weight", "bias"):
        parts = [each for module in modules if (each := getattr(module, kind, None)) is not None]
        if parts:
            whole = torch.cat([part.detach() for part in parts])
            there[f"{name}.{kind}"] = whole.T.contiguous() if turn and whole.dim() > 1 else whole


def gpt2_layer(there, at, block):
    a, mlp = block.attention, block.mlp
    put(there, at + "ln_1", block.attention_norm)
    put(there, at + "ln_2", block.mlp_norm)
    turned = {"attn.c_attn": (a.q, a.k, a.v), "attn.c_proj": (a.out,), "mlp.c_fc": (mlp.up,), "mlp.c_proj": (mlp.down,)}
    for name, modules in turned.items():
        put(there, at + name, *modules, turn=True)
    there[at + "attn.bias"] = torch.ones(1, 1, 24, 24)  # a buffer of older files


def phi3_layer(there, at, block):
    a, mlp = block.attention, block.mlp
    put(there, at + "self_attn.qkv_proj", a.q, a.k, a.v)
    put(there, at + "self_attn.o_proj", a.out)
    put(there, at + "mlp.gate_up_proj", mlp.gate, mlp.up)
    put(there, at + "mlp.down_proj", mlp.down)


def llama_layer(there, at, block):
    a = block.attention
    for ours, theirs in {"q": "q", "k": "k", "v": "v", "out": "o"}.items():
        put(there, f"{at}self_attn.{theirs}_proj", getattr(a, ours))
    put(there, at + "self_attn.q_norm", a.q_scale)
    put(there, at + "self_attn.k_norm", a.k_scale)


def feed_forward(there, at, mlp, names=("gate_proj", "up_proj", "down_proj")):
    if hasattr(mlp, "router"):
        put(there, at + "gate", mlp.router)
        for expert, block in mlp.experts.items():
            feed_forward(there, f"{at}experts.{expert}.", block, names)
    else:
        for name, module in zip(names, (mlp.gate, mlp.up, mlp.down), strict=True):
            put(there, at + name, module)


def renamed(architecture, model):
    """Name a model's numbers as its published checkpoint does, and lay them out as there."""
    there, gpt2 = {}, architecture == "GPT2LMHeadModel"
    put(there, "wte" if gpt2 else "model.embed_tokens", model.embedding.tokens)
    put(there, "wpe", model.embedding.positions)
    put(there, "ln_f" if gpt2 else "model.norm", model.norm)
    if not model.spec.tied:
        put(there, "lm_head", model.head)
    for number, block in enumerate(model.blocks):
        at = f"h.{number}." if gpt2 else f"model.layers.{number}."
        if gpt2:
            gpt2_layer(there, at, block)
            continue
        put(there, at + "input_layernorm", block.attention_norm)
        put(there, at + "post_attention_layernorm", block.mlp_norm)
        if architecture == "Phi3ForCausalLM":
            phi3_layer(there, at, block)
            continue
        llama_layer(there, at, block)
        if architecture == "MixtralForCausalLM":
            feed_forward(there, at + "block_sparse_moe.", block.mlp, ("w1", "w3", "w2"))
        else:
            feed_forward(there, at + "mlp.", block.mlp)
    return there


def publish(folder, named):
    """Write tensors to two files and an index."""
    names, places = sorted(named), {}
    for half in (0, 1):
        file = f"model-{half}.safetensors"
        tensors.write(folder / file, {name: named[name] for name in names[half::2]})
        places |= dict.fromkeys(names[half::2], file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def data(step):
    tokens = torch.randint(13, (4, 25), generator=torch.Generator().manual_seed(step))
    return tokens[:, :-1], tokens[:, 1:]


def trainer(group, architecture, layout):
    torch.set_num_threads(1)
    model = hollow.build(CASES[architecture], torch.float64)
    return train.Trainer(model, Mesh(layout, group), make("1F1B", layout.pp, 2), training.adamw)


def two_steps(group, architecture, layout, folder):
    made = trainer(group, architecture, layout)
    made.read(folder, architecture)
    own, ranks = made.mesh.dp.rank(), layout.dp
    for step in range(2):
        made.step(*(x.chunk(ranks)[own] for x in data(step)))
    return made.gather()


WHERE = [
    *((each, layout) for each in ("LlamaForCausalLM", "Qwen2ForCausalLM", "GPT2LMHeadModel") for layout in LAYOUTS),
    *((each, Layout(tp=4)) for each in ("Qwen3ForCausalLM", "Phi3ForCausalLM")),
    *((each, layout) for each in ("MixtralForCausalLM", "Qwen3MoeForCausalLM") for layout in [Layout(tp=4), *MIXED]),
]


@pytest.mark.parametrize(("architecture", "layout"), WHERE, ids=str)
@pytest.mark.parity("composition", "a published checkpoint, read in any layout, steps like one process")
def test_two_steps_after_reading_equal_one_process(tmp_path, architecture, layout):
    model = plain(architecture)
    publish(tmp_path, renamed(architecture, model))
    adam = training.adamw(model.parameters())
    for step in range(2):
        adam.zero_grad()
        model(*data(step)).backward()
        adam.step()
    ranks = run(two_steps, architecture, layout, str(tmp_path), world_size=layout.ranks, ranks="threads")
    for found in ranks:
        for name, tensor in found.items():
            torch.testing.assert_close(tensor, model.get_parameter(name).detach(), **EXACT)


def read_bytes(group, architecture, layout, folder):
    made = trainer(group, architecture, layout)
    pieces = [box.tensor.numel() * WIDTH for span in made.spans() for box in span.weights()]
    return made.read(folder, architecture), max(pieces, default=0)


@pytest.mark.parametrize(("architecture", "layout"), WHERE, ids=str)
@pytest.mark.counted("composition", "bytes of a published checkpoint that each rank reads")
def test_each_rank_reads_the_bytes_that_are_predicted(tmp_path, architecture, layout):
    publish(tmp_path, renamed(architecture, plain(architecture)))
    ranks = run(read_bytes, architecture, layout, str(tmp_path), world_size=layout.ranks, ranks="threads")
    found = [total for total, _ in ranks]
    predicted = loading.reading(CASES[architecture], layout, width=WIDTH)
    totals = [each.total for each in predicted]
    if layout.zero:  # replicas share what they read
        assert sum(found) == pytest.approx(sum(totals))
        assert all(largest <= each.largest for (_, largest), each in zip(ranks, predicted, strict=True))
    else:
        assert found == totals
        assert [largest for _, largest in ranks] == [each.largest for each in predicted]


def refused(group, folder, architecture):
    made = trainer(group, "LlamaForCausalLM", Layout(tp=2))
    with pytest.raises(ValueError, match=r"\S") as error:
        made.read(folder, architecture)
    return str(error.value)


def header(change):
    """Change the header of the first file."""

    def act(folder):
        file = folder / "model-0.safetensors"
        whole = file.read_bytes()
        end = 8 + int.from_bytes(whole[:8], "little")
        rows = json.loads(whole[8:end])
        change(rows, rows[min(rows)])
        text = json.dumps(rows).encode()
        file.write_bytes(len(text).to_bytes(8, "little") + text + whole[end:])

    return act


def index(change):
    def act(folder):
        file = folder / "model.safetensors.index.json"
        rows = json.loads(file.read_text())
        file.write_text(change(rows["weight_map"]) or json.dumps(rows))

    return act


def pickled(folder):
    for file in folder.iterdir():
        file.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"")


def cut_short(folder):
    file = folder / "model-1.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


HOSTILE = {
    "leaves the folder": (index(lambda at: at.update({min(at): "../model-0.safetensors"})), "no .safetensors beside"),
    "index {": (index(lambda at: "{"), "index.json cannot be read"),
    "index []": (index(lambda at: "[]"), "weight_map is None and no dict"),
    "placed elsewhere": (index(lambda at: at.update({min(at): "model-1.safetensors"})), "places elsewhere"),
    "not there": (index(lambda at: at.update({"x": "model-1.safetensors"})), "it lacks x"),
    "pickle": (pickled, "pytorch_model.bin is a pickle.*convert it"),
    "cut short": (cut_short, "cut short"),
    "dtype": (header(lambda rows, row: row.update(dtype="F4")), "'F4', which is not known"),
    "NaN": (header(lambda rows, row: row.update(shape=[math.nan])), "no whole numbers"),
    "negative": (header(lambda rows, row: row.update(data_offsets=[-8, 8])), "no whole numbers"),
    "size": (header(lambda rows, row: row.update(data_offsets=[0, 8])), "has data_offsets"),
    "overlap": (header(lambda rows, row: rows.update(x={**row})), "overlaps"),
    "shape": (header(lambda rows, row: row.update(shape=row["shape"][::-1])), "in the model; use the spec"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_folder_is_refused_on_all_ranks(tmp_path, name):
    publish(tmp_path, renamed("LlamaForCausalLM", plain("LlamaForCausalLM")))
    act, words = HOSTILE[name]
    act(tmp_path)
    first, second = run(refused, str(tmp_path), "LlamaForCausalLM", world_size=2, ranks="threads")
    assert first == second
    assert "\n" not in first
    assert re.search(words, first), first


@pytest.mark.parametrize(
    ("change", "architecture", "words"),
    [
        (lambda named: named.update({"model.norm.bias": torch.zeros(24)}), "LlamaForCausalLM", "nothing in the model"),
        (lambda named: named.pop("model.norm.weight"), "LlamaForCausalLM", "has no model.norm.weight [24]"),
        (lambda named: None, "GemmaForCausalLM", "no table of names for 'GemmaForCausalLM'"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(tmp_path, change, architecture, words):
    named = renamed("LlamaForCausalLM", plain("LlamaForCausalLM"))
    change(named)
    publish(tmp_path, named)
    for said in run(refused, str(tmp_path), architecture, world_size=2, ranks="threads"):
        assert words in said


def poisoned(group, folder):
    """Read a folder in which a rank of tensor parallelism finds only NaN in all that it does not keep."""
    made = trainer(group, "LlamaForCausalLM", Layout(tp=2))
    made.read(f"{folder}/{group.rank()}", "LlamaForCausalLM")
    return all(parameter.isfinite().all() for parameter in made.pipeline.parameters())


def test_a_rank_reads_nothing_that_it_does_not_keep(tmp_path):
    model = plain("LlamaForCausalLM")
    plan = cuts.model(LLAMA, 2)
    for rank in (0, 1):
        copy = plain("LlamaForCausalLM")
        for name, parameter in copy.named_parameters():
            if plan[name].dim is not None:
                held = plan[name].held(rank)
                kept = model.get_parameter(name).detach().narrow(plan[name].dim, held.start, len(held))
                with torch.no_grad():
                    parameter.fill_(math.nan).narrow(plan[name].dim, held.start, len(held)).copy_(kept)
        (tmp_path / str(rank)).mkdir()
        publish(tmp_path / str(rank), renamed("LlamaForCausalLM", copy))
    assert run(poisoned, str(tmp_path), world_size=2, ranks="threads") == [True, True]
