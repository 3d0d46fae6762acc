"""Cuts the reference transformer into the parts of a pipeline, from outside: the model knows nothing of it."""

from collections.abc import Sequence

from torch import Tensor, nn

from shardlab import layout
from shardlab.schedules import Schedule

from ..transformer import Transformer


class Part(nn.Module):
    """Some layers in a row; the first part also has the embeddings, the last one the norm, the head and the loss.

    It holds modules of the model itself, and its parameters have the names that they have there.
    """

    def __init__(self, model: Transformer, layers: range, *, first: bool, last: bool) -> None:
        super().__init__()
        self.embedding = model.embedding if first else None
        self.blocks = nn.ModuleDict({str(layer): model.blocks[layer] for layer in layers})
        self.norm = model.norm if last else None
        self.head = model.head if last else None
        self.loss = model.loss
        shared = model.head.weight if model.spec.tied and first != last else None
        self.shared = [] if shared is None else [shared]  # with the model's other end; in a list it gets no second name

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:  # [B, S] or [B, S, D]
        if self.embedding is not None:
            x = self.embedding(x)                                           # [B, S, D]
        for block in self.blocks.values():
            x = block(x)                                                    # [B, S, D]
        if self.norm is None or self.head is None:
            return x
        logits: Tensor = self.head(self.norm(x))                            # [B, S, V]
        return logits if targets is None else self.loss(logits, targets)


def cut(
    model: Transformer, schedule: Schedule, stage: int, layers: Sequence[range] | None = None
) -> list[Part]:
    """The parts of one stage, by chunk. layers: of each part, in the model's order; None: as equal as possible.

    Errors: ValueError where the layers of the parts are not all layers in order.
    """
    num_layers, num_parts = len(model.blocks), schedule.num_parts
    layers = layout.stages(num_layers, num_parts) if layers is None else layers
    if [layer for part in layers for layer in part] != list(range(num_layers)) or len(layers) != num_parts:
        raise ValueError(
            f"{list(layers)} does not cut {num_layers} layers into {num_parts} parts; "
            f"give {num_parts} ranges that follow each other from 0 to {num_layers}"
        )
    last = num_parts - 1
    return [Part(model, layers[part], first=part == 0, last=part == last) for part in schedule.parts[stage]]
