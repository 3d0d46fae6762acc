"""Training with every method at once: layers cut among ranks, the model cut into stages, samples dealt to replicas.

Narayanan et al. 2021, "PTD-P" (https://arxiv.org/abs/2104.04473). The model stays the plain one: every method is put
on it from outside, and says what it has to say in its own group of the mesh.

    mesh = Mesh(Layout(dp=2, tp=2, pp=2, zero=1, sequence_parallel=True), group)
    schedule = schedules.make("1F1B", num_stages=2, num_microbatches=4)
    trainer = Trainer(Transformer(spec), mesh, schedule, torch.optim.AdamW, max_norm=1.0)
    loss = trainer.step(tokens, targets)
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .. import cuts
from ..schedules import Schedule
from . import agreement, checkpoint, comm, tensor_parallel, zero
from .checkpoint.boxes import Box, Span, spans
from .data_parallel.replica import Replica
from .mesh import Mesh
from .pipeline import partition
from .pipeline.engine import Pipeline
from .pipeline.partition import Part
from .tensor_parallel import shards
from .transformer import Transformer

MakeOptimizer = Callable[[list[Tensor]], Optimizer]


class Trainer:
    """One rank's part of a model in training; every rank of the mesh makes one, of the same plain model.

    schedule   of the pipeline, for mesh.layout.pp stages; with one stage its microbatches are gradient accumulation
    optimizer  makes one from a list of tensors, such as torch.optim.AdamW; it must treat every number by itself
    layers     of each part of the model; None: as equal as possible
    max_norm   gradients are scaled down where the norm of the whole model's is larger

    With ZeRO-2 and -3 every microbatch's gradients are averaged and cut, as they come, where a stage has one part, does
    whole backwards and no end of a tied model; else its gradients stay whole until the step.

    It takes the model apart: do not use that afterwards. Errors: ValueError for a layout or a schedule that does not
    suit the model, and for models that differ between ranks.
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
    ) -> None:
        layout, stage = mesh.layout, mesh.pp.rank()
        layout.check(model.spec)
        check_shared(model, mesh, schedule)
        agreement.check_equal(model, mesh.world)
        tensor_parallel.parallelize(model, mesh.tp, sequence_parallel=layout.sequence_parallel)
        parts = partition.cut(model, schedule, stage, layers)
        self.pipeline = Pipeline(parts, schedule, mesh.pp)
        self.states = states(parts, mesh, optimizer)
        self.mesh, self.plan, self.max_norm = mesh, cuts.model(model.spec, layout.tp), max_norm
        self.sums_later = bool(self.pipeline.shared) or schedule.splits_backward or schedule.num_chunks > 1

    def step(self, tokens: Tensor, targets: Tensor, weight: float = 1.0) -> Tensor:
        """One step on this replica's samples [N, S]; returns the mean loss over those of all replicas, on every rank.

        All ranks with the same place along dp pass the same samples, whose tokens all count. weight: where replicas
        have unequally many samples, the one that `sampler` deals.
        """
        loss = self.backward(tokens, targets, weight)
        self.update()
        return loss

    def backward(self, tokens: Tensor, targets: Tensor, weight: float = 1.0) -> Tensor:
        """Add the gradients of a batch to those that are there; no step. The rest is as in `step`."""
        with ExitStack() as stack:
            if self.sums_later:  # until a stage has done its last microbatch, it needs the gradients as they are
                for state in self.states:
                    stack.enter_context(state.no_sync())
            if tokens.shape != self.pipeline.negotiated:
                self.pipeline.negotiate(tokens)
            loss = self.pipeline.step(tokens, targets, weight)
        mine = torch.zeros((), device=tokens.device) if loss is None else loss  # one stage of a pipeline has it
        return comm.all_reduce(mine.double(), self.mesh.world) / (self.mesh.layout.tp * self.mesh.layout.dp)

    def update(self) -> Tensor:
        """Average the gradients over replicas, clip them, step, and forget them; returns their norm before clipping."""
        squares = torch.stack([state.squared_norm(self.share) for state in self.states])
        norm = comm.all_reduce(squares.sum(), self.mesh.world).sqrt()
        for state in self.states:
            state.clip(self.max_norm, norm)
            state.step()
            state.zero_grad()
        return norm

    def share(self, name: str) -> float:
        """How much of its piece of a parameter a rank adds to what is summed over the model: every number counts once.

        The copy of a tied head, on the last stage, counts for nothing: it is the embedding of the first.
        """
        return 1 / self.plan[name].holders if name in self.plan else 0.0

    def save(self, folder: str | Path, step: int, *, keep: int = 2, **facts: Any) -> Path:
        """A checkpoint after so many steps: weights, optimizer states and options, random states, and your own facts.

        All ranks call it with the same facts, such as the place in the data. The rest is as in `checkpoint.save`.
        """
        groups = self.states[0].optimizer.param_groups  # every part of a model has the same options
        facts["options"] = [{name: x for name, x in group.items() if name != "params"} for group in groups]
        return checkpoint.save(folder, step, self.mesh.world, self.boxes(), facts, random_states(), keep=keep)

    def load(self, path: str | Path) -> dict[str, Any]:
        """Go on from a checkpoint of any layout; returns the facts that it was saved with, and its step.

        With as many ranks as it was saved by, random numbers go on, too. Errors: as in `checkpoint.load`.
        """
        saved = checkpoint.contents(path)
        checkpoint.check(path, saved, {name: cut.shape for name, cut in self.plan.items()})
        for span in self.spans():
            span.expect(saved)
        facts, mine = checkpoint.load(path, self.mesh.world, self.boxes())
        for state in self.states:
            state.refresh()
            for group, options in zip(state.optimizer.param_groups, facts["options"], strict=True):
                group.update(options)
        if mine is not None:
            set_random_states(mine)
        return facts

    def spans(self) -> Iterator[Span]:
        """All that this rank keeps, by its place in the plain model."""
        return spans(self.states, self.plan, self.mesh.tp.rank())

    def boxes(self) -> Iterator[Box]:
        """The same as boxes of whole tensors: weights, and what the optimizer has made of them so far."""
        for span in self.spans():
            yield from span.weights()
            yield from span.states()

    def gather(self) -> dict[str, Tensor]:
        """The parameters of the plain model, whole, on every rank; a tied head is left out."""
        held = {name: piece for state in self.states for name, piece in state.full_state_dict().items()}
        like, whole = next(self.pipeline.parameters()), {}
        for name, cut in self.plan.items():
            here = shards.join(held[name], cut, self.mesh.tp) if name in held else like.new_zeros(cut.shape)
            whole[name] = comm.all_reduce(here, self.mesh.pp)  # one stage has it
        return whole


