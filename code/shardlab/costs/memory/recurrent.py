"""What layers with states instead of keys leave for backward, and what is there during it.

Our count, for kernels that work in chunks as those of flash-linear-attention do
(https://github.com/fla-org/flash-linear-attention): they keep what enters them and each chunk's
inverted triangle, and compute the states between chunks again in backward. Those of Mamba-2
(https://github.com/state-spaces/mamba, mamba_split_conv1d_scan_combined) keep what enters the
convolution and the rule's output, and convolve again. Nobody has measured either count.
"""

from shardlab.files.arguments import Count, checked
from shardlab.model.recurrent import Recurrent

FP32 = 4  # bytes: of decays, and of a norm's statistics


@checked
def kept(recurrent: Recurrent, tokens: Count, tp: Count, element: Count) -> dict[str, float]:
    """Count the bytes that one layer keeps on one of `tp` ranks, by tensor.

    element: bytes of a number between the matrices. The convolution keeps its input, the rule its
    normed queries and keys, values, strengths and decays; the gated norm the gate and its input.
    Of Mamba-2 the rule keeps its steps alone.
    """
    heads, values, corrects = recurrent.num_heads, recurrent.values, recurrent.corrects
    statistics = 2 * recurrent.key_heads + heads if corrects else recurrent.key_heads
    entering = recurrent.convolved * corrects + heads
    return {
        "states: narrow layers": tokens * recurrent.narrow * element,
        "states: convolution": tokens * recurrent.convolved / tp * element,
        "states: queries, keys, values": tokens * entering / tp * element,
        "states: decays": tokens * recurrent.decays * corrects / tp * FP32,
        "states: triangles": tokens * heads * recurrent.chunk * corrects / tp * element,
        "states: gate and output": tokens * 3 * values / tp * element,
        "states: statistics": tokens * statistics / tp * FP32,
    }


@checked
def gradients(recurrent: Recurrent, tokens: Count, tp: Count) -> float:
    """Count the numbers that are there together in the rule's backward.

    They are the gradients of the convolved, of the gate, of the output and of the decays; the
    states between chunks, computed again; and the gradients of those. Of Mamba-2 what is convolved
    and the products of queries and keys are computed again, too.
    """
    between = recurrent.convolved + 2 * recurrent.values + recurrent.decays
    chunks = recurrent.values * recurrent.key_size / recurrent.chunk
    if not recurrent.corrects:
        between += recurrent.convolved + recurrent.key_heads * recurrent.chunk
    return tokens * (between + 2 * chunks) / tp
