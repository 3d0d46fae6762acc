"""Every option that a plan is turned into is one that its program publishes, and has the plan's number."""

import json
import re
from dataclasses import replace

import pytest

from shardlab.costs.facts import hugging_face, nodes, recipes
from shardlab.costs.planning import flags
from shardlab.costs.planning.plans import Question, TrainingPlan
from shardlab.costs.programs import DEEPSEEK_2024, LLAMA_2024, NEMO_2024, PROGRAMS
from shardlab.model.attention import LatentAttention
from shardlab.model.experts import Experts
from shardlab.model.spec import TransformerSpec
from shardlab.schedules import WHOLE
from shardlab.sharding.layout import stages
from tests.costs.facts.test_hugging_face import DENSE

# What each program publishes, as far as plans need it: names, and where they stand.
TITAN = "https://github.com/pytorch/torchtitan/blob/1a618d1d75dc67b78977fb35a785633b70e5999e/torchtitan/config/configs.py"
MEGATRON = "https://github.com/NVIDIA/Megatron-LM/blob/307dcf37f03d44da131ba21999278abe4112d2ad/megatron/training/arguments.py"
MOE = "https://github.com/NVIDIA/Megatron-LM/blob/022bcb5afe888664d3fb61adacea6e6c887a97f8/megatron/core/transformer/moe/README.md"
LATER = "https://raw.githubusercontent.com/NVIDIA/Megatron-LM/main/megatron/core/transformer/moe/README.md"
FSDP = "https://github.com/NVIDIA/Megatron-LM/blob/11ceb1d2acc50dcb0fb5b3b9927b874ee8f625b8/docs/user-guide/features/megatron_fsdp.md"
UNEQUAL = "https://github.com/NVIDIA/Megatron-LM/blob/b920473cd28c1941cd0cf5091b3c18fa710ab1a0/docs/user-guide/features/pipeline_parallel_layout.md"
SINKS = "https://github.com/NVIDIA/Megatron-LM/blob/3d5f9b67d1cfe282c7829b3431a4935f624f8ac5/examples/gptoss/02_train.sh"
SPEED = "https://github.com/deepspeedai/DeepSpeed/blob/ac2f3a347d5c7467879ff60f3324718eef881dc6/deepspeed/runtime/constants.py"
ZERO = "https://github.com/microsoft/DeepSpeed/blob/01f31a835dec509a48859161344f19d85ae6c31a/docs/_pages/config-json.md"
AUTOTP = "https://github.com/deepspeedai/DeepSpeed/blob/18e7227e0b364bddc5cfc9220db65ddd8d0c50b9/deepspeed/runtime/tensor_parallel/config.py"
PUBLISHED = {
    "torchtitan": {
        TITAN: """
            --training.local_batch_size --training.global_batch_size --training.seq_len --training.steps
            --parallelism.data_parallel_replicate_degree --parallelism.data_parallel_shard_degree
            --parallelism.fsdp_reshard_after_forward --parallelism.tensor_parallel_degree
            --parallelism.pipeline_parallel_degree --parallelism.pipeline_parallel_first_stage_less_layers
            --parallelism.pipeline_parallel_last_stage_less_layers --parallelism.pipeline_parallel_layers_per_stage
            --parallelism.pipeline_parallel_schedule --parallelism.pipeline_parallel_microbatch_size
            --parallelism.context_parallel_degree --activation_checkpoint.mode
            --parallelism.expert_parallel_degree --parallelism.expert_tensor_parallel_degree
        """
    },
    "Megatron-LM": {
        MEGATRON: """
            --num-layers --hidden-size --ffn-hidden-size --num-attention-heads --kv-channels --group-query-attention
            --num-query-groups --max-position-embeddings --position-embedding-type --normalization --swiglu
            --untie-embeddings-and-output-weights --attention-dropout --hidden-dropout --micro-batch-size
            --global-batch-size --recompute-granularity --recompute-method --recompute-num-layers --tp-comm-overlap
            --train-iters --use-flash-attn --disable-bias-linear --add-qkv-bias --sequence-parallel --bf16
            --tensor-model-parallel-size --pipeline-model-parallel-size --num-layers-per-virtual-pipeline-stage
            --overlap-grad-reduce --overlap-param-gather --use-distributed-optimizer --context-parallel-size
            --vocab-size --seq-length --qk-layernorm --fp8-format
        """,
        MOE: """
            --num-experts --moe-router-topk --moe-ffn-hidden-size --moe-grouped-gemm --moe-token-dispatcher-type
            --expert-model-parallel-size --expert-tensor-parallel-size --moe-shared-expert-intermediate-size
            --moe-layer-freq --moe-router-score-function --moe-router-pre-softmax --moe-shared-expert-overlap
        """,
        LATER: """
            --moe-router-enable-expert-bias --overlap-moe-expert-parallel-comm --multi-latent-attention
            --q-lora-rank --kv-lora-rank --qk-head-dim --qk-pos-emb-head-dim --v-head-dim
        """,
        SINKS: "--softmax-type",
        UNEQUAL: "--pipeline-model-parallel-layout",
        FSDP: "--use-megatron-fsdp --data-parallel-sharding-strategy --ckpt-format",
    },
    "DeepSpeed": {
        SPEED: """
            train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps bf16.enabled
            data_types.grad_accum_dtype
        """,
        ZERO: "zero_optimization.stage zero_optimization.overlap_comm",
        AUTOTP: "tensor_parallel.autotp_size",
    },
}
SPEC = TransformerSpec(vocab_size=512, context_length=256, hidden_size=64, num_layers=8, num_heads=8, style="llama")
LATENT = LatentAttention(num_heads=8, query_rank=16, kv_rank=8, plain_size=8, rotary_size=4, value_size=8)
MIXTURE = replace(
    SPEC,
    **{"latent": LATENT, "num_dense": 2, "ffn_size": 256},
    experts=Experts(num_experts=8, per_token=2, expert_size=32, num_shared=1, choose="sigmoid", balance="bias"),
)
SWITCH = replace(SPEC, experts=Experts(num_experts=8, per_token=1, expert_size=64, choose="softmax before"))
QUESTION = Question(spec=SPEC, cluster=nodes.cluster("DGX H100", 2), batch=64, recipe=recipes.MIXED)
PLAN = TrainingPlan(dp=16, microbatch=1, recomputation="none", schedule="1F1B", chunks=1)


