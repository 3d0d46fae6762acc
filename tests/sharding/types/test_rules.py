"""The rules, one line each; `ranks.players.test_players` proves that they accept what is right, and nothing else."""

import pytest

from shardlab.sharding.types import rules
from shardlab.sharding.types.rules import Refused
from shardlab.sharding.types.states import parse


def product(names, *texts):
    return str(rules.product(names, list(map(parse, texts))))


def add(*texts):
    return str(rules.add(*map(parse, texts)))


def test_the_columns_of_a_matrix_leave_a_cut_and_its_rows_a_partial_sum():
    assert product("B S f", "[B/dp, S, h] R@tp", "[h, f/tp] R@dp") == "[B/dp, S, f/tp]"
    assert product("B S h", "[B/dp, S, f/tp]", "[f/tp, h] R@dp") == "[B/dp, S, h] P@tp"


def test_the_gradient_of_a_matrix_is_a_partial_sum_over_replicas():
    assert product("h f", "[B/dp, S, h] R@tp", "[B/dp, S, f/tp]") == "[h, f/tp] P@dp"


def test_a_count_is_a_sum_over_a_cut_dim():
    """So a mean of means divides by a partial sum, which no function may be given."""
    count = product("", "[B/dp, S/cp] fixed")
    assert count == "[] P@cp P@dp fixed"
    with pytest.raises(Refused, match="the function of the sum"):
        rules.function(parse(count))


def test_partial_sums_are_added_before_they_are_summed():
    assert add("[S, h] P@tp", "[S, h] P@tp") == "[S, h] P@tp"
    assert add("[S, f/tp]", "[f/tp]") == "[S, f/tp]"


def test_a_softmax_needs_the_whole_dim():
    scores = parse("[B/dp, H/tp, S/cp, T]")
    assert rules.function(scores, "T") == scores
    with pytest.raises(Refused, match=r"S\(S\): each rank would see a piece"):
        rules.function(scores, "S")


def test_a_table_cut_by_words_gives_terms_and_one_cut_by_width_gives_pieces():
    tokens = parse("[B/dp, S] fixed")
    assert str(rules.look_up(parse("[V/tp, h] R@dp"), tokens)) == "[B/dp, S, h] P@tp"
    assert str(rules.look_up(parse("[V, h/tp] R@dp"), tokens)) == "[B/dp, S, h/tp]"


def test_copies_without_a_gradient_are_equal_and_that_is_all():
    """Tokens, masks and positions are I or R, whichever their neighbours are."""
    for mask in ("[S] fixed", "[S] R@tp fixed"):
        assert product("S h", "[S, h/tp]", mask) == "[S, h/tp]"
        assert product("S h", "[S, h]", mask) == "[S, h]"


def test_backward_starts_from_a_loss_that_is_whole_or_a_term():
    assert str(rules.close(parse("[] P@dp"))) == "[] P@dp"
    with pytest.raises(Refused, match="times the gradients"):
        rules.close(parse("[] R@tp"))


@pytest.mark.parametrize(
    ("rule", "states", "reason"),
    [
        (lambda: product("S f", "[S, h]", "[h, f/tp]"), ("I", "S(f)"), "one term of its gradient"),
        (lambda: product("S f", "[S/tp, h]", "[h, f/tp]"), ("S(S)", "S(f)"), "only {n} meet"),
        (lambda: product("S", "[S] P@tp", "[S] P@tp"), ("P", "P"), "products of terms"),
        (lambda: product("S", "[S, h] P@tp", "[h/tp]"), ("h", "h/tp"), "pieces do not match"),
        (lambda: product("S f", "[S] P@tp", "[f/tp]"), ("P", "S(f)"), "needs their sum"),
        (lambda: add("[S, h] P@tp", "[h]"), ("P", "I"), "count the addend {n} times"),
        (lambda: add("[S, h] R@tp", "[h]"), ("R", "I"), "one term of its gradient"),
        (lambda: rules.function(parse("[S] P@tp")), ("P",), "not the function of the sum"),
    ],
)
def test_a_refusal_names_the_states_that_met_and_what_they_would_compute(rule, states, reason):
    with pytest.raises(Refused) as refused:
        rule()
    assert (refused.value.axis, refused.value.states) == ("tp", states)
    assert reason in refused.value.reason


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lambda: product("S Z", "[S, h]"), "unknown dim Z in 'S Z'; use S, h"),
        (lambda: add("[S, h]", "[f]"), r"\[S, h\] has no dim f; sum over it first"),
        (lambda: rules.function(parse("[S]"), "h"), r"unknown dim h of \[S\]; use S"),
        (lambda: rules.look_up(parse("[V, h]"), parse("[S]")), r"write '\[S\] fixed'"),
        (lambda: rules.look_up(parse("[]"), parse("[S] fixed")), "first dim is the vocabulary"),
        (lambda: rules.close(parse("[S]")), "sum over S first"),
    ],
)
def test_bad_input_gets_one_line_and_the_way_out(rule, message):
    with pytest.raises(ValueError, match=message):
        rule()
