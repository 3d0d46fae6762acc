"""What a rank knows of itself: where it runs, on which device, with which software."""

import hashlib
import os
import platform
import shutil
import socket
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from shardlab.files import given
from shardlab.launch.join import already_a_rank, own_gpu

MATTER = ("NCCL_", "GLOO_", "TORCH_", "OMP_NUM_THREADS")  # variables that all ranks should share
OWN = ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")  # names of own files
MOST_FILES = 5000  # of a folder with code
MEMORY, SHARED = Path("/proc/meminfo"), Path("/dev/shm")


def own(code: str) -> dict[str, Any]:
    """Collect the facts of this rank, as JSON can hold them; bytes for sizes, None for unknown.

    code: the file, or the folder with *.py, that all ranks should have alike.
    Errors: ValueError if it does not exist.
    """
    gpu, trouble = _gpu()
    digest, files = fingerprint(Path(code))
    return {
        "rank": _number("RANK", 0),
        "world": _number("WORLD_SIZE", 1),
        "local_rank": _number("LOCAL_RANK", 0),
        "node_rank": _number("GROUP_RANK", None),
        "host": socket.gethostname(),
        "gpu": gpu,
        "trouble": trouble,
        "memory": free_memory(),
        "shm": shutil.disk_usage(SHARED).free if SHARED.is_dir() else None,
        "versions": _versions(),
        "code": digest,
        "files": files,
        "env": {name: value for name, value in os.environ.items() if _matters(name)},
        "interfaces": [name for _, name in socket.if_nameindex()],
        "addresses": addresses(socket.gethostname()),
        "master": os.environ.get("MASTER_ADDR", ""),
        "master_addresses": addresses(os.environ.get("MASTER_ADDR", "")),
    }


def fingerprint(code: Path) -> tuple[str, int]:
    """Hash a file, or all *.py of a folder with their names; return the hash and their number.

    Hidden folders and virtual environments do not count. Errors: ValueError if there is no code.
    """
    if not os.path.exists(code):
        raise ValueError(f"--code {code} does not exist; give a script, or a folder with *.py")
    total, count = hashlib.sha256(), 0
    for file in [code] if code.is_file() else _python_files(code):
        total.update(f"{file.relative_to(code)}\0".encode())
        total.update(hashlib.sha256(given.read_bytes(file)).digest())
        count += 1
    return total.hexdigest()[:12], count


def addresses(name: str) -> list[str]:
    """Return the addresses that a name resolves to, IPv4 first; none if it is not known."""
    with suppress(OSError, UnicodeError):
        found = {info[4][0] for info in socket.getaddrinfo(name, None)} if name else set()
        return sorted(map(str, found), key=lambda each: (":" in each, each))
    return []


def free_memory() -> int | None:
    """Return the bytes that programs can still get on this host; None if it does not say so."""
    if MEMORY.exists():
        for line in MEMORY.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _gpu() -> tuple[dict[str, Any] | None, str]:
    """Describe this rank's GPU; None without one, and then why it cannot be used."""
    try:
        device = own_gpu() if already_a_rank() else _first_gpu()
    except ValueError as error:
        return None, str(error)
    if device is None:
        return None, ""
    properties = torch.cuda.get_device_properties(device)
    free, total = torch.cuda.mem_get_info(device)
    known = {"index": device.index, "name": properties.name, "id": str(properties.uuid)}
    return {**known, "free": free, "total": total}, ""


def _first_gpu() -> Any:
    return torch.device("cuda", 0) if torch.cuda.is_available() else None


def _versions() -> dict[str, str]:
    nccl = ""
    if torch.cuda.is_available():
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "NCCL": nccl or "none",
        "CUDA": torch.version.cuda or "none",
        "shardlab": _shardlab(),
    }


def _shardlab() -> str:
    """Return shardlab's version and a hash of its code."""
    code, _ = fingerprint(Path(__file__).parents[1])
    with suppress(metadata.PackageNotFoundError):
        return f"{metadata.version('shardlab')} ({code})"
    return code


def _python_files(folder: Path) -> Iterator[Path]:
    count = 0
    for place, folders, files in os.walk(folder):
        here = Path(place)
        folders[:] = sorted(
            each
            for each in folders
            if not each.startswith(".") and not os.path.exists(here / each / "pyvenv.cfg")
        )
        for name in sorted(each for each in files if each.endswith(".py")):
            if (count := count + 1) <= MOST_FILES and os.path.isfile(here / name):
                yield here / name


def _matters(name: str) -> bool:
    return name.startswith(MATTER) and name not in OWN


def _number(name: str, otherwise: int | None) -> int | None:
    return int(os.environ[name]) if os.environ.get(name) else otherwise
