"""Programs by name, each with its source: "as the Trainer of this book", NeMo, torchtitan ..."""

from dataclasses import replace

from shardlab.files.arguments import checked

from .program import EVERYTHING, FP8, KERNELS, ORDINARY_KERNELS, Kernels, Program
from .units import MiB

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
FLASH_1 = Kernels(attention="FlashAttention-1")
FLASH_2 = "FlashAttention-2"

BOOK = Program(  # with kernels as fast as those of the others
    name="the Trainer of this book",
    data_overlap=("average", "layers"),
    bucket_bytes=25 * MiB,
    layer_by_layer=True,
    context_overlap=True,
    send_overlap=True,
    expert_strategy="ranks",
    expert_overlap="shared experts",
    regathers_ends=True,
    keeps_gathered=True,
    source="`shardlab.ranks.train`, and the engines that it composes",
)
BOOK_ZERO = replace(  # without the Trainer
    BOOK,
    name="ZeRO of this book, alone",
    regathers_ends=False,
    source="`shardlab.ranks.zero`, and torch's fully_shard likewise",
)
BOOK_ON_CPU = replace(  # one operation of torch after the other
    BOOK, name="the Trainer of this book, on a CPU", unfused=KERNELS
)
BOOK_ON_GPU = replace(  # a norm is one kernel of torch's, and so is attention
    BOOK,
    name="the Trainer of this book, on a GPU",
    kernels=Kernels(torch_norms=True),
    unfused=("rotary", "SwiGLU", "loss", "products of one input"),
    loss="whole",
)
BOOK_COMPILED = replace(
    BOOK_ON_GPU,
    name="the Trainer of this book, compiled on a GPU",
    kernels=ORDINARY_KERNELS,
    unfused=("loss",),
)
MEGATRON_2021 = Program(
    name="Megatron-LM, 2021",
    whole_rounds=True,
    between_nodes=SELENE_2021,
    sends_parts=True,
    update_passes=MEGATRON_PASSES,
    source="Narayanan et al. 2021 (https://arxiv.org/abs/2104.04473) and https://github.com/NVIDIA/Megatron-LM/tree/v2.5",
)
MEGATRON_2022 = Program(
    name="Megatron-LM, 2022",
    whole_rounds=True,
    tensor_overlap="backward",
    between_nodes=SELENE_2021,
    sends_parts=True,
    update_passes=MEGATRON_PASSES,
    source="Korthikanti et al. 2022, sections 4.2.2 and 6 (https://arxiv.org/abs/2205.05198) and https://github.com/NVIDIA/Megatron-LM/tree/v3.0",
)
# Transformer Engine keeps what products read, rounded, and 16-bit inputs for everything between:
# https://github.com/NVIDIA/TransformerEngine/blob/0004dbd0231cb02d7b47d45344900a494fa13f46/transformer_engine/pytorch/module/layernorm_mlp.py
# Weights are taken to be in 8 bits alone (`fp8_params`): two copies, of which one is transposed,
# take as much as one in 16 bits.
NEMO_2024 = Program(
    name="NeMo, 2024",
    keeps_rounded=True,
    whole_rounds=True,
    tensor_overlap="chunks",
    data_overlap=EVERYTHING,
    context_overlap=True,
    send_overlap=True,
    source=(
        "https://docs.nvidia.com/nemo-framework/user-guide/24.09/nemotoolkit/features/"
        "optimizations/communication_overlap.html; no switch adds (NCCL_NVLS_ENABLE=0): "
        "https://github.com/NVIDIA/NeMo/blob/03ee6d5126432876561526b5b4455cae386839fc/scripts/"
        "performance/executors.py"
    ),
)
LLAMA_2024 = Program(  # as in its report, which says nothing about overlapping tensor parallelism
    name="Llama 3, 2024",
    data_overlap=EVERYTHING,
    send_overlap=True,
    source="Llama Team 2024, section 3.3.2 (https://arxiv.org/abs/2407.21783)",
)
DEEPSPEED_2021 = Program(  # nothing is hidden: our assumption
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
# Its recomputation by operation keeps the results of attention and of the products, except of every
# second one. Attention, compiled or not, is FlashAttention-2. Its 8 bits are scaled anew
# (docs/float8.md: tensorwise, dynamic).
_REPEATED = ("keys", "output", "up")
_EAGER = ("norms", "rotary", "SwiGLU", "loss", "products of one input")
TITAN_EAGER = Program(
    name="torchtitan FSDP2, eager",
    data_overlap=EVERYTHING,
    kernels=Kernels(
        attention=FLASH_2,
        repeated=_REPEATED,
        scales_anew=True,
    ),
    unfused=_EAGER,
    # DTensors keep a matrix's gathered input, and `loss_parallel` the exponentials of the logits
    # beside their gradients:
    # https://github.com/pytorch/pytorch/blob/v2.5.0/torch/distributed/tensor/parallel/loss.py
    loss="torch",
    keeps_gathered=True,
    source=_TITAN,
)
TITAN_COMPILED = replace(
    TITAN_EAGER,
    name="torchtitan FSDP2, compiled",
    unfused=(),
)
TITAN_2025 = replace(
    TITAN_COMPILED,
    name="torchtitan FSDP2, compiled with its loss",
    loss="fused",
    source="https://github.com/pytorch/torchtitan/blob/e7c0cae934df78d6e9c2835f42ff1f757dc3fddc/torchtitan/components/loss.py",
)
TITAN_ON_AMPERE = replace(
    TITAN_EAGER,
    name="torchtitan FSDP2, eager, A100",
    kernels=Kernels(attention=FLASH_2, repeated=_REPEATED),
)
TITAN_KEEPING = replace(
    TITAN_ON_AMPERE,
    name="torchtitan FSDP2, eager, A100, nothing repeated",
    kernels=ORDINARY_KERNELS,
)
FOUNDRY_2023 = Program(
    name="llm-foundry FSDP, 2023",
    data_overlap=EVERYTHING,
    kernels=FLASH_1,
    loss="fused",
    source="https://github.com/mosaicml/llm-foundry/tree/8c8dd48f/scripts/train/benchmarking (attention in Triton)",
)
# Programs of bench/published/fits.py. They wait for every message inside a layer and between stages.
SCALING_2023 = Program(  # keeps all 16-bit gradients; gathers for the matrices in its norms
    name="Aleph Alpha scaling, 2023",
    loss="whole",
    keeps_gathered=True,
    source=(
        "https://github.com/Aleph-Alpha/scaling: core/nn/linear/utils.py, "
        "core/nn/parallel_module/communicator.py, core/optimizer/parameter_group.py, "
        "core/nn/norm/rms_norm.py, transformer/model/losses/cross_entropy.py"
    ),
)
SCALING_FLASH_1 = replace(
    SCALING_2023, name="Aleph Alpha scaling, 2023, first FlashAttention", kernels=FLASH_1
)
NANOTRON_2025 = Program(  # adds up in fp32 beside torch's DDP; overwrites the softmax
    name="nanotron, 2025",
    data_overlap=EVERYTHING,
    kernels=Kernels(attention=FLASH_2),
    unfused=("SwiGLU",),
    loss="in place",
    keeps_gathered=True,
    bucket_views=False,
    source=(
        "https://github.com/huggingface/nanotron: parallel/tensor_parallel/functional.py, "
        "optim/gradient_accumulator.py; FlashAttention-2"
    ),
)
MEGATRON_DEEPSPEED_2022 = Program(
    name="Megatron-DeepSpeed, 2022",
    whole_rounds=True,
    sends_parts=True,
    source="https://github.com/bigscience-workshop/Megatron-DeepSpeed (of Megatron-LM in 2021)",
)
DEEPSEEK_2024 = Program(  # two microbatches at a time, and tokens that travel in 8 bits
    name="DeepSeek-V3, 2024",
    data_overlap=EVERYTHING,
    send_overlap=True,
    expert_strategy="nodes",
    expert_overlap="another microbatch",
    expert_nodes=4,
    expert_bytes=FP8,
    keeps_rounded=True,
    source="DeepSeek-AI 2024, sections 3.2 and 3.3 (https://arxiv.org/abs/2412.19437)",
)
_ALL = (
    BOOK,
    BOOK_ZERO,
    BOOK_ON_CPU,
    BOOK_ON_GPU,
    BOOK_COMPILED,
    MEGATRON_2021,
    MEGATRON_2022,
    NEMO_2024,
    LLAMA_2024,
    DEEPSPEED_2021,
    TITAN_EAGER,
    TITAN_COMPILED,
    TITAN_2025,
    TITAN_ON_AMPERE,
    TITAN_KEEPING,
    FOUNDRY_2023,
    SCALING_2023,
    SCALING_FLASH_1,
    NANOTRON_2025,
    MEGATRON_DEEPSPEED_2022,
    DEEPSEEK_2024,
)
PROGRAMS = {each.name: each for each in _ALL}


@checked
def program(name: str) -> Program:
    """Return the program called `name`. Errors: ValueError that lists the known names."""
    if name not in PROGRAMS:
        raise ValueError(f"no program is called {name!r}; use one of {'; '.join(PROGRAMS)}")
    return PROGRAMS[name]
