"""A layer on tp ranks: against published times and bytes, against a replay, and against what real ranks send."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shardlab import trace
from shardlab.costs import collectives, step
from shardlab.costs import tensor_parallel as costs
from shardlab.costs.compute import flops
from shardlab.costs.facts import hardware, models, nodes
from shardlab.costs.facts.network import Cluster
from shardlab.costs.facts.recipes import recipe
from shardlab.costs.memory import overhead
from shardlab.costs.programs import BOOK, MEGATRON_2022
from shardlab.costs.step.exposed import activation_bytes
from shardlab.costs.tensor_parallel import layer
from shardlab.costs.traces.replay import replay
from shardlab.costs.training import Training
from shardlab.launch import run
from shardlab.model.spec import TransformerSpec
from shardlab.ranks import tensor_parallel, transformer
from shardlab.ranks.observe import ledger
from shardlab.sharding.layout import Layout, tensor_degrees

A100, H100, V100 = (hardware.chip(name) for name in ("A100 SXM 80 GB", "H100 SXM 80 GB", "V100 SXM2 32 GB"))
NVLINK = hardware.link("NVLink 4").reached
NODE = nodes.node("DGX H100")
OPTIONS = [{}, {"sequence_parallel": True}, {"sequence_parallel": True, "regather": True}]


def gpt(hidden_size, num_heads, num_layers=1, context_length=2048):
    sizes = {"hidden_size": hidden_size, "num_heads": num_heads, "num_layers": num_layers}
    return TransformerSpec(vocab_size=51_200, context_length=context_length, **sizes)


GPT3 = Training(spec=gpt(12_288, 96), layout=Layout(tp=8), program=BOOK)


def in_three_ways(training):
    """Tensor parallel; with slices; with slices that are gathered again: as OPTIONS of the engine."""
    slices = replace(training, layout=replace(training.layout, sequence_parallel=True))
    again = replace(training.program, keeps_gathered=False)
    return [training, slices, replace(slices, program=again)]


@st.composite
def cases(draw):
    spec = draw(st.sampled_from([models.published(name).spec for name in ("GPT-2 XL", "GPT-3 175B", "Llama 3 8B")]))
    tp = draw(st.sampled_from([tp for tp in tensor_degrees(spec) if 480 % tp == 0]))
    training = Training(
        spec=spec,
        layout=Layout(tp=tp),
        microbatch=draw(st.integers(1, 8)),
        sequence=draw(st.sampled_from([480, 960])),
        program=draw(st.sampled_from([BOOK, replace(MEGATRON_2022, keeps_gathered=True)])),
    )
    link = draw(st.sampled_from(list(hardware.LINKS.values()))).reached
    return training, draw(st.sampled_from([A100, H100, V100])), link


# ---- published -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hidden_size", "num_heads", "num_layers", "tp", "published"),
    [(1920, 20, 54, 2, 0.95), (2304, 24, 64, 4, 0.82), (3072, 32, 72, 8, 0.77)],
)
def test_weak_scaling_is_that_of_megatron(hidden_size, num_heads, num_layers, tp, published):
    """Shoeybi et al. 2019, Table 1 and Figure 5: batch 8, sequences of 1024; one V100 reached 39 TFLOP/s."""
    spec = gpt(hidden_size, num_heads, num_layers, 1024)
    training = Training(spec=spec, layout=Layout(tp=tp), microbatch=8, program=BOOK)
    result = layer(training, V100, hardware.link("NVLink 2").reached)
    alone = layer(replace(training, layout=Layout()), V100, hardware.link("NVLink 2").reached)
    slower = costs.rate(alone.training, V100) / 39e12  # their kernels, beside those of today
    efficiency = slower * alone.compute / (slower * result.compute + result.waiting) / tp
    assert efficiency == pytest.approx(published, abs=0.025)


def test_bytes_of_a_layer_are_those_of_narayanan():
    """8bsh(t-1)/t numbers per layer, device and microbatch (section 3.2), here of 2 bytes."""
    whole, slices, again = map(costs.sent_bytes, in_three_ways(replace(GPT3, microbatch=3)))
    assert whole == slices == 2 * 8 * 3 * 2048 * 12_288 * 7 / 8
    assert again == whole * 10 / 8
    assert costs.sent_bytes(replace(GPT3, recomputation="full")) == costs.sent_bytes(GPT3) * 12 / 8


def test_activations_of_a_layer_are_those_of_korthikanti():
    """Equations 2 and 4 without dropout and scores: 8 + 24/t and 32/t times sbh; statistics are left out there."""
    unit = 2048 * 12_288
    small = 4 * 2048 * (4 + 96)  # fp32 statistics of two norms and of 96 heads' softmax
    for training, expected in zip(in_three_ways(GPT3), [8 + 24 / 8, 32 / 8 + 4 * 7 / 8, 32 / 8], strict=True):
        kept = costs.layer_bytes(training)["activations"] / unit
        assert expected < kept < expected + small / unit


def test_a_layers_parameters_by_hand():
    """12 h^2 weights and 9 h biases, of which out and down keep h whole; two norms of 2 h; 16 bytes each."""
    h, held = 12_288, costs.layer_bytes(GPT3)
    number = (12 * h * h + 7 * h) / 8 + 2 * h + 4 * h
    assert {part: held[part] / number for part in ("parameters", "gradients", "optimizer")} == {
        "parameters": 2, "gradients": 2, "optimizer": 12,
    }  # fmt: skip
    free = 80e9 - sum(overhead.fixed(GPT3).values())
    assert costs.layers_that_fit(GPT3, H100) == int(free / 1.05 / sum(held.values())) == 19


# ---- laws ----------------------------------------------------------------------------------------------------------


@given(cases())
def test_parts_are_the_whole(case):
    result = layer(*case)
    assert sum(result.parts.values()) == pytest.approx(result.seconds)
    assert sum(result.passes) == pytest.approx(result.seconds)
    assert 0 < result.efficiency <= 1 + 1e-9
    assert all(0 <= waits <= busy + 1e-12 for waits, busy in zip(result.exposed, result.busy, strict=True))


def test_recomputation_is_a_part_of_its_own_and_sums_once_more():
    once, again = (layer(replace(GPT3, recomputation=each), H100, NVLINK) for each in ("none", "full"))
    assert again.parts == {**once.parts, "recomputation": once.time.forward.seconds, "waiting": again.waiting}
    assert again.waiting == pytest.approx(1.5 * once.waiting)
    assert sum(again.parts.values()) == pytest.approx(again.seconds)


def test_a_rank_alone_waits_for_nobody():
    alone = layer(replace(GPT3, layout=Layout()), H100, NVLINK)
    assert alone.waiting == 0
    assert alone.efficiency == pytest.approx(1)


@given(cases())
def test_halves_take_as_long_as_the_ring_and_keep_less(case):
    training, chip, link = case
    whole, slices, again = in_three_ways(training)
    ring = collectives.ring_all_reduce(activation_bytes(training), training.layout.tp).seconds(link)
    assert sum(layer(slices, chip, link).busy) == pytest.approx(4 * ring)
    assert sum(layer(whole, chip, link).busy) <= 4 * ring * (1 + 1e-9)  # a tree may be faster
    kept = [costs.layer_bytes(each)["activations"] for each in (whole, slices, again)]
    assert kept == sorted(kept, reverse=True)


@given(cases())
def test_the_rule_of_thumb_forgets_the_scores_and_little_else(case):
    """Without latency it is the ratio of the layer's times, but for the FLOPs of scores."""
    training, chip, link = case
    link = replace(link, latency=0.0)
    result = layer(training, chip, link)
    work = flops.forward(training.spec, batch=training.microbatch, sequence=training.sequence)
    weights_only = (work["projections"] + work["feed-forward"]) / (sum(work.values()) - work["head"])
    ratio = sum(result.busy) / result.compute / weights_only
    assert ratio == pytest.approx(costs.communication_ratio(training, chip, link), rel=0.002)  # biases


