"""A layer on tp ranks: against published times and bytes, against itself, and against what real ranks say."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shardlab import trace
from shardlab.costs import collectives
from shardlab.costs import tensor_parallel as costs
from shardlab.costs.compute import flops
from shardlab.costs.facts import hardware, models, nodes
from shardlab.costs.facts.recipes import recipe
from shardlab.costs.tensor_parallel import TensorParallelRun, layer
from shardlab.launch import run
from shardlab.model.spec import TransformerSpec
from shardlab.ranks import tensor_parallel, transformer
from shardlab.ranks.observe import ledger
from shardlab.sharding.layout import tensor_degrees

A100, H100, V100 = (hardware.chip(name) for name in ("A100 SXM 80 GB", "H100 SXM 80 GB", "V100 SXM2 32 GB"))
NVLINK = hardware.link("NVLink 4")
WAYS = [{}, {"sequence_parallel": True}, {"sequence_parallel": True, "regather": True}]


def gpt(hidden_size, num_heads, num_layers=1, context_length=2048):
    sizes = {"hidden_size": hidden_size, "num_heads": num_heads, "num_layers": num_layers}
    return TransformerSpec(vocab_size=51_200, context_length=context_length, **sizes)


RUN = TensorParallelRun(spec=gpt(12_288, 96), chip=H100, link=NVLINK, tp=8)
runs = st.builds(
    lambda degree, **facts: TensorParallelRun(
        tp=(works := tensor_degrees(facts["spec"]))[degree % len(works)], **facts
    ),
    degree=st.integers(0, 20),
    spec=st.sampled_from([models.published(name).spec for name in ("GPT-2 XL", "GPT-3 175B", "Llama 3 8B")]),
    chip=st.sampled_from([A100, H100, V100]),
    link=st.sampled_from(list(hardware.LINKS.values())),
    microbatch=st.integers(1, 8),
    sequence=st.sampled_from([480, 960]),
    overlap=st.booleans(),
).filter(lambda run: 480 % run.tp == 0)


# ---- published -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "forward", "backward"), [({}, 7.7e-3, 11.9e-3), ({"sequence_parallel": True}, 7.2e-3, 11.8e-3)]
)
def test_the_layer_of_22_billion_parameters_takes_what_was_measured(way, forward, backward):
    """Korthikanti et al. 2022, Table 4: A100, tp = 8, 4 sequences of 2048, messages of backward overlapped."""
    nvlink = hardware.link("NVLink 3")
    sizes = {"spec": gpt(6144, 64, 48), "tp": 8, "microbatch": 4}
    result = layer(TensorParallelRun(chip=A100, link=nvlink, overlap=True, **sizes, **way))
    assert result.passes == pytest.approx({"forward": forward, "backward": backward}, rel=0.03)
    assert sum(result.passes.values()) == pytest.approx(result.seconds)


@pytest.mark.parametrize(
    ("hidden_size", "num_heads", "num_layers", "tp", "published"),
    [(1536, 16, 40, 1, 1.0), (1920, 20, 54, 2, 0.95), (2304, 24, 64, 4, 0.82), (3072, 32, 72, 8, 0.77)],
)
def test_weak_scaling_is_that_of_megatron_and_a_little_more(hidden_size, num_heads, num_layers, tp, published):
    """Shoeybi et al. 2019, Table 1 and Figure 5: batch 8, sequences of 1024; one V100 reached 39 TFLOP/s."""
    spec = gpt(hidden_size, num_heads, num_layers, 1024)
    sizes = {"spec": spec, "tp": tp, "microbatch": 8}
    result = layer(TensorParallelRun(chip=V100, link=hardware.link("NVLink 2"), utilisation=39 / 125, **sizes))
    assert result.efficiency == pytest.approx(published, abs=0.08)
    assert result.efficiency >= published - 0.01  # what is left out only makes it worse


def test_bytes_of_a_layer_are_those_of_narayanan():
    """8bsh(t-1)/t numbers per layer, device and microbatch (section 3.2), here of 2 bytes."""
    run = replace(RUN, microbatch=3)
    assert costs.sent_bytes(run) == 2 * 8 * 3 * 2048 * 12_288 * 7 / 8
    assert costs.sent_bytes(replace(run, sequence_parallel=True)) == costs.sent_bytes(run)
    again = replace(run, sequence_parallel=True, regather=True)
    assert costs.sent_bytes(again) == costs.sent_bytes(run) * 10 / 8


def test_activations_of_a_layer_are_those_of_korthikanti():
    """Equations 2 and 4 without dropout and scores: 8 + 24/t and 32/t times sbh; statistics are left out there."""
    unit = 2048 * 12_288
    small = 4 * 2048 * (4 + 96)  # fp32 statistics of two norms and of 96 heads' softmax
    for way, expected in zip(WAYS, [8 + 24 / 8, 32 / 8 + 4 * 7 / 8, 32 / 8], strict=True):
        kept = costs.layer_bytes(replace(RUN, **way))["activations"] / unit
        assert expected < kept < expected + small / unit


def test_a_layers_parameters_by_hand():
    """12 h^2 weights and 9 h biases, of which out and down keep h whole; two norms of 2 h; 16 bytes each."""
    h, held = 12_288, costs.layer_bytes(RUN)
    number = (12 * h * h + 7 * h) / 8 + 2 * h + 4 * h
    assert {part: held[part] / number for part in ("parameters", "gradients", "optimizer")} == {
        "parameters": 2, "gradients": 2, "optimizer": 12,
    }  # fmt: skip
    assert costs.layers_that_fit(RUN) == int(80e9 // sum(held.values()))


# ---- laws ----------------------------------------------------------------------------------------------------------


@given(runs, st.sampled_from(WAYS))
def test_parts_are_the_whole_and_ranks_share_the_work(run, way):
    run = replace(run, **way)
    result, alone = layer(run), layer(replace(run, tp=1))
    assert sum(result.parts.values()) == pytest.approx(result.seconds)
    work = flops.training_step(run.spec, batch=run.microbatch, sequence=run.sequence)
    every = sum(sum(part.values()) - part.get("head", 0) for part in work.values()) / run.spec.num_layers
    assert sum(result.matrices.values()) * run.tp * run.utilisation * run.chip.peak_flops == pytest.approx(every)
    assert alone.waiting == 0
    assert alone.efficiency == pytest.approx(1)
    assert 0 < result.efficiency <= 1 + 1e-9
    assert all(0 <= result.exposed[each] <= result.communication[each] + 1e-12 for each in result.exposed)
    assert layer(replace(run, overlap=True)).seconds <= layer(replace(run, overlap=False)).seconds


@given(runs)
def test_halves_take_as_long_as_the_ring_and_keep_less(run):
    whole, halves = layer(run), layer(replace(run, sequence_parallel=True))
    link = replace(run.link, bandwidth=run.link_utilisation * run.link.bandwidth)
    ring = collectives.ring_all_reduce(run.message, run.tp).seconds(link)
    assert sum(halves.communication.values()) == pytest.approx(4 * ring)
    assert sum(whole.communication.values()) <= 4 * ring * (1 + 1e-9)  # a tree may be faster
    kept = [costs.layer_bytes(replace(run, **way))["activations"] for way in WAYS]
    assert kept == sorted(kept, reverse=True)


@given(runs)
def test_the_rule_of_thumb_forgets_the_batch_and_little_else(run):
    """Without latency, and with scores and norms taken from the full model, it is the full model's ratio."""
    run = replace(run, link=replace(run.link, latency=0.0), overlap=False)
    assert costs.communication_ratio(run) == costs.communication_ratio(replace(run, microbatch=7 * run.microbatch))
    result = layer(run)
    work = flops.forward(run.spec, batch=run.microbatch, sequence=run.sequence)
    weights_only = (work["projections"] + work["feed-forward"]) / (sum(work.values()) - work["head"])
    seconds = sum(result.matrices.values()) * weights_only
    assert result.waiting / seconds == pytest.approx(costs.communication_ratio(run), rel=0.002)  # biases


