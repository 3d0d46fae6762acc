"""The planner says why it shares sequences, with the numbers that decide."""

import functools
import re
from dataclasses import replace

import pytest

from shardlab.costs.facts import models, nodes
from shardlab.costs.planning import context, planner
from shardlab.costs.planning.plans import Question
from shardlab.costs.programs import LLAMA_2024


@functools.cache
def question(model="Llama 3 70B", num_nodes=8, length=2**17, batch=64, **options):
    spec = replace(models.published(model).spec, context_length=length)
    narrowed = {"sequence_parallel": (True,), "schedules": ("1F1B",), "context": (1, 2, 4, 8, 16), **options}
    return Question(spec=spec, cluster=nodes.cluster("DGX H100", num_nodes), batch=batch, **narrowed)


def test_a_long_text_is_shared_and_the_plan_without_is_named():
    found = planner.search(question())
    words = context.why(found)
    alone = next(plan for plan in found.fitting if plan.cp == 1)
    assert found.best.cp == 16
    assert words.startswith("cp 16: without it a step takes ")
    assert f"{100 * (alone.seconds / found.best.seconds - 1):.0f} % longer ({alone.name})" in words
    assert "a rank has 8,192 tokens of a sequence and 618 hide a step of the ring at 320 GB/s" in words


def test_gathered_keys_are_said_to_be_waited_for():
    words = context.why(planner.search(question(program=LLAMA_2024)))
    assert "nothing hides the gathering, and the step waits for keys and values 2 % of the time" in words


def test_a_short_text_gains_nothing_by_being_shared():
    found = planner.search(question("Llama 3 8B", 1, 8192))
    assert re.match(r"cp 8: without it a step takes under 1 % longer \(tp 2, ", context.why(found))
    assert context.why(planner.search(question("Llama 3 8B", 1, 8192, context=(1,)))) == (
        "cp 1: the question asks for no other degree"
    )


def test_where_only_a_shared_text_fits_the_nearest_plan_without_is_named():
    found = planner.search(question("Llama 3 8B", 4, 2**20, 2))
    assert found.best.cp > 1
    words = context.why(found)
    assert "without it nothing fits; tp 32" in words
    assert " too much" in words


def test_where_nothing_fits_there_is_nothing_to_explain():
    with pytest.raises(ValueError, match="nothing fits"):
        context.why(planner.search(question("Llama 3 70B", 1, 2**18, 1)))


