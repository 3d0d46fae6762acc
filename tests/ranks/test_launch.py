"""The launcher in fair weather, and the matrix of failures.

Each failure ends promptly, names the rank and the line, and leaves nothing behind.
"""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy
import pytest
import torch
import torch.distributed as dist

from shardlab.ranks import comm
from shardlab.ranks.launch import RankError, run
from shardlab.ranks.launch.local import Helper

PROMPTLY = 30.0  # s: far below every time-out, far above what two busy cores need


def rank_of(group):
    return group.rank()


def failure(fn, *args, world_size=4, **options):
    """The report of a run that must fail, promptly, and after which the next run works."""
    begin = time.monotonic()
    with pytest.raises(RankError) as caught:
        run(fn, *args, world_size=world_size, **options)
    assert time.monotonic() - begin < PROMPTLY
    assert run(rank_of, world_size=2) == [0, 1]
    return str(caught.value)


# ---- fair weather --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", [1, 2, 3, 8, 16])
def test_every_rank_answers_in_order(world_size):
    assert run(rank_of, world_size=world_size) == list(range(world_size))


def test_functions_of_a_notebook_cell_work():
    """A cell's functions live in __main__ and refer to each other and to the cell's variables."""
    cell = {"__name__": "__main__", "comm": comm}
    exec("factor = 3\ndef inner(x): return factor * x\ndef outer(group): return inner(group.rank())", cell)
    assert run(cell["outer"], world_size=2) == [0, 3]


def test_arguments_and_results_may_be_large_tensors():
    x = torch.arange(3_000_000.0)
    for y in run(lambda group, x: x + group.rank(), x, world_size=2):
        assert torch.equal(y - y[0], x)


def test_prints_are_labelled_by_rank(capfd):
    def speak(group):
        print("hello from", group.rank())
        print("to the error stream", file=sys.stderr)
        print("no newline", end="")

    run(speak, world_size=2, ordered=True)
    assert capfd.readouterr().out.splitlines() == [
        f"[rank {rank}] {line}"
        for rank in (0, 1)
        for line in (f"hello from {rank}", "to the error stream", "no newline")
    ]


def test_prints_come_while_the_ranks_still_run(capfd):
    seen = []

    def look():
        time.sleep(1.5)
        seen.append(capfd.readouterr().out)

    watcher = threading.Thread(target=look)
    watcher.start()
    run(lambda group: (print("early", flush=True), time.sleep(3)), world_size=1)
    watcher.join()
    assert seen == ["[rank 0] early\n"]


def test_ranks_see_environment_folder_and_path(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_FLAG", "7")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("/nowhere/to/be/found")
    assert run(lambda group: (os.environ["MY_FLAG"], os.getcwd(), sys.path[0]), world_size=2) == [
        ("7", str(tmp_path), "/nowhere/to/be/found")
    ] * 2


def test_ranks_draw_different_random_numbers_unless_they_seed_alike():
    def draw(group, seed):
        if seed is not None:
            torch.manual_seed(seed)
        return torch.rand(1).item(), random.random(), numpy.random.rand()  # noqa: NPY002

    for column in zip(*run(draw, None, world_size=3), *run(draw, None, world_size=3), strict=True):
        assert len(set(column)) == 6
    assert len({drawn[0] for drawn in run(draw, 7, world_size=3)}) == 1


def test_an_edited_module_is_read_anew(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for value in (1, 2):
        (tmp_path / "homework.py").write_text(f"def answer(group): return {value}\n")
        assert run(lambda group: __import__("homework").answer(group), world_size=1) == [value]


def test_run_inside_a_rank_joins_the_ranks_that_are_there():
    assert run(lambda group: run(rank_of, world_size=2), world_size=3) == [[0, 1]] * 3


def test_every_rank_starts_in_a_process_of_its_own():
    assert len(set(run(lambda group: os.getpid(), world_size=4)) | {os.getpid()}) == 5


def test_the_helper_never_computes():
    """Only a process with one thread can be forked safely."""
    run(rank_of, world_size=2)
    assert len(os.listdir(f"/proc/{Helper.current.process.pid}/task")) == 1


def test_nothing_listens_outside_the_loopback_interface():
    def listening(group):
        descriptors = [Path("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd")]
        mine = {os.readlink(fd) for fd in descriptors if fd.is_symlink()}
        tables = [Path("/proc/net", name).read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
        rows = [line.split() for table in tables for line in table]
        return [row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in mine]

    for addresses in run(listening, world_size=3):
        assert set(addresses) == {"0100007F"}


def test_fresh_interpreters_where_fork_is_unwise(monkeypatch):
    """The way of macOS."""
    Helper.drop()
    monkeypatch.setenv("SHARDLAB_FORK", "0")
    try:
        assert run(rank_of, world_size=2) == [0, 1]
        with pytest.raises(RankError, match="rank 1 raised"):
            run(lambda group: 1 / (1 - group.rank()), world_size=2)
    finally:
        Helper.drop()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"world_size": 0}, "at least 1 rank"),
        ({"world_size": 2.5}, "at least 1 rank"),
        ({"world_size": 65}, "at most 64"),
        ({"timeout": 0}, "positive"),
        ({"threads": 0}, "positive"),
    ],
)
def test_bad_options_say_what_would_work(options, words):
    with pytest.raises(ValueError, match=words):
        run(rank_of, **options)