def test_the_inequality():
    """GPT with 16 bits: (t - 1) * 2F / (9 h beta); where it reaches the share is where it is told to."""
    flops_per_byte = 0.56 * H100.peak_flops / (0.8 * 450e9)
    assert costs.communication_ratio(RUN) == pytest.approx(7 * 2 * flops_per_byte / (9 * 12_288), rel=0.001)
    most = costs.most_ranks(RUN, 0.25)
    assert 8 < most < 12
    assert costs.communication_ratio(replace(RUN, tp=12)) > 0.25 > costs.communication_ratio(RUN)
    assert costs.most_ranks(replace(RUN, link=hardware.link("InfiniBand NDR"))) < 2.1
    assert costs.most_ranks(replace(RUN, spec=gpt(24_576, 96))) - 1 == pytest.approx(2 * (most - 1), rel=0.001)


def test_leaving_the_server_costs():
    """The same eight ranks in one server, and spread over more of them."""
    node = nodes.node("DGX H100")
    links = [costs.spread(node, 8, per_node) for per_node in (8, 4, 2, 1)]
    assert [link.bandwidth for link in links] == pytest.approx([450e9, 4 * 50e9, 2 * 50e9, 50e9])
    seconds = [layer(replace(RUN, link=link)).seconds for link in links]
    assert seconds == sorted(seconds)
    assert seconds[-1] / seconds[0] > 2
    assert costs.placement(node, 4) == [0, 1, 2, 3]
    assert costs.placement(node, 4, 2) == [0, 1, 8, 9]
    assert costs.spread(node, 4) == costs.spread(node, 4, 4)
    assert costs.spread(node, 32) == costs.spread(node, 32, 8)
    assert costs.spread(node, 1).bandwidth == pytest.approx(450e9)
    assert costs.spread(nodes.node("NVL72 rack"), 64).bandwidth == pytest.approx(900e9)  # no server to leave
    for wrong in (3, 16):
        with pytest.raises(ValueError, match=f"16 ranks are not {wrong} in each DGX H100 of 8 GPUs; use 1, 2, 4, 8"):
            costs.spread(node, 16, wrong)


