"""The explorers of tensor parallelism: what each rank holds, and how long a layer takes."""

from collections.abc import Mapping
from functools import cache

from shardlab.costs import memory, units
from shardlab.costs import tensor_parallel as costs
from shardlab.costs.facts import models, nodes
from shardlab.costs.facts.recipes import MIXED
from shardlab.costs.programs import BOOK
from shardlab.costs.tensor_parallel import TensorParallelLayer
from shardlab.costs.training import Training
from shardlab.figures import tensor_parallel as figures
from shardlab.model.spec import TransformerSpec
from shardlab.sharding import cuts
from shardlab.sharding.layout import Layout, listed, tensor_degrees

from .explorer import Explorer
from .view import View

RANKS = [1, 2, 4, 8, 16, 32]
HEAD = 128  # numbers per head, and hidden numbers per layer: the shape of GPT-3 175B
VOCABULARY = 51_200  # GPT-2's, as Megatron-LM pads it
SEQUENCE = 2048  # GPT-3's context
MACHINES = ["DGX A100", "DGX H100", "NVL72 rack", "PCIe box, InfiniBand NDR"]
LITTLE, HALF = 0.1, 0.5  # shares of a layer's time that a rank waits: how it is called
ENOUGH = 0.25  # messages over computing, by rule of thumb: more is seldom wanted
LEAST = 0.01  # share of its parameters that a rank has in common with others, to be worth a word

BILLION = 1e9


def pieces() -> Explorer:
    """Choose a model and tp: see a layer's matrices to scale, in the colours of their ranks."""
    return Explorer(
        pieces_view,
        {
            "model": ["GPT-2 small", "GPT-2 XL", "GPT-3 175B", "Llama 3 8B", "Llama 3 405B"],
            "tp": [1, 2, 3, 4, 5, 6, 8, 12, 16, 32],
        },
        title="What each rank holds of a layer",
        labels={"tp": "Ranks that share each layer (tp)"},
        default={"model": "GPT-2 small", "tp": 4},
    )


def pieces_view(*, model: str, tp: int) -> View:
    """Show one state of the explorer of pieces."""
    spec = models.published(model).spec
    try:
        Layout(tp=tp).check(spec)
    except ValueError as why:
        figure = figures.pieces(
            cuts.block(spec, 1), alt=f"The matrices of a layer of {model}, not cut."
        )
        return View(
            figure, f"<b>Impossible</b>: {why}.", [["rank", "holds"], ["each", "impossible"]]
        )
    layer = cuts.block(spec, tp)
    whole = models.num_parameters(spec)
    figure = figures.pieces(
        layer, alt=f"The matrices of a layer of {model}, drawn to scale and cut for {tp} ranks."
    )
    return View(figure, _held(spec, tp, whole), _shapes(spec, tp, whole))


def _held(spec: TransformerSpec, tp: int, whole: int) -> str:
    mine = cuts.num_parameters(spec, tp)
    states, every = (units.text(MIXED.bytes_per_parameter * count, "B") for count in (mine, whole))
    if tp == 1:
        parameters = _counted(spec)
        what = f"{parameters} parameters, their gradients and Adam's states"
        return f"One rank holds <b>{states}</b>: {what}."
    sentence = f"Each of {tp} ranks holds <b>{states}</b> of the model's {every}"
    more = mine - whole / tp
    if more > LEAST * mine:
        sentence += (
            f", of which {units.percent(more / mine)} is padding or also held by other ranks"
        )
    if tp > spec.kv_heads:
        sentence += (
            f"; {tp // spec.kv_heads} ranks share each of the {spec.kv_heads} key/value heads"
        )
    return f"{sentence}. This model allows tp = {listed(tensor_degrees(spec))}."


def _shapes(spec: TransformerSpec, tp: int, whole: int) -> list[list[str]]:
    named = {
        **cuts.ends(spec, tp),
        **{f"layer: {name}": cut for name, cut in cuts.block(spec, tp).items()},
    }
    rows = [
        [name.removesuffix(".weight"), _shape(cut.shape), _shape(cut.local_shape)]
        for name, cut in named.items()
        if name.endswith("weight")
    ]
    counts = [f"{whole:,}", f"{cuts.num_parameters(spec, tp):,}"]
    return [
        ["weight [outputs, inputs]", "whole", "on each rank"],
        *rows,
        ["all parameters", *counts],
    ]


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(f"{length:,}" for length in shape)


def layers() -> Explorer:
    """Choose tp, a hidden size and a machine: see a layer's time and the memory of a rank."""
    return Explorer(
        layer_view,
        {
            "tp": RANKS,
            "hidden_size": [4096, 8192, 12_288, 16_384],
            "microbatch": [1, 8],
            "machine": MACHINES,
            "sequence_parallel": [False, True],
        },
        title="One layer on many GPUs",
        most={"xaxis2": 160},  # twice what one GPU has
        labels={
            "tp": "Ranks that share each layer (tp)",
            "hidden_size": f"Hidden size (layers, heads: 1/{HEAD})",
            "microbatch": f"Microbatch ({SEQUENCE:,} tokens each)",
            "machine": "Machine (DGX and box: 8 GPUs, rack: 72)",
            "sequence_parallel": "Sequence parallelism",
        },
        units={"microbatch": "sequences"},
        default={"tp": 8, "hidden_size": 8192, "machine": "DGX H100"},
    )


