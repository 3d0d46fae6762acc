"""The options of Megatron-LM.

https://github.com/NVIDIA/Megatron-LM/blob/307dcf37f03d44da131ba21999278abe4112d2ad/megatron/training/arguments.py
has most of them; docs/user-guide/features/megatron_fsdp.md of a later version has the options of
ZeRO-2 and ZeRO-3; pipeline_parallel_layout.md beside it has unequal stages, and
examples/gptoss/02_train.sh sinks;
megatron/core/transformer/moe/README.md has the options of experts,
whose ranks are counted with those of tp where these hold whole ones.
"""

from itertools import groupby
from math import ceil

from shardlab.files.arguments import Count, checked
from shardlab.model.spec import BIASES
from shardlab.sharding.deal import deal

from ...training import Training
from ..plans import Question
from .options import (
    FP32,
    Flags,
    Options,
    cut_beside_stages,
    equal_layers,
    first,
    lacks_schedule,
    states_are_not_set_up,
)

# GPipe is remarked: 1F1B, which takes its place, is as fast.
SCHEDULES = ("1F1B", "interleaved", "GPipe")
STRATEGIES = {2: "optim_grads", 3: "optim_grads_params"}  # stage of ZeRO -> its name


@checked
def megatron(question: Question, training: Training, steps: Count) -> Flags:
    """Return the options of Megatron-LM for a plan's training."""
    layout = training.layout
    options: Options = {
        **_model(question, training),
        "--seq-length": question.length,
        "--micro-batch-size": training.microbatch,
        "--global-batch-size": question.batch,
        "--train-iters": steps,
        "--bf16": True,
        "--tensor-model-parallel-size": layout.tp,
        "--pipeline-model-parallel-size": layout.pp,
        "--context-parallel-size": layout.cp,
        **_experts(question, training),
        **_computing(question, training),
        **_states(question, training),
    }
    layers = equal_layers(training)
    if layers is None:
        options["--pipeline-model-parallel-layout"] = _stages(training)
    elif training.chunks > 1:
        options["--num-layers-per-virtual-pipeline-stage"] = layers
    remarks = []
    if question.recipe.gradients < FP32:
        remarks.append("with --bf16 it keeps and reduces gradients in fp32: plan with fp32 ones")
    if training.spec.sinks:
        remarks.append("gpt-oss needs its activation and windows, too: see examples/gptoss")
    some, rest = divmod(training.recomputed_layers or 0, training.chunks)
    if rest:
        remarks.append(
            f"it recomputes equally many layers in each chunk: {(some + 1) * training.chunks} of a "
            f"stage's, not {training.recomputed_layers}"
        )
    if training.schedule == "GPipe" and layout.pp > 1:
        remarks.append("its schedule is 1F1B, which takes as long as GPipe and holds less")
    return Flags(
        program="Megatron-LM",
        values=options,
        remarks=tuple(remarks),
        refusal=_refusal(training),
    )


def _refusal(training: Training) -> str:
    spec = training.spec
    known_biases: list[set[str]] = [set(BIASES["gpt2"]), {"qkv"}, set()]
    causes = {
        **lacks_schedule(training, SCHEDULES),
        **cut_beside_stages(training),  # https://github.com/NVIDIA/Megatron-LM/pull/6081
        # megatron/core/pipeline_parallel/schedules.py: a group of microbatches is as large as pp
        f"{training.num_microbatches} microbatches in chunks are no multiple of "
        f"{training.layout.pp} stages": (
            training.chunks > 1 and training.num_microbatches % training.layout.pp > 0
        ),
        "no flag adds a norm after each half of a layer (post_norms)": spec.post_norms,
        "no flag norms the queries of all heads together (whole_norms)": spec.whole_norms,
        **states_are_not_set_up(training),
        "no flag chooses tokens with an indexer": bool(spec.latent and spec.latent.indexer),
        f"no flag puts biases on {' and '.join(spec.biases)} alone": (
            set(spec.biases) not in known_biases
        ),
    }
    return first(causes)


def _stages(training: Training) -> str:
    """Return the layers of unequal stages, from the embedding E to the loss L.

    Chunks are unequal only where embedding and head take the place of a layer each.
    """
    pp, chunks = training.layout.pp, training.chunks
    ends = chunks > 1
    sizes = [len(each) for each in deal(training.spec.num_layers + 2 * ends, pp * chunks)]
    sizes[0] -= ends
    sizes[-1] -= ends
    pieces = [f"t*{size}" * bool(size) for size in sizes]
    runs = [(piece, len([*equal])) for piece, equal in groupby(pieces[:-1])]
    return f"E,{''.join(f'({piece}|)*{times},' for piece, times in runs)}{pieces[-1]},L"


