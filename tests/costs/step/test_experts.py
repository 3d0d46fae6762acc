"""Experts take the time of what they compute and send, less what hides it, and the fullest rank is waited for."""

from dataclasses import replace

import pytest

from shardlab.costs import expert_parallel, step
from shardlab.costs.compute import flops
from shardlab.costs.facts import mixtures, nodes
from shardlab.costs.facts.recipes import RECIPES
from shardlab.costs.program import EXPERT_OVERLAPS
from shardlab.costs.programs import DEEPSEEK_2024, NEMO_2024, PROGRAMS
from shardlab.costs.step import axes, experts, exposed, layer_time, products, replicas
from shardlab.costs.training import Training
from shardlab.model.experts import Experts
from shardlab.model.spec import TransformerSpec
from shardlab.sharding.layout import Layout

from ...sharding.test_hybrids import SPARSE

RULES = Experts(num_experts=64, per_token=4, expert_size=1024, num_shared=1)
SPEC = TransformerSpec(
    vocab_size=32_000, context_length=4096, hidden_size=2048, num_layers=16, num_heads=16, style="llama", experts=RULES
)
CLUSTER = nodes.cluster("DGX H100", 8)
WAITS = replace(NEMO_2024, data_overlap=())
BESIDE = replace(WAITS, expert_overlap="shared experts")
BEHIND = replace(WAITS, expert_overlap="another microbatch")


ROUTED = replace(SPEC, experts=replace(RULES, num_shared=0))
SLICED = {"sequence_parallel": True}
WHOLE = {**SLICED, "whole_experts": True}


def run(layout, program=WAITS, **options):
    choices = {"spec": SPEC, "num_microbatches": 4, "program": program, **options}
    training = Training(layout=layout, **choices)
    return step.Run(training=training, cluster=CLUSTER)


def parts(layout, program=WAITS, **options):
    return step.step(run(layout, program, **options)).parts


@pytest.mark.parametrize("recomputation", ["none", "full"])
def test_layers_without_experts_wait_for_none(recomputation):
    """A quarter of the layers are mixtures alone: what the others compute hides none of their messages."""
    spec = replace(SPARSE, experts=replace(RULES, num_shared=0), hidden_size=2048, context_length=4096)
    layout, how = Layout(dp=16, ep=16), {"recomputation": recomputation, "imbalance": 1.5}
    whole = run(layout, BEHIND, spec=spec, **how).training
    mixture = replace(whole, spec=spec.layer_kinds[-1][1])
    links = axes.links(CLUSTER, layout)
    waits = [
        experts.waiting(each, CLUSTER, links, layer_time.layer(each, CLUSTER.node.chip)) for each in (whole, mixture)
    ]
    assert waits[1].messages > 0
    assert [4 * each for each in waits[0]] == pytest.approx([*waits[1]])
    assert experts.forward(whole, CLUSTER) == experts.forward(mixture, CLUSTER)


def test_dispatch_and_combine_take_their_bytes_over_the_rates_of_their_links():
    """On 16 ranks a copy leaves its node in 8 of 16 cases and its rank in 15, at the share of one card."""
    whole = run(Layout(dp=16, ep=16))
    links = axes.links(CLUSTER, whole.training.layout)
    assert axes.per_node(CLUSTER, whole.training.layout) == 8
    assert links["ep across"].bandwidth == pytest.approx(0.8 * 50e9)
    assert links["ep inside"].bandwidth == pytest.approx(0.8 * 450e9)
    trip = 4096 * 2048 * 2 * 4 * 8 / 16 / (0.8 * 50e9)  # tokens, width, bytes, copies, the share that leaves
    found = experts.trip_seconds(whole.training, CLUSTER, links)
    assert found == pytest.approx(2 * (trip + links["ep across"].latency))
    assert parts(Layout(dp=16, ep=16))["expert parallel"] == pytest.approx(4 * 16 * 2 * found)
    again = parts(Layout(dp=16, ep=16), recomputation="full")["expert parallel"]
    assert again == pytest.approx(4 * 16 * 3 * found)


def test_neighbours_along_dp_are_as_far_apart_as_tp_and_cp_make_them():
    for layout, inside in [(Layout(dp=8, ep=8), 8), (Layout(dp=8, ep=8, tp=4), 2), (Layout(dp=8, ep=4, tp=2, cp=2), 2)]:
        assert axes.per_node(CLUSTER, layout) == inside
    far = axes.links(CLUSTER, Layout(dp=8, ep=8, tp=8))
    assert far["ep across"].bandwidth == pytest.approx(0.8 * 50e9)
    assert far["expert replicas"] == axes.link(CLUSTER, 64, 1)


