"""More ranks shorten a step as Amdahl's law says, and never to one n-th."""

from dataclasses import replace

import pytest

from shardlab.costs import step
from shardlab.costs.data_parallel import machines, scaling
from shardlab.costs.facts import hardware, models, network
from shardlab.costs.programs import BOOK
from shardlab.costs.step import Run
from shardlab.costs.training import Training
from shardlab.sharding.layout import Layout

NETWORK = "PCIe, 1 InfiniBand card"
TRAINING = Training(spec=models.published("GPT-2 XL").spec, microbatch=64, program=BOOK)
RUN = Run(training=TRAINING, cluster=machines.cluster(NETWORK, 64))
COUNTS = [1, 2, 4, 8, 16, 32, 64]


def grown(name):
    return scaling.strong(RUN, COUNTS, lambda count: machines.cluster(name, count))


def test_time_does_not_fall_to_one_nth():
    """The all-reduce and the update do not shrink with the batch per rank."""
    steps = scaling.strong(RUN, COUNTS)
    assert {each.run.tokens for each in steps} == {64 * 1024}
    assert [each.run.training.microbatch for each in steps] == [64, 32, 16, 8, 4, 2, 1]
    gains = scaling.speedups(steps)
    assert gains[0] == 1
    assert all(gain < count for gain, count in zip(gains[1:], COUNTS[1:], strict=True))
    assert {each.parts["update"] for each in steps} == {steps[0].parts["update"]}
    assert gains[3] == pytest.approx(steps[0].seconds / steps[3].seconds)


def test_amdahls_law_bounds_the_speed_up_where_the_network_is_perfect():
    """At most n / (1 + (n-1) s) with the serial share s of one rank, the update; small matrices take longer."""
    perfect = replace(hardware.link("NVLink 4"), bandwidth=1e30, latency=0.0)
    chip = hardware.chip("H100 SXM 80 GB")
    steps = scaling.strong(replace(RUN, cluster=network.uniform(64, perfect, chip)), COUNTS)
    serial = steps[0].parts["update"] / steps[0].seconds
    for count, gain in zip(COUNTS, scaling.speedups(steps), strict=True):
        assert 0.8 < gain * (1 + (count - 1) * serial) / count < 1 + 1e-9


def test_a_second_server_may_cost_more_than_it_brings():
    """Over 100 GbE, 16 GPUs in two servers are slower than 8 in one."""
    gains = scaling.speedups(grown("PCIe, 100 GbE"))
    assert gains.index(max(gains)) == COUNTS.index(8)


def test_with_a_fixed_batch_per_rank_it_comes_close():
    layouts = [replace(TRAINING, microbatch=8, layout=Layout(dp=count)) for count in COUNTS]
    steps = [step.step(replace(RUN, training=each)) for each in layouts]
    gains = scaling.speedups(steps)
    for count, gain, each in zip(COUNTS, gains, steps, strict=True):
        assert gain == pytest.approx(count * each.computing / each.seconds)
    assert gains[3] > scaling.speedups(scaling.strong(RUN, COUNTS))[3]


def test_the_examples_fit_and_cover_what_the_claim_says():
    """All-reduce takes about 10 %, 20-30 %, half and more of a step, depending on the machine."""
    examples = machines.examples()
    assert all(step.step(run).fits for run in examples.values())
    shares = {name: scaling.communication_share(run) for name, run in examples.items()}
    without = sorted(share["without overlap"] for share in shares.values())
    assert without[0] < 0.1
    assert sum(0.2 <= share <= 0.3 for share in without) == 2
    assert without[-1] > 0.6
    assert all(0 <= s["with overlap"] <= s["without overlap"] <= s["busy"] <= 1 for s in shares.values())
    assert min(share["with overlap"] for share in shares.values()) < 0.02


def test_the_tokens_that_are_needed_are_the_rates_over_each_other():
    """By hand: F of one rank's step over 0.8 of the link, half as many bytes in a gradient as 4."""
    one = machines.examples()["8 H100, NVLink"]
    rate = step.step(one).rate
    assert scaling.tokens_needed(one) == pytest.approx(rate / (0.8 * 450e9))


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"64 does not split over 3 ranks; use one of \[1, 2, 4"):
        scaling.strong(RUN, [1, 3])
    with pytest.raises(ValueError, match="begin with ranks=1"):
        scaling.speedups(scaling.strong(RUN, [2, 4]))
    with pytest.raises(ValueError, match="begin with ranks=1"):
        scaling.speedups([])
