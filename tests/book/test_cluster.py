"""The templates for clusters: they can be read, and are those that bench/templates.py has run."""

import ast
import hashlib
import subprocess

import pytest
import yaml

from shardlab.files import measured

from .conftest import ROOT

PROVED = measured.results("templates")
FILES = {path.name: path for path in sorted((ROOT / "book" / "cluster").iterdir()) if path.is_file()}


def test_every_template_was_proved_as_it_is():
    """Where one has changed: run python bench/templates.py NAME."""
    assert {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in FILES.items()} == PROVED["sha256"]
    assert {row["template"] for row in PROVED["starts"]} == FILES.keys() - {"next_save.sh"}


@pytest.mark.parametrize("name", FILES)
def test_a_template_can_be_read_by_what_runs_it(name):
    text = FILES[name].read_text()
    if name.endswith(".sh"):
        subprocess.run(["bash", "-n"], input=text, check=True, text=True)
    elif name.endswith(".py"):
        ast.parse(text)
    else:
        assert [document["kind"] for document in yaml.safe_load_all(text)][-1] == "TrainJob"


@pytest.mark.parametrize("row", PROVED["starts"], ids=lambda row: row["template"])
def test_a_start_went_on_from_the_last_save(row):
    """Saves are ten steps apart; the time between a signal and its effect may cost some steps more."""
    before, after = row["last step before"], row["first step after"]
    if before is None:
        assert row["stopped by"] == "nothing: parsed, not run"
    else:
        assert after % 10 == 1
        assert 1 < after <= before + 1 <= after + 10
