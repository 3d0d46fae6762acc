"""No algorithm beats the lower bounds, and the fastest one changes where two of them meet."""

import pytest

from shardlab.costs import collectives
from shardlab.costs.collectives import bounds
from shardlab.costs.facts import hardware

LINK = hardware.link("NVLink 4")


def reachable(ranks, steps):
    """How many ranks can know of one rank after so many steps, each telling one other in every step."""
    have = 1
    for _ in range(steps):
        have = min(ranks, 2 * have)
    return have


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8, 9, 64, 100])
def test_fewer_steps_do_not_reach_everybody(ranks):
    bound = bounds.lower_bound(1e6, ranks)
    assert reachable(ranks, bound.steps) == ranks > reachable(ranks, bound.steps - 1)


@pytest.mark.parametrize("ranks", range(2, 40))
@pytest.mark.parametrize("name", collectives.ALL_REDUCES)
def test_no_algorithm_beats_the_bounds(name, ranks):
    for nbytes in (1.0, 1e4, 1e9):
        cost = collectives.ALL_REDUCES[name](nbytes, ranks)
        bound = bounds.lower_bound(nbytes, ranks)
        assert min(bound.distance(cost)) >= 1 - 1e-12
        assert cost.seconds(LINK) >= bound.seconds(LINK) * (1 - 1e-12)


@pytest.mark.parametrize(
    ("name", "steps", "nbytes"),  # on 64 ranks
    [
        ("naive", 126 / 6, 126 / (126 / 64)),
        ("binomial tree", 2, 12 / (126 / 64)),
        ("ring", 126 / 6, 1),
        ("recursive doubling", 1, 6 / (126 / 64)),
        ("halving-doubling", 2, 1),
    ],
)
def test_how_far_each_algorithm_is(name, steps, nbytes):
    bound = bounds.lower_bound(1e9, 64)
    assert bound.distance(collectives.ALL_REDUCES[name](1e9, 64)) == (pytest.approx(steps), pytest.approx(nbytes))


def test_at_their_meeting_both_take_equally_long():
    def costs(nbytes):
        return {name: formula(nbytes, 8) for name, formula in collectives.ALL_REDUCES.items()}

    size = bounds.meeting(costs(1)["ring"], costs(1)["recursive doubling"], 1, LINK)
    at = {name: cost.seconds(LINK) for name, cost in costs(size).items()}
    assert at["ring"] == pytest.approx(at["recursive doubling"])
    assert size == pytest.approx((14 - 3) * LINK.latency * LINK.bandwidth / (3 - 1.75))
    assert bounds.meeting(costs(7)["recursive doubling"], costs(7)["ring"], 7, LINK) == pytest.approx(size)
    assert bounds.meeting(costs(1)["naive"], costs(1)["ring"], 1, LINK) is None  # as many steps, more bytes
    assert bounds.meeting(costs(1)["ring"], costs(1)["halving-doubling"], 1, LINK) is None  # fewer steps, as many bytes


def test_the_fastest_changes_with_the_size():
    def quickest(nbytes, ranks):
        costs = {name: formula(nbytes, ranks) for name, formula in collectives.ALL_REDUCES.items()}
        return bounds.fastest(costs, LINK)

    assert quickest(1e3, 8) == "recursive doubling"
    assert quickest(1e9, 8) == "halving-doubling"
    assert quickest(1e9, 6) == "ring"  # outside a power of two, halving sends the buffer twice more


def test_bad_input_names_the_way_out():
    with pytest.raises(ValueError, match="1 rank needs no messages; use at least 2"):
        bounds.lower_bound(1, 1)
