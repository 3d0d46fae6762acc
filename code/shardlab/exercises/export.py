"""Write what a platform needs to grade a homework: Gradescope, Classroom 50, nbgrader, a container.

    python -m shardlab.exercises export gradescope homework.py grader --seed 7

None of these grades by itself. Gradescope, Classroom 50 and the container run the `check` command,
the first two through `adapter`; a notebook of nbgrader calls `check`. The container is for files
that are not trusted: it has no network and few rights, and all its processes end with it.
"""

import json
import shutil
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from shardlab.files.project import BOOK, CARRIED, PACKAGE, ROOT
from shardlab.files.writing import new_folder

from . import adapter
from .homework import Homework
from .nbgrader import notebook

SMALLER = "the option for CPU of https://pytorch.org/get-started/locally/ saves some GB here"
PROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "shardlab"
version = "{version}"
dependencies = {dependencies}

[tool.setuptools.packages.find]
include = ["shardlab*"]

[tool.setuptools.package-data]
"*" = ["**/*"]
"""
SETUP = """\
#!/usr/bin/env bash
# Gradescope runs this once, when it builds the image; choose Ubuntu 22.04 or later.
set -e
apt-get update
apt-get install -y python3 python3-venv
python3 -m venv /autograder/venv
/autograder/venv/bin/pip install torch=={torch}    # {smaller}
/autograder/venv/bin/pip install /autograder/source/package
"""
RUN_AUTOGRADER = """\
#!/bin/sh
# Gradescope runs this for each submission.
root=${AUTOGRADER:-/autograder}
exec "${PYTHON:-/autograder/venv/bin/python}" -I "$root/source/adapter.py" gradescope "$root"
"""
AUTOGRADER = '''\
"""Grade a submission: Classroom 50 runs this in the learner's checkout."""

import importlib.util
import subprocess
import sys
from pathlib import Path

here = Path(__file__).resolve().parent
if importlib.util.find_spec("shardlab") is None:
    # {smaller}
    for wanted in (["torch=={torch}"], [here / "package"]):
        command = [sys.executable, "-m", "pip", "install", *wanted]
        subprocess.run(command, cwd=here, check=True, stdout=sys.stderr)
command = [sys.executable, "-I", here / "adapter.py", "classroom50", Path.cwd()]
sys.exit(subprocess.run(command).returncode)
'''
CONTAINERFILE = """\
# docker build --tag grader --file Containerfile .
# docker run --rm --network none --memory 1g --cpus 1 --pids-limit 256 --read-only --tmpfs /tmp \\
#     --cap-drop ALL --security-opt no-new-privileges \\
#     --volume "$PWD/mine.py:/handed_in/mine.py:ro" grader /handed_in/mine.py
FROM python:3.12-slim
COPY package /grader/package
# {smaller}
RUN pip install --no-cache-dir torch=={torch}
RUN pip install --no-cache-dir /grader/package
COPY homework.py /grader/
RUN useradd learner
USER learner
WORKDIR /grader
ENTRYPOINT {command}
"""


def export(platform: str, taught: Homework, folder: Path) -> None:
    """Write what a platform needs into a new folder.

    Errors: ValueError where there is one, or where it cannot be written; then nothing is left.
    """
    with new_folder(folder):
        PLATFORMS[platform](taught, folder)


def gradescope(taught: Homework, folder: Path) -> None:
    """Write the files of an autograder; what is uploaded is a zip of them, not of the folder."""
    _carry(taught, folder, "setup.sh", _filled(SETUP))
    _carry_adapter(taught, folder)
    (folder / "run_autograder").write_text(RUN_AUTOGRADER)
    for name in ("setup.sh", "run_autograder"):
        (folder / name).chmod(0o755)


def classroom50(taught: Homework, folder: Path) -> None:
    """Write CLASSROOM/autograders/ASSIGNMENT of a teacher's `classroom50` repository."""
    _carry(taught, folder, "autograder.py", _filled(AUTOGRADER))
    _carry_adapter(taught, folder)


def nbgrader(taught: Homework, folder: Path) -> None:
    """Write source/ASSIGNMENT of a course: a notebook, and the homework that its cells read."""
    name = folder.name
    shutil.copyfile(taught.file, folder / "homework.py")
    text = json.dumps(notebook(taught, name), indent=1)
    (folder / f"{name}.ipynb").write_text(text + "\n")


def container(taught: Homework, folder: Path) -> None:
    """Write a Containerfile, whose first lines say how to build and run it, and what it copies."""
    command = ["python", "-m", "shardlab.exercises", *_command(taught)]
    _carry(taught, folder, "Containerfile", _filled(CONTAINERFILE, command=json.dumps(command)))


PLATFORMS: dict[str, Callable[[Homework, Path], None]] = {
    each.__name__: each for each in (gradescope, classroom50, nbgrader, container)
}


def _command(taught: Homework) -> list[str]:
    """Return the arguments of the command; the file that was handed in follows them."""
    options = ["--json", "--with", "homework.py", "--seed", str(taught.seed)]
    return ["check", *options, *taught.exercises]


def _filled(text: str, **values: str) -> str:
    """Fill in the version of torch that is here, without its suffix such as +cpu."""
    torch = metadata.version("torch").partition("+")[0]
    return text.format(torch=torch, smaller=SMALLER, **values)


def _carry(taught: Homework, folder: Path, name: str, text: str) -> None:
    """Write a file, the homework, and this package with its licence, ready for pip."""
    (folder / name).write_text(text)
    shutil.copyfile(taught.file, folder / "homework.py")
    for file in PACKAGE.rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts:
            copy = folder / "package" / file.relative_to(PACKAGE.parent)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
    book = folder / "package" / CARRIED.relative_to(PACKAGE.parent) / "book"
    book.mkdir(parents=True, exist_ok=True)
    for page in BOOK.glob("*.md"):  # they hold the prompts
        shutil.copyfile(page, book / page.name)
    needed = [each for each in metadata.requires("shardlab") or () if "extra ==" not in each]
    version, dependencies = metadata.version("shardlab"), json.dumps(needed)
    project = PROJECT.format(version=version, dependencies=dependencies)
    (folder / "package" / "pyproject.toml").write_text(project)
    shutil.copyfile(ROOT / "LICENSE", folder / "package" / "LICENSE")


def _carry_adapter(taught: Homework, folder: Path) -> None:
    """Write the adapter, and what it reads."""
    shutil.copyfile(adapter.__file__, folder / "adapter.py")
    exercises = [{"name": n, "maximum": each.points} for n, each in taught.exercises.items()]
    settings = {"command": _command(taught), "exercises": exercises}
    (folder / "homework.json").write_text(json.dumps(settings, indent=2))