def test_the_inequality():
    """GPT with 16 bits: (t - 1) * 2F / (9 h beta); where it reaches the share is where it is told to."""
    per_byte = costs.rate(GPT3, H100) / NVLINK.bandwidth
    assert costs.communication_ratio(GPT3, H100, NVLINK) == pytest.approx(7 * 2 * per_byte / (9 * 12_288), rel=0.001)
    most = costs.most_ranks(GPT3, H100, NVLINK, 0.25)
    assert 8 < most < 12
    assert costs.most_ranks(GPT3, H100, hardware.link("InfiniBand NDR").reached) < 2.1
    assert costs.most_ranks(replace(GPT3, spec=gpt(24_576, 96)), H100, NVLINK) - 1 == pytest.approx(
        2 * (most - 1), rel=0.1
    )


def test_leaving_the_server_costs():
    """The same eight ranks in one server, and spread over more of them."""
    links = [costs.spread(NODE, 8, per_node) for per_node in (8, 4, 2, 1)]
    assert [link.bandwidth for link in links] == pytest.approx([360e9, 160e9, 80e9, 40e9])
    seconds = [layer(GPT3, NODE.chip, link).seconds for link in links]
    assert seconds == sorted(seconds)
    assert seconds[-1] / seconds[0] > 2
    assert costs.placement(NODE, 4) == [0, 1, 2, 3]
    assert costs.placement(NODE, 4, 2) == [0, 1, 8, 9]
    assert costs.spread(NODE, 4) == costs.spread(NODE, 4, 4)
    assert costs.spread(NODE, 32) == costs.spread(NODE, 32, 8)
    assert costs.spread(NODE, 1).bandwidth == pytest.approx(360e9)
    assert costs.spread(nodes.node("NVL72 rack"), 64).bandwidth == pytest.approx(720e9)  # no server to leave
    for wrong in (3, 16):
        with pytest.raises(ValueError, match=f"16 ranks are not {wrong} in each DGX H100 of 8 GPUs; use 1, 2, 4, 8"):
            costs.spread(NODE, 16, wrong)


