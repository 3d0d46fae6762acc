"""Every model in the history has a date and a source, and its parameters are counted where possible."""

import pytest

from shardlab.costs.facts import models
from shardlab.costs.published import history

SIZES = history.sizes()
BY_NAME = {size.name: size for size in SIZES}


def test_the_chart_goes_from_millions_to_more_than_a_trillion():
    assert SIZES[0].parameters < 1e9
    assert max(size.parameters for size in SIZES) > 1e12
    assert [size.date for size in SIZES] == sorted(size.date for size in SIZES)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: size.name)
def test_every_point_has_a_date_and_a_source(size):
    assert "2017" < size.date < "2027"
    assert "https://" in size.source or "Radford et al." in size.source


def test_what_has_published_shapes_is_counted_from_them():
    assert BY_NAME["GPT-3 175B"].parameters == models.num_parameters(models.published("GPT-3 175B").spec)
    assert BY_NAME["DeepSeek-V3"].parameters == 671_026_419_200
    assert {size.name for size in SIZES if size.mixture} >= {"Switch-C", "DeepSeek-V3"}
    assert not BY_NAME["PaLM"].counted
