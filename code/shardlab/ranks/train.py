"""Train with every method at once: tensor, context, expert, pipeline, data parallelism, and ZeRO.

Narayanan et al. 2021, "PTD-P" (https://arxiv.org/abs/2104.04473). The model stays the plain one:
every method is applied to it from outside, and communicates in its own group of the mesh.

    mesh = Mesh(Layout(dp=2, tp=2, pp=2, zero=1, sequence_parallel=True), group)
    schedule = schedules.make("1F1B", num_stages=2, num_microbatches=4)
    trainer = Trainer(Transformer(spec), mesh, schedule, torch.optim.AdamW, max_norm=1.0)
    loss = trainer.step(tokens, targets)

Shapes: n = samples of this rank's replica, S = sequence, c = tokens of it on this rank; [] is a
single number.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shardlab import comm
from shardlab.sharding import cuts

from ..schedules import Schedule
from . import agreement, checkpoint, context_parallel, expert_parallel, tensor_parallel, zero
from .checkpoint import Background, Stall, extras, hugging_face
from .checkpoint.boxes import Span, TensorBox, spans, whole
from .context_parallel import RING, ContextStrategy
from .data_parallel.replica import Replica
from .mesh import Mesh
from .mixture import biases, rebalance
from .pipeline import partition
from .pipeline.engine import Pipeline
from .pipeline.partition import Part
from .tensor_parallel import shards
from .transformer import Transformer, check_length

MakeOptimizer = Callable[[list[Tensor]], Optimizer]
Facts = dict[str, Any]
EXPERTS = ".mlp.experts."  # in the names of their parameters


class Trainer:
    """One rank's part of a model in training; every rank of the mesh makes one from the same model.

    schedule   of the pipeline, for mesh.layout.pp stages; with one stage, its microbatches
               accumulate gradients
    optimizer  makes an optimizer from a list of tensors, such as torch.optim.AdamW; it must update
               every number independently of all others
    layers     the layers of each part of the model; None: as equal as possible
    max_norm   upper limit for the norm of the whole model's gradient, to which it is scaled down
    context    how the ranks of cp attend to each other's keys
    nodes      over how many nodes the ranks of ep lie: see `expert_parallel.parallelize`

    ZeRO-2 and -3 average and cut the gradients of every microbatch as soon as backward has made
    them, if the stage has one part, does not split backward, and does not hold one end of a tied
    model. Otherwise its gradients stay whole until the step.

    The trainer takes the model apart: do not use the model afterwards. Errors: ValueError for a
    layout or schedule that does not suit the model, and for models that differ between ranks.
    """

    def __init__(
        self,
        model: Transformer,
        mesh: Mesh,
        schedule: Schedule,
        optimizer: MakeOptimizer,
        *,
        layers: Sequence[range] | None = None,
        max_norm: float = math.inf,
        context: ContextStrategy = RING,
        nodes: int = 1,
    ) -> None:
        layout = mesh.layout
        layout.check(model.spec)
        check_supported(model, mesh, schedule, context)
        agreement.check_equal(model, mesh.world)
        sliced, whole = layout.sequence_parallel, layout.whole_experts
        tensor_parallel.parallelize(model, mesh.tp, sequence_parallel=sliced, whole_experts=whole)
        self.context = None
        if layout.cp > 1:
            self.context = context_parallel.parallelize(model, mesh.cp, context)
        slices = layout.expert_ranks // layout.ep
        expert_parallel.parallelize(model, mesh.ep, mesh.dp, nodes=nodes, slices=slices)
        parts = partition.split(model, schedule, mesh.pp.rank(), layers)
        self.mesh = mesh
        self.spec = model.spec
        self.max_norm = max_norm
        self.cuts = cuts.model(model.spec, layout.tp, whole_experts=whole)  # by parameter
        self.pipeline = Pipeline(parts, schedule, mesh.pp)
        self.states = make_states(parts, mesh, optimizer)
        several_parts = schedule.num_chunks > 1
        tied = bool(self.pipeline.shared)
        self.averages_late = several_parts or tied or schedule.splits_backward

    def step(self, tokens: Tensor, targets: Tensor, weight: float = 1.0) -> Tensor:
        """Take one step on this replica's samples, and return the mean loss over all replicas.

        tokens, targets: [n, S], the same on all ranks with the same place along dp, whole also
        where cp ranks share sequences; every token counts. weight: what `sampler` deals where
        replicas have different numbers of samples.
        Returns the loss, [], on every rank.
        """
        loss = self.backward(tokens, targets, weight)
        self.update()
        return loss

    def backward(self, tokens: Tensor, targets: Tensor, weight: float = 1.0) -> Tensor:
        """Add the gradients of a batch to those that are there; otherwise like `step`."""
        check_length(self.spec, tokens.shape[1])
        with ExitStack() as stack:
            if self.averages_late:  # whole gradients are needed until the last microbatch
                for state in self.states:
                    stack.enter_context(state.no_sync())
            if self.context is not None:
                tokens, targets = self.context.shard(tokens, targets)  # [n, c]
            if tokens.shape != self.pipeline.negotiated:
                self.pipeline.negotiate(tokens)
            loss = self.pipeline.step(tokens, targets, weight)
        if loss is None:  # only one stage has it
            loss = torch.zeros((), device=tokens.device)
        total = comm.all_reduce(loss.double(), self.mesh.world)       # []
        return total / (self.mesh.layout.tp * self.mesh.layout.replicas)

    def update(self) -> Tensor:
        """Average the gradients over replicas, clip them, step, and free them.

        Returns the norm of the whole model's gradient before clipping, [], on every rank.
        """
        squares = torch.stack([state.squared_norm(self.share) for state in self.states])
        norm = comm.all_reduce(squares.sum(), self.mesh.world).sqrt()  # []
        for state in self.states:
            state.clip(self.max_norm, norm)
            state.step()
            state.zero_grad()
        rebalance(self.pipeline)
        return norm

    def share(self, name: str) -> float:
        """Return the factor of this rank's piece in a sum that counts every number once.

        It is 1/n for a piece that n ranks hold, and 0 for the copy of a tied head on the
        last stage, which is the embedding of the first.
        """
        return 1 / self.cuts[name].holders if name in self.cuts else 0.0

    def save(
        self, folder: str | Path, step: int, *, keep: int = 2, nodes: int = 1, **facts: Any
    ) -> Path:
        """Save a checkpoint after `step` steps; all ranks call it with the same `facts`.

        It holds weights, optimizer states and options, random states, and your own facts, such as
        the position in the data. keep, nodes, errors and result: as in `checkpoint.save`.
        """
        boxes, facts, own = self._saved(facts)
        world = self.mesh.world
        return checkpoint.save(folder, step, world, boxes, facts, own, keep=keep, nodes=nodes)

    def save_behind(self, saver: Background, step: int, **facts: Any) -> Stall:
        """Let a saver write such a checkpoint in the background; errors and result are its own."""
        return saver.save(step, *self._saved(facts))

    def _saved(self, facts: Facts) -> tuple[Iterator[TensorBox], Facts, Facts]:
        facts["options"] = extras.options_of(self.states[0].optimizer)  # alike in all parts
        return self.boxes(), facts, extras.random_states()

    def load(self, path: str | Path) -> dict[str, Any]:
        """Restore a checkpoint of any layout; return its step and the facts saved with it.

        Random states are restored, too, if as many ranks load as have saved. Errors: as in
        `checkpoint.contents`, `check` and `load`, and ValueError for a checkpoint that was saved
        with another optimizer; build the trainer anew before you load another.
        """
        saved = checkpoint.contents(path)
        shapes = {name: cut.shape for name, cut in self.cuts.items()}
        checkpoint.check(path, saved, shapes | biases(self.spec))
        for span in self.spans():
            span.expect(saved)
        facts, mine = checkpoint.load(path, self.mesh.world, self.boxes())
        for state in self.states:
            state.refresh()
            extras.restore_options(state.optimizer, facts.get("options"), path)
        extras.check_states(self.states[0].optimizer, saved, shapes, path)
        if mine is not None:
            extras.restore_random_states(mine, path)
        return facts

    def read(self, folder: str | Path, architecture: str) -> int:
        """Read the weights of a published checkpoint, each rank its own; all ranks call it.

        The model may be hollow (`memory.hollow.build`). architecture, errors and result: as in
        `checkpoint.hugging_face.read`.
        """
        world = self.mesh.world
        nbytes = hugging_face.read(folder, architecture, self.spec, world, self._weights())
        for state in self.states:
            state.refresh()
        return nbytes

    def write(
        self,
        folder: str | Path,
        config: Facts,
        *,
        tokenizer: str | Path | None = None,
        most: int = hugging_face.MOST_BYTES,
    ) -> None:
        """Write the weights as a published checkpoint, each rank a share; all ranks call it.

        config, tokenizer, most and errors: as in `checkpoint.hugging_face.write`.
        """
        spec, world = self.spec, self.mesh.world
        weights = self._weights()
        hugging_face.write(folder, config, spec, world, weights, tokenizer=tokenizer, most=most)

    def _weights(self) -> Iterator[TensorBox]:
        return (box for span in self.spans() for box in span.weights())

    def spans(self) -> Iterator[Span]:
        """List all that this rank keeps, by its place in the plain model."""
        return spans(self.states, self.cuts, self.mesh.tp.rank())

    def boxes(self) -> Iterator[TensorBox]:
        """List all that this rank keeps as boxes of whole tensors: weights and optimizer states."""
        for span in self.spans():
            yield from span.weights()
            yield from span.states()
        for part in self.pipeline.parts:
            for name, bias in part.named_buffers():
                if name in biases(self.spec):
                    yield whole(f"weights/{name}", bias)

    def gather(self) -> dict[str, Tensor]:
        """Return the parameters of the plain model, whole, on every rank; without a tied head."""
        held: dict[str, Tensor] = {}                                  # pieces, of this stage only
        for state in self.states:
            held.update(state.full_state_dict())
        like = next(self.pipeline.parameters())
        found: dict[str, Tensor] = {}
        for name, cut in self.cuts.items():
            here = like.new_zeros(cut.shape)
            if name in held:
                here = shards.join(held[name], cut, self.mesh.tp)     # whole, on this stage only
            if EXPERTS in name:
                here = comm.all_reduce(here, self.mesh.ep)            # of this rank or another's
            found[name] = comm.all_reduce(here, self.mesh.pp)         # whole, on every stage
        return found


def make_states(
    parts: Sequence[Part], mesh: Mesh, optimizer: MakeOptimizer
) -> Sequence[Replica | zero.Zero]:
    """Make the states of a stage's parameters: whole on every replica, or cut by ZeRO.

    Experts that ranks of ep have dealt among them have states of their own, in another group.
    """
    held = dict(_named(parts))
    dealt = {name: p for name, p in held.items() if EXPERTS in name and mesh.ep.size() > 1}
    rest = {name: p for name, p in held.items() if name not in dealt}
    kinds = [(rest, mesh.replicas), (dealt, mesh.expert_replicas)]
    if not mesh.layout.zero:
        return [Replica(named, group, optimizer) for named, group in kinds if named]
    shard = partial(zero.shard, stage=mesh.layout.zero, optimizer=optimizer)
    states = []
    for named, group in kinds:
        for part in parts:
            own = dict(part.named_parameters())
            others = [p for name, p in own.items() if name not in named]
            if len(others) < len(own):
                layers = part.units(experts=named is dealt)
                states.append(shard(part, group, layers=layers, ignored=others))
    return states


def check_supported(
    model: Transformer, mesh: Mesh, schedule: Schedule, context: ContextStrategy
) -> None:
    """Check that this trainer can train the model in this layout with this schedule.

    Errors: ValueError for ZeRO where two parts of a stage share a parameter.
    """
    first, last = schedule.homes[0], schedule.homes[-1]
    if mesh.layout.zero and model.spec.tied and first != last and first[0] == last[0]:
        raise ValueError(
            f"ZeRO cuts each part of the model by itself, but with {schedule.name} two parts of "
            f"stage {first[0]} share the tied embeddings; use zero=0, a model whose head is not "
            "tied, or a schedule with one part per stage"
        )


def _named(parts: Sequence[Part]) -> Iterator[tuple[str, nn.Parameter]]:
    """List the parameters of a stage, each once, under their names in the model."""
    seen: set[int] = set()
    for part in parts:
        for name, parameter in part.named_parameters():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield name, parameter
