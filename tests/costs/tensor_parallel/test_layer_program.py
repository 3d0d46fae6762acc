"""Played on clusters, the program takes what the closed form says; and it is what real ranks do."""

from dataclasses import replace

import pytest
import torch

from shardlab.costs import tensor_parallel as costs
from shardlab.costs.compute import flops
from shardlab.costs.facts import models, nodes
from shardlab.costs.facts.network import Cluster
from shardlab.costs.facts.recipes import recipe
from shardlab.costs.tensor_parallel import TensorParallelRun, layer
from shardlab.costs.tensor_parallel.layer_program import program
from shardlab.costs.traces.replay import replay
from shardlab.launch import run
from shardlab.model.spec import TransformerSpec
from shardlab.ranks import tensor_parallel, transformer
from shardlab.ranks.observe import ledger

NODE = nodes.node("DGX H100")
GPT3 = TensorParallelRun(spec=models.published("GPT-3 175B").spec, chip=NODE.chip, link=costs.spread(NODE, 8), tp=8)
WAYS = [{}, {"sequence_parallel": True}, {"sequence_parallel": True, "regather": True}]


@pytest.mark.parametrize("per_node", [8, 4, 2, 1])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_replay_takes_what_the_closed_form_says(per_node, overlap, way):
    one = replace(GPT3, link=costs.spread(NODE, 8, per_node), overlap=overlap, **way)
    placement = costs.placement(NODE, 8, per_node)
    cluster = Cluster(node=NODE, num_nodes=8 // per_node)
    speeds = {"rate": one.utilisation * one.chip.peak_flops, "link_utilisation": one.link_utilisation}
    played = replay(program(one, 2), cluster, placement=placement, **speeds)
    predicted = layer(one)
    expected = 2 * (sum(predicted.matrices.values()) + predicted.waiting)
    assert played.seconds == pytest.approx(expected, rel=0.005)


def recorded(group, spec, num_layers, way):
    """What a rank computes and says for so many layers and two sequences of 24 tokens; small messages left out."""
    torch.manual_seed(0)
    model = transformer.Transformer(replace(spec, num_layers=num_layers))
    model, tokens = tensor_parallel.parallelize(model, group, **way), torch.zeros(2, 24, dtype=torch.int64)
    with ledger.Ledger() as book:
        model(tokens, tokens).backward()
    return facts([event for event in book.program if event.kind != "communicate" or event.nbytes >= 4 * 2 * 24 * 24])


def facts(events):
    """FLOPs, and how often what was said."""
    said = [(event.op, event.nbytes) for event in events if event.kind == "communicate"]
    return sum(event.flops for event in events), {each: said.count(each) for each in said}


@pytest.mark.parametrize("style", ["gpt2", "llama"])
@pytest.mark.counted("tensor_parallel", "FLOPs and messages of a layer, for each way to cut it")
def test_real_ranks_do_what_the_program_says(style):
    sizes = {"vocab_size": 16, "context_length": 24, "hidden_size": 24, "num_layers": 1, "num_heads": 6}
    spec = TransformerSpec(**sizes, style=style)
    seen = run(lambda group: [[recorded(group, spec, n, way) for n in (1, 2)] for way in WAYS], world_size=3)
    settings = {"chip": NODE.chip, "link": GPT3.link, "tp": 3, "microbatch": 2, "recipe": recipe("fp32 Adam")}
    again = flops.forward(spec, batch=2, sequence=24)["scores"] / 2 / 3  # FlashAttention multiplies q by k once more
    for rank, ways in enumerate(seen):
        for way, ((few, once), (more, twice)) in zip(WAYS, ways, strict=True):
            planned = TensorParallelRun(spec=spec, **settings, **way)
            work, said = facts([event for event in program(planned) if event.rank == rank])
            assert more - few == work + again
            assert {each: twice[each] - once[each] for each in twice} == said