def programs_of_two_and_three_layers(training, cluster):
    """The events of both, as `step.trace` writes them: what the third layer adds is a layer."""
    for num_layers in (2, 3):
        spec = replace(training.spec, num_layers=num_layers)
        events = step.trace(step.Run(training=replace(training, spec=spec), cluster=cluster))
        yield [event for event in events if event.op != "update"]


@pytest.mark.parametrize("per_node", [8, 4, 2, 1])
@pytest.mark.parametrize("way", range(len(OPTIONS)))
def test_a_replay_takes_what_the_closed_form_says(per_node, way):
    training = in_three_ways(GPT3)[way]
    cluster, placement = Cluster(node=NODE, num_nodes=8 // per_node), costs.placement(NODE, 8, per_node)
    played = [
        replay(events, cluster, placement=placement).seconds
        for events in programs_of_two_and_three_layers(training, cluster)
    ]
    predicted = layer(training, NODE.chip, costs.spread(NODE, 8, per_node))
    assert played[1] - played[0] == pytest.approx(predicted.seconds, rel=0.005)


# ---- counted -------------------------------------------------------------------------------------------------------


def messages(events):
    return Counter((event.op, event.nbytes) for event in events if event.kind == "communicate")


def recorded(group, spec, num_layers, option):
    """What a rank sends for so many layers and two sequences of 24 tokens; small messages are left out."""
    torch.manual_seed(0)
    model = transformer.Transformer(replace(spec, num_layers=num_layers))
    model, tokens = tensor_parallel.parallelize(model, group, **option), torch.zeros(2, 24, dtype=torch.int64)
    with ledger.Ledger() as book:
        model(tokens, tokens).backward()
    large = [event for event in book.events if event.nbytes >= 4 * tokens.numel() * spec.hidden_size]
    return messages(large), sum(map(trace.wire_bytes, large))


@pytest.mark.parametrize("style", ["gpt2", "llama"])
@pytest.mark.counted("tensor_parallel", "messages and bytes of a layer, for each way to cut it")
def test_real_ranks_send_what_the_program_and_the_formula_say(style):
    spec = TransformerSpec(
        vocab_size=16, context_length=24, hidden_size=24, num_layers=1, num_heads=6, style=style
    )
    seen = run(
        lambda group: [[recorded(group, spec, count, option) for count in (2, 3)] for option in OPTIONS], world_size=3
    )
    sizes = {"spec": spec, "layout": Layout(tp=3), "microbatch": 2, "recipe": recipe("fp32 Adam"), "program": BOOK}
    cluster = nodes.cluster("DGX H100", 1)
    for rank, ways in enumerate(seen):
        for training, ((few, sent), (more, more_sent)) in zip(in_three_ways(Training(**sizes)), ways, strict=True):
            two, three = programs_of_two_and_three_layers(training, cluster)
            planned = messages(e for e in three if e.rank == rank) - messages(e for e in two if e.rank == rank)
            assert more - few == planned
            assert more_sent - sent == pytest.approx(costs.sent_bytes(training))
