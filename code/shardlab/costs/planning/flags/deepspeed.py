"""The options of DeepSpeed, which are a JSON file.

Names: https://github.com/deepspeedai/DeepSpeed/blob/ac2f3a347d5c7467879ff60f3324718eef881dc6/deepspeed/runtime/constants.py
and https://www.deepspeed.ai/docs/config-json/. AutoTP, and the stages of ZeRO that it runs with:
https://www.deepspeed.ai/tutorials/autotp-training. Experts: https://www.deepspeed.ai/tutorials/mixture-of-experts/;
its engine asserts that their ZeRO is not 3. Unless tp cuts experts, their groups take its ranks:
https://github.com/microsoft/DeepSpeed/blob/01c61b8c36a9202c99ed836ef40e4baa95726a3f/deepspeed/utils/groups.py
"""

from shardlab.files.arguments import Count, checked

from ...training import Training
from ..plans import Question
from .options import (
    ALL_CUT,
    FP32,
    Flags,
    Options,
    cut_beside_stages,
    first,
    lacks_schedule,
    states_are_not_set_up,
)


@checked
def deepspeed(question: Question, training: Training, steps: Count) -> Flags:
    """Return the options of DeepSpeed for a plan's training."""
    layout = training.layout
    options: Options = {
        "train_batch_size": question.batch,
        "train_micro_batch_size_per_gpu": training.microbatch,
        "gradient_accumulation_steps": training.num_microbatches,
        "bf16.enabled": True,
        "zero_optimization.stage": layout.zero,
    }
    remarks = [f"your script sets the {steps:,} steps, the model and what it recomputes"]
    if some := training.recomputed_layers:
        remarks.append(f"of a stage's {training.most_layers} layers, recompute {some}")
    if layout.zero and all(question.program.hides(layout.zero)):
        options["zero_optimization.overlap_comm"] = True
    if question.recipe.gradients == FP32:
        options["data_types.grad_accum_dtype"] = "fp32"
    if layout.tp > 1:
        options["tensor_parallel.autotp_size"] = layout.tp
    if layout.sequence_parallel:
        remarks.append("AutoTP has no sequence parallelism, so this plan takes more memory there")
    if layout.pp > 1:
        remarks.append(f"your script makes the stages: PipelineModule(num_stages={layout.pp})")
    if experts := training.spec.experts:
        cut = ", enable_expert_tensor_parallelism=True" if layout.expert_tp > 1 else ""
        remarks.append(
            f"your script makes the layers: MoE(num_experts={experts.num_experts}, "
            f"ep_size={layout.expert_ranks}, k={experts.per_token}{cut})"
        )
    return Flags(
        program="DeepSpeed",
        values=options,
        remarks=tuple(remarks),
        refusal=_refusal(training),
    )


def _refusal(training: Training) -> str:
    layout = training.layout
    pipelined = layout.pp > 1
    causes = {
        **cut_beside_stages(training),
        **(states_are_not_set_up(training) if layout.tp > 1 else {}),  # AutoTP knows no such layers
        "AutoTP does not make pipeline stages; choose pp = 1 or tp = 1": (
            pipelined and layout.tp > 1
        ),
        **lacks_schedule(training, ["1F1B"]),
        "AutoTP runs with ZeRO 0, 1 and 2, not 3": layout.tp > 1 and layout.zero == ALL_CUT,
        "its layers of experts run with ZeRO 0, 1 and 2, not 3": (
            training.spec.experts is not None and layout.zero == ALL_CUT
        ),
        "its context parallelism is Ulysses, which your script sets up": layout.cp > 1,
    }
    return first(causes)
