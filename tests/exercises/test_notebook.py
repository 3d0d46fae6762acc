"""A notebook hands in what it defines, and nothing that it runs."""

import json

import pytest

from shardlab.exercises import notebook


def write(tmp_path, *cells, kinds=()):
    kinds = kinds or ["code"] * len(cells)
    path = tmp_path / "homework.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": k, "source": c} for k, c in zip(kinds, cells, strict=True)]}))
    return path


def test_imports_functions_classes_and_plain_numbers_count_and_what_runs_does_not(tmp_path):
    path = write(
        tmp_path,
        "# Homework",
        ["import math\n", "from shardlab import launch\n", "%matplotlib inline\n", "SIZE = 4\n"],
        "def my_shard(n, r, w):\n    return range(r, n, w)\n\ncheck('data_parallel.shard', my_shard)",
        "losses = launch.run(train, world_size=4)\nraise SystemExit",
        "%%bash\nrm -r /",
        "class Linear:\n    pass\nx: int = 3",
        kinds=["markdown", *["code"] * 5],
    )
    names = {}
    exec(notebook.source(path), names)
    assert (names["SIZE"], names["x"]) == (4, 3)
    assert [*names["my_shard"](5, 1, 2)] == [1, 3]
    assert "losses" not in names


def test_a_python_file_is_read_as_it_stands(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("# mine\nx = f()\n")
    assert notebook.source(path) == "# mine\nx = f()\n"


def test_a_wrong_line_is_found_in_its_cell(tmp_path):
    path = write(tmp_path, "x = 1", "y = 2\ndef f(:\n    pass")
    with pytest.raises(SyntaxError, match=r"\(code cell 2, line 2\)"):
        notebook.source(path)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"cells": 3}', '{"cells": [{}]}', '{"cells": [[]]}', "[" * 10**5])
def test_what_is_no_notebook_gets_one_line(tmp_path, text):
    path = tmp_path / "homework.ipynb"
    path.write_text(text)
    with pytest.raises(ValueError, match="is no notebook: it has no cells with a source"):
        notebook.source(path)