def made(plan=PLAN, question=QUESTION, **changes):
    found = flags.every(question, plan._replace(**changes), 1e9)
    return {each.program: each for each in found}


PLANS = [
    {"dp": dp, "tp": 16 // dp // pp, "pp": pp, "zero": zero, "recomputation": again, "sequence_parallel": pp == 2,
     "schedule": schedule, "chunks": 2 if schedule == "interleaved" else 1}
    for dp, pp in [(16, 1), (4, 1), (8, 2), (2, 2), (4, 4)]
    for zero in (0, 1, 2, 3)
    for again in ("none", "selective", "full")
    for schedule in ("1F1B", "GPipe", "interleaved")
]  # fmt: skip


@pytest.mark.parametrize("program", PUBLISHED)
def test_every_name_is_published_and_every_published_name_is_used(program):
    specs = [hugging_face.read(config).spec for _, config, _ in DENSE]
    shrunk = [replace(spec, num_layers=8) for spec in specs]
    questions = [QUESTION, replace(QUESTION, recipe=recipes.recipe("mixed, fp32 gradients"), precision="fp8")]
    questions += [replace(QUESTION, spec=spec, sequence=256) for spec in shrunk]
    questions += [replace(QUESTION, spec=MIXTURE, program=DEEPSEEK_2024), replace(QUESTION, spec=SWITCH)]
    questions += [replace(QUESTION, spec=MIXTURE, program=replace(NEMO_2024, expert_overlap="shared experts"))]
    used = {name for plan in PLANS for name in made(**plan)[program].values}
    spread = [PLAN._replace(ep=8 if question.spec.experts else 1, zero=1) for question in questions]
    asked = zip(spread, questions, strict=True)
    used |= {name for plan, question in asked for name in made(plan, question)[program].values}
    unequal = replace(QUESTION, spec=replace(SPEC, num_layers=7, sinks=True))
    used |= {*made(dp=8, pp=2, question=unequal)[program].values}
    listed = {name for names in PUBLISHED[program].values() for name in names.split()}
    assert used == listed