def test_two_levels_send_less_across_nodes_than_copies_for_each_expert():
    flat, nodewise = (replace(WAITS, expert_strategy=way) for way in ("flat", "nodes"))
    layout = Layout(dp=16, ep=16)
    assert parts(layout, nodewise)["expert parallel"] < 0.6 * parts(layout, flat)["expert parallel"]


@pytest.mark.parametrize("ep", [1, 2, 8, 16, 64])
def test_what_computes_meanwhile_hides_messages(ep):
    layout = Layout(dp=64, ep=ep)
    waits, beside, behind = (parts(layout, program)["expert parallel"] for program in (WAITS, BESIDE, BEHIND))
    assert waits >= beside >= behind >= 0
    assert (waits > 0) == (ep > 1)
    time = layer_time.layer(run(layout).training, CLUSTER.node.chip)
    hidden = sum(min(waits / 2, 4 * 16 * seconds) for seconds in time.shared)  # in forward, and in backward
    assert waits - beside == pytest.approx(hidden)


V3 = Training(
    spec=mixtures.published("DeepSeek-V3").spec, layout=Layout(dp=64, ep=64), sequence=4096, program=DEEPSEEK_2024
)


def test_deepseek_computes_longer_than_it_communicates_but_not_twice_as_long():
    """Section 3.2.1 says approximately 1:1, of its own kernels; ours are those of no program in particular."""
    time = layer_time.layer(replace(V3, precision="fp8"), CLUSTER.node.chip)
    sending = 2 * experts.trip_seconds(V3, CLUSTER, axes.links(CLUSTER, V3.layout))
    assert (time.forward.seconds + time.backward.seconds) / sending == pytest.approx(1.70, abs=0.01)


def test_a_token_reaches_few_nodes_and_more_only_where_its_experts_need_more():
    free = replace(V3, program=replace(DEEPSEEK_2024, expert_nodes=None))
    assert [experts.token_traffic(training, CLUSTER).reach for training in (V3, free)] == [4, 8]
    spread = replace(V3, layout=Layout(dp=256, ep=256, tp=8))
    assert experts.token_traffic(spread, CLUSTER).reach == 8  # one expert on a node


@pytest.mark.parametrize("overlap", EXPERT_OVERLAPS)
def test_a_forward_is_the_first_half_of_what_a_step_waits_for(overlap):
    training = replace(V3, program=replace(WAITS, expert_overlap=overlap))
    time, links = layer_time.layer(training, CLUSTER.node.chip), axes.links(CLUSTER, training.layout)
    found = experts.forward(training, CLUSTER)
    hidden, exposed = found.pop("all-to-all, hidden"), found.pop("all-to-all, exposed")
    assert sum(found.values()) == pytest.approx(time.forward.seconds)
    assert hidden + exposed == pytest.approx(experts.trip_seconds(training, CLUSTER, links))
    assert hidden == pytest.approx(min(hidden + exposed, sum(found[part] for part in EXPERT_OVERLAPS[overlap])))
    backward = max(0, hidden + exposed - _backward(time, overlap))
    assert exposed + backward == pytest.approx(experts.waiting(training, CLUSTER, links, time).messages)


def _backward(time, overlap):
    return {"nothing": 0, "shared experts": time.shared[1], "another microbatch": time.backward.seconds}[overlap]


def test_the_fullest_rank_takes_longer_for_experts_and_for_what_travels():
    program = replace(WAITS, expert_overlap="nothing")
    even, uneven = (
        experts.forward(replace(V3, program=program, imbalance=factor), CLUSTER) for factor in (1.0, 1.5)
    )
    for part in ("routed experts", "all-to-all, exposed"):
        assert uneven[part] == pytest.approx(1.5 * even[part])
    assert uneven["attention"] == even["attention"]


def test_the_fullest_rank_is_waited_for():
    """Its experts compute, and its tokens travel, so many times as long; nothing else does."""
    layout = Layout(dp=16, ep=16)
    even, uneven = (parts(layout, imbalance=factor) for factor in (1.0, 1.5))
    routed = sum(layer_time.layer(run(layout).training, CLUSTER.node.chip).routed)
    assert even.pop("fullest expert") == 0
    expected = 0.5 * (4 * 16 * routed + even["expert parallel"])
    assert uneven.pop("fullest expert") == pytest.approx(expected)
    assert uneven == pytest.approx(even)


