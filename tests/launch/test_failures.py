"""A rank that raises, dies or returns what cannot travel is reported with its line, and leaves nothing behind."""

import multiprocessing
import os
import shutil
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import cloudpickle
import pytest
import torch

from shardlab import comm
from shardlab.launch import RankError, run
from shardlab.launch.local import Helper
from shardlab.ranks.observe import ledger
from tests.launch.failing import PROMPTLY, failure, gone, rank_of

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that no rank need import pytest


# ---- a rank raises, dies, or returns what cannot travel -------------------------------------------------------------


def test_a_rank_raises():
    def train(group):
        if group.rank() == 1:
            try:
                {}["missing"]
            except KeyError as error:
                raise ValueError("kaput") from error
        comm.barrier(group)

    told = failure(train)
    assert told.startswith("rank 1 raised")
    assert "KeyError: 'missing'" in told
    assert "ValueError: kaput" in told
    assert 'raise ValueError("kaput") from error' in told
    assert "ranks 0, 2 and 3 waited at" in told
    assert "comm.barrier(group)" in told


def test_the_users_line_is_shown_and_not_that_of_the_ledger_or_of_comm():
    def work(group):
        with ledger.Ledger():
            if group.rank():
                comm.broadcast(torch.zeros(1), group, source=5)
            torch.zeros(2) @ torch.zeros(3)

    told = failure(work, world_size=2)
    assert "torch.zeros(2) @ torch.zeros(3)" in told
    assert "comm.broadcast(torch.zeros(1), group, source=5)" in told
    assert "comm.py" not in told
    assert "ledger.py" not in told


def test_an_error_of_all_ranks_is_reported_once():
    told = failure(lambda group: [][7])
    assert told.startswith("ranks 0, 1, 2 and 3 raised")
    assert told.count("IndexError") == 1


def test_a_class_of_exception_that_cannot_travel():
    class OddError(Exception):
        def __init__(self, first, second):
            super().__init__(first, second)

    def fail(group):
        raise OddError("text", lambda: 2)

    assert "OddError" in failure(fail, world_size=2)


def test_an_exception_that_is_its_own_cause():
    def fail(group):
        try:
            raise ValueError("round and round")
        except ValueError as error:
            raise error from error

    assert failure(fail, world_size=1).count("ValueError") == 2  # the line of source, and the exception


def test_a_report_stays_readable():
    """However deep the recursion, however long the message."""

    def fall(group, depth=0):
        return fall(group, depth + 1)

    def shout(group):
        raise ValueError("no " * 10_000_000)

    told = failure(fall, world_size=1)
    assert "RecursionError" in told
    assert "more ..." in told
    assert len(told.splitlines()) < 60
    told = failure(shout, world_size=1)
    assert "30000011 characters" in told
    assert len(told) < 20_000


def test_code_from_a_string_has_lines_too():
    """For example that of `python -c`."""
    script = {"__name__": "__main__"}
    exec(compile("def fail(group):\n    return 1 / 0", "<string>", "exec"), script)
    assert 'File "<string>", line 2, in fail' in failure(script["fail"], world_size=1)


def test_a_folder_of_the_user_may_be_called_torch(tmp_path, monkeypatch):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "homework.py").write_text("def fail():\n    return 1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path / "torch"))
    told = failure(lambda group: __import__("homework").fail(), world_size=1)
    assert told.count("return 1 / 0") == 1
    assert "<lambda>" in told


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV"])
def test_a_rank_is_killed(name):
    def die(group):
        if group.rank() == 2:
            os.kill(os.getpid(), getattr(signal, name))
        comm.barrier(group)

    told = failure(die)
    assert told.startswith(f"rank 2 died: {name}")
    assert "raised" not in told  # the others' lost connections are a consequence


def test_a_rank_exits():
    def leave(group):
        if group.rank() == 2:
            sys.exit(3)
        comm.barrier(group)

    told = failure(leave)
    assert "rank 2 raised" in told
    assert "sys.exit(3)" in told
    assert "SystemExit: 3" in told


def test_a_rank_exits_without_an_exception():
    assert failure(lambda group: os._exit(5), world_size=1) == "rank 0 died: exit code 5"


def test_a_rank_that_hung_up_was_not_killed_from_outside():
    """It runs on, until the helper ends it; so would one that closed our descriptors."""

    def hang_up(group):
        for each in os.listdir("/proc/self/fd"):
            with suppress(OSError), socket.fromfd(int(each), socket.AF_UNIX, socket.SOCK_STREAM) as copy:
                if copy.family == socket.AF_UNIX and copy.getpeername() == "":
                    copy.shutdown(socket.SHUT_WR)
        time.sleep(60)

    assert failure(hang_up, world_size=1).startswith("rank 0 hung up: its connection closed while it ran")


def test_an_exception_whose_text_does_not_end(impatient):
    class Stuck(Exception):
        def __str__(self):
            threading.Event().wait()

    def fail(group):
        if group.rank() == 0:
            raise Stuck
        comm.barrier(group)

    told = failure(fail, world_size=2)
    assert "\nrank 0 raised Stuck, whose text does not end, and waited at" in told
    assert "had finished" not in told


def started_by(rank, leave, folder):
    """Return a function in which one rank starts processes in several ways, notes their numbers, and exits."""

    def start(group):
        if group.rank() == rank:
            os.system(f"sleep 60 & echo $! > {folder}/shell")
            forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,), daemon=True)
            forked.start()
            Path(folder, "forked").write_text(str(forked.pid))
            leave()
        comm.barrier(group)

    return start


