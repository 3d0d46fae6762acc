"""Engines: which messages a training program overlaps with arithmetic, each with its source."""

from dataclasses import dataclass, replace

from shardlab.arguments import Count, Positive, Share, checked

from ..expert_parallel import BF16, FP8, OVERLAPS, WAYS
from ..facts.hardware import LINK_UTILISATION
from .kernels import FLASH_1, FLASH_2_ON_HOPPER, ORDINARY_KERNELS, Kernels

# Narayanan et al. 2021, section 5.9: with a trillion parameters on 384 servers, all-reduces among
# replicas carried 12.9 TB/s through the cut between two halves, whose 192 servers have eight cards
# of 25 GB/s each. Of no table of steps.
SELENE_2021 = 12.9e12 / (192 * 8 * 25e9)

# Megatron-LM's optimizer in 16 bits goes over the gradients again and again: it copies them to fp32
# (6 bytes for each), tests and unscales them (8), computes their norm (4), reads them in fp32 (2
# more), copies the parameters back (4 more) and zeroes the gradients (2). Where the norm exceeds
# its limit it also scales them (8), which is not counted: that depends on the run.
# https://github.com/NVIDIA/Megatron-LM/blob/v2.5/megatron/optimizer/optimizer.py
MEGATRON_PASSES = 6 + 8 + 4 + 2 + 4 + 2

TENSOR_OVERLAPS = {
    "none": "a rank waits for every message of tensor parallelism",
    "backward": "the messages of an entrance overlap the gradients of its weights",
    "chunks": "messages are cut into tp chunks that overlap the product before or after them",
}


@dataclass(frozen=True, kw_only=True)
@checked
class Engine:
    """How a program arranges one step."""

    name: str
    # See TENSOR_OVERLAPS. "chunks" holds where GPUs reach each other's memory, else "backward".
    tensor_overlap: str = "none"
    data_overlap: bool = False  # gradients and parameters travel while other layers compute
    context_overlap: bool = False  # keys and values travel while attention uses earlier ones
    send_overlap: bool = False  # a stage computes while its messages to other stages travel
    kernels: Kernels = ORDINARY_KERNELS
    # The share of the cards' rate that collectives among replicas reach between nodes.
    between_nodes: Share = LINK_UTILISATION
    # ZeRO-3: collectives for one layer's parameters, or its gradients; 1: all tensors in one.
    layer_messages: Count = 1
    # Bytes for each parameter that an update moves beyond `Recipe.update_traffic`.
    update_passes: int = 0
    regathers: bool = False  # ZeRO-3: a layer that is recomputed is gathered a third time
    expert_way: str = "flat"  # how tokens travel to experts, one of `expert_parallel.WAYS`
    expert_overlap: str = "nothing"  # what computes meanwhile, one of `expert_parallel.OVERLAPS`
    expert_bytes: Positive = BF16  # of one number on the way to an expert; BF16 on the way back
    source: str

    def __post_init__(self) -> None:
        if self.tensor_overlap not in TENSOR_OVERLAPS:
            known = ", ".join(TENSOR_OVERLAPS)
            raise ValueError(f"unknown tensor_overlap {self.tensor_overlap!r}; known: {known}")
        for field, known_ones in (("expert_way", WAYS), ("expert_overlap", OVERLAPS)):
            if getattr(self, field) not in known_ones:
                raise ValueError(
                    f"unknown {field} {getattr(self, field)!r}; known: {', '.join(known_ones)}"
                )

    @property
    def context_way(self) -> str:
        """How ranks of cp share keys: round a ring, which overlaps, or all gathered."""
        return "ring" if self.context_overlap else "gathered"