# ---- the matrix of failures ----------------------------------------------------------------------------------------


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


def test_all_ranks_raise_alike_and_the_report_says_it_once():
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


def test_a_rank_leaves_without_a_word():
    assert failure(lambda group: os._exit(5), world_size=1) == "rank 0 died: exit code 5"


def test_a_result_that_cannot_be_sent_back():
    told = failure(lambda group: (x for x in ()), world_size=2)
    assert "returned a generator, which cannot be sent back" in told


def test_arguments_that_cannot_be_sent():
    lock = threading.Lock()
    with pytest.raises(TypeError, match="pickle"):
        run(lambda group: lock, world_size=2)
    assert run(rank_of, world_size=2) == [0, 1]


def test_a_receive_that_nobody_sends():
    def wait_for_ever(group):
        if group.rank() > 0:
            comm.receive(torch.ones(1), group, source=0)

    told = failure(wait_for_ever)
    assert told.startswith("Deadlock")
    assert "rank 0 had finished" in told
    assert "ranks 1, 2 and 3 waited at" in told
    assert "comm.receive(torch.ones(1), group, source=0)" in told


def test_two_ranks_that_both_send_first():
    def cross(group):
        peer = 1 - group.rank()
        comm.send(torch.ones(1 << 22), group, to=peer)
        return comm.receive(torch.ones(1 << 22), group, source=peer)

    assert "comm.send(" in failure(cross, world_size=2)


def test_a_straggler_is_not_a_deadlock():
    def slow(group):
        if group.rank() == 0:
            time.sleep(6)
        comm.barrier(group)
        return group.rank()

    assert run(slow, world_size=3) == [0, 1, 2]


def test_a_rank_that_computes_for_ever_meets_the_time_limit():
    def spin(group):
        while True:
            pass

    told = failure(spin, world_size=1, timeout=3)
    assert "No result after 3 s" in told
    assert "rank 0 waited at" in told


def test_ranks_call_different_collectives():
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


def test_ranks_that_disagree_on_length():
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


