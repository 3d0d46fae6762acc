"""The options of torchtitan.

ZeRO-3 is FSDP that gives parameters back after each layer's forward, ZeRO-2 FSDP that keeps them:
https://github.com/pytorch/torchtitan/blob/1a618d1d75dc67b78977fb35a785633b70e5999e/torchtitan/config/configs.py
"""

from shardlab.files.arguments import Count, checked

from ...training import Training
from ..plans import Question
from .options import (
    ALL_CUT,
    STATES_CUT,
    Flags,
    Options,
    equal_layers,
    first,
    lacks_schedule,
    states_are_not_set_up,
)

PARALLEL = "--parallelism."
PIPELINE = "--parallelism.pipeline_parallel_"
SCHEDULES = {"1F1B": "1F1B", "GPipe": "GPipe", "interleaved": "Interleaved1F1B"}


@checked
def torchtitan(question: Question, training: Training, steps: Count) -> Flags:
    """Return the options of torchtitan for a plan's training."""
    layout = training.layout
    local = training.microbatch * (training.num_microbatches if layout.pp > 1 else 1)
    options: Options = {
        "--training.seq_len": question.length,
        "--training.local_batch_size": local,
        "--training.global_batch_size": question.batch,
        "--training.steps": steps,
        f"{PARALLEL}data_parallel_replicate_degree": 1 if layout.zero else layout.dp,
        f"{PARALLEL}data_parallel_shard_degree": layout.dp if layout.zero else 1,
        f"{PARALLEL}tensor_parallel_degree": layout.tp,
        f"{PARALLEL}context_parallel_degree": layout.cp,
        f"{PARALLEL}pipeline_parallel_degree": layout.pp,
        "--activation_checkpoint.mode": training.recomputation,
    }
    if training.recomputation == "none" and training.program.kernels.repeated:
        options["--activation_checkpoint.mode"] = "selective"
        options["--activation_checkpoint.selective_ac_option"] = "op"
    if layout.expert_ranks > 1:
        options[f"{PARALLEL}expert_parallel_degree"] = layout.expert_ranks
        options[f"{PARALLEL}expert_tensor_parallel_degree"] = layout.expert_tp
    if some := training.recomputed_layers:
        options["--activation_checkpoint.mode"] = "selective"
        options["--activation_checkpoint.selective_ac_option"] = training.most_layers // some
    remarks = ["a registered configuration holds the model's sizes; no flag sets them"]
    if layout.zero:
        policy = "always" if layout.zero == ALL_CUT else "never"
        options[f"{PARALLEL}fsdp_reshard_after_forward"] = policy
    if layout.zero == STATES_CUT:
        remarks.append("FSDP cuts gradients too, as ZeRO-2, and reduces them for each microbatch")
    if layout.tp > 1 and not layout.sequence_parallel:
        remarks.append("tensor parallelism always comes with sequence parallelism")
    refusal = _refusal(training)
    if layout.pp == 1:
        return Flags(program="torchtitan", values=options, remarks=tuple(remarks), refusal=refusal)
    options[f"{PIPELINE}schedule"] = SCHEDULES.get(training.schedule, "")
    options[f"{PIPELINE}microbatch_size"] = training.microbatch
    layers = equal_layers(training)
    if layers is None:
        remarks.append("unequal stages are listed in module_fqns_per_model_part")
    else:
        options[f"{PIPELINE}layers_per_stage"] = layers
        options[f"{PIPELINE}first_stage_less_layers"] = 0
        options[f"{PIPELINE}last_stage_less_layers"] = 0
    return Flags(program="torchtitan", values=options, remarks=tuple(remarks), refusal=refusal)


def _refusal(training: Training) -> str:
    layout = training.layout
    causes = {
        **states_are_not_set_up(training),
        **lacks_schedule(training, SCHEDULES),
        f"it recomputes every n-th layer, which is never {training.recomputed_layers} of "
        f"{training.most_layers}": (
            training.recomputed_layers is not None
            and training.most_layers % training.recomputed_layers > 0
        ),
        "it takes the ranks of experts from those of FSDP; choose ZeRO 1, 2 or 3": (
            layout.ep > 1 and not layout.zero
        ),
    }
    return first(causes)
