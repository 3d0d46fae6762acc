"""A valid call of every public function, data class and method of the plain data and of costs.

Most calls are made from the hints: a number for a number, a known model for a model. NAMED and CALLS have the rest.
"""

import dataclasses
import importlib
import inspect
import pkgutil
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

from shardlab import schedules
from shardlab.costs import step
from shardlab.costs.collectives import Cost
from shardlab.costs.facts import hardware, nodes, recipes
from shardlab.costs.facts.attention import attention
from shardlab.costs.facts.network import Cluster, Wire
from shardlab.costs.operations import Stretch
from shardlab.costs.pipeline import timeline
from shardlab.costs.pipeline.balance import Layer
from shardlab.costs.planning import planner
from shardlab.costs.planning.plans import Question
from shardlab.costs.programs import BOOK
from shardlab.costs.published import steps
from shardlab.costs.step import Run, axes
from shardlab.costs.traces import replay, transfers, writing
from shardlab.costs.training import Training
from shardlab.exchanges import everyones, ring_all_reduce
from shardlab.model.experts import Experts
from shardlab.model.recurrent import Recurrent
from shardlab.model.spec import TransformerSpec
from shardlab.sharding.layout import Layout
from shardlab.sharding.types import rules
from shardlab.sharding.types.methods import METHODS
from shardlab.sharding.types.redistribution import redistribution
from shardlab.sharding.types.states import parse
from shardlab.sharding.types.tracer import Tracer

ROOTS = ("model", "sharding", "schedules", "exchanges", "costs")

SPEC = TransformerSpec(vocab_size=64, context_length=16, hidden_size=16, num_layers=4, num_heads=4)
RECURRENT = Recurrent(
    rule="Gated DeltaNet", layers=(0,), num_heads=2, key_heads=2, key_size=4, value_size=4, convolution=4
)
EXPERTS = Experts(num_experts=4, per_token=2, expert_size=8)
LAYOUT = Layout(dp=2, tp=2, pp=2)
TRAINING = Training(spec=SPEC, layout=LAYOUT, microbatch=2, num_microbatches=4)
MIXED = Training(
    spec=TransformerSpec(
        vocab_size=64, context_length=16, hidden_size=16, num_layers=4, num_heads=4, experts=EXPERTS
    ),
    layout=Layout(dp=2, ep=2),
)
KERNEL = attention("newest", hardware.chip("H100 SXM 80 GB"))
LINK = hardware.link("NVLink 4")
NODE = nodes.node("DGX H100")
CLUSTER = Cluster(node=NODE, num_nodes=2)
SCHEDULE = schedules.make("1F1B", 2, 4)
PLAN = ring_all_reduce(4)
EVENTS = writing.of_plan(PLAN, 64)
QUESTION = Question(spec=SPEC, cluster=Cluster(node=NODE), batch=8, zero=(0, 3), schedules=("1F1B",))
PLANS = planner.search(QUESTION)
TIMELINE = timeline.play(SCHEDULE)
DURATIONS = {"F": 1, "B": 2, "I": 1, "W": 1}
SHARDING = parse("[B/dp, h/tp]")
CHANGE = redistribution("tp", "S(h) -> R")
MESH, SIZES = {"dp": 2, "tp": 2}, {"B": 4, "h": 4, "f": 4}
MATRIX = "GPU0 GPU1 CPU\nGPU0 X NV12 0\nGPU1 NV12 X 0\n"

