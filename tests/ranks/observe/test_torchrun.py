"""A message finds the wrong starts that it may be of, and what became of a run is a table."""

import re
from pathlib import Path

import pytest

from shardlab.files import measured
from shardlab.ranks.observe import torchrun

ROWS = measured.results("starts")["rows"]
STARTS = {row["name"]: row for row in ROWS if row["cause"].partition(":")[0] != "nothing is wrong"}


def told(agent):
    return "\n".join(agent["said"])


MESSAGES = [(name, told(agent)) for name, row in STARTS.items() for agent in row["agents"] or ()]


@pytest.mark.parametrize(("name", "message"), MESSAGES)
def test_a_recorded_message_finds_its_cause(name, message):
    assert name in [start["name"] for start in torchrun.cause(message)]


@pytest.mark.parametrize("name", STARTS)
def test_the_phrases_of_a_row_are_what_was_said(name):
    messages = [told(agent) for agent in STARTS[name]["agents"]]
    for phrase in STARTS[name]["phrases"]:
        assert any(re.search(phrase, message) for message in messages)


@pytest.mark.parametrize("name", STARTS)
def test_a_phrase_of_one_row_alone_puts_it_first(name):
    shared = [phrase for start in STARTS.values() for phrase in set(start["phrases"])]
    messages = [told(agent) for agent in STARTS[name]["agents"]]
    for message in messages:
        unique = [each for each in STARTS[name]["phrases"] if shared.count(each) == 1 and re.search(each, message)]
        if unique:
            assert torchrun.cause(message)[0]["name"] == name


def test_a_message_of_something_else_has_no_cause_here():
    assert torchrun.cause("CUDA out of memory") == []


def test_what_is_said_has_no_frames_stamps_or_farewell():
    message = """[W1126 18:02:20.849348974 TCPStore.cpp:340] [c10d] retrying
frame #0: c10::Error
[rank0]: Traceback (most recent call last):
[rank0]:   File "train.py", line 7, in <module>
[rank0]: RuntimeError: Timed out
E1126 18:06:50.962000 30797 torch/agent.py:1002] failed (exitcode: 1)
W1126 18:04:41.580000 27809 torch/api.py:753] Received 15 death signal, shutting down workers
[rank0]: RuntimeError: Timed out"""
    assert torchrun.said(message) == [
        "TCPStore.cpp:340] [c10d] retrying",
        "RuntimeError: Timed out",
        "torch/agent.py:1002] failed (exitcode: 1)",
    ]


# ---- how runs end ----


def test_what_a_run_showed_as_a_table():
    rows = {row["name"]: row["runs"][0]["lives"] for row in measured.results("endings")["rows"]}
    found = rows["rank killed, no restarts"]
    header, *shown = torchrun.processes(found)
    assert header[0] == "process"
    assert [row[0] for row in shown] == sorted(life["who"] for life in found)
    assert shown[3] == ["rank 1", "before", "0", "0.2 s", "exit code -9"]
    assert torchrun.summary(["rank 1"], found) == ["0", "rank 0, 0.2 s", "nobody"]
    assert torchrun.summary(["agent 1"], rows["agent killed"]) == ["245", "nobody", "agent 0, rank 0, rank 1"]


# ---- on the page ---------------------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[3] / "book" / "operations.md").read_text()
TABLE = re.findall(r"^\| `([^`]+)` \|", PAGE, re.MULTILINE)


@pytest.mark.parametrize("message", TABLE)
def test_a_message_of_the_pages_table_was_said(message):
    pattern = ".*".join(map(re.escape, message.split(" … ")))
    assert any(re.search(pattern, told(agent)) for row in ROWS for agent in row["agents"] or ())


def test_the_page_counts_rivals():
    (message,) = re.findall(r'^message = "(.*)"$', PAGE, re.MULTILINE)
    assert (len(torchrun.cause(message)), len(TABLE)) == (4, 12)
    assert "Four recorded causes give this message" in PAGE
