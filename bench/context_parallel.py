"""Step time of context parallelism: the plain files against the engine, a ring against gathered keys and Ulysses.

All hold the same model and average gradients in the same way, so that they differ in attention alone. Torch's own
`context_parallel` is missing: it needs a fused kernel, and the plain one, which CPUs have, fails in it
(https://github.com/pytorch/pytorch/issues/147793).
"""

import copy
from collections.abc import Callable
from functools import partial

import race
import record
import torch
from torch import Tensor, nn

from shardlab import comm
from shardlab.files.terminal import no_arguments
from shardlab.model.spec import TransformerSpec
from shardlab.plain import context_parallel as plain_context_parallel
from shardlab.plain import ring_attention
from shardlab.plain.data_parallel import average_gradients
from shardlab.ranks import context_parallel, transformer
from shardlab.ranks.context_parallel import ContextStrategy

WAYS = ("ring", "gathered", "ulysses")
PLAIN = {way: f"{way}, plain" for way in WAYS}
AGAINST_RING = {f"{way} / ring": (way, "ring") for way in ("gathered", "ulysses", "ring, contiguous")}
MODELS = {  # (hidden size, layers, samples, tokens per sample, rounds)
    "small": (64, 2, 2, 256, 30),
    "medium": (128, 4, 1, 1024, 14),
    "long": (128, 2, 1, 4096, 8),
}
Cut = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # tokens and targets -> this rank's


def ours(model: transformer.Transformer, group: comm.Group, way: str) -> Cut:
    """Let the engine share sequences."""
    options = {"ring": {}, "gathered": {"gathered": True}, "ulysses": {"ulysses": group.size()}}
    options["ring, contiguous"] = {"placement": "contiguous"}
    return context_parallel.parallelize(model, group, ContextStrategy(**options[way])).shard


def plain(model: transformer.Transformer, group: comm.Group, way: str) -> Cut:
    """Let the plain files share sequences of one document."""
    one_text = torch.zeros(model.spec.context_length, dtype=torch.long)
    order = plain_context_parallel.zig_zag(len(one_text), group)
    context = plain_context_parallel.Context(one_text, order, group)
    ring = partial(ring_attention.ring, mask=context.mask, group=group)
    attend = {"ring": ring, "gathered": context.gathered, "ulysses": context.ulysses}[way]
    transformer.replace(model, attend=attend, locate=lambda _: context.positions)
    return lambda tokens, targets: (tokens[:, context.mine], targets[:, context.mine])


def training_step(model: nn.Module, cut: Cut, tokens: Tensor, group: comm.Group) -> Callable[[], None]:
    """Cut a batch, forward, backward, average the gradients, and step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        model(*cut(tokens[:, :-1], tokens[:, 1:])).backward()
        average_gradients(model, group, 1 / group.size())
        optimizer.step()

    return step


def race_models(group: comm.Group, spec: TransformerSpec, samples: int, rounds: int) -> dict[str, list[float]]:
    """Seconds per step of every contender, round by round."""
    tokens = torch.randint(0, spec.vocab_size, (samples, spec.context_length + 1))
    torch.manual_seed(0)
    start = transformer.Transformer(spec)
    steps: dict[str, Callable[[], None]] = {}
    for way in (*WAYS, "ring, contiguous"):
        model = copy.deepcopy(start)
        steps[way] = training_step(model, ours(model, group, way), tokens, group)
    for way, name in PLAIN.items():
        model = copy.deepcopy(start)
        steps[name] = training_step(model, plain(model, group, way), tokens, group)
    return race.take_turns(group, steps, rounds)


def main() -> None:
    race.unchecked()
    rows = race.all_rows(race_models, MODELS, {}, plain=PLAIN, style="llama", also=AGAINST_RING)
    print("written to", record.write("context_parallel", {"rows": rows}).name)


if __name__ == "__main__":
    no_arguments(__doc__)
    main()
