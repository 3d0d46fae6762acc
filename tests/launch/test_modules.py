"""The helper imports for its ranks what its launcher uses of shardlab, as the files are now."""

import importlib
import os
import sys

import shardlab
from shardlab import comm
from shardlab.launch import run
from shardlab.launch.modules import Modules, in_use


def edited_files(group, folder):
    """Return whether anything was imported, and the number in the file, for three modules in a process of their own."""
    shardlab.__path__.append(str(folder))
    modules, seen = Modules(), []
    file = folder / "number.py"
    for text in ("value = 1", "value = 1", "value = 20", "value =", "value = 3"):
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
            os.utime(file, ns=(len(seen), len(seen)))  # two writes may share a tick of the clock
            importlib.invalidate_caches()
        imported = modules.keep_up(["shardlab.number"])
        seen.append((imported, getattr(sys.modules.get("shardlab.number"), "value", None)))
    return seen


def test_an_edited_file_is_imported_anew_and_a_broken_one_is_left_to_the_rank(tmp_path):
    (seen,) = run(edited_files, tmp_path, world_size=1)
    assert seen == [(True, 1), (False, 1), (True, 20), (True, None), (True, 3)]


def loaded_before_it_was_asked_for(group):
    drawing = [name for name in sys.modules if "shardlab.figures" in name]
    return "shardlab.ranks.data_parallel.averaging" in sys.modules, drawing


def test_ranks_find_what_the_launcher_uses_and_nothing_that_draws():
    import shardlab.figures.lines
    import shardlab.ranks.data_parallel.averaging  # noqa: F401

    assert run(loaded_before_it_was_asked_for, world_size=2) == [(True, [])] * 2
    assert "shardlab.ranks.data_parallel.averaging" in in_use()
    assert not any("launch" in name or "figures" in name for name in in_use())
    assert comm.__name__ in in_use()


def threads_of_the_parent(group):
    with open(f"/proc/{os.getppid()}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("Threads:"))


def test_the_helper_stays_single_threaded_whatever_it_imports():
    from shardlab import exercises
    from shardlab.ranks import train  # noqa: F401

    exercises.every()
    assert run(threads_of_the_parent, world_size=1) == [1]
