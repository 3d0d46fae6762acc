"""An unknown name gets the nearest known ones, which readers can tell apart."""

import pytest

from shardlab.costs.facts import hardware, nodes, recipes


@pytest.mark.parametrize(
    ("look_up", "name", "nearest"),
    [
        (nodes.node, "B200", "HGX B200"),
        (nodes.node, "H200", "DGX H200; AWS p5en.48xlarge; GCP a3-ultragpu-8g"),
        (nodes.node, "dgx-h100", "DGX H100"),
        (nodes.node, "DGXH100", "DGX H100; DGX H200; DGX A100"),
        (nodes.node, "GB300", "NVL72 rack, GB300"),
        (hardware.chip, "h200", "H200 SXM 141 GB"),
        (hardware.link, "InfiniBand-NDR", "InfiniBand NDR"),
        (recipes.recipe, "mixed, fp32 gradient", "mixed, fp32 gradients"),
    ],
)
def test_the_nearest_names_come_first(look_up, name, nearest):
    with pytest.raises(ValueError, match=rf"no facts about the [a-z]+ '{name}'; the nearest: {nearest}"):
        look_up(name)


def test_names_with_commas_are_told_apart_and_the_rest_gets_a_way_out():
    with pytest.raises(ValueError, match=r"'abacus'; `python -m shardlab.plan --help` .*known: .*; NVL72 rack, GB300"):
        nodes.node("abacus")
    with pytest.raises(ValueError, match=r"'H20'; .* chip = {name = .*, memory_GB = .*; known: V100 SXM2 32 GB; A100"):
        hardware.chip("H20")


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        *(("DGX B200", "HGX B200"), ("HGX H200", "DGX H200"), ("GB300 NVL72", "NVL72 rack, GB300")),
        *(("p5.48xlarge", "AWS p5.48xlarge"), ("mi300x", "MI300X platform"), ("dgx h100", "DGX H100")),
    ],
)
def test_a_node_is_found_by_the_names_that_people_type(typed, name):
    assert nodes.node(typed) == nodes.NODES[name]
