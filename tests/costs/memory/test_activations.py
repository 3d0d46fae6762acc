"""Activations are those of Korthikanti et al. and of the layers that keep them."""

from dataclasses import replace
from fractions import Fraction

import pytest

from shardlab.costs.facts import models, recipes
from shardlab.costs.memory import activations
from shardlab.costs.program import KERNELS, Kernels
from shardlab.costs.programs import NEMO_2024, PROGRAMS
from shardlab.costs.step.products import repeated_share
from shardlab.costs.training import Training
from shardlab.model.experts import Experts
from shardlab.model.spec import TransformerSpec
from shardlab.sharding.layout import Layout

LEFT_OUT = ("norms: statistics", "attention: statistics")  # "small" in the paper: a few bytes for each token
# Korthikanti et al. 2022, Table 3: attention heads, hidden size.
MODELS = {"22B": (64, 6144), "175B (GPT-3)": (96, 12288), "530B (MT-NLG)": (128, 20480), "1T": (160, 25600)}


def training(heads=96, hidden=12288, *, tp=1, sequence_parallel=False, **changes):
    """A GPT as in the paper: sequences of 2048, dropout, stored scores unless it says otherwise."""
    spec = TransformerSpec(
        vocab_size=51200, context_length=2048, hidden_size=hidden, num_layers=3, num_heads=heads
    )
    layout = Layout(tp=tp, sequence_parallel=sequence_parallel)
    return Training(spec=spec, layout=layout, dropout=True, **{"attention": "stored", **changes})


def published(run):
    """Bytes of a layer without what the paper leaves out."""
    return sum(nbytes for name, nbytes in activations.layer(run).items() if name not in LEFT_OUT)


