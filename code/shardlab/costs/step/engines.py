"""Engines: what a training program hides behind what it computes. Facts about programs, each with its source."""

from dataclasses import dataclass

TENSOR_OVERLAPS = {
    "none": "every message of tensor parallelism is waited for",
    "backward": "the entrance's messages travel beside the gradients of its weights",
    "chunks": "messages are cut into tp chunks that travel beside the product they feed, or that feeds them",
}


@dataclass(frozen=True, kw_only=True)
class Engine:
    """How a program arranges one step."""

    name: str
    tensor_overlap: str = "none"  # see TENSOR_OVERLAPS; "chunks" where GPUs reach each other's memory, else "backward"
    data_overlap: bool = False  # gradients and parameters travel beside the layers before and after them
    context_overlap: bool = False  # keys and values travel beside the attention of those that are there
    send_overlap: bool = False  # a stage computes while its messages to other stages travel
    source: str

    def __post_init__(self) -> None:
        if self.tensor_overlap not in TENSOR_OVERLAPS:
            raise ValueError(f"unknown tensor_overlap {self.tensor_overlap!r}; known: {', '.join(TENSOR_OVERLAPS)}")


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
LLAMA_2024 = Engine(  # what its report says; of tensor parallelism it says nothing
    name="Llama 3, 2024",
    data_overlap=True,
    send_overlap=True,
    source="Llama Team 2024, section 3.3.2 (https://arxiv.org/abs/2407.21783)",
)
ENGINES = {each.name: each for each in (MEGATRON_2021, MEGATRON_2022, NEMO_2024, LLAMA_2024)}


def engine(name: str) -> Engine:
    """The engine of that name. Errors: ValueError that lists the known names."""
    if name not in ENGINES:
        raise ValueError(f"no engine is called {name!r}; known: {', '.join(ENGINES)}")
    return ENGINES[name]
