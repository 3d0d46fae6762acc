"""The closed forms hold for the longest messages in a node; `node_seconds` comes nearer at every size."""

import pytest

from shardlab.costs.facts import hardware
from shardlab.costs.published import recordings

IN_PERCENT = {  # medians in one node: all recordings, and those of an all-to-all
    ("closed_form", "all"): [45, 44, 38, 49, 25, 12],
    ("repaired", "all"): [23, 25, 19, 19, 11, 6],
    ("closed_form", "all_to_all"): [67, 74, 73, 61, 34, 19],
    ("repaired", "all_to_all"): [24, 28, 24, 18, 10, 9],
}


@pytest.mark.parametrize(("formula", "op"), IN_PERCENT)
def test_median_errors_in_a_node(formula, op):
    """Six classes of size, from up to 8 KB to above 256 MB."""
    some = [each for each in recordings.ONE_NODE if op in ("all", each.op)]
    found = recordings.medians(some, getattr(recordings, formula), signed=False)
    assert list(found) == list(recordings.SIZES)
    assert [100 * error for error in found.values()] == pytest.approx(IN_PERCENT[formula, op], abs=0.5)


def test_median_errors_by_machine():
    found = recordings.table(recordings.PUBLISHED)
    above = {name: round(100 * row["above 256 MiB"]) for name, row in found.items() if "above 256 MiB" in row}
    assert above["8 H100, one node", "all_gather"] == -2
    assert above["2 B200, one node", "all_gather"] == -39
    assert above["80 H100, 10 nodes", "all_gather"] == 0
    assert above["80 H100, 10 nodes", "all_to_all"] == 14  # pairs of nodes share the cards; no ring


def test_two_gpus_reach_less_of_nvlink_than_eight():
    """The shares of an all-gather of 512 MB that the comment on LINK_UTILISATION tells."""
    told = {"DGX A100": [0.50, 0.64, 0.68], "DGX H100": [0.57, 0.71, 0.74], "HGX B200": [0.49, 0.63, 0.69]}
    longest = 2**29
    shares = {}
    for each in recordings.ONE_NODE:
        if each.op == "all_gather" and str(longest) in each.seconds and each.node in told:
            sold = each.link.bandwidth / hardware.LINK_UTILISATION
            rate = longest * (each.gpus - 1) / each.gpus / each.seconds[str(longest)]
            shares.setdefault(each.node, []).append(round(rate / sold, 2))
    assert shares == told


@pytest.mark.parametrize(("nbytes", "told"), [(8192, "up to 8 KiB"), (8193, "8 to 128 KiB"), (2**40, "above 256 MiB")])
def test_classes_of_size_end_where_they_say(nbytes, told):
    assert recordings.size_class(nbytes) == told
