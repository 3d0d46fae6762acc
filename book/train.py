"""Trains a small model on the prose of this book, cut as you ask; started again, it goes on where it was killed.

    python train.py --tp 2 --pp 2                                        # four gloo ranks on this machine
    torchrun --nproc-per-node 8 train.py --dp 2 --tp 2 --pp 2 --zero 1   # eight GPUs; without any, eight gloo ranks
    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 train.py --dp 2 --tp 8
"""

import argparse
from functools import partial
from pathlib import Path

import torch

from shardlab import launch, schedules
from shardlab.model.spec import TransformerSpec
from shardlab.ranks import checkpoint, text, transformer
from shardlab.ranks.data_parallel import sampler
from shardlab.ranks.mesh import Mesh
from shardlab.ranks.train import Trainer
from shardlab.sharding.layout import Layout

SPEC = TransformerSpec(vocab_size=text.VOCAB_SIZE, context_length=64, hidden_size=64, num_layers=4, num_heads=8)
BATCH, MICROBATCHES, SAVE_EVERY = 16, 2, 10  # samples of all replicas; of each replica; steps


def train(group, layout, schedule, file, folder, num_steps):
    mesh = Mesh(layout, group)
    torch.manual_seed(0)  # every rank builds the same model, and keeps its part
    plan = schedules.make(schedule, layout.pp, MICROBATCHES)
    trainer = Trainer(transformer.Transformer(SPEC), mesh, plan, torch.optim.AdamW, max_norm=1.0)
    path, losses = checkpoint.latest(folder, group), []
    step = 0 if path is None else trainer.load(path)["step"]
    tokens, length = text.read(file), SPEC.context_length
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
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for axis in ("dp", "tp", "pp"):
        parser.add_argument(f"--{axis}", type=int, default=1)
    parser.add_argument("--zero", type=int, default=0)
    parser.add_argument("--sequence-parallel", action="store_true")
    parser.add_argument("--schedule", default="1F1B", help=", ".join(schedules.SCHEDULES))
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--folder", type=Path, default=Path("checkpoints"), help="seen by all ranks")
    parser.add_argument("--text", type=Path, default=text.PROSE, help="a file to train on")
    asked = parser.parse_args()
    layout = Layout(**{name: getattr(asked, name) for name in ("dp", "tp", "pp", "zero", "sequence_parallel")})
    launch.run(train, layout, asked.schedule, asked.text, asked.folder, asked.steps, world_size=layout.ranks)
