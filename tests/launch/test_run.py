"""Runs that succeed: from a script, a thread, a notebook's kernel, torchrun and mpiexec."""

import fnmatch
import io
import multiprocessing
import os
import pickle
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cloudpickle
import numpy
import pytest
import torch
import torch.distributed as dist
from jupyter_client.manager import start_new_kernel

from shardlab import comm, launch
from shardlab.launch import RankError, already_a_rank, run, surroundings, travel, watch
from shardlab.launch.join import learn_rank
from shardlab.launch.local import Helper
from tests.launch.failing import LIGHT
from tests.patience import until

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that no rank need import pytest


def rank_of(group):
    return group.rank()


@pytest.mark.parametrize("world_size", [1, 2, 3, 8, 16, numpy.int64(2)])
def test_every_rank_answers_in_order(world_size):
    assert run(rank_of, world_size=world_size) == list(range(world_size))


def test_functions_of_a_notebook_cell_work():
    """A cell's functions live in __main__ and refer to each other and to the cell's variables."""
    cell = {"__name__": "__main__", "comm": comm}
    exec("factor = 3\ndef inner(x): return factor * x\ndef outer(group): return inner(group.rank())", cell)
    assert run(cell["outer"], world_size=2) == [0, 3]


def test_classes_of_a_notebook_cell_travel_everywhere():
    """They travel to the ranks, between ranks by torch's own pickling, and back."""
    cell = {"__name__": "__main__", "comm": comm, "dist": dist}
    exec(
        """
class Point:
    def __init__(self, x): self.x = x

def collect(group):
    points = [None] * group.size()
    dist.all_gather_object(points, Point(group.rank()))
    return points
""",
        cell,
    )
    for points in run(cell["collect"], world_size=2):
        assert [point.x for point in points] == [0, 1]
        assert all(isinstance(point, cell["Point"]) for point in points)


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


@pytest.mark.parametrize("ordered", [False, True])
def test_prints_come_while_the_ranks_still_run(ordered, capfd, tmp_path, monkeypatch):
    """The rank waits for a file that is written when its first print is seen; otherwise the run times out.

    An ordered run shows more than it may hold.
    """
    monkeypatch.setattr(watch, "MAX_HELD", 4)
    seen = tmp_path / "seen"

    def look():
        if until(lambda: capfd.readouterr().out == "[rank 0] early\n", 60):
            seen.touch()

    def speak(group):
        print("early")
        while not seen.exists():
            time.sleep(0.1)

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    run(speak, world_size=1, timeout=60, ordered=ordered)
    watcher.join()


def test_a_line_is_shown_as_a_terminal_shows_it_in_the_end(capfd):
    """A progress bar draws one line again and again; only a newline ends a line."""

    def draw(group):
        for step in range(5):
            print(f"\rstep {step}", end="", flush=True)
        print("\ntwo\u2028halves\x0c\n\ndone\r")

    run(draw, world_size=1)
    assert capfd.readouterr().out == "[rank 0] step 4\n[rank 0] two\u2028halves\x0c\n[rank 0] \n[rank 0] done\n"


@pytest.mark.parametrize("ordered", [False, True])
def test_a_line_may_be_longer_than_the_pipe_to_the_launcher(capfd, ordered):
    def write(group):
        for _ in range(3):
            print("é" * 200_000, end="", flush=True)
        print("\nend")

    run(write, world_size=1, ordered=ordered)
    assert capfd.readouterr().out == f"[rank 0] {'é' * 600_000}\n[rank 0] end\n"


def test_letters_that_the_terminal_does_not_have(monkeypatch):
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", terminal)
    run(lambda group: print("→"), world_size=1)
    assert terminal.buffer.getvalue() == b"[rank 0] ?\n"