def states(parts: Sequence[Part], mesh: Mesh, optimizer: MakeOptimizer) -> Sequence[Replica | zero.Zero]:
    """The states of a stage's parameters: on every rank of mesh.dp, or shared among them where the layout says so."""
    if not mesh.layout.zero:
        return [Replica(dict(_named(parts)), mesh.dp, optimizer)]
    return [
        zero.shard(part, mesh.dp, stage=mesh.layout.zero, optimizer=optimizer, layers=list(_units(part)))
        for part in parts
    ]


def check_shared(model: Transformer, mesh: Mesh, schedule: Schedule) -> None:
    """ValueError for ZeRO where two parts of one stage share a parameter, and for an axis that the trainer lacks."""
    if mesh.layout.cp > 1:
        raise ValueError(f"this trainer cuts no sequences, and the layout has cp={mesh.layout.cp}; use cp=1")
    first, last = schedule.homes[0], schedule.homes[-1]
    if mesh.layout.zero and model.spec.tied and first != last and first[0] == last[0]:
        raise ValueError(
            f"ZeRO takes each part of the model by itself, and with {schedule.name} two of stage {first[0]} share the "
            "tied embeddings; use zero=0, a model whose head is not tied, or a schedule with one part a stage"
        )


def _named(parts: Sequence[Part]) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters of a stage by their names in the model, each once."""
    seen: set[int] = set()
    for part in parts:
        for name, parameter in part.named_parameters():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield name, parameter


def _units(part: Part) -> Iterator[nn.Module]:
    """What ZeRO gathers and averages as one: the layers, and embeddings and head by themselves.

    So tied embeddings lie alike in the buffers of the first and of the last stage, and stay equal to the last bit.
    """
    if part.embedding is not None:
        yield part.embedding.tokens
    yield from part.blocks.values()
    if part.head is not None:
        yield part.head


def random_states() -> dict[str, Any]:
    """Of torch, on the CPU and on this rank's GPU, and of Python."""
    gpu = {"gpu": torch.cuda.get_rng_state()} if torch.cuda.is_initialized() else {}
    return {"torch": torch.get_rng_state(), "python": random.getstate(), **gpu}


def set_random_states(found: dict[str, Any]) -> None:
    """Go on where `random_states` was."""
    torch.set_rng_state(found["torch"])
    random.setstate(found["python"])
    if "gpu" in found and torch.cuda.is_available():
        torch.cuda.set_rng_state(found["gpu"])
