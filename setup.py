"""Adds to a wheel what the package reads of the project: licence, chapters, benches; the rest is in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

CARRIED = (  # `shardlab.files.project` finds them
    "LICENSE",
    "book/*.md",
    "book/reference/*.md",
    "book/*.py",
    "bench/*.py",
    "bench/results/*.json",
)


class BuildWithData(build_py):
    """Copies what is CARRIED into shardlab/_data; an editable installation reads the project itself."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        project, data = Path(__file__).parent, Path(self.build_lib, "shardlab", "_data")
        shutil.rmtree(data, ignore_errors=True)  # an earlier build may have left chapters that are gone
        for path in sorted(path for pattern in CARRIED for path in project.glob(pattern)):
            target = data / path.relative_to(project)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


setup(cmdclass={"build_py": BuildWithData})
