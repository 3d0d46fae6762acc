"""Engines: which messages a training program overlaps with arithmetic, each with its source."""

from dataclasses import dataclass

from shardlab.arguments import checked

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
    source: str

    def __post_init__(self) -> None:
        if self.tensor_overlap not in TENSOR_OVERLAPS:
            known = ", ".join(TENSOR_OVERLAPS)
            raise ValueError(f"unknown tensor_overlap {self.tensor_overlap!r}; known: {known}")


MEGATRON_2021 = Engine(
    name="Megatron-LM, 2021",
    source="Narayanan et al. 2021 (https://arxiv.org/abs/2104.04473) and https://github.com/NVIDIA/Megatron-LM/tree/v2.5",
)
MEGATRON_2022 = Engine(
    name="Megatron-LM, 2022",
    tensor_overlap="backward",
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
ENGINES = {each.name: each for each in (MEGATRON_2021, MEGATRON_2022, NEMO_2024, LLAMA_2024)}


@checked
def engine(name: str) -> Engine:
    """Return the engine called `name`. Errors: ValueError that lists the known names."""
    if name not in ENGINES:
        raise ValueError(f"no engine is called {name!r}; use one of {', '.join(ENGINES)}")
    return ENGINES[name]
