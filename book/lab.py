"""Profiles a training step that waits. Copy it, change `train` in your copy, and profile again.

    python lab.py before                              # two gloo ranks on this machine
    torchrun --nproc-per-node 8 lab.py before         # eight GPUs; 1 for one GPU
    python lab.py after --ranks 4 --hidden 512        # more ranks, a larger model

Writes into the folder a profile of each rank, and config.json, the model for the planner.
"""

import argparse
import json
import time
from functools import partial
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from shardlab import comm, launch
from shardlab.costs.facts import hugging_face
from shardlab.files.terminal import Parser
from shardlab.ranks import text, transformer

STEPS, LENGTH, SAMPLES = 9, 64, 8  # the fifth is the last in the profile; tokens of a sample; samples of a rank
LATE = 0.15  # seconds for which the last rank waits for its disk


def load(group, tokens, step):
    """Read this rank's samples of a step: inputs and targets, [SAMPLES, LENGTH]."""
    with record_function("load"):
        if group.rank() == group.size() - 1:
            time.sleep(LATE)  # stands for a slow disk: leave it as it is
        first = (step * group.size() + group.rank()) * SAMPLES
        return text.batch(tokens, torch.arange(first, first + SAMPLES, device=tokens.device), LENGTH)


def train(group, model, optimizer, read, after_step):
    """Take all steps, each one after the other: this is what you change."""
    for step in range(STEPS):
        inputs, targets = read(step)
        with record_function("forward"):
            loss = model(inputs, targets)
        with record_function("backward"):
            loss.backward()
        with record_function("send"):
            for parameter in model.parameters():
                parameter.grad = comm.all_reduce(parameter.grad / group.size(), group)
        with record_function("update"):
            optimizer.step()
            optimizer.zero_grad()
        after_step()


def record(group, config, folder):
    """Train on one rank, and write the profile of three steps."""
    torch.manual_seed(0)  # every rank builds the same model
    torch.set_num_threads(1)
    model = transformer.Transformer(hugging_face.read_whole(config)[1])
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    with profile(
        activities=activities,
        schedule=schedule(wait=1, warmup=1, active=3, repeat=1),
        on_trace_ready=lambda it: it.export_chrome_trace(f"{folder}/rank{group.rank()}.json"),
        record_shapes=True,
        experimental_config=torch._C._profiler._ExperimentalConfig(profile_all_threads=True),
    ) as watch:
        read = partial(load, group, text.read())
        train(group, model, torch.optim.AdamW(model.parameters()), read, watch.step)


if __name__ == "__main__":
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a new folder for the profiles")
    parser.add_argument("--ranks", type=int, default=2, help="without torchrun")
    parser.add_argument("--hidden", type=int, default=128, help="a multiple of 64")
    parser.add_argument("--layers", type=int, default=2)
    asked = parser.parse_args()
    config = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": asked.hidden}
    config |= {"n_layer": asked.layers, "n_head": asked.hidden // 64, "n_positions": LENGTH}
    config |= {"vocab_size": text.VOCAB_SIZE, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}
    asked.folder.mkdir(exist_ok=True)
    (asked.folder / "config.json").write_text(json.dumps(config))
    launch.run(record, config, str(asked.folder), world_size=asked.ranks)
