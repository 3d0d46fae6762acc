"""Every failure ends promptly, is reported with its rank and line, and leaves nothing behind."""

import asyncio
import ctypes
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from datetime import timedelta
from pathlib import Path

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from shardlab.ranks import comm
from shardlab.ranks.launch import RankError, run, state, watch
from shardlab.ranks.launch.local import Helper
from shardlab.ranks.launch.report import Outcome, report
from shardlab.ranks.observe import ledger

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that no rank need import pytest

PROMPTLY = 30.0  # s: far below every time-out, far above what two busy cores need


@pytest.fixture
def impatient(monkeypatch):
    """Report a deadlock after half a second, not two."""
    monkeypatch.setattr(watch, "TICK", 0.1)


def rank_of(group):
    return group.rank()


def failure(fn, *args, world_size=4, **options):
    """Return the report of a run that must fail promptly and leave the next run working."""
    begin = time.monotonic()
    with pytest.raises(RankError) as caught:
        run(fn, *args, world_size=world_size, **options)
    assert time.monotonic() - begin < PROMPTLY
    assert run(rank_of, world_size=2) == [0, 1]
    return str(caught.value)


def gone(processes):
    """Tell whether all of them end in time."""
    deadline = time.monotonic() + PROMPTLY
    while any(_runs(process) for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _runs(process):
    """Tell whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


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
    assert "ranks/comm.py" not in told
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


def test_arguments_that_cannot_be_sent():
    lock = threading.Lock()
    with pytest.raises(TypeError, match="pickle"):
        run(lambda group: lock, world_size=2)
    assert run(rank_of, world_size=2) == [0, 1]


def test_a_rank_that_closed_its_outputs_can_still_answer():
    def close(group):
        sys.stdout.close()
        sys.stderr = None
        return group.rank()

    assert run(close, world_size=2) == [0, 1]


# ---- culprits and victims -------------------------------------------------------------------------------------------


@pytest.fixture
def patient(monkeypatch):
    """Give all ranks enough time to report; the wait ends when they have."""
    monkeypatch.setattr(watch, "GRACE", PROMPTLY / 2)


def test_an_error_that_mentions_a_connection_is_not_a_lost_connection(patient):
    """Whatever its text and its type: only gloo's own errors tell of a lost peer."""

    def work(group):
        if group.rank() == 0:
            Path("/no/such/folder/Connections.csv").read_text()
        if group.rank() == 1:
            raise RuntimeError("Connection closed by peer")
        raise ValueError("no batch")

    told = failure(work, world_size=3)
    assert "rank 0 raised" in told
    assert "rank 1 raised" in told
    assert "rank 2 raised" in told
    assert "Connections.csv'" in told
    assert "then lost the connection" not in told


def test_a_rank_that_wraps_the_error_of_its_lost_connection_is_not_to_blame(patient):
    def work(group):
        if group.rank() == 0:
            comm.receive(torch.ones(1), group, source=1)
            os._exit(5)
        comm.send(torch.ones(1), group, to=0)
        try:
            comm.barrier(group)
        except RuntimeError as error:
            raise ValueError("training failed") from error

    told = failure(work, world_size=2)
    assert told == "rank 0 died: exit code 5\nrank 1 then lost the connection to a peer."


def test_a_rank_that_gives_up_is_reported_and_those_it_leaves_are_not(monkeypatch):
    """Rank 0 asks all ranks to report within a second, and says who did not."""
    monkeypatch.setattr(watch, "GRACE", 3.0)

    def roll_call(group):
        if group.rank() != 1:
            dist.monitored_barrier(group, timeout=timedelta(seconds=1))
        threading.Event().wait(60)

    told = failure(roll_call, timeout=60)
    assert told.startswith("rank 0 raised")
    assert "Rank 1 failed to pass monitoredBarrier" in told
    assert "ranks 2 and 3 then lost the connection to a peer." in told


def test_ranks_that_wait_at_the_time_limit_are_not_blamed(monkeypatch):
    """Rank 2 holds the interpreter and cannot answer; nobody gives up while the launcher waits for its answer."""
    monkeypatch.setattr(watch, "PATIENCE", 2.0)

    def work(group):
        if group.rank() == 2:
            ctypes.PyDLL(None).sleep(60)
        comm.barrier(group)

    told = failure(work, world_size=3, timeout=1.5)
    assert told.startswith("No result after 1.5 s.\nrank 2 did not answer")
    assert "ranks 0 and 1 waited at" in told
    assert "raised" not in told


def test_all_lost_peers_are_reported_when_nothing_else_went_wrong():
    lost = state.Failure([], "RuntimeError: [gloo/transport/tcp/pair.cc:1] closed", lost_peer=True)
    assert report(Outcome(failed={0: [lost], 1: [lost]})).startswith("ranks 0 and 1 raised")


def failed_chain(raise_it):
    try:
        raise_it()
    except BaseException as error:
        return state.chain(error)


def test_a_lost_peer_is_told_by_the_type_and_the_source_of_the_error():
    gloo = "[/pytorch/third_party/gloo/gloo/transport/tcp/"
    text = f"{gloo}pair.cc:553] Connection closed by peer [127.0.0.1]:9"
    late = f"{gloo}unbound_buffer.cc:78] Timed out waiting 1000ms for recv operation to complete"

    def throw(error):
        raise error

    assert [each.lost_peer for each in failed_chain(lambda: throw(RuntimeError(text)))] == [True]
    assert [each.lost_peer for each in failed_chain(lambda: throw(RuntimeError(late)))] == [False]
    assert [each.lost_peer for each in failed_chain(lambda: throw(OSError(text)))] == [False]
    assert [each.lost_peer for each in failed_chain(lambda: throw(RuntimeError("Connection lost")))] == [False]


# ---- ranks that wait ------------------------------------------------------------------------------------------------


def test_a_receive_without_a_send():
    def wait_for_ever(group):
        if group.rank() > 0:
            comm.receive(torch.ones(1), group, source=0)

    told = failure(wait_for_ever)
    assert told.startswith("Deadlock")
    assert "rank 0 had finished" in told
    assert "ranks 1, 2 and 3 waited at" in told
    assert "comm.receive(torch.ones(1), group, source=0)" in told


def test_two_ranks_that_both_send_first(impatient):
    def cross(group):
        peer = 1 - group.rank()
        comm.send(torch.ones(1 << 22), group, to=peer)
        return comm.receive(torch.ones(1 << 22), group, source=peer)

    assert "comm.send(" in failure(cross, world_size=2)


def child_that_answers_late():
    context = multiprocessing.get_context("fork")
    event = context.Event()
    context.Process(target=lambda: (time.sleep(0.5), event.set())).start()
    event.wait()


def thread_that_ends_late():
    thread = threading.Thread(target=time.sleep, args=(0.5,))
    thread.start()
    thread.join()


def compute():
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        pass


WAITING = {
    "a clock": lambda: time.sleep(0.5),
    "an event with a time-out": lambda: threading.Event().wait(0.5),
    "asyncio": lambda: asyncio.run(asyncio.sleep(0.5)),
    "a program": lambda: subprocess.run(["sleep", "0.5"], capture_output=True),
    "a child": child_that_answers_late,
    "a thread": thread_that_ends_late,
    "the interpreter, to compute": compute,
}


@pytest.mark.parametrize("waiting_for", WAITING)
def test_a_rank_that_waits_for_something_else_is_not_in_a_deadlock(waiting_for, monkeypatch):
    monkeypatch.setattr(watch, "TICK", 0.05)
    run(lambda group: WAITING[waiting_for](), world_size=1)


def test_a_main_thread_that_ran_has_moved():
    """However little: other processes of a busy machine may have left it next to no time."""
    look = state.Signs(switches=5, used=1.0, clock=10.0)
    assert state.Signs(switches=5, used=1.001, clock=10.5).unmoved_since(look)
    assert not state.Signs(switches=6, used=1.001, clock=10.5).unmoved_since(look)
    assert not state.Signs(switches=5, used=1.4, clock=10.5).unmoved_since(look)


def test_a_straggler_is_not_a_deadlock(impatient):
    def slow(group):
        if group.rank() == 0:
            threading.Event().wait(1.5)
        comm.barrier(group)
        return group.rank()

    assert run(slow, world_size=3) == [0, 1, 2]


def test_a_rank_that_computes_for_ever_meets_the_time_limit():
    def spin(group):
        while True:
            pass

    told = failure(spin, world_size=1, timeout=1)
    assert "No result after 1 s" in told
    assert "rank 0 waited at" in told


def test_a_rank_that_answers_no_question(monkeypatch):
    """A call into C never yields the interpreter; unread questions would fill the channel and block the launcher."""
    monkeypatch.setattr(watch, "TICK", 0.001)
    monkeypatch.setattr(watch, "PATIENCE", 0.5)
    told = failure(lambda group: ctypes.PyDLL(None).sleep(60), world_size=2, timeout=1.5)
    assert "No result after 1.5 s" in told
    assert "ranks 0 and 1 did not answer" in told


def test_torch_waits_longer_than_the_run():
    """By itself torch gives up after half an hour, also in a run that was given hours."""

    def limit(group):
        return group._get_backend(torch.device("cpu")).options._timeout.total_seconds()

    assert run(limit, world_size=1, timeout=7200)[0] > 7200


def test_no_deadlock_is_seen_where_threads_cannot_be(monkeypatch):
    def hidden(*_):
        raise FileNotFoundError

    monkeypatch.setattr(os, "listdir", hidden)
    assert state.signs(finished=False) is None


# ---- collectives that do not match -----------------------------------------------------------------------------------


def test_ranks_call_different_collectives(impatient):
    def differ(group):
        if group.rank() == 0:
            comm.all_reduce(torch.ones(4), group)
        else:
            comm.broadcast(torch.ones(4), group)

    told = failure(differ)
    assert "disagree about collective number 1" in told
    assert "rank 0: all_reduce(Float[4])" in told
    assert "comm.all_reduce(torch.ones(4), group)" in told
    assert "ranks 1, 2 and 3: broadcast(Float[4])" in told


def test_different_collectives_that_happen_to_finish_are_reported_too():
    """Two all-reduces in crossed order mix their tensors silently: right shapes, wrong sums."""

    def crossed(group):
        gradient, loss = torch.ones(4), torch.zeros(2, 2)
        for each in (gradient, loss) if group.rank() == 0 else (loss, gradient):
            comm.all_reduce(each, group)
        return "no rank noticed"

    told = failure(crossed, world_size=2)
    assert "rank 0: all_reduce(Float[4])" in told
    assert "rank 1: all_reduce(Float[2, 2])" in told


def test_ranks_that_disagree_on_length(impatient):
    told = failure(lambda group: comm.all_reduce(torch.ones(group.rank() + 1), group), world_size=2)
    assert "Float[1]" in told
    assert "Float[2]" in told


def test_unequal_shares_are_not_a_mismatch():
    def gather(group):
        sizes = [1, 2]
        mine, all_of_them = torch.ones(sizes[group.rank()]), torch.empty(sum(sizes))
        dist.all_to_all_single(
            torch.empty(2 * sizes[group.rank()]), torch.ones(3), [sizes[group.rank()]] * 2, sizes, group=group
        )
        return mine.sum().item() + all_of_them.numel()

    assert run(gather, world_size=2) == [4.0, 5.0]


# ---- Ctrl-C ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def terminal():
    """Let Ctrl-C reach this process, even if a script has started it in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt(*delays):
    for delay in delays:
        threading.Timer(delay, lambda: os.kill(os.getpid(), signal.SIGINT)).start()


def test_ctrl_c_in_the_middle(terminal, capfd):
    interrupt(0.7)
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(lambda group: (print("so far"), time.sleep(60)), world_size=2, ordered=True)
    assert time.monotonic() - begin < PROMPTLY
    assert capfd.readouterr().out == "[rank 0] so far\n[rank 1] so far\n"
    assert run(rank_of, world_size=2) == [0, 1]


def test_ctrl_c_while_the_helper_starts(terminal):
    Helper.drop()
    interrupt(0.2)
    with pytest.raises(KeyboardInterrupt):
        run(lambda group: time.sleep(60), world_size=3)
    assert run(rank_of, world_size=2) == [0, 1]


def test_ctrl_c_at_any_moment_leaves_nothing_behind(terminal, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run(rank_of, world_size=2)
    before = len(os.listdir("/proc/self/fd"))

    def run_until_interrupted(delay):
        interrupt(delay)
        run(rank_of, world_size=2)
        time.sleep(60)

    for number in range(6):
        with pytest.raises(KeyboardInterrupt):
            run_until_interrupted(0.01 * number)
    assert run(rank_of, world_size=2) == [0, 1]
    helper = Helper.current.process.pid
    assert Path(f"/proc/{helper}/task/{helper}/children").read_text() == ""
    assert (len(os.listdir("/proc/self/fd")), os.listdir(tmp_path)) == (before, [])


# ---- the launcher and its helper -------------------------------------------------------------------------------------


def test_the_notebook_is_killed():
    """One rank sleeps, one is in a call that never yields the interpreter, and one waits for a message."""
    script = """
        import ctypes, os, time, torch, torch.distributed as dist
        from shardlab.ranks.launch import run

        def work(group):
            print(os.getpid(), flush=True)
            [time.sleep, ctypes.PyDLL(None).sleep, lambda _: dist.recv(torch.ones(1), 1)][group.rank()](60)

        run(work, world_size=3)
        """
    command = [sys.executable, "-u", "-c", textwrap.dedent(script)]
    notebook = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    ranks = [int(notebook.stdout.readline().split()[-1]) for _ in range(3)]
    notebook.kill()
    notebook.wait()
    assert gone(ranks), f"ranks {ranks} outlived their notebook"


def test_the_notebook_is_killed_while_the_helper_starts():
    """A child of the notebook keeps the channel to the helper open."""
    script = """
        import os, time
        from shardlab.ranks import launch

        launch.warm()
        child = os.fork()
        if child:
            print(child, launch.Helper.current.process.pid, flush=True)
        else:
            time.sleep(60)
        os._exit(0)
        """
    notebook = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    child, helper = map(int, notebook.stdout.readline().split())
    notebook.wait()
    try:
        assert gone([helper])
    finally:
        os.kill(child, signal.SIGKILL)


def test_the_helper_is_killed_in_the_middle():
    run(rank_of, world_size=2)
    threading.Timer(0.3, Helper.current.process.kill).start()
    assert "helper process died" in failure(lambda group: time.sleep(60), world_size=2)


def test_the_helper_is_killed_between_two_runs():
    run(rank_of, world_size=2)
    Helper.current.process.kill()
    Helper.current.process.wait()
    assert run(rank_of, world_size=2) == [0, 1]


def test_the_helper_is_killed_just_before_a_run(monkeypatch):
    run(rank_of, world_size=2)
    Helper.current.process.kill()
    Helper.current.process.wait()
    monkeypatch.setattr(Helper.current.process, "poll", lambda: None)  # the launcher has just looked
    assert "helper process died" in failure(rank_of, world_size=2)


def test_a_launcher_that_ignores_its_children():
    """A server may ignore SIGCHLD, and a program that it starts inherits that."""
    Helper.drop()
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert run(rank_of, world_size=2) == [0, 1]
        helper = Helper.current.process.pid
        assert failure(lambda group: os._exit(5), world_size=1) == "rank 0 died: exit code 5"
        assert Helper.current.process.pid == helper
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_too_few_descriptors():
    before = len(os.listdir("/proc/self/fd"))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 20, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            run(rank_of, world_size=16)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert len(os.listdir("/proc/self/fd")) == before
    assert run(rank_of, world_size=2) == [0, 1]


def test_the_host_name_does_not_resolve():
    own_name = ["unshare", "-Ur", "--uts"]
    if shutil.which("unshare") is None or subprocess.run([*own_name, "true"], capture_output=True).returncode != 0:
        pytest.skip("only a Linux that lets its users unshare can give a process a host name of its own")
    script = "from shardlab.ranks.launch import run; print(run(lambda group: group.size(), world_size=2))"
    command = f"hostname no-such-host-anywhere; {sys.executable} -c '{script}'"
    done = subprocess.run([*own_name, "sh", "-c", command], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[2, 2]\n", done.stderr
