"""Program: how the software that trains arranges a step, beside what it trains."""

from dataclasses import dataclass

from shardlab.files.arguments import Count, Positive, Share, checked
from shardlab.sharding.layout import listed

from .facts.attention import NEWEST
from .facts.hardware import LINK_UTILISATION

# What torch's allocator reserves beyond the tensors, as a share of them: the median over 13 runs of
# the Ultra-Scale Playbook that print a peak (bench/published/fits.py). It was chosen on these peaks
# alone, not on whether runs fit.
MARGIN = 0.05
# What one kernel may do, or torch's single operations: RMSNorm, the rotation of queries and keys,
# SiLU and its product with up, the softmax, repeated keys and rearranged outputs of attention, how
# tokens reach experts and their outputs are added up, the loss, and products of one input with
# several matrices: where q, k and v, or gate and up, are apart, their gradients of it are added.
KERNELS = ("norms", "rotary", "SwiGLU", "attention", "experts", "loss", "products of one input")
# The products of a layer, by their results.
PRODUCTS = ("queries", "keys", "values", "output", "gate", "up", "down")
LOSSES = {  # what head and loss hold for each token and word: until backward, and during its start
    "parallel": "fp32 logits, and two gradients as large; all are cut by tp",
    "whole": "the same and 16-bit logits, of all words on every rank of tp",
    "torch": "the same as parallel; where tp cuts words, the exponentials of all, too",
    "in place": "fp32 logits, which their own gradient overwrites; cut by tp",
    "fused": "16-bit logits, and their gradient from one kernel; cut by tp",
}
TENSOR_OVERLAPS = {
    "none": "a rank waits for every message of tensor parallelism",
    "backward": "the messages of an entrance overlap the gradients of its weights",
    "chunks": "messages are cut into tp chunks that overlap the product before or after them",
}
COLLECTIVES = {  # how all-reduces run where a switch could add; others gain nothing from one
    "ring": "rings, or trees where NCCL takes them",
    "switch": "or in an NVSwitch that adds: NCCL's default (NCCL_NVLS_ENABLE)",
}
# How copies of a token travel: `expert_parallel.copies`.
EXPERT_STRATEGIES = ("flat", "ranks", "nodes")
EXPERT_OVERLAPS = {  # what computes while tokens travel to experts and back
    "nothing": (),
    "shared experts": ("shared experts",),  # of the same tokens: they need no router
    # DualPipe: while one microbatch travels, all parts of another one compute.
    "another microbatch": ("attention", "shared experts", "routed experts"),
}
BF16 = 2.0  # bytes of one number
# With one scale of 4 bytes for each 128 numbers: DeepSeek-V3, section 3.3.2.
FP8 = 1 + 4 / 128
DATA_OVERLAPS = {  # which messages of data parallelism travel while a rank computes
    "average": "all gradients to every rank, beside the last backward (ZeRO-0)",
    "cut average": "each rank's part of all gradients, likewise (ZeRO-1)",
    "layers": "parameters and gradients of a layer, beside the next layer (ZeRO-2 and -3)",
    "update": "updated parameters, beside the next forward (ZeRO-1 and -2)",
}
EVERYTHING = tuple(DATA_OVERLAPS)


@dataclass(frozen=True, kw_only=True)
@checked
class Kernels:
    """How well a program's own kernels do, beside the library's matrix products."""

    attention: str = NEWEST  # a kernel of `facts.attention`
    # Where `Training.recomputation` names none: the PRODUCTS that backward repeats, and everything
    # between products with them. Kept are the results of the others, of attention, and the layer's
    # input: recomputation by operation. Empty: nothing is repeated.
    repeated: tuple[str, ...] = ()
    torch_norms: bool = False  # a norm is one kernel of torch's, see `step.elementwise`
    # In 8 bits, a tensor's scale follows from itself: one more kernel reads it whole.
    scales_anew: bool = False

    def __post_init__(self) -> None:
        if not set(self.repeated) <= set(PRODUCTS):
            raise ValueError(f"repeated={self.repeated} must be some of {listed(PRODUCTS)}")


ORDINARY_KERNELS = Kernels()