def test_every_flop_of_the_layers_is_timed():
    """Router, shared and routed experts, on all ranks of ep: those of the chosen experts for all tokens."""
    for layout in (Layout(), Layout(dp=8, ep=8), Layout(dp=4, ep=2, tp=2), Layout(dp=4, ep=2, tp=2, **WHOLE)):
        training = run(layout).training
        held, sizes = products.expert_matrices(training)
        timed = sum(2 * m * k * n for m, k, n in products.matrices(training))
        timed += held * sum(2 * m * k * n for m, k, n in sizes)
        counted = flops.forward(SPEC, batch=1, sequence=4096)
        router = 2 * 4096 * 2048 * 64  # whole on every rank of tp
        cut = sum(counted[part] for part in ("projections", "feed-forward")) / SPEC.num_layers - router
        assert timed == pytest.approx(cut / layout.tp + router)


def test_few_tokens_for_each_expert_compute_slowly():
    """Tiles that are not full, and weights that are read for few tokens."""
    slow, fast = (
        sum(layer_time.layer(run(Layout(), sequence=tokens).training, CLUSTER.node.chip).routed) / tokens
        for tokens in (256, 4096)
    )
    assert slow > 3 * fast


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_experts_are_averaged_by_those_that_hold_the_same(zero):
    """With ep = dp nobody else holds a rank's experts: only the rest is averaged, and only it is cut."""
    training = run(Layout(dp=64, ep=64, zero=zero)).training
    held = step.holdings(training)
    links = axes.links(CLUSTER, training.layout)
    rest = held._replace(layer=held.layer - held.experts, experts=0)
    alone = replicas.data_messages(training.layout, training.recipe, WAITS, links["replicas"], rest)
    assert replicas.messages_of_replicas(training, links, held) == alone
    updated = held.experts * held.layers + rest.parameters / (64 if zero else 1)
    everything = replace(training, layout=Layout())
    per_parameter = step.update_seconds(everything, held, CLUSTER.node.chip) / held.parameters
    assert step.update_seconds(training, held, CLUSTER.node.chip) == pytest.approx(per_parameter * updated)