def layer_view(
    *, tp: int, hidden_size: int, microbatch: int, machine: str, sequence_parallel: bool
) -> View:
    """Show one state of the explorer of layers."""
    every = {
        count: layer_on(count, hidden_size, microbatch, machine, sequence_parallel)
        for count in RANKS
    }
    layer = every[tp]
    figure = figures.shares_and_memory(
        RANKS,
        [each.parts for each in every.values()],
        tp,
        memory.per_rank(layer.training),
        layer.chip.memory,
        alt=(
            "What the time of a layer goes into, for each tp, "
            "and the memory of a rank beside its chip's capacity."
        ),
    )
    return View(figure, f"{_waiting(layer)} {_fitting(layer, every)}", _table(layer))


@cache
def layer_on(
    tp: int, hidden_size: int, microbatch: int, machine: str, sequence_parallel: bool
) -> TensorParallelLayer:
    """Predict a layer of a GPT of this width on `tp` ranks, in as few servers as possible."""
    spec = TransformerSpec(
        vocab_size=VOCABULARY,
        context_length=SEQUENCE,
        hidden_size=hidden_size,
        num_layers=hidden_size // HEAD,
        num_heads=hidden_size // HEAD,
    )
    node = nodes.node(machine)
    layout = Layout(tp=tp, sequence_parallel=sequence_parallel)
    training = Training(spec=spec, layout=layout, microbatch=microbatch, program=BOOK)
    return costs.layer(training, node.chip, costs.spread(node, tp))


def _waiting(layer: TensorParallelLayer) -> str:
    """Say how long a rank waits, and up to which tp that would be little."""
    tp = layer.training.layout.tp
    whole = units.text(layer.seconds, "s")
    if tp == 1:
        return f"A single rank does not communicate: a layer takes {whole}."
    share = layer.waiting / layer.seconds
    verb = (
        "computes"
        if share < LITTLE
        else "mostly waits"
        if share > HALF
        else "waits a good part of the time"
    )
    waits = f"{units.text(layer.waiting, 's')} ({units.percent(share)} of that)"
    sentence = f"<b>A rank {verb}</b>: of {whole} for a layer, it waits {waits}"
    if layer.link.kind == "network":
        sentence += ", because its messages leave the server"
    most = int(costs.most_ranks(layer.training, layer.chip, layer.link, ENOUGH))
    if share >= LITTLE and most < tp:
        little = units.percent(ENOUGH / (1 + ENOUGH))
        sentence += f". On this link, messages take less than {little} of it up to tp = {most}"
    return f"{sentence}. The efficiency is {units.percent(layer.efficiency)}."


def _fitting(layer: TensorParallelLayer, every: Mapping[int, TensorParallelLayer]) -> str:
    """Say whether the whole model fits on the ranks, or which tp would be enough."""
    spec = layer.training.spec
    held = memory.total(layer.training)
    capacity = layer.chip.memory
    size = f"The model of {spec.num_layers} such layers ({_counted(spec)} parameters)"
    if held <= capacity:
        return f"{size} fits: {units.text(held, 'B')} of {units.text(capacity, 'B')} on each rank."
    enough = [tp for tp, each in every.items() if memory.total(each.training) <= capacity]
    few = costs.layers_that_fit(layer.training, layer.chip)
    layers = "1 layer" if few == 1 else f"{few} layers"
    fewer = f"no tp here is enough, but {layers} would fit: cut between layers, too"
    way = f"tp = {enough[0]} would be enough" if enough else fewer
    needed = f"{units.text(held, 'B')} in {units.text(capacity, 'B')}"
    return f"{size} <b>does not fit</b>: {needed}; {way}."


def _counted(spec: TransformerSpec) -> str:
    """Write the number of parameters of `spec` in words."""
    count = models.num_parameters(spec)
    if count >= BILLION:
        return f"{count / BILLION:.3g} billion"
    return f"{count / 1e6:.3g} million"


def _table(layer: TensorParallelLayer) -> list[list[str]]:
    rows = [["tp", str(layer.training.layout.tp)]]
    rows += [[part, units.text(seconds, "s")] for part, seconds in layer.parts.items()]
    rows += [
        ["layer", units.text(layer.seconds, "s")],
        ["links busy", units.text(sum(layer.busy), "s")],
        ["sent by each rank", units.text(costs.sent_bytes(layer.training), "B")],
        ["efficiency", f"{100 * layer.efficiency:.1f} %"],
    ]
    held = memory.per_rank(layer.training)
    rows += [[part, units.text(nbytes, "B")] for part, nbytes in held.items()]
    return [
        ["one layer, and the whole model", "value"],
        *rows,
        ["memory", units.text(sum(held.values()), "B")],
    ]
