"""More ranks shorten a step as Amdahl's law says, and never to one n-th."""

from dataclasses import replace

import pytest

from shardlab.costs.data_parallel import DataParallelRun, machines, scaling, step
from shardlab.costs.facts import models

NETWORK = "PCIe, 1 InfiniBand card"
RUN = DataParallelRun(
    spec=models.published("GPT-2 XL").spec,
    chip=machines.chip(NETWORK),
    link=machines.network(NETWORK, 8),
    ranks=8,
    batch_per_rank=8,
)
COUNTS = [1, 2, 4, 8, 16, 32, 64]


def test_time_does_not_fall_to_one_nth():
    """The all-reduce and the update do not shrink with the batch per rank."""
    steps = scaling.strong(RUN, 64, COUNTS)
    assert {step.run.tokens for step in steps} == {64 * 1024}
    gains = scaling.speedups(steps)
    assert gains[0] == 1
    assert all(gain < count for gain, count in zip(gains[1:], COUNTS[1:], strict=True))
    assert [step.update for step in steps] == [steps[0].update] * len(steps)
    assert gains[3] == pytest.approx(steps[0].seconds / steps[3].seconds)


def test_amdahls_law_holds_where_the_network_is_perfect():
    """Speed-up n / (1 + (n-1) s) with the serial share s of one rank: the update."""
    perfect = replace(RUN, link=replace(RUN.link, bandwidth=1e30, latency=0.0))
    steps = scaling.strong(perfect, 64, COUNTS)
    serial = steps[0].update / steps[0].seconds
    for count, gain in zip(COUNTS, scaling.speedups(steps), strict=True):
        assert gain == pytest.approx(count / (1 + (count - 1) * serial))


def test_every_number_of_ranks_may_have_its_link():
    steps = scaling.strong(RUN, 64, COUNTS, links=lambda count: machines.network(NETWORK, count))
    assert [one.run.link for one in steps] == [machines.network(NETWORK, count) for count in COUNTS]
    assert [one.run.batch_per_rank for one in steps] == [64, 32, 16, 8, 4, 2, 1]
    assert steps[:4] == scaling.strong(RUN, 64, COUNTS[:4])
    assert steps[4].communication > 1.3 * scaling.strong(RUN, 64, [16])[0].communication


def test_a_second_server_may_cost_more_than_it_brings():
    """Over 100 GbE, 16 GPUs in two servers are slower than 8 in one."""
    name = "PCIe, 100 GbE"
    gains = scaling.speedups(scaling.strong(RUN, 64, COUNTS, links=lambda count: machines.network(name, count)))
    assert gains.index(max(gains)) == COUNTS.index(8)


def test_with_a_fixed_batch_per_rank_it_comes_close():
    steps = [step(replace(RUN, ranks=count)) for count in COUNTS]
    gains = scaling.speedups(steps)
    for count, gain, one in zip(COUNTS, gains, steps, strict=True):
        assert gain == pytest.approx(count * one.efficiency)
    assert gains[3] > scaling.speedups(scaling.strong(RUN, 8, COUNTS[:4]))[3]


def test_the_examples_fit_and_cover_what_the_claim_says():
    """All-reduce takes about 5 %, 20-30 %, 60 % and more of a step, depending on the machine."""
    examples = machines.examples()
    assert all(step(run).fits for run in examples.values())
    shares = {name: scaling.communication_share(run) for name, run in examples.items()}
    without = sorted(share["without overlap"] for share in shares.values())
    assert without[0] < 0.1
    assert sum(0.2 <= share <= 0.3 for share in without) == 2
    assert without[-1] > 0.6
    assert all(0 <= s["with overlap"] <= s["without overlap"] <= s["busy"] <= 1 for s in shares.values())
    assert min(share["with overlap"] for share in shares.values()) < 0.02


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"64 does not split over 3 ranks; use one of \[1, 2, 4"):
        scaling.strong(RUN, 64, [1, 3])
    with pytest.raises(ValueError, match="each a whole number of at least 1"):
        scaling.strong(RUN, 64, [0])
    with pytest.raises(ValueError, match="begin with ranks=1"):
        scaling.speedups(scaling.strong(RUN, 64, [2, 4]))
    with pytest.raises(ValueError, match="begin with ranks=1"):
        scaling.speedups([])
