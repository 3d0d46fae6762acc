"""Ctrl-C, a killed notebook and a lost helper end every process, and the next run works."""

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress
from pathlib import Path

import cloudpickle
import pytest

from shardlab import comm
from shardlab.launch import RankError, local, run
from shardlab.launch.local import Helper
from tests.launch.failing import LIGHT, PROMPTLY, failure, gone, rank_of
from tests.patience import kills, until

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that no rank need import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True, scope="module")
def light_helpers():
    """Most tests of this file lose their helper, and the next one waits for a new one."""
    start = local.start_python
    exec(LIGHT, {})
    yield
    local.start_python = start
    Helper.drop()


# ---- Ctrl-C ----------------------------------------------------------------------------------------------------------


def interrupt(*delays):
    for delay in delays:
        threading.Timer(delay, lambda: os.kill(os.getpid(), signal.SIGINT)).start()


def test_ctrl_c_in_the_middle(terminal, capfd):
    def work(group, launcher):
        print("so far", flush=True)
        comm.barrier(group)
        if group.rank() == 0:
            os.kill(launcher, signal.SIGINT)
        time.sleep(60)

    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(work, os.getpid(), world_size=2, ordered=True)
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
    assert until(lambda: Path(f"/proc/{helper}/task/{helper}/children").read_text() == "")
    assert until(lambda: len(os.listdir("/proc/self/fd")) <= before)
    assert until(lambda: os.listdir(tmp_path) == [])


# ---- the launcher and its helper -------------------------------------------------------------------------------------


LIFE = 4.0  # s in which a notebook starts a helper, and the helper its ranks


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found through /proc")
def test_the_notebook_is_killed(tmp_path):
    """One rank sleeps, one is in a call that never yields the interpreter, and one waits for a message.

    All further kills come at any moment: before there is a helper, while it imports, while ranks start, and at work.
    """
    script = """
        import ctypes, os, time, torch, torch.distributed as dist
        from shardlab.launch import RankError, local, run

        def work(group):
            print("at work", flush=True)
            [time.sleep, ctypes.PyDLL(None).sleep, lambda _: dist.recv(torch.ones(1), 1)][group.rank()](60)

        run(work, world_size=3)
        """
    command = [sys.executable, "-u", "-c", LIGHT + textwrap.dedent(script)]
    ours, drawn = {**os.environ, "TMPDIR": str(tmp_path)}, random.Random(0)
    for number in range(kills(1)):
        notebook = subprocess.Popen(command, stdout=subprocess.PIPE, env=ours)
        if number:
            time.sleep(drawn.uniform(0, LIFE))
        else:
            assert [notebook.stdout.readline()[-8:] for _ in range(3)] == [b"at work\n"] * 3
            assert len(started_in(tmp_path)) == 1 + 1 + 3
        notebook.kill()
        notebook.wait()
        assert until(lambda: not started_in(tmp_path), PROMPTLY), f"kill {number} left {started_in(tmp_path)}"


def started_in(folder):
    """List the processes whose temporary files were to lie in the folder when they began."""
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            found += [file.parent.name] * (f"TMPDIR={folder}\0".encode() in file.read_bytes())
    return found


def test_the_notebook_is_killed_while_the_helper_starts(tmp_path):
    """A child of the notebook keeps the channel to the helper open, and one import of the helper takes for ever."""
    (tmp_path / "safetensors.py").write_text("import time\ntime.sleep(1e6)\n")
    script = """
        import os, sys, time
        from shardlab import launch

        sys.path.insert(0, sys.argv[1])
        launch.warm()
        child = os.fork()
        if child:
            print(child, launch.Helper.current.process.pid, flush=True)
        else:
            time.sleep(60)
        os._exit(0)
        """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    notebook = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
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


@pytest.mark.parametrize("protected", ["ignored", "blocked"])
def test_a_launcher_that_is_protected_from_an_end(protected, tmp_path):
    """A program that it starts inherits that, and processes of ranks would outlive their run."""

    def leave(group, file):
        Path(file).write_text(str(subprocess.Popen(["sleep", "60"]).pid))

    Helper.drop()
    handler = signal.signal(signal.SIGTERM, signal.SIG_IGN if protected == "ignored" else signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM] if protected == "blocked" else [])
    try:
        run(leave, str(tmp_path / "child"), world_size=1)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGTERM, handler)
        Helper.drop()
    assert gone([int((tmp_path / "child").read_text())])


def test_too_few_descriptors():
    before = len(os.listdir("/proc/self/fd"))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 20, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            run(rank_of, world_size=16)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert len(os.listdir("/proc/self/fd")) <= before
    assert run(rank_of, world_size=2) == [0, 1]


def test_too_few_processes(monkeypatch):
    """The helper says how many ranks it could start, and the next run may ask for fewer."""
    only_two = """
import os
fork, made = os.fork, []

def limited():
    if len(made) % 3 == 2:
        made.clear()
        raise BlockingIOError(11, "Resource temporarily unavailable")
    made.append(1)
    return fork()

os.fork = limited
"""
    start = local.start_python
    monkeypatch.setattr(
        local, "start_python", lambda serve, descriptors: start(f"exec({only_two!r}) or {serve}", descriptors)
    )
    Helper.drop()
    try:
        with pytest.raises(RankError, match=r"only 2 of 4 ranks could be started: .*temporarily unavailable"):
            run(lambda group: time.sleep(60), world_size=4)
        assert run(rank_of, world_size=2) == [0, 1]
    finally:
        Helper.drop()


def test_the_host_name_does_not_resolve(tmp_path):
    own_name = ["unshare", "-Ur", "--uts"]
    if shutil.which("unshare") is None or subprocess.run([*own_name, "true"], capture_output=True).returncode != 0:
        pytest.skip("only a Linux that lets its users unshare can give a process a host name of its own")
    script = tmp_path / "script.py"
    program = "from shardlab.launch import run\nprint(run(lambda group: group.size(), world_size=2))"
    script.write_text(LIGHT + program)
    command = f"hostname no-such-host-anywhere; {sys.executable} {script}"
    done = subprocess.run([*own_name, "sh", "-c", command], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[2, 2]\n", done.stderr