@pytest.mark.parametrize("sizes", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("microbatch", [1, 4])
@pytest.mark.parametrize("t", [1, 2, 8])
def test_table_2_of_korthikanti(sizes, microbatch, t):
    """https://arxiv.org/abs/2205.05198: bytes of one layer, for six ways to train."""
    a, h = sizes
    s, b = 2048, microbatch
    quotient, ways = Fraction(5 * a * s, h), {"microbatch": b, "tp": t}
    assert published(training(a, h, microbatch=b)) == s * b * h * (34 + quotient)
    assert published(training(a, h, **ways)) == s * b * h * (10 + (24 + quotient) / t)
    assert published(training(a, h, **ways, sequence_parallel=True)) == s * b * h * (34 + quotient) / t
    selective = {**ways, "recomputation": "selective"}
    assert published(training(a, h, **selective)) == s * b * h * Fraction(10 + 24 / t)
    assert published(training(a, h, **selective, sequence_parallel=True)) == s * b * h * Fraction(34, t)
    assert published(training(a, h, **ways, recomputation="full")) == s * b * h * 2


@pytest.mark.parametrize(("model", "quotient", "saved"), [("175B (GPT-3)", 80, 0.70), ("530B (MT-NLG)", 64, 0.65)])
def test_what_selective_recomputation_saves(model, quotient, saved):
    """Section 5: 5as/h is 80 for GPT-3 and 64 for MT-NLG, so that 70 % and 65 % of the activations go."""
    stored, selective = training(*MODELS[model]), training(*MODELS[model], recomputation="selective")
    assert published(stored) / (2048 * MODELS[model][1]) == 34 + quotient
    assert 1 - published(selective) / published(stored) == pytest.approx(saved, abs=0.005)


@pytest.mark.parametrize("sizes", MODELS.values(), ids=MODELS)
def test_both_techniques_together_save_about_five_times(sizes):
    """The paper's abstract: 5x less than tensor parallelism alone, on the eight GPUs of a server."""
    before = published(training(*sizes, tp=8))
    after = published(training(*sizes, tp=8, sequence_parallel=True, recomputation="selective"))
    assert 4.9 < before / after < 6.3


@pytest.mark.parametrize("changes", [{}, {"attention": "flash"}, {"recomputation": "full"}])
def test_what_the_paper_leaves_out_is_small(changes):
    run = training(**changes)
    assert sum(activations.layer(run).values()) <= 1.002 * published(run)


def test_flash_attention_keeps_what_selective_recomputation_keeps():
    assert published(training(attention="flash")) == published(training(recomputation="selective"))


@pytest.mark.parametrize("t", [1, 4])
def test_embedding_and_head_follow_section_4_3(t):
    """A mask of sbh before the layers, 4sbh(1 + v/h) after them, divided by t with sequence parallelism."""
    run, sbh, v, h = training(tp=t, sequence_parallel=True, microbatch=2), 2 * 2048 * 12288, 51200, 12288
    head = activations.head(run)
    assert activations.embedding(run)["dropout masks"] == sbh / t
    assert head["norm: input"] + head["head: input"] + head["logits"] == pytest.approx(4 * sbh / t * (1 + v / h))


def test_zero_counts_less():
    """Rajbhandari et al. 2020, section 3.2: 60 GB for GPT-2 XL, 32 sequences of 1024, by 12 numbers of h each token.

    That leaves out the scores, and some of the rest: by Korthikanti et al. it is 17 numbers, and 57 with the scores.
    """
    xl = models.published("GPT-2 XL").spec
    run = Training(spec=xl, microbatch=32, attention="stored", dropout=True)
    layers = 48 * sum(activations.layer(run).values())
    without_scores = 48 * sum(activations.layer(replace(run, attention="flash")).values())
    zero = 12 * 2 * 1600 * 1024 * 32 * 48
    assert zero == pytest.approx(60e9, rel=0.01)
    assert without_scores / zero == pytest.approx(17 / 12, rel=0.01)
    assert layers / zero == pytest.approx(57 / 12, rel=0.01)


def test_llama_keeps_what_its_layers_have():
    """By hand for one token: h = 8, one of two heads for keys and values (4 wide), f = 20, no dropout."""
    spec = TransformerSpec(
        vocab_size=10, context_length=4, hidden_size=8, num_layers=1, num_heads=2, num_kv_heads=1,
        ffn_size=20, style="llama",
    )  # fmt: skip
    flash, stored = (Training(spec=spec, sequence=3, attention=attention) for attention in ("flash", "stored"))
    norms, attention, feed_forward = 2 * 8, 8 + 8 + 4 + 4 + 8, 8 + 3 * 20
    statistics, heads = 4 + 4, 2 * 4  # one fp32 number of each norm, and of each head
    each = 2 * (norms + attention + feed_forward) + statistics
    assert sum(activations.layer(flash).values()) == 3 * (each + heads)
    assert sum(activations.layer(stored).values()) == 3 * each + 2 * (2 * 3 * 3)
    assert sum(activations.head(flash).values()) == 3 * (2 * 2 * 8 + 4 + 4 * 10 + 8) + 4
    assert sum(activations.embedding(flash).values()) == 3 * 8


def test_twice_the_bytes_for_fp32_except_for_masks_and_statistics():
    half, full = (
        published(training(attention="flash", recipe=recipes.recipe(name)))
        for name in ("mixed, 16-bit gradients", "fp32 Adam")
    )
    assert full / half == 66 / 34


@pytest.mark.parametrize("name", ["GPT-2 small", "Llama 3 8B"])
def test_ranks_of_a_sequence_hold_it_once_together(name):
    """Context parallelism cuts everything; tensor parallelism with sequence parallelism too, while heads suffice."""
    spec = models.published(name).spec

    def held(**degrees):
        layout = Layout(**degrees, sequence_parallel=True)
        run = Training(spec=spec, layout=layout, attention="stored", dropout=True, sequence=1024)
        return sum(sum(part(run).values()) for part in (activations.layer, activations.embedding))

    assert 4 * held(cp=4) == pytest.approx(held(), rel=1e-6)
    assert 4 * held(tp=4) == pytest.approx(held(), rel=1e-3)  # each rank keeps all token numbers


def test_what_released_models_changed_is_kept_by_its_own_widths():
    """Six heads of 16, two for keys and values, in a stream 24 wide; norms of heads, and four norms in a layer."""
    sizes = {"vocab_size": 50, "context_length": 16, "hidden_size": 24, "num_layers": 2, "num_heads": 6}
    wide = {"num_kv_heads": 2, "head_dim": 16, "head_norms": True, "post_norms": True}
    kept = activations.layer(Training(spec=TransformerSpec(**sizes, **wide, style="llama")))
    assert kept["attention: queries, keys, values"] == 16 * (6 + 2 + 2) * 16 * 2
    assert kept["attention: output"] == 16 * 6 * 16 * 2
    assert kept["norms: queries and keys"] == 16 * (6 + 2) * 16 * 2
    assert kept["norms: input"] == 4 * 16 * 24 * 2
    assert kept["attention: input"] == 16 * 24 * 2
    neox = Training(spec=TransformerSpec(**sizes, position_style="rotary"))
    assert activations.embedding(neox)["token numbers"] == 16 * 8


def test_single_operations_keep_more():
    """By hand for one token of LLaMA 13B's layer: a second copy of a norm's result, SiLU(gate), an output again."""
    spec = TransformerSpec(
        vocab_size=10, context_length=4, hidden_size=5120, num_layers=1, num_heads=40, ffn_size=13824, style="llama"
    )
    fused = Training(spec=spec, sequence=1)
    more = {"norms": 2 * 2 * 5120, "rotary": 2 * 2 * 128, "SwiGLU": 2 * 13824, "attention": 2 * 5120}
    for kernel, nbytes in more.items():
        changed = replace(fused, program=replace(NEMO_2024, unfused=(kernel,)))
        assert sum(activations.layer(changed).values()) - sum(activations.layer(fused).values()) == nbytes
    stored = replace(fused, attention="stored")
    apart = replace(stored, program=replace(NEMO_2024, unfused=KERNELS))
    scores = [activations.layer(each)["attention: scores"] for each in (stored, apart)]
    assert scores == [2 * 40, (4 + 2) * 40]  # the softmax in fp32, and its 16-bit copy


def test_gathered_inputs_are_kept_whole():
    slices = training(tp=4, sequence_parallel=True, attention="flash")
    whole = activations.layer(replace(slices, program=replace(NEMO_2024, keeps_gathered=True)))
    for name in ("attention: input", "feed-forward: input"):
        assert whole.pop(name) == 4 * activations.layer(slices)[name] == 2 * 2048 * 12288
    assert whole.items() <= activations.layer(slices).items()


@pytest.mark.parametrize(
    ("loss", "kept", "beside"),
    [("parallel", 4, 8), ("torch", 4, 12), ("whole", 4 * 2, 10 * 2), ("in place", 4, 2), ("fused", 2, 2)],
)
def test_bytes_of_logits_and_loss_for_each_token_and_word(loss, kept, beside):
    """On one of two ranks of tp, which hold half of the words unless they hold them whole."""
    run = training(tp=2, program=replace(NEMO_2024, loss=loss))
    each = 2048 * 51200 / 2
    assert (activations.logits(run), activations.loss(run)) == (kept * each, beside * each)


def test_gradients_of_a_layers_activations():
    """By hand for one token of GPT-3: the residual, then GELU before and after; with scores, these twice."""
    h, scores = 12288, 96 * 2048
    assert activations.layer_gradients(training(attention="flash")) == 2048 * 2 * (h + 2 * 4 * h)
    assert activations.layer_gradients(training()) == 2048 * 2 * (h + 4 * h + 2 * scores)
    assert activations.layer_gradients(training(tp=8, attention="flash")) == 2048 * 2 * (h + 8 * h / 8)


def by_operation(name, program="torchtitan FSDP2, eager", **changes):
    return Training(spec=models.published(name).spec, program=PROGRAMS[program], **changes)


def test_what_a_program_repeats_is_not_kept():
    """torchtitan keeps queries, values, gate, down, attention's output and a layer's input: of 8B 63,488 bytes."""
    run = by_operation("Llama 3 8B")
    spec = run.spec
    held = activations.layer(run)
    keys = spec.kv_heads * spec.head_size
    held.pop("attention: statistics")
    assert sum(held.values()) / run.tokens == 2 * (4 * spec.hidden_size + keys + spec.ffn) == 63_488
    everything = replace(run, program=replace(run.program, kernels=Kernels()))
    assert activations.layer(everything) == activations.whole_layer(run)


@pytest.mark.parametrize(("name", "share"), [("Llama 3 8B", 0.365), ("Llama 2 13B", 0.388), ("Llama 2 70B", 0.363)])
def test_seconds_repeat_what_bytes_do_not_keep(name, share):
    run = by_operation(name)
    assert repeated_share(run) == pytest.approx(share, abs=0.001)
    results = {each[0]: each[1] * each[3] * run.recipe.element for each in activations.results(run)}
    held = {part.removeprefix("result: "): n for part, n in activations.layer(run).items() if "result" in part}
    assert held == {part: n for part, n in results.items() if part not in run.program.kernels.repeated}


def test_a_mixture_and_a_hybrid_are_repeated_by_operation_too():
    experts = Experts(num_experts=8, per_token=2, expert_size=32)
    sizes = {"vocab_size": 512, "context_length": 64, "hidden_size": 64, "num_layers": 4, "num_heads": 4}
    spec = TransformerSpec(**sizes, style="llama", blocks_at=(1, 3))
    program = PROGRAMS["torchtitan FSDP2, eager"]
    mixture = Training(spec=replace(spec, blocks_at=None, experts=experts), program=program)
    held = activations.layer(mixture)
    assert held["result: gate"] == 2 * 64 * 2 * 32
    assert held["routed experts: weights"] > 0
    assert "result: up" not in held
    hybrid = Training(spec=spec, program=program)
    parts = [(share, activations.layer(kind)) for share, kind in hybrid.layer_kinds]
    assert len(parts) > 1
    for name, nbytes in activations.layer(hybrid).items():
        assert nbytes == pytest.approx(sum(share * part.get(name, 0) for share, part in parts))


def test_in_eight_bits_products_keep_what_they_read_rounded():
    """Transformer Engine; torchao keeps 16 bits, and its tables print as much memory in both. Attention's output is
    kept for attention itself, too."""
    spec = models.published("Llama 3 8B").spec
    half, eighth = (Training(spec=spec, precision=each, program=NEMO_2024) for each in (None, "fp8"))
    saved = sum(activations.layer(half).values()) - sum(activations.layer(eighth).values())
    assert saved / half.tokens == spec.hidden_size + spec.ffn
    other = replace(half, program=PROGRAMS["torchtitan FSDP2, compiled"])
    assert activations.layer(replace(other, precision="fp8")) == activations.layer(other)
    assert activations.head(eighth) == activations.head(half)


def test_routed_experts_keep_what_they_read_rounded_too():
    sizes = {"vocab_size": 512, "context_length": 64, "hidden_size": 64, "num_layers": 4, "num_heads": 4}
    spec = TransformerSpec(**sizes, style="llama", experts=Experts(num_experts=8, per_token=2, expert_size=32))
    half, eighth = (activations.layer(Training(spec=spec, precision=each)) for each in (None, "fp8"))
    assert half["routed experts: input"] == 2 * eighth["routed experts: input"] == 2 * 64 * 64 * 2
    assert half["routed experts: hidden"] * 5 == 6 * eighth["routed experts: hidden"]
