"""A tracer reads a method with types: it lists the collectives of a step, or refuses a line and offers repairs."""

import pytest

from shardlab.sharding.types.tracer import Refusal, Tracer
from shardlab.trace import Event, wire_bytes

SIZES = {"B": 8, "S": 4, "h": 16, "f": 64, "V": 32}
MESH = {"dp": 2, "tp": 4}


def mlp(on, x, up, down):
    x = on.redistribute(x, "tp", "I -> R")
    hidden = on.function("gelu", on.product("B S f", x, up))
    y = on.product("B S h", hidden, down)
    return on.redistribute(y, "tp", "P -> I")


def sequence_parallel_mlp(on, x, up, down):
    x = on.redistribute(x, "tp", "S(S) -> R")
    hidden = on.function("gelu", on.product("B S f", x, up))
    y = on.product("B S h", hidden, down)
    return on.redistribute(y, "tp", "P -> S(S)")


def cross_entropy(on, logits, targets):
    """Of a vocabulary that is cut: two sums over ranks. A loss is a sum over tokens."""
    total = on.product("B S", on.function("exp", logits))
    total = on.redistribute(total, "tp", "P -> I")
    chosen = on.product("B S", logits, targets)
    chosen = on.redistribute(chosen, "tp", "P -> I")
    losses = on.add(on.function("log", total), on.scale(chosen, -1))
    return on.close(on.product("", losses))


def read(method, *texts, mesh=MESH):
    tracer = Tracer(mesh, SIZES)
    return method(tracer, *map(tracer.given, texts)), tracer


def test_the_collectives_of_a_step_are_known_before_it_runs():
    y, tracer = read(mlp, "[B/dp, S, h]", "[h, f/tp] R@dp", "[f/tp, h] R@dp")
    assert str(y) == "[B/dp, S, h]"
    nbytes = 4 * 4 * 16 * 2  # B/dp * S * h numbers in 16 bits
    sent = wire_bytes(Event(0, "communicate", "all_reduce", (0, 1, 2, 3), nbytes, 0.0, 1.0))
    assert tracer.collectives() == [("all_reduce", "tp", sent), ("all_reduce", "tp", sent)]


def test_backward_has_the_mirrors_of_forward_in_the_opposite_order():
    """Sequence parallelism sends as many bytes as tensor parallelism: an all-reduce is cut into two."""
    matrices = "[h, f/tp] R@dp", "[f/tp, h] R@dp"
    y, tracer = read(sequence_parallel_mlp, "[B/dp, S/tp, h]", *matrices)
    verbs = [verb for verb, _, _ in tracer.collectives()]
    assert str(y) == "[B/dp, S/tp, h]"
    assert verbs == ["all_gather", "reduce_scatter", "all_gather", "reduce_scatter"]
    _, whole = read(mlp, "[B/dp, S, h]", *matrices)
    assert sum(sent for *_, sent in tracer.collectives()) == sum(sent for *_, sent in whole.collectives())


def test_a_loss_over_words_that_are_cut_is_a_term_of_each_replica():
    loss, tracer = read(cross_entropy, "[B/dp, S, V/tp]", "[B/dp, S, V/tp] fixed")
    assert str(loss) == "[] P@dp"
    assert [verb for verb, _, _ in tracer.collectives()] == ["all_reduce", "all_reduce"]


def test_what_has_no_gradient_sends_nothing_in_backward():
    tracer = Tracer(MESH, SIZES)
    tracer.redistribute(tracer.given("[B] P@dp fixed"), "dp", "P -> R")
    assert len(tracer.collectives()) == 1


def test_a_refusal_names_the_line_the_axis_the_states_and_repairs():
    def forgetful(on, x, up):
        return on.product("B S f", x, up)

    with pytest.raises(Refusal) as refusal:
        read(forgetful, "[B/dp, S, h]", "[h, f/tp] R@dp")
    line, reason, repairs = str(refusal.value).split("\n")
    assert line.endswith('return on.product("B S f", x, up)')
    assert reason.startswith("tp=4: I with S(f): ")
    assert "each of 4 ranks gets one term of its gradient" in reason
    assert repairs == "redistribute operand 1: I -> R @tp (768 bytes); or operand 2: S(f) -> I @tp (1536 bytes)"


def test_a_bias_inside_the_sum_is_refused_and_a_copy_of_it_is_no_repair():
    with pytest.raises(Refusal, match="count the addend 4 times") as refusal:
        read(lambda on, y, bias: on.add(y, bias), "[B, S, h] P@tp", "[h]")
    assert [str(repair).partition(" (")[0] for repair in refusal.value.repairs] == ["operand 1: P -> I @tp"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda on: on.given("[Z]"), "unknown dim Z"),
        (lambda on: on.given("[B/ep]"), r"unknown axis ep in \[B/ep\]; use dp, tp"),
        (lambda on: on.redistribute(on.given("[B]"), "ep", "I -> R"), "unknown axis ep; use dp, tp"),
        (lambda on: on.redistribute(on.given("[S]"), "tp", "P -> I"), "is I along tp, not P"),
        (lambda on: on.redistribute(on.given("[S/tp]"), "dp", "I -> S(S)"), "S=4 does not split over 8 ranks"),
    ],
)
def test_bad_input_gets_one_line_and_the_way_out(call, message):
    with pytest.raises(ValueError, match=message):
        call(Tracer(MESH, SIZES))
