"""Cut the reference transformer into the parts of a pipeline, from outside.

Shapes: B sequences of S tokens, h numbers a token, V words in the vocabulary.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from shardlab.schedules import Schedule
from shardlab.sharding import layout

from ..mixture import mixtures
from ..transformer import Transformer, add_balance_loss


class Part(nn.Module):
    """Consecutive layers of a model, and at its ends the embeddings, or norm, head and loss.

    A part holds modules of the model itself, and its parameters keep their names. `shared` lists
    the weight that it shares with the part at the model's other end.
    """

    def __init__(self, model: Transformer, layers: range, *, first: bool, last: bool) -> None:
        super().__init__()
        self.embedding = model.embedding if first else None
        self.blocks = nn.ModuleDict({str(layer): model.blocks[layer] for layer in layers})
        self.norm = model.norm if last else None
        self.head = model.head if last else None
        self.loss = model.loss
        is_one_end = first != last
        # in a list, so that the weight does not get a second name
        self.shared = [model.head.weight] if model.spec.tied and is_one_end else []

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:  # [B, S] or [B, S, h]
        if self.embedding is not None:
            x = self.embedding(x)                    # [B, S] -> [B, S, h]
        for block in self.blocks.values():
            x = block(x)                             # [B, S, h]
        if self.norm is None or self.head is None:
            return x
        logits: Tensor = self.head(self.norm(x))     # [B, S, V]
        if targets is None:
            return logits
        return add_balance_loss(self, self.loss(logits, targets))     # []

    def units(self, *, experts: bool = False) -> list[nn.Module]:
        """List the modules that ZeRO gathers and averages one by one: embeddings, each layer, head.

        Tied embeddings then have the same position in the buffers of the first and the last stage,
        and stay bitwise identical. experts: list each layer's experts instead.
        """
        if experts:
            return [mixture.experts for mixture in mixtures(self)]
        first = [] if self.embedding is None else [self.embedding.tokens]
        last = [] if self.head is None else [self.head]
        return [*first, *self.blocks.values(), *last]


def split(
    model: Transformer, schedule: Schedule, stage: int, layers: Sequence[range] | None = None
) -> list[Part]:
    """Return the parts of one stage, by chunk.

    layers: of each part, in the model's order; None: as equal as possible. Errors: ValueError
    unless these are all layers of the model, in order.
    """
    num_layers = len(model.blocks)
    num_parts = schedule.num_parts
    if layers is None:
        layers = layout.stages(num_layers, num_parts)
    listed = [layer for part in layers for layer in part]
    if listed != list(range(num_layers)) or len(layers) != num_parts:
        raise ValueError(
            f"{list(layers)} does not cut {num_layers} layers into {num_parts} parts; "
            f"give {num_parts} ranges that follow each other from 0 to {num_layers}"
        )
    last = num_parts - 1
    return [
        Part(model, layers[part], first=part == 0, last=part == last)
        for part in schedule.parts[stage]
    ]
