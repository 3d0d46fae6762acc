"""A module that was taken runs without the package, and says what it uses of a model."""

from __future__ import annotations

import ast
import errno
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from shardlab import launch
from shardlab.files import project, take

PLAIN = project.PACKAGE / "plain"
STEP = """
import sys
sys.modules["shardlab"] = None  # whoever imports it fails
import torch
import torch.distributed as dist
from course.plain import data_parallel, pipeline
from course.ranks import tensor_parallel, zero

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.Linear(2, 1)
model(torch.ones(3, 2)).sum().backward()
data_parallel.average_gradients(model, dist.group.WORLD, 0.5)
print(model.weight.grad.tolist())
"""


def test_the_files_are_enough(tmp_path: Path) -> None:
    names = ["plain.data_parallel", "plain.pipeline", "ranks.tensor_parallel", "ranks.zero"]
    written = take.take(names, tmp_path / "course")
    assert [path.name for path in written[:3]] == ["data_parallel.py", "comm.py", "pipeline.py"]
    assert "Permission is hereby granted" in (tmp_path / "course" / "LICENSE").read_text()
    done = subprocess.run([sys.executable, "-c", STEP], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.stdout == "[[1.5, 1.5]]\n", done.stderr


def test_a_copy_runs_on_the_launchers_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take.take(["plain.pipeline"], tmp_path / "lessons")
    monkeypatch.syspath_prepend(tmp_path)

    def add_up(group):
        from lessons import comm

        return comm.all_reduce(torch.ones(2) * group.rank(), group).tolist()

    assert launch.run(add_up, world_size=3) == [[3.0, 3.0]] * 3


@pytest.mark.parametrize("path", sorted(PLAIN.glob("[a-z]*.py")), ids=lambda path: path.stem)
def test_what_a_plain_file_uses_of_a_model_is_listed(path: Path) -> None:
    always = {"parameters", "buffers", "modules", "named_parameters"}  # every module has them
    attributes = (each for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.Attribute))
    used = {each.attr for each in attributes if ast.unparse(each.value) in {"model", "model.spec", "mixture", "mlp"}}
    needed = take.MODEL[path.stem]
    for name in used - always - {"spec"}:
        assert name in needed, name


FOUND = ["torch", "numpy", "random", "json", "__main__", "__pycache__", "full/mine"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["plain.pipelin", "course"], "shardlab has no module plain.pipelin; try plain.pipeline"),
        (["plain.", "course"], "plain. is no module of plain or ranks; try plain.pipeline"),
        (["costs.units", "course"], "costs.units is no module of plain or ranks"),
        (["plain.zero", "my-course"], "my-course is no name of a new package; try course"),
        (["plain.zero", "class"], "class is no name of a new package"),
        (["plain.zero", "shardlab"], "shardlab is no name of a new package"),
        (["plain.zero", "full"], "full must be a new folder: File exists"),
        (["plain.zero", "nowhere"], "nowhere must be a new folder: File exists"),
        (["plain.zero", "/dev/null"], "/dev/null must be a new folder: File exists"),
        (["plain.zero", "/dev/null/course"], "/dev/null/course must be a new folder: Not a directory"),
        (["plain.zero", "full/a\0b/course"], "must be a new folder: embedded null byte"),
        *((["plain.zero", each], f"{Path(each).name} is a module already, which yours would hide") for each in FOUND),
    ],
)
def test_what_cannot_be_taken(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.py").touch()
    (tmp_path / "nowhere").symlink_to("deleted")
    assert take.main(arguments) == 2
    assert said in capsys.readouterr().err
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["full", "mine.py", "nowhere"]


def test_a_package_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills half-way leaves nothing, so that the next try is as the first."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "LICENSE")

    folder = tmp_path / "term" / "course"
    with monkeypatch.context() as patch:
        patch.setattr(take.shutil, "copyfile", full)
        with pytest.raises(ValueError, match=r"^[^[]*course cannot be written: No space left on device$"):
            take.take(["plain.zero"], folder)
    assert not list(tmp_path.iterdir())
    assert take.take(["plain.zero"], folder)
    with pytest.raises(ValueError, match="must be a new folder: File exists"):
        take.take(["plain.zero"], folder)


def test_the_command_says_what_a_model_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert take.main(["plain.zero", str(tmp_path / "course")]) == 0
    assert capsys.readouterr().out.endswith(
        "\nfrom course.plain import zero\n"
        "Of a model it uses a list of layers, called one after the other, and a loss of output and targets.\n"
    )