# ---- counted -------------------------------------------------------------------------------------------------------


@pytest.mark.counted("tensor_parallel", "bytes that a layer sends in a step")
def test_ranks_send_what_is_predicted():
    spec = TransformerSpec(vocab_size=16, context_length=24, hidden_size=24, num_layers=1, num_heads=6)

    def sent(group, num_layers, way):
        torch.manual_seed(0)
        model = transformer.Transformer(replace(spec, num_layers=num_layers))
        model, tokens = tensor_parallel.parallelize(model, group, **way), torch.zeros(2, 24, dtype=torch.int64)
        with ledger.Ledger() as book:
            model(tokens, tokens).backward()
        large = [event for event in book.events if event.nbytes >= 4 * tokens.numel() * 24]
        return sum(map(trace.wire_bytes, large))

    seen = run(lambda group: [sent(group, 2, way) - sent(group, 1, way) for way in WAYS], world_size=3)
    facts = {"chip": H100, "link": NVLINK, "tp": 3, "microbatch": 2, "recipe": recipe("fp32 Adam")}
    predicted = [costs.sent_bytes(TensorParallelRun(spec=spec, **facts, **way)) for way in WAYS]
    for rank in seen:
        assert rank == pytest.approx(predicted)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tp": 7}, "do not split over tp=7; use tp = 1, 2, 3, 4, 6, 8"),
        ({"regather": True}, "use it with sequence_parallel=True"),
        ({"utilisation": 56}, "must be a share of the peak, above 0 and at most 1"),
        ({"link_utilisation": 0}, "share of the peak"),
        ({"sequence": 4096}, "use at most 2048"),
        ({"sequence_parallel": True, "sequence": 100}, "use a multiple of 8"),
    ],
)
def test_bad_input_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(RUN, **changes)