def test_the_numbers_are_those_of_the_plan():
    found = made(dp=2, tp=4, pp=2, microbatch=4, zero=1, sequence_parallel=True, recomputation="full")
    titan, megatron, speed = (each.values for each in found.values())
    assert titan["--training.local_batch_size"] == 64 // 2
    assert titan["--parallelism.pipeline_parallel_microbatch_size"] == 4
    assert titan["--parallelism.data_parallel_shard_degree"] == 2
    assert titan["--training.steps"] == megatron["--train-iters"] == -(-1_000_000_000 // (64 * 256))
    assert megatron["--tensor-model-parallel-size"] == titan["--parallelism.tensor_parallel_degree"] == 4
    assert megatron["--pipeline-model-parallel-size"] == titan["--parallelism.pipeline_parallel_degree"] == 2
    assert megatron["--micro-batch-size"] == speed["train_micro_batch_size_per_gpu"] == 4
    assert megatron["--global-batch-size"] == speed["train_batch_size"] == 64
    assert megatron["--recompute-granularity"] == "full"


def test_experts_lie_where_the_plan_puts_them():
    found = made(PLAN._replace(ep=4, zero=1), replace(QUESTION, spec=MIXTURE))
    titan, megatron, speed = found.values()
    assert titan.values["--parallelism.expert_parallel_degree"] == 4
    assert megatron.values["--expert-model-parallel-size"] == 4
    assert megatron.values["--moe-layer-freq"] == "'([0]*2+[1]*6)'"
    assert megatron.values["--moe-shared-expert-intermediate-size"] == 32
    assert "MoE(num_experts=8, ep_size=4, k=2)" in speed.remarks[-1]
    assert not any(each.refusal for each in found.values())
    whole = made(PLAN._replace(ep=4), replace(QUESTION, spec=MIXTURE))
    assert "choose ZeRO 1, 2 or 3" in whole["torchtitan"].refusal
    cut = made(PLAN._replace(ep=4, zero=3), replace(QUESTION, spec=MIXTURE))
    assert "layers of experts run with ZeRO 0, 1 and 2" in cut["DeepSpeed"].refusal


def test_ranks_of_tp_hold_parts_of_experts_or_whole_ones():
    """Where experts stay whole, the programs count the ranks of tp among those of experts."""
    cut = {"dp": 4, "tp": 4, "ep": 2, "zero": 1, "sequence_parallel": True}
    mixed = replace(QUESTION, spec=MIXTURE)
    for whole, ranks, parts in ((False, 2, 4), (True, 8, 1)):
        titan, megatron, speed = made(**cut, whole_experts=whole, question=mixed).values()
        assert titan.values["--parallelism.expert_parallel_degree"] == ranks
        assert titan.values["--parallelism.expert_tensor_parallel_degree"] == parts
        assert megatron.values["--expert-model-parallel-size"] == ranks
        assert megatron.values["--expert-tensor-parallel-size"] == parts
        assert f"--expert-tensor-parallel-size {parts} " in megatron.text
        more = "" if whole else ", enable_expert_tensor_parallelism=True"
        assert f"MoE(num_experts=8, ep_size={ranks}, k=2{more})" in speed.remarks[-1]
    alone = made(dp=4, tp=4, sequence_parallel=True, whole_experts=True, question=mixed)
    assert alone["Megatron-LM"].values["--expert-model-parallel-size"] == 4
    assert alone["torchtitan"].values["--parallelism.expert_parallel_degree"] == 4
    assert not alone["torchtitan"].refusal


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_the_batch_is_the_product_that_each_program_requires(plan):
    found = made(**plan)
    speed = found["DeepSpeed"].values
    per_step = speed["train_micro_batch_size_per_gpu"] * speed["gradient_accumulation_steps"] * plan["dp"]
    assert speed["train_batch_size"] == per_step
    titan = found["torchtitan"].values
    degrees = ("data_parallel_replicate", "data_parallel_shard", "tensor_parallel", "pipeline_parallel")
    ranks = 1
    for name in degrees:
        ranks *= titan[f"--parallelism.{name}_degree"]
    assert ranks == 16
    assert titan["--training.global_batch_size"] % (titan["--training.local_batch_size"] * plan["dp"]) == 0


def test_text_is_a_command_line_or_json():
    found = made(tp=2, dp=8)
    assert "--tensor-model-parallel-size 2 \\\n" in found["Megatron-LM"].text
    assert " True" not in found["Megatron-LM"].text
    assert json.loads(found["DeepSpeed"].text)["tensor_parallel"] == {"autotp_size": 2}


@pytest.mark.parametrize(
    ("program", "changes", "message"),
    [
        ("Megatron-LM", {"dp": 8, "pp": 2, "zero": 3}, "ZeRO-3 does not run with pipeline stages"),
        ("DeepSpeed", {"dp": 8, "pp": 2, "zero": 2}, "ZeRO-2 does not run with pipeline stages"),
        ("DeepSpeed", {"dp": 4, "pp": 2, "tp": 2}, "AutoTP does not make pipeline stages"),
        ("DeepSpeed", {"dp": 8, "pp": 2, "schedule": "interleaved", "chunks": 2}, "has no interleaved schedule"),
        ("DeepSpeed", {"dp": 8, "tp": 2, "zero": 3}, "AutoTP runs with ZeRO 0, 1 and 2, not 3"),
        ("DeepSpeed", {"dp": 8, "cp": 2}, "Ulysses"),
    ],
)
def test_a_program_says_which_part_of_a_plan_it_cannot_run(program, changes, message):
    assert message in made(**changes)[program].refusal
    assert not made()[program].refusal


# What a program's options say without a word, or by another name than ours.
SAID = {
    ("Megatron-LM", "1F1B"): "--pipeline-model-parallel-size 2",
    ("Megatron-LM", "interleaved"): "--num-layers-per-virtual-pipeline-stage",
    ("DeepSpeed", "1F1B"): "PipelineModule(num_stages=2)",
    ("torchtitan", "interleaved"): "Interleaved1F1B",
}


@pytest.mark.parametrize("schedule", WHOLE)
@pytest.mark.parametrize("program", PUBLISHED)
def test_each_program_names_the_schedule_or_refuses_it(program, schedule):
    chunks = 2 if schedule == "interleaved" else 1
    found = made(dp=8, pp=2, schedule=schedule, chunks=chunks)[program]
    said = found.refusal or " ".join((found.text, *found.remarks))
    assert SAID.get((program, schedule), schedule) in said
    assert made(schedule=schedule, chunks=1)[program].refusal == ""


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"post_norms": True}, "no flag adds a norm after each half"),
        ({"bias_places": ("ffn",)}, "no flag puts biases on ffn alone"),
    ],
)
def test_megatron_says_which_model_it_has_no_flags_for(spec, message):
    question = replace(QUESTION, spec=replace(SPEC, **spec))
    assert message in made(question=question, dp=8, pp=2)["Megatron-LM"].refusal