def test_ctrl_c_in_the_middle():
    threading.Timer(1.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(lambda group: time.sleep(60), world_size=3)
    assert time.monotonic() - begin < PROMPTLY
    assert run(rank_of, world_size=2) == [0, 1]


HOLDING = {
    "python": "time.sleep(60)",
    "a call that never lets go of the interpreter": "ctypes.PyDLL(None).sleep(60)",
    "a receive": "dist.recv(torch.ones(1), 1 - group.rank())",
}


@pytest.mark.parametrize("holding", HOLDING)
def test_the_notebook_is_killed(tmp_path, holding):
    script = f"""
        import ctypes, os, time, torch, torch.distributed as dist
        from shardlab.ranks.launch import run

        def work(group):
            print(os.getpid(), flush=True)
            {HOLDING[holding]}

        run(work, world_size=2)
        """
    command = [sys.executable, "-u", "-c", textwrap.dedent(script)]
    notebook = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    ranks = [int(notebook.stdout.readline().split()[-1]) for _ in range(2)]
    notebook.kill()
    notebook.wait()
    assert gone(ranks), f"ranks {ranks} outlived their notebook"


def gone(processes):
    deadline = time.monotonic() + PROMPTLY
    while any(os.path.exists(f"/proc/{process}") for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def test_the_helper_is_killed_in_the_middle():
    run(rank_of, world_size=2)
    threading.Timer(1.0, Helper.current.process.kill).start()
    assert "helper process died" in failure(lambda group: time.sleep(60), world_size=2)


def test_the_helper_is_killed_between_two_runs():
    run(rank_of, world_size=2)
    Helper.current.process.kill()
    Helper.current.process.wait()
    assert run(rank_of, world_size=2) == [0, 1]


def test_the_host_name_does_not_resolve():
    own_name = ["unshare", "-Ur", "--uts"]
    if shutil.which("unshare") is None or subprocess.run([*own_name, "true"], capture_output=True).returncode != 0:
        pytest.skip("only a Linux that lets its users unshare can give a process a host name of its own")
    script = "from shardlab.ranks.launch import run; print(run(lambda group: group.size(), world_size=2))"
    command = f"hostname no-such-host-anywhere; {sys.executable} -c '{script}'"
    done = subprocess.run([*own_name, "sh", "-c", command], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[2, 2]\n", done.stderr


def test_two_hundred_runs_leave_nothing_behind(tmp_path, monkeypatch):
    """No process, no descriptor, no file, no shared memory."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    run(rank_of, world_size=2)
    helper = Helper.current.process.pid

    def belongings():
        children = Path(f"/proc/{helper}/task/{helper}/children").read_text().split()
        descriptors = [len(os.listdir(f"/proc/{process}/fd")) for process in ("self", helper)]
        return children, descriptors, os.listdir(tmp_path), set(os.listdir("/dev/shm"))

    before = belongings()
    for _ in range(200):
        run(rank_of, world_size=2)
    assert belongings() == before


# ---- ranks that somebody else started --------------------------------------------------------------------------------

SCRIPT = """
import torch
from shardlab.ranks import comm, launch

def total(group, factor):
    return comm.all_reduce(torch.tensor([factor * (group.rank() + 1.0)]), group).item()

results = [launch.run(total, factor, world_size=size) for size, factor in [(4, 1), (4, 10), (2, 1)]]
try:
    launch.run(total, 1, world_size=5)
except ValueError as error:
    results.append("only 4 ranks were started" in str(error))
print("RESULTS", results, flush=True)
"""
EXPECTED = "RESULTS [[10.0, 10.0, 10.0, 10.0], [100.0, 100.0, 100.0, 100.0], [3.0, 3.0], True]"


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return str(path)


def finish(*commands):
    started = [subprocess.Popen(c, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for c in commands]
    return "".join(process.communicate(timeout=240)[0] for process in started)


def torchrun(*options):
    return [sys.executable, "-m", "torch.distributed.run", *options]


def test_the_same_line_under_torchrun(script):
    told = finish(torchrun("--standalone", "--nproc-per-node=4", script))
    assert told.count(EXPECTED) == 4, told


def test_the_same_line_on_two_nodes(script, monkeypatch):
    """Two nodes of two ranks each, both on the loopback interface."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--local-addr=127.0.0.1"]
    told = finish(*[torchrun("--nnodes=2", "--nproc-per-node=2", *meeting, script) for _ in range(2)])
    assert told.count(EXPECTED) == 4, told


def test_the_same_line_under_mpiexec(script):
    mpiexec = Path(sys.executable).parent / "mpiexec"
    if not mpiexec.exists():
        pytest.skip("mpiexec is not installed beside this Python: pip install mpi4py mpich")
    told = finish([str(mpiexec), "-n", "4", sys.executable, script])
    assert told.count(EXPECTED) == 4, told


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
