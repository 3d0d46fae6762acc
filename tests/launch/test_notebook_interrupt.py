"""Interrupting a run in a notebook: a few lines say where each rank was, no rank is left, and the next run is warm."""

import re
import time
from pathlib import Path

import pytest
from jupyter_client.manager import start_new_kernel

from shardlab.launch import state
from shardlab.launch.report import PACKAGE, interruption
from tests.patience import PATIENCE, until

pytestmark = pytest.mark.slow

CELL = """
import os, time
from shardlab import comm, launch
from shardlab.ranks import data_parallel

def train(group, folder):
    open(f"{folder}/{os.getpid()}", "w").close()
    if group.rank() == 0:
        while True:
            time.sleep(0.1)
    if group.rank() == 3:
        return
    comm.barrier(group)

launch.run(train, FOLDER)
"""


@pytest.fixture(scope="module")
def kernel():
    """Runs a cell in a real kernel and returns the messages of its outputs; `during` is called when a file says so."""
    manager, client = start_new_kernel(startup_timeout=PATIENCE)

    def execute(code, during=lambda: None):
        asked = client.execute(code)
        during()
        outputs = []
        while True:
            message = client.get_iopub_msg(timeout=PATIENCE)
            if message["parent_header"].get("msg_id") == asked:
                if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                    return outputs
                outputs.append((message["msg_type"], message["content"]))

    execute.interrupt = manager.interrupt_kernel
    yield execute
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def runs(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_an_interrupted_cell_says_in_a_few_lines_what_each_rank_did(kernel, tmp_path):
    def interrupt():
        assert until(lambda: len([*tmp_path.iterdir()]) == 4)
        time.sleep(1)  # rank 3 has returned, the others are where they stay
        kernel.interrupt()

    outputs = kernel(CELL.replace("FOLDER", repr(str(tmp_path))), interrupt)
    ((_, error),) = [output for output in outputs if output[0] == "error"]
    assert error["ename"] == "Interrupted"
    lines = "\n".join(error["traceback"]).splitlines()
    assert len(lines) <= 8
    assert lines[0] == "KeyboardInterrupt: the run has ended, and its ranks with it. They were here:"
    assert re.fullmatch(r"  rank 0: at Cell In\[\d+\], line 9: time\.sleep\(0\.1\)", lines[1])
    assert re.fullmatch(r"  ranks 1 and 2: at Cell In\[\d+\], line 12: comm\.barrier\(group\)", lines[2])
    assert lines[3:] == ["  rank 3: finished"]
    assert until(lambda: not any(runs(path.name) for path in tmp_path.iterdir()))


def test_the_next_run_finds_the_same_helper(kernel, tmp_path):
    helper = "from shardlab.launch.local import Helper; print(Helper.current.process.pid)"
    kernel("from shardlab import launch; launch.run(lambda group: 0)")
    before = kernel(helper)

    def interrupt():
        assert until(lambda: [*tmp_path.iterdir()])
        kernel.interrupt()

    kernel(CELL.replace("FOLDER", repr(str(tmp_path))), interrupt)
    after = kernel(f"assert launch.run(lambda group: group.rank()) == [0, 1, 2, 3]; {helper}")
    (old,), (new,) = ([content["text"] for kind, content in each if kind == "stream"] for each in (before, after))
    assert new == old


def test_many_ranks_in_many_places_are_told_in_eight_lines():
    places = {rank: state.Whereabouts(False, [(__file__, rank + 1, "f")], [], [], "") for rank in range(64)}
    lines = interruption({**places, 64: None}).splitlines()
    assert len(lines) <= 8
    assert lines[-1] == "  and 60 more ranks elsewhere"
    assert "no answer" in interruption({0: None})


def test_the_reader_s_own_line_stands_first_and_that_of_the_package_in_brackets():
    module = str(PACKAGE / "ranks" / "buckets.py")
    where = state.Whereabouts(False, [(__file__, 1, "train"), (module, 7, "flush")], [], [], "")
    told = interruption({2: where})
    assert told.endswith(' (in File "shardlab/ranks/buckets.py", line 7)')
    assert f'rank 2: at File "{__file__}", line 1: """Interrupting' in told