EXAMPLES = {
    type(each): each
    for each in (
        *(SPEC, LAYOUT, TRAINING, LINK, NODE, CLUSTER, SCHEDULE, PLAN, QUESTION, PLANS, PLANS.fitting[0], TIMELINE),
        *(EVENTS[0], recipes.MIXED, hardware.chip("H100 SXM 80 GB"), Run(training=TRAINING, cluster=CLUSTER)),
        *(EXPERTS, RECURRENT, step.step(Run(training=TRAINING, cluster=CLUSTER))),
        *(PLAN.steps[0][0], schedules.Action("F", 0), Wire(a="GPU 0", b="GPU 1", link=LINK), CLUSTER.path(0, 1)[0]),
        *(replay.replay(EVENTS, CLUSTER), transfers.lay_out(EVENTS, CLUSTER, None, "ring").transfers[0]),
        *(SHARDING, SHARDING.dims[0], CHANGE, Tracer(MESH, SIZES), METHODS["data parallel step"]),
        *(KERNEL, KERNEL.forward),
        *(Cost(steps=2, serial=2, sent=2, received=2), Layer(seconds=1, states=2), Stretch("useful", 0, 1)),
    )
}
NAMED = {  # name of an argument -> a value
    "action": schedules.Action("F", 0),
    "algorithm": "ring",
    "durations": DURATIONS,
    "error": 0.1,
    "events": EVENTS,
    "gpu": 1,
    "gpus": [0, 1],
    "arrow": "S(h) -> R",
    "axis": "tp",
    "mesh": MESH,
    "sizes": SIZES,
    "links": axes.links(CLUSTER, LAYOUT),
    "model": "Llama 3 8B",
    "network": "InfiniBand NDR",
    "nvlink": "NVLink 4",
    "placement": "zig-zag",
    "precision": "bf16",
    "protocol": "Simple",
    "rank": 1,
    "recomputation": "none",
    "schedule": "1F1B",
    "slot": "PCIe 5.0 x16",
    "sockets": "sockets (AMD)",
    "stage": 1,
    "table": next(iter(steps.TABLES)),
    "strategy": "ring",
    "way": "owned",
}
NAMES = {  # module -> what its functions find by `name`
    "costs.data_parallel.machines": "PCIe, 25 GbE",
    "costs.facts.hardware": "NVLink 4",
    "costs.facts.mixtures": "Mixtral 8x7B",
    "costs.facts.models": "GPT-2 small",
    "costs.facts.nodes": "DGX H100",
    "costs.facts.recipes": "fp32 Adam",
    "costs.pipeline.bubble": "1F1B",
    "costs.published.runs": "Megatron 1.7B",
    "costs.programs": "NeMo, 2024",
    "schedules.kinds": "1F1B",
}
BY_STARS = ("choices", "options")  # what functions take by **; CALLS names some
ONE_NODE = {"node": "DGX H100", "gpus": 8, "batch": 8, "program": "NeMo, 2024", "duration": 2.0}
CALLS: dict[str, dict[str, Any]] = {
    "costs.collectives.library.node_seconds": {"op": "all_gather"},
    "costs.context_parallel.strategies.SplitAttention": {"length": 8, "heads": 4, "kv_heads": 2},
    "costs.expert_parallel.dispatch.copies": {"strategy": "nodes"},
    "costs.expert_parallel.dispatch.hiding_width": {"strategy": "nodes", "level": "across"},
    "costs.expert_parallel.dispatch.sent_bytes": {"strategy": "nodes"},
    "costs.expert_parallel.load.chosen": {"scores": [[0.1, 0.2, 0.4]], "favour": [1.0, 2.0, 1.0]},
    "costs.expert_parallel.load.loads": {"routes": [[0, 1]]},
    "costs.expert_parallel.redundant.replicated": {"loads": [3, 1], "spare": 1},
    "costs.expert_parallel.redundant.rank_loads": {"loads": [3, 1], "placement": [[0], [1]]},
    "costs.expert_parallel.load.favours": {"scores": [[0.1, 0.2, 0.4]]},
    "costs.facts.mixtures.parameters": {"spec": MIXED.spec},
    "costs.facts.mixtures.active_parameters": {"spec": MIXED.spec},
    "costs.expert_parallel.dispatch.travelling": {"strategy": "nodes"},
    "costs.published.all_to_all.Dispatched": {"machine": "DGX H100", "ep": 16},
    "costs.compute.time_to_train.rule_of_thumb_days": {"utilisation": 0.5},
    "costs.context_parallel.waiting.held": {"training": Training(spec=SPEC, layout=Layout(cp=2, tp=2))},
    "costs.context_parallel.strategies.turns": {"length": 8},
    "costs.data_parallel.scaling.speedups": {"steps": [step.step(Run(training=Training(spec=SPEC), cluster=CLUSTER))]},
    "costs.facts.assembly.mesh": {"pairs": {(0, 1): 1}},
    "costs.facts.assembly.pcie": {"generation": 4, "gpus": 2},
    "costs.facts.assembly.torus": {"link": "ICI (TPU v6e)"},
    "costs.facts.hardware.chip": {"name": "H100 SXM 80 GB"},
    "costs.facts.machines.with_gpus": {"gpus": 16},
    "costs.facts.network.Node.route": {"start": "GPU 0", "goal": "GPU 1"},
    "costs.facts.nodes.Instance": {"board": "DGX H100", "chip": "H100 SXM 80 GB"},
    "costs.facts.topology_matrix.node": {"text": MATRIX, "chip": "A100 SXM 80 GB", "sockets": "sockets (AMD)"},
    "costs.facts.topology_text.read": {"text": MATRIX},
    "costs.generation.cache.token_bytes": {"layout": Layout(tp=2)},
    "costs.generation.decode.DecodingRank": {"layout": Layout(tp=2)},
    "costs.generation.engines.TwoEngines": {
        "training": Training(spec=SPEC),
        "copy": Layout(tp=2),
        "lengths": [4, 9],
    },
    "costs.generation.hand_over.HandOver": {"way": "pieces"},
    "costs.generation.loop.EngineLoop.apart": {"generators": 1},
    "costs.generation.loop.EngineLoop.lanes": {"generators": 1},
    "costs.published.engines.EngineStep": {"model": "Llama 3 8B", "copy": Layout(tp=2)},
    "costs.published.engines.Decoded": {"chip": "H200 SXM 141 GB"},
    "costs.memory.timeline.through_step": {"training": Training(spec=SPEC, num_microbatches=2)},
    "costs.memory.routed.unfused": {"kernel": "norms"},
    "model.recurrent.Recurrent": vars(RECURRENT),
    "costs.planning.reasons.text": {"reason": "batch", "degrees": {"dp": 2}},
    "costs.step.experts.token_traffic": {"training": MIXED},
    "costs.step.products.expert_matrices": {"training": MIXED},
    "costs.step.trace.trace": {
        "run": Run(training=Training(spec=SPEC, layout=Layout(tp=2), program=BOOK), cluster=CLUSTER)
    },
    "costs.pipeline.balance.measure": {"layers": [EXAMPLES[Layer]] * 2},
    "costs.planning.plans.Plans.rejected_where": {"tp": 2},
    "costs.planning.plans.Plans.where": {"tp": 2},
    "costs.planning.robust.rank": {"count": 2},
    "costs.published.bus_bandwidth.Measured": {"node": "DGX H100"},
    "costs.published.history.Size": {"date": "2020-05"},
    "costs.published.recordings.RecordedSeries": {"node": "DGX H100", "op": "all_gather", "seconds": {"1024": 2.0}},
    "costs.published.steps.PublishedStep": ONE_NODE,
    "costs.published.sweeps.SweepStep": ONE_NODE,
    "costs.published.studies.Study": {"published": {"tp": 2}},
    "costs.published.sweeps.Sweep": {"rows": [steps.STEPS[0], steps.STEPS[1]]},
    "costs.traces.replay.Usage": {"rates": [(0.0, 2.0), (1.0, 0.0)]},
    "costs.traces.crossings.busiest": {"groups": {"tp": [(0, 1, 2, 3)]}},
    "costs.traces.writing.of_plan": {"nbytes": 64},
    "costs.traces.traffic.uneven_pairs": {"pieces": [[0, 2], [1, 0]]},
    "costs.traces.transfers.TransferPlan": {"programs": {0: [(0, 0, 0)]}},
    "costs.traces.transfers.lay_out": {"placement": [0, 1, 2, 3]},
    "costs.traces.transfers.place": {"placement": [0, 1, 2, 3]},
    "exchanges.levels.hierarchical_all_reduce": {"n": 4},
    "exchanges.plan.contents": {"start": everyones(PLAN)},
    "exchanges.plan.placed": {"ranks": [4, 5, 6, 7]},
    "exchanges.plan.side_by_side": {"plans": [PLAN.steps]},
    "costs.collectives.exchanges.bytes_by_rank": {"sizes": [1.0, 2.0, 3.0, 4.0]},
    "sharding.layout.coordinates": {"order": ("tp", "dp", "pp")},
    "sharding.types.redistribution.Redistribution": {"source": "P", "target": "I"},
    "sharding.types.repairs.Repair": {"steps": [(0, CHANGE)]},
    "sharding.types.repairs.repairs": {"rule": lambda operands: rules.function(*operands)},
    "sharding.types.rules.ring": {"met": 2, "ranks": 2, "operands": [parse("[S/tp, e]")] * 3},
    "sharding.types.rules.average": {"x": parse("[B] R@tp")},
    "sharding.types.rules.close": {"loss": parse("[] P@dp")},
    "sharding.types.rules.largest": {"x": parse("[B, h/tp] fixed"), "dim": "h"},
    "sharding.types.rules.log": {"number": parse("[] R@tp")},
    "sharding.types.rules.look_up": {"table": parse("[V/tp, h]"), "tokens": parse("[B] fixed")},
    "sharding.types.rules.product": {"names": "B"},
    "sharding.types.states.parse": {"text": "[B/dp] P@tp"},
    "sharding.types.tracer.Tracer.average": {"x": parse("[B] R@tp")},
    "sharding.types.tracer.Tracer.mean": {"dim": "h"},
    "sharding.types.tracer.Tracer.close": {"loss": parse("[] P@dp")},
    "sharding.types.tracer.Tracer.given": {"text": "[B/dp] P@tp"},
    "sharding.types.tracer.Tracer.largest": {"x": parse("[B, h/tp] fixed"), "dim": "h"},
    "sharding.types.tracer.Tracer.ring": dict.fromkeys("qkv", parse("[B/tp, h]")),
    "sharding.types.tracer.Tracer.log": {"number": parse("[] R@tp")},
    "sharding.types.tracer.Tracer.look_up": {"table": parse("[h/tp, V]"), "tokens": parse("[B] fixed")},
    "model.details.RotaryScaling": {"low": 1, "high": 4},
    "costs.facts.attention.attention": {"kernel": "newest"},
    "schedules.action.parse": {"text": "F0 B0"},
    "schedules.instructions.stuck": {"programs": schedules.plan(schedules.make("1F1B", 1, 2))},
    "schedules.v_shaped.Draft.write": {"words": "F0 I0 W"},
    "sharding.sequences.tiles": dict.fromkeys(("queries", "keys", "texts"), (range(4),)),
    "sharding.sequences.documents": {"length": 4, "lengths": [2, 2]},
}


