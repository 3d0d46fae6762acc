"""Results of benches are found, named and shown."""

import json
from pathlib import Path

import pytest

from shardlab.files import measured, project

SETTING = {"processor": "Abacus", "cores": 2, "gpus": [], "torch": "2.13", "date": "2026-01-02"}


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """The bench/ of a project without benches."""
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(project, "BENCH", tmp_path)
    return tmp_path


def test_the_results_of_the_project_are_read_in_any_folder(tmp_path, monkeypatch):
    expected = json.loads((Path(__file__).parents[2] / "bench" / "results" / "roofline.json").read_text())
    monkeypatch.chdir(tmp_path)
    assert measured.results("roofline") == expected


def test_what_was_not_measured_says_how_to(bench):
    with pytest.raises(FileNotFoundError, match=r"run python bench/nothing\.py"):
        measured.results("nothing")


def test_circumstances_in_words():
    assert measured.setting({"setting": SETTING}) == "2 cores of Abacus, torch 2.13, 2026-01-02"
    gpus = {**SETTING, "gpus": ["A", "B"]}
    assert measured.setting({"setting": gpus}).startswith("A, B, torch")


def test_ratios_are_a_table_of_models_and_pairs():
    ratio = {"median": 1.0, "quartile 1": 0.5, "quartile 3": 2.0}
    row = {"parameters": 7, "ranks": 2, "ours / torch": {"a": ratio}, "plain / ours": {"a": ratio, "b": ratio}}
    found = {"rows": [row, {**row, "ranks": 4}]}
    text = "1.00 (0.50-2.00)"
    assert measured.step_ratios(found, "ours / torch") == [["parameters", "ranks", "a"], [7, 2, text], [7, 4, text]]
    assert measured.step_ratios(found, "plain / ours")[2] == [7, 4, text, text]


def test_a_median_with_its_quartiles():
    assert measured.spread({"median": 1.016, "quartile 1": 0.98, "quartile 3": 1.05}) == "1.02 (0.98-1.05)"


ROWS = {
    "setting": SETTING,
    "rounds": 3,
    "gain": {"median": 1.0, "quartile 1": 0.5, "quartile 3": 2.0},
    "rows": [
        {"ranks": 2, "rate": 0.5, "seconds": {"ours": 0.25, "theirs": {"alone": 0.5}}},
        {"ranks": 4, "rate": 1.5, "seconds": {"ours": 0.125}},
    ],
    "hosts": {"near": {"measured": 1.5}, "far": {"measured": 2.5}},
    "devices": [{"device": "cpu", "rows": [{"bytes": 8, "rate": 1.5}]}],
    "deep": {"model": {"layers": [1, 2]}, "threads": 1},
}


def test_a_file_of_results_becomes_tables():
    """Values together, rows in a table, what is nested in a row in one of its own beside what tells the rows apart."""
    assert measured.tables(ROWS) == {
        "in short": [["what", "value"], ["rounds", 3], ["gain", "1 (0.5-2)"]],
        "rows": [["ranks", "rate"], [2, 0.5], [4, 1.5]],
        "rows: seconds": [["ranks", "ours", "theirs, alone"], [2, 0.25, 0.5], [4, 0.125, None]],
        "hosts": [["", "measured"], ["near", 1.5], ["far", 2.5]],
        "devices": [["device"], ["cpu"]],
        "devices, cpu: rows": [["bytes", "rate"], [8, 1.5]],
        "deep": [["what", "value"], ["threads", 1]],
        "deep, model": [["what", "value"], ["layers", "1, 2"]],
    }


def test_claims_by_chapter(bench):
    row = {"kind": "parity", "chapter": "data_parallel", "claim": "is one process", "test": "tests/test_x.py::test_y"}
    row |= {"cases": 5, "ranks": [1, 2, 3, 8], "checks": 7, "numbers": 9, "largest": 2.0}
    other = {**row, "kind": "counted", "claim": "bytes", "difference": 0.5, "allowed": 1.0}
    (bench / "results" / "proofs.json").write_text(json.dumps({"proofs": [row, other]}))
    assert measured.stems() == ["proofs"]
    header, line = measured.proofs("parity")["data parallel"]
    assert header == ["claim", "ranks", "cases", "numbers", "worst difference", "allowed", "test"]
    assert line == ["is one process", "1-3, 8", 5, 9, None, None, "test_x.py::test_y"]
    assert measured.proofs("counted")["data parallel"][1][4:7] == [2.0, "5.0e-01", "1.0e+00"]


def test_a_bench_says_what_it_asks(bench):
    (bench / "speed.py").write_text('"""How fast\nis it?\n\nMore of it."""\n')
    assert measured.question("speed") == "How fast is it?"
