"""The command line: a model, a cluster, a batch, and what else is open or fixed."""

import argparse
from dataclasses import dataclass, replace

from shardlab.costs.compute import kernels
from shardlab.costs.facts import hugging_face, limits, machines, nodes, recipes
from shardlab.costs.facts.hugging_face import HuggingFaceModel
from shardlab.costs.facts.machines import Machine
from shardlab.costs.planning.plans import Question
from shardlab.costs.programs import PROGRAMS, program
from shardlab.files import described
from shardlab.files.terminal import Parser
from shardlab.model.spec import TransformerSpec

from . import amounts

TOKENS_PER_PARAMETER = 20  # Hoffmann et al. 2022 (https://arxiv.org/abs/2203.15556)
HELP = """plan the training of a model on a cluster

  python -m shardlab.plan config.json --gpus 64 --node "DGX H100" --batch-tokens 4M --sequence 8192
  python -m shardlab.plan config.json --cluster ours.toml --batch-tokens 4M --tokens 1T --json

A file for --cluster has node = "DGX H100", or lines such as these:

"""
# `costs.published.steps.MIXTURE_STEPS`.
MIXTURES = (
    "published steps of mixtures took 0.9 to 3.3 times as long as predicted, the longest with few "
    "tokens for each narrow expert"
)
CODES = "Exit status: 0 a plan fits, 1 nothing fits, 2 the input is not understood."


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the command line asks for."""

    model: HuggingFaceModel
    machine: Machine
    question: Question
    tokens: int  # of the whole training
    notes: list[str]
    shown: int  # plans
    chosen: int  # the plan whose options are written, from 1
    as_json: bool


def parser() -> Parser:
    """Make the parser of the command line."""
    example = (machines.__doc__ or "").split("\n\n")[2]
    made = Parser(prog="python -m shardlab.plan", description=HELP + example, epilog=CODES)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("config", help="config.json of a model on Hugging Face, or its folder")
    where = made.add_mutually_exclusive_group(required=True)
    where.add_argument("--node", help=f"one of: {'; '.join(nodes.NODES)}")
    where.add_argument("--cluster", metavar="FILE", help="TOML, as above")
    made.add_argument("--gpus", type=int, help="of all nodes together")
    made.add_argument("--batch-tokens", required=True, metavar="4M", help="tokens of one step")
    made.add_argument("--sequence", metavar="8192", help="tokens; default: the model's context")
    text = f"of the training; default: {TOKENS_PER_PARAMETER} for each parameter"
    made.add_argument("--tokens", metavar="15T", help=text)
    text = f"one of: {'; '.join(recipes.RECIPES)}"
    made.add_argument("--recipe", default=Question.recipe.name, help=text)
    text = f"one of: {'; '.join(PROGRAMS)}"
    made.add_argument("--program", default=Question.program.name, help=text)
    made.add_argument("--precision", help="fp8: of the layers' matrices")
    made.add_argument("--zero", default="0,1,2,3", metavar="0,1", help="stages of ZeRO to try")
    text = "degrees of context parallelism to try"
    made.add_argument("--context", default="1", metavar="1,2,4", help=text)
    text = "degrees of expert parallelism to try; default: all that deal the experts evenly"
    made.add_argument("--expert", metavar="1,8", help=text)
    text = "with tp, try whole experts on its ranks beside a part of each on all of them"
    made.add_argument("--whole-experts", action="store_true", help=text)
    text = "load of the rank whose experts have the most tokens, over the mean"
    made.add_argument("--imbalance", type=float, default=1.0, metavar="1.2", help=text)
    text = "share of each GPU's memory to leave free, beside overhead and margin; default: "
    text += f"{Question.headroom:g}"
    made.add_argument("--headroom", type=float, default=Question.headroom, metavar="0", help=text)
    made.add_argument("--price", type=float, metavar="2.5", help="dollars for a GPU and an hour")
    made.add_argument("--watts", type=float, metavar="1275", help="of a GPU with its share of all")
    made.add_argument("--overhead", type=float, metavar="1.2", help="of the building (PUE)")
    made.add_argument("--show", type=int, default=5, metavar="5", help="plans to print")
    made.add_argument("--plan", type=int, default=1, metavar="1", help="whose options to write")
    text = "the architecture whose layers a model under another name has, as LlamaForCausalLM"
    made.add_argument("--like", metavar="NAME", help=text)
    text = "ignore fields of config.json that are not understood, unless they may be sizes"
    made.add_argument("--ignore-unknown", action="store_true", help=text)
    text = "ignore these fields, which may be sizes: the count of parameters is then in doubt"
    made.add_argument("--ignore-size", default="", metavar="A,B", help=text)
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def request(given: argparse.Namespace) -> Request:
    """Turn the command line into a question. Errors: ValueError with the way out."""
    limits.hold("--show", given.show, limits.PLANS)
    limits.hold("--imbalance", given.imbalance, limits.GPUS)
    if not 1 <= given.plan <= given.show:
        raise ValueError(f"--plan {given.plan} must be one of the 1 to {given.show} plans to print")
    config = described.read_json(given.config)
    model = hugging_face.read(
        config,
        like=given.like,
        ignore_unknown=given.ignore_unknown,
        ignore_sizes=[name for name in given.ignore_size.split(",") if name],
    )
    machine = _machine(given)
    question, notes = _question(given, model, machine)
    tokens = TOKENS_PER_PARAMETER * model.num_parameters
    if given.tokens:
        tokens = amounts.training(given.tokens)
    return Request(
        model=model,
        machine=machine,
        question=question,
        tokens=tokens,
        notes=notes,
        shown=given.show,
        chosen=given.plan,
        as_json=given.json,
    )


def _machine(given: argparse.Namespace) -> Machine:
    if given.gpus is not None and given.gpus < 1:
        raise ValueError(f"--gpus {given.gpus} must be at least 1")
    table = described.read_toml(given.cluster) if given.cluster else {"node": given.node}
    if not given.gpus and "nodes" not in table:
        raise ValueError("the number of GPUs is not given; add --gpus 64, or nodes to the file")
    costs = {"dollars_per_gpu_hour": given.price, "watts_per_gpu": given.watts}
    costs["overhead"] = given.overhead
    table |= {name: value for name, value in costs.items() if value is not None}
    return machines.read(table, given.gpus)


def _question(
    given: argparse.Namespace, model: HuggingFaceModel, machine: Machine
) -> tuple[Question, list[str]]:
    spec, notes = _long_enough(given, model)
    length = amounts.batch(given.sequence) if given.sequence else spec.context_length
    batch = amounts.batch(given.batch_tokens)
    if batch % length:
        least = max(1, batch // length) * length
        raise ValueError(
            f"--batch-tokens {batch} is not a whole number of sequences of {length} tokens; "
            f"use {least} or {least + length}"
        )
    question = Question(
        spec=spec,
        cluster=machine.cluster,
        batch=batch // length,
        sequence=length,
        program=program(given.program),
        recipe=recipes.recipe(given.recipe),
        precision=given.precision,
        dropout=model.dropout,
        zero=_numbers("zero", given.zero, 0),
        context=_numbers("context", given.context),
        expert=_numbers("expert", given.expert) if given.expert else None,
        whole_experts=(False, True) if given.whole_experts else (False,),
        imbalance=given.imbalance,
        headroom=given.headroom,
    )
    chip = machine.cluster.node.chip
    if given.precision:
        chip.peak(given.precision)  # raises where the chip has none
    if chip.name in kernels.BEST and kernels.BEST[chip.name].doubt:
        notes.append(f"{chip.name}: {kernels.BEST[chip.name].doubt}")
    return question, notes


def _long_enough(
    given: argparse.Namespace, model: HuggingFaceModel
) -> tuple[TransformerSpec, list[str]]:
    """Return the sizes with a context that holds the sequence: rotary positions have no end."""
    spec = model.spec
    notes = list(model.notes)
    if spec.experts:
        notes.append(MIXTURES)
    length = amounts.batch(given.sequence) if given.sequence else 0
    if length > spec.context_length and spec.positions == "rotary":
        notes.append(f"the sequence is longer than the file's context of {spec.context_length:,}")
        spec = replace(spec, context_length=length)
    return spec, notes


def _numbers(name: str, text: str, least: int = 1) -> tuple[int, ...]:
    try:
        numbers = tuple(int(each) for each in text.split(","))
    except ValueError:
        raise ValueError(f"--{name} {text!r} must be numbers such as 0,1") from None
    for each in numbers:
        limits.hold(f"--{name}", each, limits.GPUS, least)
    return numbers
