from dataclasses import replace

import pytest

from shardlab.costs import machines, scaling
from shardlab.costs.data_parallel import step

RUN = machines.examples()["8 H100, PCIe"]
COUNTS = [1, 2, 4, 8, 16, 32, 64]


def test_time_does_not_fall_to_one_nth():
    """Row 6: the all-reduce and the update do not shrink with the batch per rank."""
    steps = scaling.strong(RUN, 64, COUNTS)
    assert {step.run.tokens for step in steps} == {64 * 1024}
    gains = scaling.speedups(steps)
    assert gains[0] == 1
    assert all(gain < count for gain, count in zip(gains[1:], COUNTS[1:], strict=True))
    assert max(gains) > gains[-1]  # more ranks, slower: the batch per rank is too small to hide anything
    assert [step.update for step in steps] == [steps[0].update] * len(steps)
    assert gains[3] == pytest.approx(steps[0].seconds / steps[3].seconds)


def test_amdahls_law_holds_where_the_network_is_perfect():
    """Speed-up n / (1 + (n-1) s) with the serial share s of one rank: the update."""
    perfect = replace(RUN, link=replace(RUN.link, bandwidth=1e30, latency=0.0))
    steps = scaling.strong(perfect, 64, COUNTS)
    serial = steps[0].update / steps[0].seconds
    for count, gain in zip(COUNTS, scaling.speedups(steps), strict=True):
        assert gain == pytest.approx(count / (1 + (count - 1) * serial))


def test_with_a_fixed_batch_per_rank_it_comes_close():
    steps = scaling.weak(RUN, COUNTS)
    gains = scaling.speedups(steps)
    for count, gain, one in zip(COUNTS, gains, steps, strict=True):
        assert gain == pytest.approx(count * one.efficiency)
    assert gains[3] > scaling.speedups(scaling.strong(RUN, 8, COUNTS[:4]))[3]


def test_the_examples_fit_and_cover_what_the_claim_says():
    """Row 18: all-reduce takes about 5 %, 20-30 %, 60 % and more of a step, depending on the machine."""
    examples = machines.examples()
    assert all(step(run).fits for run in examples.values())
    shares = {name: scaling.communication_share(run) for name, run in examples.items()}
    without = sorted(share["without overlap"] for share in shares.values())
    assert without[0] < 0.05
    assert any(0.05 < share < 0.15 for share in without)
    assert sum(0.2 <= share <= 0.3 for share in without) == 2
    assert any(0.55 < share < 0.65 for share in without)
    assert without[-1] > 0.85
    assert all(0 <= s["with overlap"] <= s["without overlap"] <= s["busy"] <= 1 for s in shares.values())
    assert min(share["with overlap"] for share in shares.values()) < 0.02


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"64 does not split over 3 ranks; use one of \[1, 2, 4"):
        scaling.strong(RUN, 64, [1, 3])
    with pytest.raises(ValueError, match="0 ranks"):
        scaling.strong(RUN, 64, [0])
    with pytest.raises(ValueError, match="begin with ranks=1"):
        scaling.speedups(scaling.weak(RUN, [2, 4]))
    with pytest.raises(ValueError, match="begin with ranks=1"):
        scaling.speedups([])
