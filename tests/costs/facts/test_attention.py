"""Which row of the table of attention's kernels a chip gets."""

import pytest

from shardlab.costs.facts import hardware
from shardlab.costs.facts.attention import attention

A100 = hardware.chip("A100 SXM 80 GB")


def test_a_kernel_without_a_row_for_a_chip_is_taken_from_another_row():
    kernel = attention("FlashAttention-2", A100)
    assert (kernel.kernel, kernel.generation) == ("newest", "Ampere")
    assert attention("newest", hardware.chip("MI300X 192 GB")).generation == "any other"
    with pytest.raises(ValueError, match="no kernel of attention is called 'flash'; known: newest, FlashAttention-2"):
        attention("flash", A100)
