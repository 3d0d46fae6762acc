"""How ranks end that torchrun started: what they wrote is there, their handlers ran, and their status is their own."""

import subprocess
import sys

import pytest

PROGRAM = """
import atexit, sys, threading, time
from shardlab import launch

class TakenDown:
    def __del__(self):
        print("the interpreter was taken down\\n", end="", flush=True)

def number(group):
    return group.rank()

atexit.register(print, "registered before")
result = launch.run(number, world_size=2)
atexit.register(print, "registered after")
left = TakenDown()
kept = open(f"{sys.argv[1]}-{result[0]}", "w")  # never closed
kept.write("all of it")
print(f"RESULT {result}\\n", end="")
threading.Thread(target=lambda: (time.sleep(0.3), print("the thread ended"))).start()
"""
ENDINGS = {"normal": "pass", "raise": "raise OSError('of its own')", "exit": "sys.exit(3)"}


@pytest.fixture(scope="module")
def endings(tmp_path_factory):
    """Status and output of a torchrun for each ending, all started at once."""
    folder, started = tmp_path_factory.mktemp("endings"), {}
    for name, last in ENDINGS.items():
        script = folder / f"{name}.py"
        script.write_text(PROGRAM + last + "\n")
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started[name] = subprocess.Popen([*command, str(script.with_suffix(".kept"))], **pipes)
    told = {name: process.communicate(timeout=240)[0] for name, process in started.items()}
    return {name: (process.returncode, told[name], folder) for name, process in started.items()}


def test_a_program_that_returned_is_left_before_the_threads_of_torch_can_abort_it(endings):
    status, told, folder = endings["normal"]
    assert status == 0, told
    assert told.count("RESULT [0, 1]") == 2
    assert "the interpreter was taken down" not in told
    for said in "the thread ended", "registered before", "registered after":
        assert told.count(said) == 2, told
    assert (folder / "normal.kept-0").read_text() == "all of it"


@pytest.mark.parametrize(("name", "cause"), [("raise", "OSError: of its own"), ("exit", "exitcode  : 3")])
def test_a_program_that_failed_keeps_its_status(endings, name, cause):
    status, told, _ = endings[name]
    assert status == 1, told
    assert "FAILED" in told
    assert cause in told