@pytest.mark.parametrize("leave", [lambda: None, lambda: os._exit(5), lambda: os.kill(os.getpid(), signal.SIGKILL)])
def test_processes_that_a_rank_has_started_end_with_it(leave, tmp_path):
    """Nor do these processes keep the launcher from noticing the rank's end, or the run from ending."""
    begin = time.monotonic()
    try:
        run(started_by(1, leave, str(tmp_path)), world_size=2)
    except RankError as error:
        assert str(error).startswith("rank 1 died")  # noqa: PT017 (one of the three does not raise)
    assert time.monotonic() - begin < PROMPTLY
    assert gone([int(Path(tmp_path, name).read_text()) for name in ("shell", "forked")])


def test_a_result_that_cannot_be_sent_back():
    told = failure(lambda group: (x for x in ()), world_size=2)
    assert "returned a generator, which cannot be sent back" in told


def test_variables_and_arguments_that_cannot_be_copied_are_named():
    my_lock, fine = threading.Lock(), 7
    with pytest.raises(TypeError, match=r"^my_lock cannot be copied to the ranks .* make it inside the function"):
        run(lambda group: (my_lock, fine), world_size=2)
    with pytest.raises(TypeError, match=r"^args\[1\] cannot be copied to the ranks"):
        run(rank_of, fine, threading.Lock(), world_size=2)
    assert run(rank_of, world_size=2) == [0, 1]


def test_a_fork_that_leaves_the_function_does_so_quietly(capfd):
    """The child of a rank returns, raises, or exits where only the rank should."""

    def fork(group, leave):
        if os.fork() == 0:
            leave()
        else:
            os.wait()
        return group.rank()

    for leave in (lambda: None, lambda: sys.exit(3)):
        assert run(fork, leave, world_size=2) == [0, 1]
        assert capfd.readouterr().out == ""
    assert run(fork, lambda: 1 / 0, world_size=1) == [0]
    assert capfd.readouterr().out.splitlines()[-1] == "[rank 0] ZeroDivisionError: division by zero"


def test_a_breakpoint_says_what_to_do():
    told = failure(lambda group: breakpoint(), world_size=2)
    assert "breakpoint() needs a keyboard, which a rank does not have" in told


def test_a_folder_that_has_been_deleted(tmp_path, monkeypatch):
    gone_soon = tmp_path / "gone"
    gone_soon.mkdir()
    monkeypatch.chdir(gone_soon)
    gone_soon.rmdir()
    with pytest.raises(ValueError, match="the current folder has been deleted; change to another one"):
        run(rank_of, world_size=2)


@pytest.mark.parametrize("then", [lambda group: comm.split(group, 1), lambda group: comm.send(torch.ones(1), group, 1)])
def test_the_folder_in_which_ranks_meet_has_been_deleted(then, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def work(group):
        comm.barrier(group)
        if group.rank() == 0:
            shutil.rmtree(next(tmp_path.glob("shardlab-*")))
            then(group)

    told = failure(work, world_size=2)
    assert told.startswith("rank 0 raised")
    assert "FileNotFoundError: " in told


def test_a_wrong_level_of_debugging_is_the_ranks_error(monkeypatch):
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "MUCH")
    Helper.drop()
    with pytest.raises(RankError, match="TORCH_DISTRIBUTED_DEBUG"):
        run(rank_of, world_size=2)


def test_a_run_in_a_signals_handler_is_refused():
    said = []

    def handler(*_):
        try:
            run(rank_of, world_size=2)
        except RuntimeError as error:
            said.append(str(error))

    before = signal.signal(signal.SIGALRM, handler)
    try:
        run(rank_of, world_size=2)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        assert run(lambda group: time.sleep(1) or group.rank(), world_size=2) == [0, 1]
    finally:
        signal.signal(signal.SIGALRM, before)
    assert said == [
        "this process is in a run already; start another one when it is over, and not in the handler of a signal"
    ]


def test_a_rank_that_closed_its_outputs_can_still_answer():
    def close(group):
        sys.stdout.close()
        sys.stderr = None
        return group.rank()

    assert run(close, world_size=2) == [0, 1]
