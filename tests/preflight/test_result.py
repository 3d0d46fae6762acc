"""A finding is one line, and ranks are named in short."""

import pytest

from shardlab.preflight.result import FAIL, OK, WARN, grouped, ranks_text, result, spans, status, whom

from .made_up import cluster


def test_a_finding_is_a_line_with_its_verdict_first():
    assert result("torch", OK, "2.13.0").line == "ok    torch: 2.13.0"
    assert result("torch", FAIL, "2.13.0", ranks=[1]).numbers == {"ranks": [1]}


def test_only_a_failure_changes_the_status():
    assert status([result("a", OK, ""), result("b", WARN, "")]) == 0
    assert status([result("a", FAIL, ""), result("b", OK, "")]) == 1


@pytest.mark.parametrize(("numbers", "text"), [([2], "2"), ([3, 0, 1], "0-1, 3"), (range(8), "0-7"), ([0, 2], "0, 2")])
def test_neighbours_are_a_span(numbers, text):
    assert spans(numbers) == text


def test_ranks_are_named_with_at_most_four_hosts():
    assert ranks_text([4]) == "rank 4"
    assert whom(cluster(2), range(8, 16)) == "ranks 8-15 (node01)"
    assert whom(cluster(6, 1), range(6)) == "ranks 0-5 (node00, node01, node02, node03 and 2 more)"


def test_the_majority_comes_first_and_in_a_draw_the_lowest_rank():
    assert grouped([(0, "b"), (1, "a"), (2, "a")]) == [("a", [1, 2]), ("b", [0])]
    assert grouped([(0, "b"), (1, "a")]) == [("b", [0]), ("a", [1])]
