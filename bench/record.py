"""What every bench writes beside its numbers: processor, versions, day, command, and how long it took."""

import datetime
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"
START = time.monotonic()  # of the bench


def setting(command: str) -> dict[str, Any]:
    """The circumstances of a measurement: no name of the machine, no path of it."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "command": command,
        "seconds": round(time.monotonic() - START),
    }


def write(stem: str, result: dict[str, Any]) -> Path:
    """Store `result`, with its setting, in results/<stem>.json; returns where."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{stem}.json"
    whole = {"setting": setting(f"python bench/{stem}.py"), **result}
    path.write_text(json.dumps(whole, indent=1) + "\n")
    return path


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"
