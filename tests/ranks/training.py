"""Share a small model of each style, its data, optimizer and trainer among tests of whole trainings."""

import torch

from shardlab.model.spec import TransformerSpec
from shardlab.ranks import train, transformer
from shardlab.ranks.data_parallel import sampler
from shardlab.ranks.mesh import Mesh
from shardlab.schedules import make

MICROBATCHES, LENGTH, MAX_NORM = 2, 24, 0.1  # 24 tokens split over every tp
STYLES = ("gpt2", "llama")


def spec(style, layers):
    """Make a spec with an odd vocabulary, which every tp pads, and two key/value heads, which more ranks share."""
    sizes = {"context_length": LENGTH, "hidden_size": 48, "num_heads": 24, "ffn_size": 48, "num_layers": layers}
    if style == "three heads":
        return TransformerSpec(vocab_size=13, **{**sizes, "num_heads": 3})
    if style == "gpt2":
        return TransformerSpec(vocab_size=13, **sizes)
    return TransformerSpec(vocab_size=11, **sizes, num_kv_heads=2, style="llama")


def plain(style, layers):
    """Make a model in which every parameter is random: ones and zeros would hide mistakes."""
    torch.manual_seed(0)
    model = transformer.Transformer(spec(style, layers)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


def data(style, step, samples):
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(spec(style, 1).vocab_size, (samples, LENGTH + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def adamw(parameters):
    """Make AdamW with a large eps: the bias of the keys has a gradient of pure noise, which Adam would magnify."""
    return torch.optim.AdamW(parameters, lr=0.01, eps=1e-3)


def alone(style, layers, samples, steps):
    """Train in one process, in the plainest way; return [(loss, norm), ...] by step, and the last weights."""
    model, history = plain(style, layers), []
    adam = adamw(model.parameters())
    for step in range(steps):
        adam.zero_grad()
        loss = model(*data(style, step, samples))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        assert step or norm > 1.5 * MAX_NORM, "nothing was clipped"
        history.append((loss.item(), norm.item()))
        adam.step()
    return history, {name: parameter.detach() for name, parameter in model.named_parameters()}


def make_trainer(group, case, **options):
    layout, schedule, style, layers, _ = case
    mesh = Mesh(layout, group, **options)
    return train.Trainer(
        plain(style, layers), mesh, make(schedule, layout.pp, MICROBATCHES), adamw, max_norm=MAX_NORM
    )


def batch(mesh, style, step, samples):
    """Return this replica's samples of a batch, and their weight."""
    mine = list(sampler.shard(samples, mesh.dp.rank(), mesh.dp.size()))
    tokens, targets = (x[mine] for x in data(style, step, samples))
    return tokens, targets, sampler.weight(len(mine), samples, mesh.dp.size())
