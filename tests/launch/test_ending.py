"""How ranks end that torchrun started: what they wrote is there, their handlers ran, and their status is their own."""

import os
import sys
from subprocess import PIPE, STDOUT, run

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import atexit, sys, threading, time
from shardlab import launch

class TakenDown:
    def __del__(self):
        print("the interpreter was taken down\\n", end="", flush=True)

def number(group):
    return group.rank()

atexit.register(print, "registered before")
result = launch.run(number, world_size=1)
atexit.register(print, "registered after")
left = TakenDown()
kept = open(sys.argv[1], "w")  # never closed
kept.write("all of it")
print(f"RESULT {result}\\n", end="")
threading.Thread(target=lambda: (time.sleep(0.3), print("the thread ended"))).start()
"""
BY_TORCHRUN = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
BY_TORCHRUN |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}  # any that is free


def ended(folder, last):
    """Status and output of a rank whose program ends in this line."""
    command = [sys.executable, "-c", PROGRAM + last, folder / "kept"]
    done = run(command, env=os.environ | BY_TORCHRUN, text=True, stdout=PIPE, stderr=STDOUT, timeout=240)
    return done.returncode, done.stdout


def test_a_program_that_returned_is_left_before_the_threads_of_torch_can_abort_it(tmp_path):
    status, told = ended(tmp_path, "")
    assert status == 0, told
    assert "the interpreter was taken down" not in told
    for said in "RESULT [0]", "the thread ended", "registered before", "registered after":
        assert told.count(said) == 1, told
    assert (tmp_path / "kept").read_text() == "all of it"


@pytest.mark.parametrize(("last", "code"), [("raise OSError('of its own')", 1), ("sys.exit(3)", 3)])
def test_a_program_that_failed_keeps_its_status(tmp_path, last, code):
    status, told = ended(tmp_path, last)
    assert status == code, told
    assert ("OSError: of its own" in told) == (code == 1)
