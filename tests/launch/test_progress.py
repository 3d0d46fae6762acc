"""The progress line of a terminal; that of a live notebook is tested in test_run.py."""

import io
import re
import sys
import time

import pytest

from shardlab.launch import RankError, progress, run, watch


class Terminal(io.StringIO):
    """A terminal that keeps all that was written to it."""

    def isatty(self):
        return True


@pytest.fixture
def look(monkeypatch):
    """Return a function that connects this process to a terminal, where progress appears at once."""
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(watch, "TICK", 0.05)

    def open_terminal():  # in the test itself: pytest sets its own streams when a test begins
        screen = Terminal()
        for stream in ("stdout", "stderr"):
            monkeypatch.setattr(sys, stream, screen)
        return screen

    return open_terminal


def test_the_line_tells_the_state_makes_room_for_prints_and_goes(look):
    terminal = look()

    def work(group):
        time.sleep(0.3)
        print("result")
        time.sleep(0.3)

    run(work, world_size=1)
    lines = re.sub(r"\d+ s", "n s", terminal.getvalue()).split(progress.WIPE)
    assert lines[0] == lines[-1] == ""
    assert set(lines) - {"", "1 rank starting (torch is being imported): n s"} == {
        "1 rank at work: n s",
        "[rank 0] result\n",  # on a line of its own, and the next one starts after it
    }


def test_the_line_goes_when_a_run_fails(look):
    terminal = look()
    with pytest.raises(RankError):
        run(lambda group: (time.sleep(0.3), 1 / 0), world_size=2)
    assert "2 ranks at work" in terminal.getvalue()
    assert terminal.getvalue().endswith(progress.WIPE)


def test_ranks_are_starting_until_all_of_them_are_at_work(look):
    terminal = look()
    line = progress.Progress()
    line.show(False, 2)
    assert terminal.getvalue() == f"{progress.WIPE}2 ranks starting (torch is being imported): 0 s"


def test_a_short_run_shows_nothing(look, monkeypatch):
    terminal = look()
    monkeypatch.setattr(progress, "PATIENCE", 60.0)
    run(lambda group: time.sleep(0.2), world_size=1)
    assert terminal.getvalue() == ""


def test_without_a_terminal_nothing_is_shown(look, monkeypatch):
    terminal = look()
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    run(lambda group: time.sleep(0.2), world_size=1)
    assert sys.stderr.getvalue() == terminal.getvalue() == ""
