"""The replay tells the truth: two hosts of this machine with a slow cable, measured beside replayed."""

import json
import sys
from pathlib import Path

import pytest

from shardlab import exchanges
from shardlab.costs.traces import writing
from shardlab.costs.traces.replay import replay

pytestmark = pytest.mark.slow

BENCH = Path(__file__).parents[1] / "bench"
sys.path.insert(0, str(BENCH))
import replay as bench  # noqa: E402
import two_hosts  # noqa: E402

MEASURED = json.loads((BENCH / "results" / "replay.json").read_text())["two hosts"]
SLOWEST = next(iter(bench.RATES))

SCRIPT = """
import json, time, torch
from shardlab import comm
from shardlab.launch import run

def crossing(group):
    comm.barrier(group)
    start = time.perf_counter()
    total = comm.all_reduce(torch.full((125_000,), group.rank() + 1.0), group)
    return total.sum().item(), time.perf_counter() - start

print(json.dumps(run(crossing, world_size=2)))
"""


def test_two_hosts_meet_over_a_cable_that_is_as_slow_as_asked_for(tmp_path):
    """Half a megabyte each way at 40 Mb/s cannot take less than a tenth of a second; what is summed is right."""
    why_not = two_hosts.unavailable()
    if why_not:
        pytest.skip(why_not)
    (tmp_path / "script.py").write_text(SCRIPT)
    with two_hosts.TwoHosts(rate=40e6) as hosts:
        told = json.loads(hosts.run(str(tmp_path / "script.py"), ranks=2).splitlines()[-1])
    for total, seconds in told:
        assert total == 3 * 125_000
        assert seconds > 0.09
    assert not [line for line in names_of_hosts() if line.startswith(two_hosts.NAMES)]


def names_of_hosts():
    import subprocess

    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.splitlines()


PLANS = {
    "all-reduce, naive": exchanges.naive_all_reduce,
    "all-reduce, binomial tree": exchanges.binomial_all_reduce,
    "all-reduce, ring": exchanges.ring_all_reduce,
    "all-reduce, halving-doubling": exchanges.halving_doubling_all_reduce,
    "all-reduce, two levels": lambda num_ranks: exchanges.hierarchical_all_reduce(num_ranks, 2),
}


def replayed_now(name, rate):
    """Seconds that the replay gives a plan today, on the cable that pings and one message measured."""
    facts = MEASURED[rate]
    where = bench.cluster(facts["latency"], facts["bandwidth"])
    return replay(writing.of_plan(PLANS[name](bench.RANKS), bench.NBYTES), where, link_utilisation=1.0).seconds


@pytest.mark.parametrize("rate", bench.RATES)
@pytest.mark.parametrize("name", PLANS)
def test_a_plan_replays_as_what_ranks_recorded_when_they_executed_it(name, rate):
    """To rounding; the messages that the naive one sends to one rank may overlap more."""
    recorded = MEASURED[rate]["programs"][name]["replayed"]
    overlaps = name == "all-reduce, naive"
    assert replayed_now(name, rate) == pytest.approx(recorded, rel=0.03 if overlaps else 1e-9)


@pytest.mark.parametrize("name", PLANS)
def test_a_replayed_plan_predicts_what_two_hosts_measured(name):
    """On the slowest cable, which decides: from 5 % too slow to 20 % too fast. Computing is not replayed."""
    measured = MEASURED[SLOWEST]["programs"][name]["measured"]
    assert 0.95 < measured / replayed_now(name, SLOWEST) < 1.2