def _model(question: Question, training: Training) -> Options:
    """Return the sizes of the model; what is left out is as in GPT-2."""
    spec = training.spec
    lone = spec.experts is not None and not spec.num_dense  # no layer has a block without a router
    width = spec.experts.expert_size if spec.experts and lone else spec.ffn
    options: Options = {
        **_latent(training),
        "--num-layers": spec.num_layers,
        "--hidden-size": spec.hidden_size,
        "--ffn-hidden-size": width,
        "--num-attention-heads": spec.num_heads,
        "--max-position-embeddings": spec.context_length,
        "--vocab-size": spec.vocab_size,
    }
    llama = spec.style == "llama"
    changes: dict[str, tuple[bool, Options]] = {
        "heads": (bool(spec.head_dim), {"--kv-channels": spec.head_size}),
        "grouped": (
            spec.kv_heads < spec.num_heads,
            {"--group-query-attention": True, "--num-query-groups": spec.kv_heads},
        ),
        "positions": (spec.positions == "rotary", {"--position-embedding-type": "rope"}),
        "style": (llama, {"--normalization": "RMSNorm", "--swiglu": True}),
        "no biases": ("ffn" not in spec.biases, {"--disable-bias-linear": True}),
        "some biases": (spec.biases == ("qkv",), {"--add-qkv-bias": True}),
        "norms": (spec.head_norms or bool(spec.latent), {"--qk-layernorm": True}),
        "sinks": (spec.sinks, {"--softmax-type": "learnable"}),
        "head": (not spec.tied, {"--untie-embeddings-and-output-weights": True}),
        "dropout": (not question.dropout, {"--attention-dropout": 0, "--hidden-dropout": 0}),
    }
    for needed, more in changes.values():
        options |= more if needed else {}
    return options


def _experts(question: Question, training: Training) -> Options:
    """Return the experts, where they lie, and what hides their messages."""
    spec = training.spec
    experts = spec.experts
    if experts is None:
        return {}
    layout = training.layout
    overlap = question.program.expert_overlap
    sparse = spec.num_layers - spec.num_dense
    options: Options = {
        "--num-experts": experts.num_experts,
        "--moe-router-topk": experts.per_token,
        "--moe-ffn-hidden-size": experts.expert_size,
        "--moe-grouped-gemm": True,
        "--moe-token-dispatcher-type": "alltoall",
        "--expert-model-parallel-size": layout.expert_ranks,
        "--expert-tensor-parallel-size": layout.expert_tp,
    }
    changes: dict[str, tuple[bool, Options]] = {
        "shared": (
            experts.num_shared > 0,
            {"--moe-shared-expert-intermediate-size": experts.shared_size},
        ),
        "dense": (
            spec.num_dense > 0,
            {"--moe-layer-freq": f"'([0]*{spec.num_dense}+[1]*{sparse})'"},
        ),
        "sigmoid": (experts.choose == "sigmoid", {"--moe-router-score-function": "sigmoid"}),
        "before": (experts.choose == "softmax before", {"--moe-router-pre-softmax": True}),
        "bias": (experts.balance == "bias", {"--moe-router-enable-expert-bias": True}),
        "beside": (overlap == "shared experts", {"--moe-shared-expert-overlap": True}),
        "behind": (
            overlap == "another microbatch",
            {"--overlap-moe-expert-parallel-comm": True},
        ),
    }
    for needed, more in changes.values():
        options |= more if needed else {}
    return options


def _latent(training: Training) -> Options:
    """Return the narrow layers of latent attention."""
    latent = training.spec.latent
    if latent is None:
        return {}
    return {
        "--multi-latent-attention": True,
        **({"--q-lora-rank": latent.query_rank} if latent.query_rank else {}),
        "--kv-lora-rank": latent.kv_rank,
        "--qk-head-dim": latent.plain_size,
        "--qk-pos-emb-head-dim": latent.rotary_size,
        "--v-head-dim": latent.value_size,
    }


def _computing(question: Question, training: Training) -> Options:
    """Return how layers are computed and recomputed."""
    options: Options = {}
    if training.layout.sequence_parallel:
        options["--sequence-parallel"] = True
        if question.program.tensor_overlap == "chunks":
            options["--tp-comm-overlap"] = True
    if training.attention == "flash":
        options["--use-flash-attn"] = True
    if question.precision == "fp8":
        options["--fp8-format"] = "hybrid"
    if training.recomputation != "none":
        options["--recompute-granularity"] = training.recomputation
    if training.recomputation == "full":
        options |= {"--recompute-method": "uniform", "--recompute-num-layers": 1}
    if some := training.recomputed_layers:  # counted in each chunk
        options["--recompute-method"] = "block"
        options["--recompute-num-layers"] = ceil(some / training.chunks)
    return options


def _states(question: Question, training: Training) -> Options:
    """Return what cuts states over the replicas, and what overlaps their messages."""
    options: Options = {}
    zero = training.layout.zero
    if zero:
        options["--use-distributed-optimizer"] = True
    if zero in STRATEGIES:
        options["--use-megatron-fsdp"] = True
        options["--data-parallel-sharding-strategy"] = STRATEGIES[zero]
        options["--ckpt-format"] = "fsdp_dtensor"
    if training.layout.replicas > 1:
        gradients, parameters = question.program.hides(zero)
        if gradients:
            options["--overlap-grad-reduce"] = True
        if parameters:
            options["--overlap-param-gather"] = True
    return options