@dataclass(frozen=True, kw_only=True)
@checked
class Program:
    """How a program arranges one step: what it hides, how it computes, and what it keeps."""

    name: str
    # See TENSOR_OVERLAPS. "chunks" holds where GPUs reach each other's memory, else "backward".
    tensor_overlap: str = "none"
    data_overlap: tuple[str, ...] = ()  # some of DATA_OVERLAPS
    context_overlap: bool = False  # keys and values travel while attention uses earlier ones
    send_overlap: bool = False  # a stage computes while its messages to other stages travel
    # Without sequence parallelism every rank of tp sends 1/tp of the activations to the next stage,
    # which gathers them. False: every rank sends its copy.
    sends_parts: bool = False
    expert_overlap: str = "nothing"  # beside tokens on their way, one of EXPERT_OVERLAPS
    expert_strategy: str = "flat"  # how tokens travel to experts, one of EXPERT_STRATEGIES
    expert_nodes: Count | None = None  # nodes that a token may reach, or as few as hold k experts
    expert_bytes: Positive = BF16  # of one number on the way to an expert; BF16 on the way back
    collectives: str = "ring"  # see COLLECTIVES
    # The share of the cards' rate that collectives among replicas reach between nodes.
    between_nodes: Share = LINK_UTILISATION
    # Bytes of gradients that ranks average at a time; None: see `replicas.bucket_count`.
    bucket_bytes: float | None = None
    # ZeRO-1 and -2: whether what travels once in a step does so a layer at a time, or in buckets.
    layer_by_layer: bool = False
    # ZeRO-3: collectives for one layer's parameters, or its gradients; 1: all tensors in one.
    layer_messages: Count = 1
    regathers: bool = False  # ZeRO-3: a layer that is recomputed is gathered a third time
    # ZeRO-3: embedding and head are freed after forward like layers, and gathered again for
    # backward. False: what is outside the layers stays whole meanwhile, as in torch's fully_shard.
    regathers_ends: bool = False
    kernels: Kernels = ORDINARY_KERNELS
    # Which of KERNELS run as torch's single operations, which keep more tensors; all of them
    # do in `ranks.transformer` on a CPU.
    unfused: tuple[str, ...] = ()
    # Bytes for each parameter that an update moves beyond `Recipe.update_traffic`.
    update_passes: int = 0
    loss: str = "parallel"  # see LOSSES
    # In 8 bits: whether backward finds what products read rounded already. False: it is kept in 16
    # bits and rounded again.
    keeps_rounded: bool = False
    # With sequence parallelism: whether matrices keep their gathered inputs, or gather them again.
    keeps_gathered: bool = False
    # Gradients are views of the buckets that are sent. False: buckets are copies, as in torch's
    # DDP.
    bucket_views: bool = True
    # Interleaved microbatches come in whole rounds, as many in each as there are stages.
    whole_rounds: bool = False
    margin: float = MARGIN  # bytes beyond the tensors, as a share of them; see `memory.overhead`
    source: str

    def __post_init__(self) -> None:
        for field, known in (
            ("tensor_overlap", TENSOR_OVERLAPS),
            ("collectives", COLLECTIVES),
            ("expert_strategy", EXPERT_STRATEGIES),
            ("expert_overlap", EXPERT_OVERLAPS),
            ("loss", LOSSES),
        ):
            if getattr(self, field) not in known:
                raise ValueError(
                    f"unknown {field} {getattr(self, field)!r}; known: {', '.join(known)}"
                )
        for field, every in (("data_overlap", EVERYTHING), ("unfused", KERNELS)):
            if not set(getattr(self, field)) <= set(every):
                raise ValueError(f"{field}={getattr(self, field)} must be some of {listed(every)}")

    def hides(self, zero: int) -> tuple[bool, bool]:
        """Tell whether gradients, and parameters, travel while a rank computes at a ZeRO stage."""
        gradients = {0: "average", 1: "cut average"}.get(zero, "layers")
        parameters = {1: "update", 2: "update", 3: "layers"}.get(zero)
        return gradients in self.data_overlap, parameters in self.data_overlap

    def interleaves(self, pp: int, num_microbatches: int) -> bool:
        """Tell whether it can interleave this number of microbatches over pp stages."""
        rest = num_microbatches % pp if self.whole_rounds else 0
        return num_microbatches >= pp and not rest

    @property
    def context_strategy(self) -> str:
        """How ranks of cp share keys: round a ring, which overlaps, or all gathered."""
        return "ring" if self.context_overlap else "gathered"
