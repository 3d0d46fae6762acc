"""The cloud shows the planner's own plans: the best on each card, those at one change, and what all lose time to."""

import html
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from shardlab.costs import step
from shardlab.costs.planning import planner as planning
from shardlab.costs.planning import plans
from shardlab.explorers import planner
from shardlab.explorers.planner import CARDS, CASES, GB

DATA = json.loads(html.unescape(re.search(r"data-planner='([^']*)'", planner.Cloud().html())[1]))
BOTH = list(zip(CASES, DATA["cases"], strict=True))
EVERY_CASE = pytest.mark.parametrize(("case", "drawn"), BOTH, ids=[case.name for case in CASES])


def dots(drawn):
    """(card that is just large enough, row, waste) of each dot."""
    for card, text in enumerate(drawn["dots"]):
        for each in re.findall("...", text):
            yield card, *divmod(int(each, 16), 6)


def chosen(plan):
    """What is free: GPUs make dp, tp switches sequence parallelism, one stage has no schedule."""
    order = (plan.schedule, plan.chunks) if plan.pp > 1 else ()
    share = (
        plan.recomputed_layers / plan.layers if plan.layers else float(plan.recomputation == "full")
    )
    free = {"tp": plan.tp, "pp": plan.pp, "ZeRO": plan.zero, "microbatch": plan.microbatch}
    return free | {"chunks": order, "recompute": share}


@EVERY_CASE
@pytest.mark.parametrize("card", [40, 80, 141, 192])
def test_the_lit_plan_is_the_planners_best_for_a_card_with_this_memory(case, drawn, card):
    """Here the chip itself has the memory, and the usual headroom stays free."""
    node = case.question.cluster.node
    cluster = replace(
        case.question.cluster, node=replace(node, chip=replace(node.chip, memory=card * GB))
    )
    found = planning.search(replace(case.question, cluster=cluster))
    best, fits, ties = drawn["walls"][CARDS.index(card)]
    assert drawn["lit"][best]["name"] == found.best.name
    told = f"{found.best.seconds:.3g} s a step, {found.best.nbytes / GB:.3g} GB"
    assert drawn["lit"][best]["told"][0] == told
    assert (fits, drawn["count"]) == (len(found.fitting), found.count)
    assert ties == len(
        [plan for plan in found.fitting[1:] if plan.seconds <= 1.04 * found.best.seconds]
    )


@EVERY_CASE
def test_left_of_the_wall_nothing_is_faster_than_the_lit_plan(case, drawn):
    for card, (best, *_) in zip(CARDS, drawn["walls"], strict=True):
        need, row = drawn["lit"][best]["at"]
        assert need <= card
        near = [each[1:] for each in drawn["lit"][best]["near"]]
        assert row <= min(row for need, row, *_ in (*dots(drawn), *near) if need <= card)


@EVERY_CASE
def test_the_fastest_plan_follows_the_wall_and_stops_at_141_gb(case, drawn):
    """The caption says so."""
    small, middle, large = (case.search(card).best.seconds for card in (40, 141, 192))
    assert small > 1.2 * middle
    assert middle < 1.01 * large


@EVERY_CASE
def test_every_neighbour_differs_in_one_choice_and_takes_what_a_step_takes(case, drawn):
    for best in {each.best for each in case.found}:
        (lit,) = (each for each in drawn["lit"] if each["name"] == best.name)
        near = case.neighbours(best)
        assert lit["near"] == [[words, *case.place(plan)] for words, plan in near.items()]
        assert len(near) >= 4
        for words, plan in near.items():
            before, after = chosen(best), chosen(plan)
            apart = [name for name in before if before[name] != after[name]]
            if (
                plan.pp == 1 < best.pp or best.pp == 1 < plan.pp
            ):  # the schedule goes with the stages
                apart.remove("chunks")
            assert apart == words.split()[:1]
            assert plan.tp * plan.pp * plan.dp == case.gpus
            assert step.step(plans.run_of(case.question, plan)).seconds == pytest.approx(
                plan.seconds
            )


@EVERY_CASE
def test_wastes_add_up_and_the_largest_colours_the_dot(case, drawn):
    names = DATA["wastes"]
    found = {(need, row): waste for need, row, waste in dots(drawn)}
    assert drawn["stand"] == len(case.cloud) > len(found)
    assert list(found) == sorted({case.place(plan) for plan in case.cloud.values()})
    for place, plan in case.dots.items():
        lost = case.wastes(plan)
        assert sum(lost.values()) + case.useful == pytest.approx(plan.seconds)
        assert min(lost.values()) >= 0
        assert lost[names[found[place]]] == max(lost.values())


def test_without_javascript_the_table_has_every_lit_plan_and_the_page_is_light():
    page = planner.Cloud().html()
    for case, drawn in BOTH:
        for lit in drawn["lit"]:
            cells = "".join(f"<td>{cell}</td>" for cell in (lit["name"], *lit["told"]))
            assert f"{cells}<td>{lit['near'][0][0]}: " in page
        assert f">{case.name}</th><td>40" in page
    files = Path(planner.__file__).parent.glob("planner.*")
    assert len(page) + sum(file.stat().st_size for file in files if file.suffix != ".py") < 60_000
