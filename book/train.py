"""Trains a small model on the prose of this book, cut as you ask; started again, it goes on where it was killed.

    python train.py --tp 2 --pp 2                                        # four gloo ranks on this machine
    torchrun --nproc-per-node 8 train.py --dp 2 --tp 2 --pp 2 --zero 1   # eight GPUs; without any, eight gloo ranks
    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 train.py --dp 2 --tp 8
    python train.py --tp 2 --from SmolLM2-135M --ids tokens.i32 --to ours   # a published model, trained on

Tokens are the bytes of a text, or ids that the model's tokenizer wrote, as 32-bit integers one after the other.
"""

import argparse
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from shardlab import launch, schedules
from shardlab.costs.facts.hugging_face import read_whole
from shardlab.files.described import read_json
from shardlab.files.terminal import Parser
from shardlab.model.spec import TransformerSpec
from shardlab.ranks import checkpoint, text, transformer
from shardlab.ranks.data_parallel import sampler
from shardlab.ranks.memory import hollow
from shardlab.ranks.mesh import Mesh
from shardlab.ranks.train import Trainer
from shardlab.sharding.layout import Layout

SPEC = TransformerSpec(vocab_size=text.VOCAB_SIZE, context_length=64, hidden_size=64, num_layers=4, num_heads=8)
BATCH, MICROBATCHES, SAVE_EVERY = 16, 2, 10  # samples of all replicas; of each replica; steps


@dataclass
class Published:
    """A published model: where its files are, and what its config.json says."""

    folder: Path
    config: dict


def train(group, layout, schedule, tokens, folder, num_steps, published=None, into=None):
    mesh = Mesh(layout, group)
    torch.manual_seed(0)  # every rank builds the same model, and keeps its part
    plan = schedules.make(schedule, layout.pp, MICROBATCHES)
    if published is None:
        spec, model = SPEC, transformer.Transformer(SPEC)
    else:
        architecture, spec = read_whole(published.config)
        model = hollow.build(spec)  # no rank holds it whole: each reads its own part, below
    trainer = Trainer(model, mesh, plan, torch.optim.AdamW, max_norm=1.0)
    path, losses = checkpoint.latest(folder, group), []
    if path is None and published is not None:
        trainer.read(published.folder, architecture)
    step = 0 if path is None else trainer.load(path)["step"]
    length = min(spec.context_length, SPEC.context_length)
    say = partial(print, flush=True) if group.rank() == 0 else lambda *_: None
    say(f"world size {layout.ranks}, from step {step} of {num_steps}" + (f", read from {path}" if path else ""))
    whole = text.num_samples(tokens, length) // BATCH * BATCH  # a short batch may not fill the microbatches
    batches = sampler.epoch(whole, BATCH, mesh.dp.rank(), mesh.dp.size())
    while step < num_steps:
        indices, weight = batches[step % len(batches)]
        losses.append(trainer.step(*text.batch(tokens, indices, length), weight).item())
        step += 1
        say(f"step {step}: {losses[-1]:.4f} nats a token")
        if step % SAVE_EVERY == 0 or step == num_steps:
            trainer.save(folder, step)
    if into is not None:
        trainer.write(into, published.config, tokenizer=published.folder)
    return losses


if __name__ == "__main__":
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for axis in ("dp", "tp", "pp"):
        parser.add_argument(f"--{axis}", type=int, default=1)
    parser.add_argument("--zero", type=int, default=0)
    parser.add_argument("--sequence-parallel", action="store_true")
    parser.add_argument("--schedule", default="1F1B", help=", ".join(schedules.SCHEDULES))
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--folder", type=Path, default=Path("checkpoints"), help="seen by all ranks")
    parser.add_argument("--text", type=Path, default=text.PROSE, help="a file to train on, a token for each byte")
    parser.add_argument("--ids", type=Path, help="token ids to train on instead: little-endian 32-bit integers")
    parser.add_argument("--from", type=Path, dest="origin", help="the folder of a published model to go on with")
    parser.add_argument("--to", type=Path, help="a new folder, in which the trained model is published")
    asked = parser.parse_args()
    if asked.to and not asked.origin:
        parser.error("--to writes the config.json that it finds in --from; add --from FOLDER")
    try:
        layout = Layout(**{name: getattr(asked, name) for name in ("dp", "tp", "pp", "zero", "sequence_parallel")})
        published = asked.origin and Published(asked.origin, read_json(str(asked.origin)))
        words = read_whole(published.config)[1].vocab_size if published else SPEC.vocab_size
        tokens = text.read_ids(asked.ids) if asked.ids else text.read(asked.text)
        if (largest := int(tokens.max())) >= words:
            parser.error(f"token {largest} is not among the {words} of the model; give ids of its own tokenizer")
    except (ValueError, OSError) as error:
        parser.error(str(error))
    arguments = (layout, asked.schedule, tokens, asked.folder, asked.steps, published, asked.to)
    launch.run(train, *arguments, world_size=layout.ranks)
