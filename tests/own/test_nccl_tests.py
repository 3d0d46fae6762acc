"""A log of nccl-tests says its operation, its sizes and times, and by its two bandwidths how many ranks it had."""

import pytest

from shardlab.own import nccl_tests

SHARE = {"all_reduce": lambda n: 2 * (n - 1) / n, "all_gather": lambda n: (n - 1) / n, "sendrecv": lambda n: 1}


def log(op, ranks, *, listed=0, hosts=1, sizes=(2**20, 2**30), in_place=True):
    """What a test prints, for a time of 1 us + bytes / (400 GB/s)."""
    lines = [f"#  Rank {i:2} Group  0 Pid  9 on  host{i % hosts} device  {i} [0x1b] H100" for i in range(listed)]
    lines += [f"# Collective test starting: {op}_perf", "#       size         count      type   redop    root     time"]
    for size in sizes:
        us = 1 + size / 400e3
        algorithm = size / us / 1e3
        part = f"{us:.2f} {algorithm:.2f} {algorithm * SHARE[op](ranks):.2f} 0 "
        lines.append(f"{size} {size // 4} float sum -1 {part * (1 + in_place)}")
    return "\n".join([*lines, "# Out of bounds values : 0 OK", ""])


@pytest.mark.parametrize("op", ["all_reduce", "all_gather"])
@pytest.mark.parametrize("ranks", [2, 8, 96])
@pytest.mark.parametrize("in_place", [True, False])
def test_ranks_are_those_of_the_table_and_not_of_its_header(op, ranks, in_place):
    (table,) = nccl_tests.read(log(op, ranks, listed=64, hosts=8, in_place=in_place))
    assert (table.op, table.ranks, table.listed_ranks, table.nodes) == (op, ranks, 64, 8)
    assert [row.nbytes for row in table.rows] == [2**20, 2**30]
    assert table.rows[0].out_of_place == pytest.approx(3.62e-6)
    assert table.rows[0].in_place == (table.rows[0].out_of_place if in_place else None)


@pytest.mark.parametrize(("listed", "ranks"), [(1440, 1440), (0, None)])
def test_many_ranks_are_not_told_by_two_digits_alone(listed, ranks):
    assert nccl_tests.read(log("all_reduce", 1440, listed=listed))[0].ranks == ranks


def test_several_tables_of_a_log():
    tables = nccl_tests.read(log("all_reduce", 8) + log("all_gather", 4) + log("all_gather", 2))
    assert [(table.op, table.ranks) for table in tables] == [("all_reduce", 8), ("all_gather", 4), ("all_gather", 2)]


ROW = "8 2 float sum -1 {} 0.00 0.00 0 5.0 0.00 0.00 0"


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "no row"), ("all_reduce_perf\n1 2 3", "no row"), (ROW.format("5.0"), "the test None")]
    + [(f"odd_perf\n{ROW.format('5.0')}", "the test 'odd'")]
    + [(f"all_reduce_perf\n{ROW.format(word)}", f"a time of {word} us") for word in ("nan", "inf", "0", "-3", "x")]
    + [(f"all_reduce_perf\n{'9' * 40}{ROW.format('1')}", "is more than")],
)
def test_what_is_no_table_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        nccl_tests.read(text)