@pytest.mark.parametrize(
    ("layers", "pp", "chunks", "layout"),
    [
        (7, 2, 1, "E,(t*4|)*1,t*3,L"),
        (7, 4, 1, "E,(t*2|)*3,t*1,L"),
        (6, 2, 2, "E,(t*1|)*1,(t*2|)*2,t*1,L"),
        (2, 2, 2, "E,(|)*1,(t*1|)*2,,L"),
        (8, 2, 2, ""),
    ],
)
def test_megatron_gets_unequal_stages_as_the_planner_cuts_them(layers, pp, chunks, layout):
    question = replace(QUESTION, spec=replace(SPEC, num_layers=layers), batch=8 * pp)
    plan = {"dp": 8, "pp": pp, "microbatch": 1, "chunks": chunks, "schedule": "interleaved" if chunks > 1 else "1F1B"}
    found = made(**plan, question=question)["Megatron-LM"]
    assert found.values.get("--pipeline-model-parallel-layout", "") == layout
    assert not found.refusal
    whole = re.sub(r"\((.*?)\)\*(\d+)", lambda run: run[1] * int(run[2]), layout)
    held = [sum(map(int, re.findall(r"\d+", piece))) for piece in whole.split("|")]
    for stage in range(pp if layout else 0):
        assert sum(held[stage::pp]) == len(stages(layers, pp, chunks)[stage])