MEGATRON_2021 = Engine(
    name="Megatron-LM, 2021",
    between_nodes=SELENE_2021,
    update_passes=MEGATRON_PASSES,
    source="Narayanan et al. 2021 (https://arxiv.org/abs/2104.04473) and https://github.com/NVIDIA/Megatron-LM/tree/v2.5",
)
MEGATRON_2022 = Engine(
    name="Megatron-LM, 2022",
    tensor_overlap="backward",
    between_nodes=SELENE_2021,
    update_passes=MEGATRON_PASSES,
    source="Korthikanti et al. 2022, sections 4.2.2 and 6 (https://arxiv.org/abs/2205.05198) and https://github.com/NVIDIA/Megatron-LM/tree/v3.0",
)
NEMO_2024 = Engine(
    name="NeMo, 2024",
    tensor_overlap="chunks",
    data_overlap=True,
    context_overlap=True,
    send_overlap=True,
    source="https://docs.nvidia.com/nemo-framework/user-guide/24.09/nemotoolkit/features/optimizations/communication_overlap.html",
)
LLAMA_2024 = Engine(  # as in its report, which says nothing about overlapping tensor parallelism
    name="Llama 3, 2024",
    data_overlap=True,
    send_overlap=True,
    source="Llama Team 2024, section 3.3.2 (https://arxiv.org/abs/2407.21783)",
)
DEEPSPEED_2021 = Engine(  # nothing is hidden: our assumption
    name="DeepSpeed ZeRO-3, 2021",
    between_nodes=SELENE_2021,
    layer_messages=12,
    regathers=True,
    source=(
        "Narayanan et al. 2021, section 5.2 (https://arxiv.org/abs/2104.04473); collectives of "
        "single tensors: https://github.com/microsoft/DeepSpeed/blob/v0.4.5/deepspeed/runtime/"
        "zero/partition_parameters.py; three gathers with recomputation: Rajbhandari et al. 2021, "
        "section 4.1 (https://arxiv.org/abs/2104.07857)"
    ),
)
_TITAN = "https://github.com/pytorch/torchtitan/blob/9dec370ad26b5f8e9a7333a0e36165018262644b/torchtitan/parallelisms/parallelize_llama.py"
# Its recomputation by operation keeps all results except of every second product: keys, output and
# up, which take 36.5 % of the FLOPs of Llama 3 8B's layer (Llama 2: 36 to 39). Attention, compiled
# or not, is FlashAttention-2. Its 8 bits are scaled anew
# (docs/float8.md: tensorwise, dynamic).
_REPEATED = 0.365
TITAN_EAGER = Engine(
    name="torchtitan FSDP2, eager",
    data_overlap=True,
    kernels=Kernels(
        flash=FLASH_2_ON_HOPPER,
        flash_backward=FLASH_2_ON_HOPPER,
        eager=True,
        repeated=_REPEATED,
        scales_anew=True,
    ),
    source=_TITAN,
)
TITAN_COMPILED = replace(
    TITAN_EAGER,
    name="torchtitan FSDP2, compiled",
    kernels=replace(TITAN_EAGER.kernels, eager=False),
)
TITAN_ON_AMPERE = replace(  # where FlashAttention-2 reaches half of the peak
    TITAN_EAGER,
    name="torchtitan FSDP2, eager, A100",
    kernels=Kernels(eager=True, repeated=_REPEATED),
)
TITAN_KEEPING = replace(
    TITAN_ON_AMPERE,
    name="torchtitan FSDP2, eager, A100, nothing repeated",
    kernels=Kernels(eager=True),
)
FOUNDRY_2023 = Engine(
    name="llm-foundry FSDP, 2023",
    data_overlap=True,
    kernels=FLASH_1,
    source="https://github.com/mosaicml/llm-foundry/tree/8c8dd48f/scripts/train/benchmarking (attention in Triton)",
)
# Programs of `published.fits`. They wait for every message inside a layer and between stages.
SCALING_2023 = Engine(
    name="Aleph Alpha scaling, 2023",
    source=(
        "https://github.com/Aleph-Alpha/scaling: core/nn/linear/utils.py and "
        "core/nn/parallel_module/communicator.py"
    ),
)
SCALING_FLASH_1 = replace(
    SCALING_2023, name="Aleph Alpha scaling, 2023, first FlashAttention", kernels=FLASH_1
)
NANOTRON_2025 = Engine(
    name="nanotron, 2025",
    data_overlap=True,
    kernels=Kernels(flash=FLASH_2_ON_HOPPER, flash_backward=FLASH_2_ON_HOPPER),
    source=(
        "https://github.com/huggingface/nanotron: parallel/tensor_parallel/functional.py; "
        "FlashAttention-2"
    ),
)
MEGATRON_DEEPSPEED_2022 = Engine(
    name="Megatron-DeepSpeed, 2022",
    source="https://github.com/bigscience-workshop/Megatron-DeepSpeed (of Megatron-LM in 2021)",
)
DEEPSEEK_2024 = Engine(  # two microbatches at a time, and tokens that travel in 8 bits
    name="DeepSeek-V3, 2024",
    data_overlap=True,
    send_overlap=True,
    expert_way="nodes",
    expert_overlap="another microbatch",
    expert_bytes=FP8,
    source="DeepSeek-AI 2024, sections 3.2 and 3.3 (https://arxiv.org/abs/2412.19437)",
)
_ALL = (
    MEGATRON_2021,
    MEGATRON_2022,
    NEMO_2024,
    LLAMA_2024,
    DEEPSPEED_2021,
    TITAN_EAGER,
    TITAN_COMPILED,
    TITAN_ON_AMPERE,
    TITAN_KEEPING,
    FOUNDRY_2023,
    SCALING_2023,
    SCALING_FLASH_1,
    NANOTRON_2025,
    MEGATRON_DEEPSPEED_2022,
    DEEPSEEK_2024,
)
ENGINES = {each.name: each for each in _ALL}


@checked
def engine(name: str) -> Engine:
    """Return the engine called `name`. Errors: ValueError that lists the known names."""
    if name not in ENGINES:
        raise ValueError(f"no engine is called {name!r}; use one of {', '.join(ENGINES)}")
    return ENGINES[name]
