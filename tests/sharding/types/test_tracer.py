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


def test_a_bias_inside_the_sum_is_counted_once_or_waits_for_the_sum():
    with pytest.raises(Refusal, match="count the addend 4 times") as refusal:
        read(lambda on, y, bias: on.add(y, bias), "[B, S, h] P@tp", "[h]")
    assert [str(repair).partition(" (")[0] for repair in refusal.value.repairs] == [
        "operand 2: I -> R @tp and operand 2: R -> P @tp",
        "operand 1: P -> I @tp",
    ]


def closed(on, *texts):
    """A loss of inputs, from which backward has started."""
    inputs = [on.given(text) for text in texts]
    on.close(on.product("", *inputs))
    return inputs


def test_a_gradient_that_is_left_partial_is_refused_where_it_is_used():
    on = Tracer(MESH, SIZES)
    _, w = closed(on, "[B/dp, h]", "[h] R@dp")
    gradient = on.gradient(w)
    with pytest.raises(Refusal, match="dp=2: R with P: each rank would step by one of 2 terms") as refusal:
        on.update(w, gradient)
    assert [str(each).partition(" (")[0] for each in refusal.value.repairs][-1] == "operand 2: P -> I @dp"
    assert str(on.update(w, on.redistribute(gradient, "dp", "P -> I"))) == "[h] R@dp fixed"


def test_a_step_by_pieces_fits_pieces_only():
    on = Tracer(MESH, SIZES)
    with pytest.raises(Refusal, match="their pieces do not match"):
        on.update(on.given("[h]"), on.given("[h/dp] fixed"))


def test_a_norm_counts_a_copy_once():
    on = Tracer(MESH, SIZES)
    cut, copied = on.given("[f/tp] fixed"), on.given("[h] fixed")
    cut, copied = (on.product("", on.function("square", x)) for x in (cut, copied))
    with pytest.raises(Refusal, match="count the addend 4 times"):
        on.add(cut, copied)
    once = on.redistribute(on.redistribute(copied, "tp", "I -> R"), "tp", "R -> P")
    assert str(on.add(cut, once)) == "[] P@tp fixed"


def test_a_number_that_is_logged_is_known_to_all_ranks():
    on = Tracer(MESH, SIZES)
    with pytest.raises(Refusal, match="each rank would log one of 2 terms"):
        on.log(on.given("[] P@dp fixed"))


def test_a_maximum_over_words_that_are_cut_is_sent_and_has_no_gradient():
    on = Tracer(MESH, SIZES)
    assert str(on.largest(on.given("[B/dp, V/tp] fixed"), "V")) == "[B/dp] fixed"
    assert on.collectives() == [("all_reduce", "tp", 2 * 3 / 4 * 4 * 2)]
    with pytest.raises(Refusal, match="not the function of the sum"):
        on.largest(on.given("[B, V] P@tp fixed"), "V")


def test_what_is_gathered_again_is_sent_again_before_its_gradient():
    on = Tracer(MESH, SIZES)
    on.redistribute(on.given("[h/dp]"), "dp", "S(h) -> R", again=True)
    assert [verb for verb, *_ in on.collectives()] == ["all_gather", "all_gather", "reduce_scatter"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda on: on.given("[Z]"), "unknown dim Z"),
        (lambda on: on.gradient(on.given("[B]")), r"\[B\] has no gradient; close a loss that depends on it first"),
        (lambda on: on.gradient(on.given("[B] fixed")), "has no gradient"),
        (lambda on: on.update(on.given("[B]"), on.given("[S] fixed")), "use the same dims"),
        (lambda on: on.log(on.given("[B]")), "has dims; log one number"),
        (lambda on: on.largest(on.given("[B]"), "B"), r"the largest along B of \[B\]: detach it"),
        (lambda on: on.given("[B/ep]"), r"unknown axis ep in \[B/ep\]; use dp, tp"),
        (lambda on: on.redistribute(on.given("[B]"), "ep", "I -> R"), "unknown axis ep; use dp, tp"),
        (lambda on: on.redistribute(on.given("[S]"), "tp", "P -> I"), r"whole of it already\nleave it out"),
        (lambda on: on.redistribute(on.given("[S] P@dp"), "tp", "P -> I"), "write P -> I @dp; or leave it out"),
        (lambda on: on.function("softmax", on.given("[S/tp]")), "softmax needs all numbers along 1 dims, got 0"),
        (lambda on: on.function("normalize", on.given("[S/tp]")), "normalize needs all numbers along 1 dims, got 0"),
        (lambda on: on.function("orthogonalize", on.given("[S, h/tp]"), "S"), "along 2 dims, got 1 dims"),
        (lambda on: on.function("orthogonalize", on.given("[S, h/tp]"), "S", "h"), "the function needs the whole dim"),
        (lambda on: on.function("tanhh", on.given("[S]")), "unknown function tanhh; use exp, gelu"),
        (lambda on: on.average(on.given("[S] P@dp"), "dp"), "the average of 2 terms is their sum divided by 2"),
        (lambda on: on.average(on.given("[S/dp]"), "dp"), "the average would mix 2 pieces"),
        (lambda on: on.redistribute(on.given("[S/tp]"), "dp", "I -> S(S)"), "S=4 does not split over 8 ranks"),
    ],
)
def test_bad_input_gets_one_line_and_the_way_out(call, message):
    with pytest.raises(ValueError, match=message):
        call(Tracer(MESH, SIZES))