def test_ranks_see_environment_folder_and_path(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_FLAG", "7")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("/nowhere/to/be/found")
    assert run(lambda group: (os.environ["MY_FLAG"], os.getcwd(), sys.path[0]), world_size=2) == [
        ("7", str(tmp_path), "/nowhere/to/be/found")
    ] * 2


@pytest.mark.slow
def test_a_path_among_the_folders_of_python_is_passed_over_as_python_does(tmp_path):
    script = "import pathlib, sys; sys.path.insert(0, pathlib.Path('/nowhere'))\n"
    script += "from shardlab import launch\nprint(launch.run(lambda group: group.size(), world_size=2))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert ran.stdout == "[2, 2]\n", ran.stderr


class Unreadable(Exception):
    """Pickle makes it anew from one argument."""

    def __init__(self, one, other):
        super().__init__(f"{one} and {other}")


def test_a_result_that_cannot_be_read_names_its_rank():
    with pytest.raises(RankError, match=r"what rank 1 returned cannot be read here: TypeError: .*missing 1 required"):
        run(lambda group: Unreadable(1, 2) if group.rank() else 0, world_size=2)


class Leaving:
    """What ends the process that reads it."""

    def __reduce__(self):
        return sys.exit, (3,)


def test_a_result_does_not_end_the_process_that_reads_it():
    with pytest.raises(RankError, match="what rank 0 returned cannot be read here: SystemExit: 3"):
        run(lambda group: Leaving(), world_size=1)


def test_ranks_draw_different_random_numbers_unless_they_seed_alike():
    def draw(group, seed):
        if seed is not None:
            torch.manual_seed(seed)
        return torch.rand(1).item(), random.random(), numpy.random.rand()  # noqa: NPY002

    for column in zip(*run(draw, None, world_size=3), *run(draw, None, world_size=3), strict=True):
        assert len(set(column)) == 6
    assert len({drawn[0] for drawn in run(draw, 7, world_size=3)}) == 1


def test_an_edited_module_is_imported_again(tmp_path, monkeypatch):
    """Into another size: within a second, Python itself tells the bytecode of an older text by its size."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for value in (1, 22):
        (tmp_path / "homework.py").write_text(f"def answer(group): return {value}\n")
        assert run(lambda group: __import__("homework").answer(group), world_size=1) == [value]


def test_run_inside_a_rank_joins_the_ranks_that_are_there():
    assert run(lambda group: run(rank_of, world_size=2), world_size=3) == [[0, 1]] * 3


def test_threads_take_turns():
    with ThreadPoolExecutor(4) as threads:
        results = [threads.submit(run, rank_of, world_size=number) for number in (1, 2, 3, 4)]
    assert [result.result() for result in results] == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]


def test_a_fork_of_a_process_in_which_a_thread_runs_ranks():
    """In the child nobody would ever release the thread's lock."""
    started = threading.Event()
    thread = threading.Thread(target=lambda: (started.set(), run(lambda group: time.sleep(0.5), world_size=1)))
    thread.start()
    started.wait()
    time.sleep(0.2)
    child = multiprocessing.get_context("fork").Process(target=launch.warm)
    child.start()
    child.join(30)
    child.kill()
    thread.join()
    assert child.exitcode == 0


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


@pytest.mark.slow
def test_fresh_interpreters_where_fork_is_unwise(monkeypatch, capfd):
    """As on macOS; and where the locale cannot encode Korean."""
    Helper.drop()
    for name, value in {"SHARDLAB_FORK": "0", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}.items():
        monkeypatch.setenv(name, value)

    def fail(group):
        print("\ud55c\uae00")
        1 / (1 - group.rank())

    try:
        with pytest.raises(RankError, match="rank 1 raised"):
            run(fail, world_size=2, ordered=True)
        assert capfd.readouterr().out == "[rank 0] \ud55c\uae00\n[rank 1] \ud55c\uae00\n"
    finally:
        Helper.drop()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"world_size": 0}, "world_size=0 must be a whole number, at least 1"),
        ({"world_size": 2.5}, "world_size=2.5 must be a whole number"),
        ({"world_size": "4"}, "world_size='4' must be a whole number"),
        ({"world_size": None}, "world_size=None must be a whole number"),
        ({"world_size": 65}, "at most 64"),
        ({"timeout": 0}, "timeout=0 must be seconds, above 0"),
        ({"timeout": "5"}, "timeout='5' must be seconds"),
        ({"timeout": float("nan")}, "timeout=nan must be seconds"),
        ({"timeout": float("inf")}, "at most 10000000"),
        ({"threads": 0}, "threads=0 must be a whole number"),
        ({"threads": 1025}, "threads=1025: a rank may use at most 1024"),
    ],
)
def test_bad_options_say_what_would_work(options, words):
    with pytest.raises(ValueError, match=words):
        run(rank_of, **options)


