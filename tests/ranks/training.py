"""What tests of whole trainings share: a small model of each style, its data, its optimizer, and a trainer of it."""

import torch

from shardlab.ranks import train, transformer
from shardlab.ranks.data_parallel import sampler
from shardlab.ranks.mesh import Mesh
from shardlab.schedules import make
from shardlab.spec import TransformerSpec

MICROBATCHES, LENGTH, MAX_NORM = 2, 24, 0.1  # 24 tokens split over every tp
STYLES = ("gpt2", "llama")


def spec(style, layers):
    """Odd vocabularies, which every tp pads; two key/value heads, which more ranks share."""
    sizes = {"context_length": LENGTH, "hidden_size": 48, "num_heads": 24, "ffn_size": 48, "num_layers": layers}
    if style == "three heads":
        return TransformerSpec(vocab_size=13, **{**sizes, "num_heads": 3})
    if style == "gpt2":
        return TransformerSpec(vocab_size=13, **sizes)
    return TransformerSpec(vocab_size=11, **sizes, num_kv_heads=2, style="llama")


def plain(style, layers):
    """Every parameter is random: ones and zeros would hide mistakes."""
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
    """Its large eps is for the bias of the keys: that changes no attention, and Adam magnifies its gradient, noise."""
    return torch.optim.AdamW(parameters, lr=0.01, eps=1e-3)


def make_trainer(group, case, **options):
    layout, schedule, style, layers, _ = case
    mesh = Mesh(layout, group, **options)
    return train.Trainer(
        plain(style, layers), mesh, make(schedule, layout.pp, MICROBATCHES), adamw, max_norm=MAX_NORM
    )


def batch(mesh, style, step, samples):
    """This replica's samples of a batch, and their weight."""
    mine = list(sampler.shard(samples, mesh.dp.rank(), mesh.dp.size()))
    tokens, targets = (x[mine] for x in data(style, step, samples))
    return tokens, targets, sampler.weight(len(mine), samples, mesh.dp.size())