def test_megatron_interleaves_whole_rounds_of_microbatches():
    plan = {"dp": 8, "pp": 2, "microbatch": 1, "schedule": "interleaved", "chunks": 2}
    found = [made(**plan, question=replace(QUESTION, batch=8 * m))["Megatron-LM"].refusal for m in (2, 3, 4)]
    assert found == ["", "3 microbatches in chunks are no multiple of 2 stages", ""]
    assert [m for m in range(1, 9) if NEMO_2024.interleaves(3, m)] == [3, 6]
    assert [m for m in range(1, 9) if LLAMA_2024.interleaves(3, m)] == [3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("some", "chunks", "of_each_chunk", "every"), [(2, 1, 2, 2), (3, 1, 3, None), (3, 2, 2, None), (2, 2, 1, 2)]
)
def test_programs_recompute_some_layers_in_their_own_words(some, chunks, of_each_chunk, every):
    question = replace(QUESTION, spec=replace(SPEC, num_layers=8), batch=32)
    pipeline = {"pp": 2, "chunks": chunks, "schedule": "interleaved" if chunks > 1 else "1F1B"}
    again = {"recomputation": "full", "recomputed_layers": some, "layers": 4}
    found = made(dp=8, microbatch=1, **pipeline, **again, question=question)
    megatron, titan = found["Megatron-LM"], found["torchtitan"]
    assert megatron.values["--recompute-method"] == "block"
    assert megatron.values["--recompute-num-layers"] == of_each_chunk
    assert any("equally many layers in each chunk: 4" in each for each in megatron.remarks) == (some % chunks > 0)
    assert (f"never {some} of 4" in titan.refusal) == (every is None)
    assert every in (None, titan.values["--activation_checkpoint.selective_ac_option"])


@pytest.mark.parametrize(("again", "mode"), [("none", "selective"), ("full", "full")])
def test_what_a_program_repeats_by_itself_is_asked_for(again, mode):
    own = replace(QUESTION, program=PROGRAMS["torchtitan FSDP2, eager"])
    values = made(zero=3, recomputation=again, question=own)["torchtitan"].values
    assert values["--activation_checkpoint.mode"] == mode
    option = "--activation_checkpoint.selective_ac_option"
    assert values.get(option) == ("op" if again == "none" else None)


def test_what_a_program_does_otherwise_is_remarked():
    titan = made(zero=1)["torchtitan"].remarks
    assert any("as ZeRO-2" in remark for remark in titan)
    assert any("fp32" in remark for remark in made()["Megatron-LM"].remarks)
    exact = replace(QUESTION, recipe=recipes.recipe("mixed, fp32 gradients"))
    assert made(question=exact)["Megatron-LM"].remarks == ()
    assert any("1F1B" in remark for remark in made(dp=8, pp=2, schedule="GPipe")["Megatron-LM"].remarks)


def test_a_plan_that_does_not_split_has_no_flags():
    with pytest.raises(ValueError, match="does not split"):
        made(microbatch=0, reason="batch")


@pytest.mark.parametrize(
    ("name", "zero", "hidden"),
    [
        ("NeMo, 2024", 0, (True, False)),
        ("NeMo, 2024", 1, (True, True)),
        ("NeMo, 2024", 3, (True, True)),
        ("the Trainer of this book", 0, (True, False)),
        ("the Trainer of this book", 1, (False, False)),
        ("the Trainer of this book", 2, (True, False)),
        ("the Trainer of this book", 3, (True, True)),
        ("Megatron-LM, 2021", 1, (False, False)),
    ],
)
def test_only_messages_that_the_program_hides_get_a_flag(name, zero, hidden):
    question = replace(QUESTION, program=PROGRAMS[name])
    assert question.program.hides(zero) == hidden
    options = made(question=question, zero=zero)["Megatron-LM"].values
    assert ("--overlap-grad-reduce" in options, "--overlap-param-gather" in options) == hidden
