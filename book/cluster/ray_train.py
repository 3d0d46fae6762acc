"""Runs book/train.py on a Ray cluster; if a worker dies, all end, and all start again from the last save.

    python book/cluster/ray_train.py --workers 16 --gpu --dp 16 --zero 1 --steps 500

Start it on the head node, from the project's folder, which lies at the same path on all nodes.
"""

import argparse
import runpy
import sys
from pathlib import Path

from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

SCRIPT = Path(__file__).resolve().parents[1] / "train.py"


def work(options: dict[str, list[str]]) -> None:
    """Be one rank: train.py uses the variables, such as RANK, and the process group that Ray has made."""
    sys.argv = ["train.py", *options["arguments"]]
    runpy.run_path(str(SCRIPT), run_name="__main__")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=16, help="ranks")
    parser.add_argument("--gpu", action="store_true", help="a GPU for each worker")
    parser.add_argument("--folder", type=Path, default=Path("checkpoints"), help="where all nodes write")
    asked, arguments = parser.parse_known_args()
    folder = str(asked.folder.resolve())
    TorchTrainer(
        work,
        train_loop_config={"arguments": ["--folder", folder, *arguments]},
        scaling_config=ScalingConfig(num_workers=asked.workers, use_gpu=asked.gpu),
        run_config=RunConfig(name="ray", storage_path=folder, failure_config=FailureConfig(max_failures=10)),
    ).fit()
