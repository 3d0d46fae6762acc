"""The workflows for GitHub name what the project has: targets, files, versions of Python."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = re.findall(r"^([\w./-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)


def jobs(path: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(path.read_text())["jobs"])


def commands(path: Path) -> list[str]:
    return [step["run"] for job in jobs(path).values() for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_a_workflow_calls_is_there(path: Path) -> None:
    for command in commands(path):
        for target in re.findall(r"^make (\S+)", command, re.MULTILINE):
            assert target in TARGETS
        for file in re.findall(r"(?<![\w/])((?:tools|tests)/[\w/]+\.py|\.ci/\w+)", command):
            assert (ROOT / file).is_file()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_workflow_is_allowed_no_more_than_it_says(path: Path) -> None:
    assert "permissions" in yaml.safe_load(path.read_text())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_actions_are_pinned_by_hash(path: Path) -> None:
    used = re.findall(r"uses: (.*)", path.read_text())
    assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}  # v[\d.]+", each) for each in used)


def test_every_python_that_the_package_names_is_tested_on_both_systems() -> None:
    named = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    tests = jobs(ROOT / ".github" / "workflows" / "test.yml")
    matrix = tests["package"]["strategy"]["matrix"]
    assert matrix["python"] == named
    assert {system.partition("-")[0] for system in matrix["os"]} == {"ubuntu", "macos"}
    for left_out in matrix["exclude"]:  # the other job has it
        assert left_out["os"] == tests["everything"]["runs-on"]
        (setup,) = [step["with"] for step in tests["everything"]["steps"] if "setup-python" in step.get("uses", "")]
        assert left_out["python"] == setup["python-version"]


def test_the_house_rules_are_tried_on_the_oldest_and_the_newest_python() -> None:
    named = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    script = (ROOT / ".ci" / "run").read_text()
    (pattern,) = re.findall(r"sed -n 's/(.*?)\.\*/", script)
    found = re.findall(pattern.replace(r"\(", "(").replace(r"\)", ")"), (ROOT / "README.md").read_text(), re.MULTILINE)
    assert found == [(named[0], named[-1])]
    assert all((ROOT / file).is_file() for file in re.findall(r"tests/[\w/]+\.py", script))