@pytest.mark.slow
def test_a_dozen_runs_leave_nothing_behind(tmp_path, monkeypatch):
    """No process is left, no descriptor, no file, no shared memory."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    run(rank_of, world_size=2)
    helper = Helper.current.process.pid

    def descriptors():
        return [len(os.listdir(f"/proc/{process}/fd")) for process in ("self", helper)]

    def left():
        children = Path(f"/proc/{helper}/task/{helper}/children").read_text().split()
        more = [after - before for after, before in zip(descriptors(), held, strict=True) if after > before]
        return children, more, files() - kept

    def files():
        return {str(path) for folder in (tmp_path, Path("/dev/shm")) for path in folder.iterdir()}

    held, kept = descriptors(), files()
    for _ in range(12):
        run(rank_of, world_size=2)
    # A helper closes a run's descriptors a moment later, and other processes use shared memory for a while.
    assert until(lambda: not any(left())), f"left: {left()}"


def test_workers_that_load_data_leave_nothing_behind(tmp_path):
    """Not even when the run fails while they share tensors through sockets in a temporary folder."""

    def load(group, folder):
        tempfile.tempdir = folder
        for _batch in torch.utils.data.DataLoader(torch.ones(100, 2), num_workers=2):
            os._exit(5)

    with pytest.raises(RankError, match="exit code 5"):
        run(load, str(tmp_path), world_size=1)
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_what_a_killed_launcher_left_is_removed_at_the_next_run(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    script = "from shardlab.launch import run; run(lambda group: print('here', flush=True) or input())"
    script = script.replace("input()", "__import__('time').sleep(60)")
    launcher = subprocess.Popen([sys.executable, "-c", LIGHT + script], stdout=subprocess.PIPE)
    launcher.stdout.readline()
    launcher.kill()
    launcher.wait()
    launcher.stdout.close()
    assert len([*tmp_path.glob("shardlab-*")]) == 1
    assert run(rank_of, world_size=2) == [0, 1]
    assert not [*tmp_path.glob("shardlab-*")]


OTHER = "from shardlab.launch import surroundings\nwith surroundings.temporary(): pass"


def test_a_folder_of_a_launcher_that_cannot_be_seen_stays(tmp_path, monkeypatch):
    """Containers may share /tmp and the host's name, and see only processes of their own."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    command = [sys.executable, "-c", OTHER]
    hidden = ["unshare", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if shutil.which("unshare") and not subprocess.run([*hidden, "true"], check=False).returncode:
        command = [*hidden, *command]
    with surroundings.temporary() as folder:
        subprocess.run(command, env={**os.environ, "TMPDIR": str(tmp_path)}, check=True)
        assert os.listdir(tmp_path) == [os.path.basename(folder)]
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("streams", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_program_that_was_started_without_standard_streams(streams, tmp_path):
    answer, script = tmp_path / "answer", tmp_path / "script.py"
    script.write_text(f"""import pathlib
from shardlab.launch import run
{LIGHT}
pathlib.Path('{answer}').write_text(str(run(lambda group: group.rank(), world_size=2)))
""")
    subprocess.run(f"{sys.executable} {script} {streams}", shell=True, timeout=120)
    assert answer.read_text() == "[0, 1]"


# ---- in a notebook ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kernel():
    """Start a live kernel, as JupyterLab does."""
    manager, client = start_new_kernel()
    client.execute_interactive(LIGHT)
    yield client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def cell(kernel, code):
    """Return what a cell prints, and how it fails."""
    told = []
    kernel.execute_interactive(code, output_hook=lambda message: told.append(message["content"]), timeout=120)
    printed = "".join(content["text"] for content in told if content.get("name") == "stdout")
    return printed, "\n".join(line for content in told for line in content.get("traceback", []))


def test_in_a_kernel_prints_and_classes_come_to_the_cell(kernel):
    code = """
        from dataclasses import dataclass
        from shardlab import comm, launch
        @dataclass
        class Point:
            x: int
        def work(group):
            print("hello")
            return Point(group.rank())
        print(launch.run(work, world_size=2, ordered=True) == [Point(0), Point(1)])
        """
    assert cell(kernel, textwrap.dedent(code)) == ("[rank 0] hello\n[rank 1] hello\nTrue\n", "")


def test_in_a_kernel_the_report_names_the_cell(kernel):
    code = """
        from shardlab import comm, launch
        def work(group):
            if group.rank() == 1:
                raise ValueError("kaput")
            comm.barrier(group)
        launch.run(work, world_size=2)
        """
    _, told = cell(kernel, textwrap.dedent(code))
    assert told.startswith("RankError: rank 1 raised\n  Cell In[")
    assert "], line 4, in work\n    raise ValueError" in told
    assert "rank 0 waited at" in told


@pytest.mark.parametrize("page", [False, True])
def test_in_a_kernel_a_progress_line_comes_and_goes(kernel, page):
    """It does not come in a kernel that builds a page of the book."""
    code = f"""
        import os, time
        os.environ["SHARDLAB_STATIC"] = "{int(page)}"
        from shardlab.launch import progress, run, watch
        progress.PATIENCE, watch.TICK = 0.0, 0.05
        for _ in range(2):
            run(lambda group: time.sleep(0.3), world_size=1)
        """
    told = []
    kernel.execute_interactive(textwrap.dedent(code), output_hook=told.append, timeout=120)
    shown = [message["content"] for message in told if "transient" in message["content"]]
    assert [message["content"] for message in told if message["msg_type"] in ("stream", "error")] == []
    if page:
        assert shown == []
    else:
        assert len({message["transient"]["display_id"] for message in shown}) == 1  # one for all runs of a cell
        assert [message["msg_type"] for message in told].count("display_data") == 1
        assert {"text/plain": "1 rank at work: 0 s"} in [message["data"] for message in shown]
        assert shown[-1]["data"] == {"text/html": ""}


# ---- ranks that somebody else started --------------------------------------------------------------------------------

SCRIPT = """
import sys
import torch
from shardlab import comm, launch

def total(group, factor):
    return comm.all_reduce(torch.tensor([factor * (group.rank() + 1.0)]), group).item()

ranks = int(sys.argv[1])
results = [launch.run(total, factor, world_size=size) for size, factor in [(ranks, 1), (ranks, 10), (2, 1)]]
try:
    launch.run(total, 1, world_size=ranks + 1)
except ValueError as error:
    results.append(f"only {ranks} ranks were started" in str(error))
print(f"RESULTS {results}\\n", end="", flush=True)  # one write, which no other rank can come between
"""


def expected(ranks):
    total = ranks * (ranks + 1) / 2
    return f"RESULTS {[[total] * ranks, [10 * total] * ranks, [3.0, 3.0], True]}"


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return str(path)


def finish(*commands):
    started = [subprocess.Popen(c, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for c in commands]
    told = "".join(process.communicate(timeout=240)[0] for process in started)
    assert [process.returncode for process in started] == [0] * len(started), told
    return told


def torchrun(*options):
    return [sys.executable, "-m", "torch.distributed.run", *options]


def test_the_same_line_under_torchrun(script):
    told = finish(torchrun("--standalone", "--nproc-per-node=3", script, "3"))
    assert told.count(expected(3)) == 3, told


@pytest.mark.slow
def test_the_same_line_on_two_nodes(script, monkeypatch):
    """Two nodes of two ranks each, both on the loopback interface."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--local-addr=127.0.0.1"]
    told = finish(*[torchrun("--nnodes=2", "--nproc-per-node=2", *meeting, script, "4") for _ in range(2)])
    assert told.count(expected(4)) == 4, told


@pytest.mark.slow
def test_the_same_line_under_mpiexec(script):
    mpiexec = Path(sys.executable).parent / "mpiexec"
    if not mpiexec.exists():
        pytest.skip("mpiexec is not installed beside this Python: pip install mpi4py mpich")
    told = finish([str(mpiexec), "-n", "3", sys.executable, script, "3"])
    assert told.count(expected(3)) == 3, told


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


SRUN = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "1"}
PMI = {"PMI_RANK": "1", "PMI_SIZE": "4"}


@pytest.mark.parametrize(
    ("environment", "outcome"),
    [
        ({**SRUN, "SLURM_STEP_NUM_TASKS": "4"}, "task 1 of the 4 that srun started"),
        ({"FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "2"}, "task 0 of the 2 that flux run started"),
        (SRUN, "ranks of its own"),  # the script of sbatch, or the shell of salloc
        ({**SRUN, "SLURM_STEP_NUM_TASKS": "1"}, "ranks of its own"),  # srun --pty bash
        ({"PMIX_RANK": "0", "SLURM_STEP_NUM_TASKS": "1"}, "ranks of its own"),  # srun jupyter lab
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, "ranks of its own"),
        ({"PMIX_RANK": "0", "SLURM_STEP_NUM_TASKS": "4"}, "a rank"),  # srun --mpi=pmix
        ({**SRUN, "SLURM_STEP_NUM_TASKS": "1", **PMI}, "a rank"),  # srun --pty bash, and there mpiexec
        ({**SRUN, "SLURM_STEP_NUM_TASKS": "2", **PMI}, "a rank"),  # mpiexec with a proxy on two machines
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4", "PMI_RANK": "0", "PMI_SIZE": "1"}, "a rank"),
        ({**SRUN, "SLURM_STEP_NUM_TASKS": "4", "RANK": "1", "WORLD_SIZE": "4"}, "a rank"),  # srun torchrun
    ],
)
def test_who_is_a_rank_and_which_task_of_several_is_none(environment, outcome, monkeypatch):
    """Without torch's or MPI's numbers, four tasks would start four trainings."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert already_a_rank() == (outcome == "a rank")
    if outcome == "ranks of its own":
        assert run(rank_of, world_size=1) == [0]
    elif outcome != "a rank":
        for start in (run, lambda _: learn_rank()):
            with pytest.raises(ValueError, match=rf"{outcome}, .*torchrun.* -n 1.*or unset"):
                start(rank_of)


# ---- what pickle would only name -------------------------------------------------------------------------------------

CACHED = """
import functools
import sys

from shardlab.launch import RankError, run


@functools.cache
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


@functools.lru_cache
def even(n):
    return n == 0 or odd(n - 1)


@functools.lru_cache(maxsize=3)
def odd(n):
    return n != 0 and even(n - 1)


class Twice:
    @functools.lru_cache
    def of(self, n):
        return 2 * n


class Named:
    def __reduce__(self):
        return "named_only"


named_only = Named()


def call(group):
    names = {"helper", "rank", "sys"} & {*vars(sys.modules["__main__"])}
    known = fibonacci(90), even(10), Twice().of(4)
    return *known, odd.cache_parameters()["maxsize"], fibonacci.__name__, names - {"sys"}


if __name__ == "__main__":
    print(run(call, world_size=1)[0])
    print(run(lambda group, f: f(30), fibonacci, world_size=1)[0], len({fibonacci(30), 832040}))
    local = functools.cache(lambda n: n + 1)
    print(run(lambda group: local(1), world_size=1)[0])
    try:
        run(lambda group: named_only, world_size=1)
    except RankError as error:
        print(error)
"""


def test_functions_with_a_cache_are_copied_like_others(tmp_path):
    script = tmp_path / "cached.py"
    script.write_text(CACHED)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, timeout=120)
    said = done.stdout.splitlines()
    assert said[0] == "(2880067194370816120, True, 8, 3, 'fibonacci', set())"
    assert said[1:3] == ["832040 1", "2"]
    assert said[-1].startswith("TypeError: Can't get attribute 'named_only'")
    assert said[-1].endswith("; make it inside the function")


def test_a_cached_function_that_can_be_imported_is_pickled_by_name():
    pattern = fnmatch._compile_pattern
    assert pickle.loads(travel.packed_call(pattern, ())) == (pattern, ())
