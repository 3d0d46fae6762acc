"""What layers with states keep: counted by hand for small numbers, cut by tp but for what is narrow."""

from dataclasses import replace

from shardlab.costs.memory import activations, parts, recurrent
from shardlab.costs.training import Training
from shardlab.model.recurrent import CHUNK
from shardlab.sharding.layout import Layout

from ...sharding.test_hybrids import HALVES, HYBRID, STATES

_, (_, EVERY) = HYBRID.layer_kinds
MAMBA = replace(STATES, rule="Mamba-2", chunk=16)
KIMI = replace(STATES, rule="Kimi Delta Attention", key_heads=8)


def test_what_is_kept_of_one_token():
    """Queries and keys of 16, values of 48, 8 heads: 80 are convolved. Decays and statistics have four bytes."""
    kept = recurrent.kept(STATES, 1, 1, 2)
    assert sum(kept.values()) == 2 * (80 + 80 + 8 + 8 * CHUNK + 3 * 48) + 4 * (8 + 2 * 4 + 8)
    kimi = recurrent.kept(KIMI, 1, 1, 2)  # decays for 32 numbers of keys, from a narrow layer, as the gate
    assert sum(kimi.values()) == 2 * (2 * 4 + 112 + 112 + 8 + 8 * CHUNK + 3 * 48) + 4 * (32 + 2 * 8 + 8)
    mamba = recurrent.kept(MAMBA, 1, 1, 2)  # steps, and statistics of a norm for each head of keys
    assert sum(mamba.values()) == 2 * (80 + 8 + 3 * 48) + 4 * 4


def test_ranks_of_tp_share_all_but_the_narrow_layers():
    whole, cut = (recurrent.kept(KIMI, 64, tp, 2) for tp in (1, 4))
    narrow = "states: narrow layers"
    assert whole.pop(narrow) == cut.pop(narrow) == 64 * 8 * 2
    assert all(whole[name] == 4 * cut[name] for name in whole)
    assert recurrent.gradients(KIMI, 64, 1) == 4 * recurrent.gradients(KIMI, 64, 4)


def test_backward_has_the_states_between_chunks_and_their_gradients():
    """64 tokens are one chunk, after which each of 8 heads has a state of 4 by 6 numbers."""
    assert recurrent.gradients(STATES, CHUNK, 1) == CHUNK * (80 + 2 * 48 + 8) + 2 * 8 * 4 * 6
    assert recurrent.gradients(MAMBA, 16, 1) == 16 * (2 * 80 + 2 * 48 + 8 + 4 * 16) + 2 * 8 * 4 * 6


def test_a_hybrid_keeps_the_sum_of_its_layers():
    plain = replace(HYBRID, recurrent=None)
    for layout in (Layout(), Layout(tp=4, sequence_parallel=True)):
        each = [sum(activations.layer(Training(spec=spec, layout=layout)).values()) for spec in (plain, EVERY)]
        hybrid = Training(spec=HYBRID, layout=layout)
        assert 8 * sum(activations.layer(hybrid).values()) == 2 * each[0] + 6 * each[1]
        assert activations.layer_gradients(hybrid) == max(
            activations.layer_gradients(Training(spec=spec, layout=layout)) for spec in (plain, EVERY)
        )


def test_a_layer_of_one_half_keeps_what_that_half_of_a_whole_layer_keeps():
    """Attention and a block, each with its norm, are a whole layer; the mean weights the kinds."""
    for layout in (Layout(), Layout(tp=4, sequence_parallel=True)):
        kinds = HALVES.layer_kinds
        kept = [activations.layer(Training(spec=spec, layout=layout)) for _, spec in kinds]
        attention, states, block = kept
        whole = activations.layer(Training(spec=replace(kinds[0][1], blocks_at=None), layout=layout))
        assert {name: attention.get(name, 0) + block.get(name, 0) for name in whole} == whole
        hybrid = activations.layer(Training(spec=HALVES, layout=layout))
        means = zip((2, 4, 2), kept, strict=True)
        assert 8 * sum(hybrid.values()) == sum(count * sum(each.values()) for count, each in means)
        assert states["feed-forward: hidden"] == states["feed-forward: input"] == block["attention: input"] == 0


def test_recomputation_holds_the_layer_that_needs_the_most():
    again = [
        parts.recomputed(Training(spec=spec, recomputation="full"))
        for spec in (HYBRID, replace(HYBRID, recurrent=None), EVERY)
    ]
    assert again[0] == max(again[1:])


def test_a_gate_of_the_output_keeps_itself_and_its_result():
    plain = replace(HYBRID, recurrent=None)
    gated, bare = (Training(spec=replace(plain, output_gate=gate)) for gate in (True, False))
    more = sum(activations.layer(gated).values()) - sum(activations.layer(bare).values())
    assert more == 2 * 2 * 64 * 16