def test_half_as_many_replicas_for_experts_take_half_the_ranks_of_their_ring():
    training = run(Layout(dp=64, ep=8, zero=1)).training
    held = step.holdings(training)
    links = axes.links(CLUSTER, training.layout)
    found = replicas.messages_of_replicas(training, links, held)
    routed = held._replace(layer=held.experts, rest=0)
    few = replicas.data_messages(Layout(dp=8, zero=1), training.recipe, WAITS, links["expert replicas"], routed)
    more = replicas.data_messages(
        training.layout, training.recipe, WAITS, links["replicas"], held._replace(layer=held.layer - held.experts)
    )
    assert found.cut_average == pytest.approx(few.cut_average + more.cut_average)
    assert min(few.cut_average, more.cut_average) > 0


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=lambda program: program.name)
def test_no_part_is_negative_and_memory_counts_copies(program):
    found = step.step(run(Layout(dp=16, ep=8, zero=1), program, imbalance=1.2))
    assert min(found.parts.values()) >= 0
    assert found.seconds == sum(found.parts.values())
    fuller = replace(found.run, training=replace(found.run.training, imbalance=2.0))
    numbers = 2048 + 1024 if program.kernels.repeated else 2 * 2048 + 3 * 1024  # of gate and down alone
    copies = 4096 * 4 * numbers * RECIPES["mixed, 16-bit gradients"].element
    assert step.step(fuller).memory - found.memory > 0.8 * 16 * copies


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: replace(WAITS, expert_strategy="straight"),
            "unknown expert_strategy 'straight'; known: flat, ranks, nodes",
        ),
        (lambda: replace(WAITS, expert_overlap="all"), "unknown expert_overlap 'all'; known: nothing, shared experts"),
        (lambda: run(Layout(), imbalance=0.5), "imbalance=0.5: the fullest rank has at least the mean load"),
        (lambda: experts.trip_seconds(run(Layout(dp=2, ep=2)).training, CLUSTER, {}), "no ep across and ep"),
        (lambda: experts.token_traffic(dense(), CLUSTER), "spec has no experts"),
        (lambda: products.expert_matrices(dense()), "spec has no experts"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def dense():
    return Training(spec=replace(SPEC, experts=None))


def test_the_bytes_are_those_of_expert_parallelism():
    """One formula: of the chapter, and of the step."""
    training = run(Layout(dp=16, ep=16)).training
    each = experts.token_traffic(training, CLUSTER)
    sent = expert_parallel.sent_bytes(each, "flat")["dispatch"]
    assert sum(sent.values()) == 4096 * 2048 * 2 * 4 * 15 / 16


# ---- whole experts on ranks of tp ------------------------------------------------------------------------------------

BOTH = {"cut": Layout(dp=4, ep=2, tp=8, **SLICED), "whole": Layout(dp=4, ep=2, tp=8, **WHOLE)}


@pytest.mark.parametrize("way", BOTH)
@pytest.mark.parametrize("spec", [SPEC, ROUTED], ids=["shared", "routed only"])
def test_a_step_sends_what_the_engine_does_with_cut_and_with_whole_experts(way, spec):
    """Without the scores, which every rank of the program needs. The engine's bytes are counted in its own test."""
    program = replace(WAITS, expert_strategy="ranks", tensor_overlap="none")
    training, links = run(BOTH[way], program, spec=spec).training, axes.links(CLUSTER, BOTH[way])
    each = experts.token_traffic(training, CLUSTER)
    assert (each.tokens, each.ep) == {"cut": (4096, 2), "whole": (4096 // 8, 2 * 8)}[way]
    slices = 7 / 8 * 4096 * 2048 * 2 if way == "cut" or spec.experts.num_shared else 0  # of a gather, and of a scatter
    time = layer_time.layer(training, CLUSTER.node.chip)
    kept = replace(training, program=replace(program, keeps_gathered=True))
    attention = 2 * exposed.gather_seconds(training, links["tp"])
    around = sum(exposed.tensor_passes(kept, links["tp"], time)) / 2 - attention
    latency = 7 * links["tp"].latency if slices else 0
    assert around == pytest.approx(2 * (slices / links["tp"].bandwidth + latency))


def test_whole_experts_have_full_products_and_the_same_tokens_for_each():
    cut, whole = (products.expert_matrices(run(layout).training) for layout in BOTH.values())
    assert cut == (32, [(512, 2048, 256), (512, 128, 2048)])
    assert whole == (4, [(512, 2048, 2048), (512, 1024, 2048)])
    time = {way: sum(layer_time.layer(run(layout).training, CLUSTER.node.chip).routed) for way, layout in BOTH.items()}
    assert time["whole"] < time["cut"]


def test_whole_experts_travel_between_all_ranks_of_tp_and_ep():
    for layout, inside, filled in [
        (Layout(dp=4, ep=2, tp=8, **WHOLE), 8, 2),
        (Layout(dp=4, ep=2, tp=4, **WHOLE), 8, 1),
        (Layout(dp=4, ep=4, tp=4, **WHOLE), 8, 2),
        (Layout(dp=4, ep=4, tp=2, cp=2, **WHOLE), 4, 2),
        (Layout(tp=4, **WHOLE), 4, 1),
        (Layout(tp=16, dp=2, ep=2, **WHOLE), 8, 4),
    ]:
        assert axes.per_node(CLUSTER, layout) == inside
        each = experts.token_traffic(run(layout).training, CLUSTER)
        assert (each.tokens, each.nodes) == (4096 // layout.cp // layout.tp, filled)
        links = axes.links(CLUSTER, layout)
        assert links["ep inside"].bandwidth == pytest.approx(0.8 * 450e9)
        assert filled == 1 or links["ep across"].bandwidth == pytest.approx(0.8 * 50e9)
    assert axes.per_node(nodes.cluster("DGX H100", 1), Layout(dp=2, ep=2, tp=4, **WHOLE)) == 8


def test_without_shared_experts_only_attention_waits_for_slices():
    alone = replace(WAITS, tensor_overlap="none")
    waits = {way: parts(layout, alone, spec=ROUTED)["tensor parallel"] for way, layout in BOTH.items()}
    assert waits["whole"] == pytest.approx(waits["cut"] / 2)
    for overlap in ("backward", "chunks"):
        program = replace(WAITS, tensor_overlap=overlap)
        assert 0 < parts(BOTH["whole"], program, spec=ROUTED)["tensor parallel"] < waits["whole"]
        shared = parts(BOTH["whole"], program)["tensor parallel"]
        assert shared == pytest.approx(parts(BOTH["cut"], program)["tensor parallel"])
