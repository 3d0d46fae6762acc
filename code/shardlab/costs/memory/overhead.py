"""Overhead: what a process takes of a GPU's memory beside the tensors of its training.

The CUDA context holds the driver's state and the kernels that are loaded. cuBLAS and cuBLASLt need
workspaces. NCCL keeps buffers for every communicator, by channel and peer. And torch's caching
allocator holds blocks that are free and too small for what is asked: the margin, a share of the
tensors. A capacity is the number on the data sheet; what a driver shows beyond it is not counted.
"""

from shardlab.files.arguments import checked

from ..training import Training

MIB = 2**20
# A process that only made a context, torch 1.11 with CUDA 11.5. Later releases load kernels when
# they are first needed. https://github.com/pytorch/pytorch/issues/81257
# An H100 takes 527 MiB with torch 2.11 and CUDA 13: bench/gpu_steps.py.
CONTEXT = 543 * MIB
# One each for cuBLAS and cuBLASLt, as torch makes them on Hopper; earlier chips have 4 to 8 MiB.
# https://github.com/pytorch/pytorch/pull/120925
WORKSPACES = 2 * 32 * MIB
# Measured on A100s with NVLink: a communicator of two ranks, and of more.
# https://github.com/NVIDIA/nccl/issues/964
COMMUNICATOR_OF_TWO = 544 * MIB
COMMUNICATOR = 688 * MIB


@checked
def fixed(training: Training) -> dict[str, float]:
    """Count the bytes that do not depend on the tensors, by purpose."""
    return {
        "CUDA context": CONTEXT,
        "workspaces": WORKSPACES,
        "communicators": sum(
            COMMUNICATOR if ranks > 2 else COMMUNICATOR_OF_TWO  # noqa: PLR2004
            for ranks in communicators(training)
        ),
    }


@checked
def communicators(training: Training) -> list[int]:
    """List the ranks of each communicator that a rank is part of.

    There is one for each axis that is cut, and one of all ranks where several are, over which the
    norm of the gradients is summed. With ep, experts have two more: of the ranks that hold
    different ones, and of those that hold the same.
    """
    layout = training.layout
    cut = [ranks for ranks in (layout.tp, layout.cp, layout.pp, layout.dp) if ranks > 1]
    same = layout.replicas // layout.ep
    experts = (layout.expert_ranks, same) if layout.ep > 1 else ()
    every = [layout.ranks] if len(cut) > 1 else []
    return [*cut, *(ranks for ranks in experts if ranks > 1), *every]


@checked
def overhead(training: Training, tensors: float) -> dict[str, float]:
    """Count the bytes beside `tensors` bytes of tensors, by purpose; the margin is the last."""
    return {**fixed(training), "margin": training.program.margin * tensors}
