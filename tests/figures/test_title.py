"""The figure of the title page draws shares in percent, and the chosen number of GPUs stronger."""

from shardlab.figures import title
from tests.figures.drawn import data

MEMORY = {"parameters": 2e9, "gradients": 2e9, "optimizer": 12e9, "activations": 4e9}


def test_the_title_figure_draws_the_chosen_number_stronger():
    found = data(title.time_and_memory([1, 2], [1.0, 0.25], 2, MEMORY, 80e9))
    assert list(found["computing"].y) == [100, 25]
    assert list(found["waiting"].y) == [0, 75]
    assert list(found["computing"].marker.opacity) == [title.FADED, 1.0]


def test_the_axes_say_what_they_are():
    layout = title.time_and_memory([1, 2], [1.0, 0.5], 2, MEMORY, 80e9, alt="Many.").layout
    assert layout.meta["alt"] == "Many."
    assert (layout.xaxis.title.text, layout.yaxis.title.text) == ("GPUs", "share of a step (%)")
    assert layout.xaxis2.range[1] > 80