@dataclasses.dataclass
class Target:
    """A function, a data class or a method, and how it is called."""

    name: str
    function: Any
    owner: Any = None  # the class of a method

    def __post_init__(self) -> None:
        hinted = self.function
        if isinstance(hinted, type) and not dataclasses.is_dataclass(hinted) and not hasattr(hinted, "_fields"):
            hinted = hinted.__init__
        hints = get_type_hints(hinted)
        signature = inspect.signature(self.function).parameters
        self.hints = {name: hints.get(name, Any) for name in signature if name not in ("self", *BY_STARS)}
        self.required = [name for name in self.hints if signature[name].default is inspect.Parameter.empty]

    def valid(self) -> dict[str, Any]:
        """The arguments of a valid call."""
        own = dict(CALLS.get(self.name, {}))
        if self.function in EXAMPLES:
            known = EXAMPLES[self.function]
            own = {name: getattr(known, name) for name in self.required}
        module = self.name.rpartition(".")[0]
        for name in self.required:
            if name not in own:
                known = name == "name" and module in NAMES
                own[name] = NAMES[module] if known else example(self.hints[name], name)
        self.hints = dict.fromkeys(own, Any) | self.hints
        return own

    def __call__(self, arguments: Mapping[str, Any]) -> Any:
        """Answer a call; what it yields one by one in a list."""
        own = [example(self.owner)] if self.owner else []
        answer = self.function(*own, **arguments)
        return list(answer) if isinstance(answer, Iterator) else answer


