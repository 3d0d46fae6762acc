"""Offloading moves the bytes of ZeRO-Offload and ZeRO-Infinity over the busier direction of PCIe."""

from dataclasses import replace

import pytest

from shardlab.costs.facts import hardware, recipes
from shardlab.costs.memory.offload import Swap

V100 = hardware.chip("V100 SXM2 32 GB")
GPT3 = Swap(num_parameters=174.6e9, tokens=2048, chip=V100, link=hardware.host_link(V100))


def both_ways(swap):
    return sum(swap.to_chip.values()) + sum(swap.to_host.values())


def test_zero_offload_moves_four_bytes_for_each_parameter():
    """Ren et al. 2021, section 4.1: with fp16 parameters loaded once, and the update on the host, 4M bytes."""
    assert both_ways(replace(GPT3, loads=1)) == 4 * 174.6e9


def test_the_intensity_of_zero_infinity():
    """Rajbhandari et al. 2021, section 4.1: with recomputation, one FLOP/byte for each token (seq * batch)."""
    swap = replace(GPT3, loads=3, recomputes=True)
    work = 8 * swap.num_parameters * swap.tokens
    assert work / both_ways(swap) == swap.tokens
    assert swap.compute == pytest.approx(work / (0.4 * 125e12))


def test_recomputing_a_layer_that_is_loaded_needs_no_third_load():
    """As the engine loads: 8 PT / F >= 4 P / beta from half of F / beta on, where 6 PT / F needs two thirds."""
    ratio = 0.4 * V100.peak_flops / (0.8 * GPT3.link.bandwidth)
    again = replace(GPT3, recomputes=True)
    assert again.to_chip == GPT3.to_chip
    assert again.tokens_to_hide == pytest.approx(ratio / 2)
    assert GPT3.tokens_to_hide == pytest.approx(2 / 3 * ratio)


def test_an_update_on_the_chip_moves_all_states_twice():
    swap = replace(GPT3, update="chip")
    recipe = recipes.MIXED
    assert sum(swap.to_chip.values()) == (2 * 2 + 2 + 12) * 174.6e9
    assert sum(swap.to_host.values()) == (2 + 2 + 12) * 174.6e9
    assert swap.to_chip["optimizer"] == swap.to_host["optimizer"] == recipe.optimizer * 174.6e9


def test_every_microbatch_brings_the_parameters_and_takes_its_gradients():
    one, three = replace(GPT3, update="chip"), replace(GPT3, update="chip", num_microbatches=3)
    assert three.to_chip == {**one.to_chip, "parameters": 3 * one.to_chip["parameters"]}
    assert three.to_host == {**one.to_host, "gradients": 3 * one.to_host["gradients"]}
    assert three.compute == pytest.approx(3 * one.compute)


def test_the_busier_direction_of_pcie_decides():
    assert GPT3.transfer == pytest.approx(2 * 2 * 174.6e9 / (0.8 * 15.754e9), rel=1e-3)
    assert replace(GPT3, num_microbatches=3).transfer == pytest.approx(3 * GPT3.transfer)
    assert GPT3.seconds == max(GPT3.transfer, GPT3.compute)


@pytest.mark.parametrize("chip", ["V100 SXM2 32 GB", "A100 SXM 80 GB", "H100 SXM 80 GB", "RTX 4090 24 GB"])
def test_the_tokens_that_hide_the_transfers(chip):
    """The size of the model cancels: tokens >= (bytes / 6) * F / beta."""
    fast = hardware.chip(chip)
    swap = replace(GPT3, chip=fast, link=hardware.host_link(fast))
    needed = 4 / 6 * 0.4 * fast.peak_flops / (0.8 * swap.link.bandwidth)
    assert swap.tokens_to_hide == pytest.approx(needed)
    assert replace(swap, num_parameters=1e9).tokens_to_hide == pytest.approx(needed)
    assert replace(swap, loads=3, recomputes=True).tokens_to_hide == pytest.approx(needed * (6 / 8) / (4 / 6))
    assert replace(swap, tokens=needed).ratio == pytest.approx(1)
    assert replace(swap, tokens=needed / 4).ratio == pytest.approx(4)
    assert replace(swap, tokens=4 * needed).ratio == 1


def test_each_generation_of_pcie_halves_the_transfers():
    links = [hardware.link(f"PCIe {generation}.0 x16") for generation in (3, 4, 5)]
    seconds = [replace(GPT3, link=link).transfer for link in links]
    assert seconds[0] == pytest.approx(2 * seconds[1]) == pytest.approx(4 * seconds[2])


def test_bad_input_is_refused():
    for changes, message in [
        ({"tokens": 0}, "tokens=0 must be a finite number above 0"),
        ({"loads": 0}, "loads=0 must be a whole number of at least 1"),
        ({"update": "moon"}, "use one of host, chip"),
    ]:
        with pytest.raises(ValueError, match=message):
            replace(GPT3, **changes)