def targets() -> Iterator[Target]:
    """Yield everything public that takes arguments."""
    for module in modules():
        where = module.__name__.removeprefix("shardlab.")
        for name, thing in vars(module).items():
            if name.startswith("_") or getattr(thing, "__module__", "") != module.__name__ or not callable(thing):
                continue
            found = [Target(f"{where}.{name}", thing)]
            for method, function in vars(thing).items() if isinstance(thing, type) else ():
                if inspect.isfunction(function) and not method.startswith("_"):
                    found.append(Target(f"{where}.{name}.{method}", function, thing))
            yield from (target for target in found if target.hints)


def modules() -> Iterator[types.ModuleType]:
    for name in ROOTS:
        module = importlib.import_module(f"shardlab.{name}")
        yield module
        for found in pkgutil.walk_packages(getattr(module, "__path__", []), f"{module.__name__}."):
            yield importlib.import_module(found.name)


def example(hint: Any, name: str = "") -> Any:
    """Return something that a hint allows, for an argument of that name."""
    if hint in EXAMPLES:
        return EXAMPLES[hint]
    origin, inside = get_origin(hint), get_args(hint)
    if name in NAMED and (hint is not int or isinstance(NAMED[name], int)):
        return NAMED[name]
    if hint in (int, float, Any):
        return 2
    if hint in (str, bool, range):
        return {str: "F", bool: True, range: range(2)}[hint]
    if origin is None:
        return hint(**Target(f"{hint.__module__.removeprefix('shardlab.')}.{hint.__name__}", hint).valid())
    if origin in (Union, types.UnionType):
        return example(inside[0])
    if issubclass(origin, Callable):
        return lambda *_: 1.0
    if issubclass(origin, Mapping):
        return {example(inside[0]): example(inside[1])}
    if origin is tuple and inside[-1] is not Ellipsis:
        return tuple(map(example, inside))
    return [example(inside[0])]
