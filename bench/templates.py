"""The templates of book/cluster, each by its own tool: what it started, what stopped it, and where it went on.

Two "nodes" are names of this machine: Slurm gets two daemons, ssh a server on port 2222, Ray two workers. Linux, as
root, with slurm-wlm, munge and openssh-server, and ray and kubeflow-trainer-api beside torch. Kubernetes is not run:
its file is read by the models of Kubeflow Trainer, and must come out of them as it went in. A name as argument records
that template alone.
"""

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import record

from shardlab.files.terminal import Parser

ROOT = Path(__file__).resolve().parents[1]
CLUSTER = ROOT / "book" / "cluster"
NODES = ("node-a", "node-b")
LAYOUT = ("--dp", "2", "--steps", "2000")  # more than there is time for: all are stopped
PATIENCE = 400.0  # s
SLURM = """ClusterName=here
SlurmctldHost=localhost
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge
SelectType=select/cons_tres
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
StateSaveLocation={folder}
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
GresTypes=gpu
NodeName=node-a NodeHostname={host} NodeAddr=127.0.0.1 Port=17001 CPUs=2 Gres=gpu:1
NodeName=node-b NodeHostname={host} NodeAddr=127.0.0.1 Port=17002 CPUs=2 Gres=gpu:1
PartitionName=all Nodes=node-a,node-b Default=YES State=UP
"""
SSHD = """Port 2222
ListenAddress 127.0.0.1
HostKey {folder}/host
PidFile {folder}/sshd.pid
AuthorizedKeysFile {folder}/key.pub
StrictModes no
PermitRootLogin yes
"""
SSH = """Host node-a node-b
HostName 127.0.0.1
Port 2222
IdentityFile {folder}/key
UserKnownHostsFile {folder}/known
StrictHostKeyChecking no
"""


def said(command: list[str], **options: Any) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout


def on_nodes(folder: Path, *command: str) -> None:
    """Run a command, often one that leaves a daemon, where the nodes' names lead to this machine."""
    hosts = folder / "hosts"
    hosts.write_text(f"127.0.0.1 localhost {os.uname().nodename} {' '.join(NODES)}\n")
    inside = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(hosts), *command]
    with (folder / "daemons.log").open("a") as log:
        subprocess.run(inside, check=True, stdout=log, stderr=log)


def steps(log: Path) -> list[int]:
    """The steps of a log, in its order; Ray prints each line of a worker twice."""
    found = [int(step) for step in re.findall(r"step (\d+): ", log.read_text() if log.exists() else "")]
    return [step for step, before in zip(found, [0, *found], strict=False) if step != before]


def wait(until: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if found := until():
            return found
        time.sleep(0.2)
    raise TimeoutError(what)


def row(
    template: str, tool: str, stop: str, before: int | None, after: int | None, changed: list[str]
) -> dict[str, Any]:
    """One start that was stopped, and the one after it, by the steps that rank 0 printed."""
    steps_of = {"last step before": before, "first step after": after}
    return {"template": template, "tool": tool, "stopped by": stop, **steps_of, "changed": changed}


def after_kill(log: Path, folder: Path) -> tuple[int, int]:
    """Kill a rank five steps after a save; the last step before, and the step with which the next start begins."""
    wait(lambda: steps(log)[-1:] and steps(log)[-1] > 10 and steps(log)[-1] % 10 == 5, "a step between two saves")
    start = len(steps(log))
    kill_a_rank(folder)

    def torn() -> int | None:
        found = steps(log)
        return next((i for i in range(start, len(found)) if found[i] <= found[i - 1]), None)

    at = wait(torn, "steps that begin again")
    before, after = steps(log)[at - 1 : at + 1]
    return before, after


def kill_a_rank(folder: Path) -> None:
    """SIGKILL to the youngest process that is a rank, or a worker of Ray, and that belongs to the folder."""
    listed = said(["ps", "-eo", "pid,args", "--sort=-start_time"]).splitlines()
    ranks = [line.split()[0] for line in listed if re.search(r"python\S* -u book/train|ray::\w*RayTrainWorker", line)]

    def belongs(pid: str) -> bool:  # Ray writes a worker's title over its environment; its log is in the folder
        process = Path("/proc", pid)
        return str(folder).encode() in (process / "environ").read_bytes() + os.readlink(process / "fd/1").encode()

    os.kill(int(next(filter(belongs, ranks))), signal.SIGKILL)


def slurm(folder: Path) -> list[dict[str, Any]]:
    """The job's time ends; the script waits for a save and queues again; the next start goes on."""
    config, log, saves = folder / "slurm.conf", folder / "log", folder / "saves"
    config.write_text(SLURM.format(folder=folder, host=os.uname().nodename))
    (folder / "gres.conf").write_text("Name=gpu File=/dev/zero\n")
    environment = {**os.environ, "SLURM_CONF": str(config), "FOLDER": str(saves)}
    os.environ["SLURM_CONF"] = str(config)
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o600)
    files = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    try:
        subprocess.run(["munged", "--force", f"--socket={folder}/munge", *files], check=True)
        on_nodes(folder, "slurmctld", "-c")
        for node in NODES:
            on_nodes(folder, "slurmd", "-N", node)
        wait(lambda: said(["sinfo", "-h", "-t", "idle", "-o", "%D"]).strip() == "2", "two idle nodes")
        changed = ["--gpus-per-node=1", "--time=2", "--signal=B:TERM@45"]
        command = ["sbatch", "--parsable", f"--output={log}", *changed, str(CLUSTER / "slurm.sh"), *LAYOUT]
        job = said(command, env=environment, cwd=ROOT).strip()
        wait(lambda: "saved: " in log.read_text() if log.exists() else False, "a save when time is over")
        wait(lambda: said(["squeue", "-h", "-j", job, "-o", "%t"]).strip() == "PD", "queued again")
        before = steps(log)
        after = wait(lambda: steps(log)[len(before) + 4 :], "the second start") and steps(log)[len(before)]
        subprocess.run(["scancel", job], check=True)
        wait(lambda: not said(["squeue", "-h"]).strip(), "the end of all ranks")
    finally:
        subprocess.run(["scancel", "--full", "--signal=KILL", "--user=root"], check=False)  # after a failure
        end(folder)
    tool = said(["sbatch", "--version"]).strip()
    return [row("slurm.sh", tool, "the end of its time, after a save", before[-1], after, changed)]


def ssh(folder: Path) -> list[dict[str, Any]]:
    """Ctrl-C waits for the next save; in the next start a rank is killed, all end, and the script starts them again."""
    log, saves, tools = folder / "log", folder / "saves", folder / "bin"
    tools.mkdir()
    for name in ("host", "key"):
        said(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)])
    for name, text in {"sshd": SSHD, "config": SSH}.items():
        (folder / name).write_text(text.format(folder=folder))
    (tools / "ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {folder}/config "$@"\n')
    (tools / "ssh").chmod(0o755)
    Path("/run/sshd").mkdir(exist_ok=True)
    environment = {**os.environ, "FOLDER": str(saves), "GPUS": "1", "PATH": f"{tools}:{os.environ['PATH']}"}
    scripts = []

    def script() -> subprocess.Popen[bytes]:
        command = ["bash", str(CLUSTER / "ssh.sh"), *LAYOUT]
        with log.open("a") as file:
            options = {"env": environment, "cwd": ROOT, "stdout": file, "stderr": file, "start_new_session": True}
            scripts.append(subprocess.Popen(command, **options))
        return scripts[-1]

    try:
        on_nodes(folder, "/usr/sbin/sshd", "-f", str(folder / "sshd"))
        first = script()
        wait(lambda: 13 in steps(log), "a step between two saves")
        first.send_signal(signal.SIGINT)
        first.wait(PATIENCE)
        before = steps(log)
        script()
        after = wait(lambda: steps(log)[len(before) :], "the second start")[0]
        killed = after_kill(log, folder)
    finally:
        for each in scripts:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.killpg(each.pid, signal.SIGKILL)
        end(folder)
    tool = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=True).stderr.split(",")[0]
    stops = {"Ctrl-C, after a save": (before[-1], after), "SIGKILL of a rank": killed}
    return [row("ssh.sh", tool, stop, *found, ["GPUS=1"]) for stop, found in stops.items()]


def ray(folder: Path) -> list[dict[str, Any]]:
    """A worker is killed; Ray ends the others, starts all again, and they go on from the last save."""
    log = folder / "log"
    options = ["--num-cpus=2", "--include-dashboard=false", f"--temp-dir={folder}/r", "--disable-usage-stats"]
    environment = {**os.environ, "RAY_raylet_start_wait_time_s": "180"}
    programs = Path(sys.executable).parent
    command = [sys.executable, str(CLUSTER / "ray_train.py"), "--workers", "2", "--folder", str(folder / "saves")]
    with contextlib.ExitStack() as ends:
        stop = [str(programs / "ray"), "stop", "--force"]
        ends.callback(subprocess.run, stop, check=False, capture_output=True)
        with (folder / "daemons.log").open("w") as file:  # daemons would keep a pipe open
            start = [str(programs / "ray"), "start", "--head", *options]
            subprocess.run(start, check=True, env=environment, stdout=file)
        with log.open("w") as file:
            there = {**environment, "RAY_ADDRESS": "auto"}
            driver = subprocess.Popen([*command, *LAYOUT], env=there, cwd=ROOT, stdout=file, stderr=file)
        ends.callback(driver.kill)
        killed = after_kill(log, folder)
    return [row("ray_train.py", f"Ray {version('ray')}", "SIGKILL of a worker", *killed, ["--workers 2"])]


def kubernetes(_: Path) -> list[dict[str, Any]]:
    """Every field is known to the models, has the right type, and comes out as it went in."""
    import yaml
    from kubeflow_trainer_api import models

    kinds = {
        "PersistentVolumeClaim": models.IoK8sApiCoreV1PersistentVolumeClaim,
        "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime,
        "TrainJob": models.TrainerV1alpha1TrainJob,
    }
    documents = list(yaml.safe_load_all((CLUSTER / "kubernetes.yaml").read_text()))
    for document in documents:
        again = kinds[document["kind"]].from_dict(document).to_dict()
        if again != document:
            raise ValueError(f"{document['kind']} has a field that Kubernetes does not know:\n{again}\n{document}")
    tool = f"kubeflow-trainer-api {version('kubeflow-trainer-api')}"
    return [row("kubernetes.yaml", tool, "nothing: parsed, not run", None, None, [])]


def end(folder: Path) -> None:
    """End the daemons that have left their process ids in the folder."""
    for path in folder.glob("*pid"):
        with contextlib.suppress(ProcessLookupError, ValueError):  # it has ended, or has not begun
            os.kill(int(path.read_text()), signal.SIGTERM)
    time.sleep(3)


TEMPLATES = {"slurm.sh": slurm, "kubernetes.yaml": kubernetes, "ray_train.py": ray, "ssh.sh": ssh}


def main() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("name", nargs="*", help=f"of {', '.join(TEMPLATES)}; without any, all")
    names = parser.parse_args().name or TEMPLATES
    if unknown := {*names} - {*TEMPLATES}:
        parser.error(f"no template is called {', '.join(unknown)}")
    path = record.RESULTS / "templates.json"
    for name in names:
        digests = {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in CLUSTER.iterdir()}
        with tempfile.TemporaryDirectory() as folder:
            new = TEMPLATES[name](Path(folder))
        print(name, new, flush=True)
        found = json.loads(path.read_text()) if path.exists() else {"sha256": {}, "starts": []}
        used = {each: digests[each] for each in (name, "next_save.sh")}
        starts = [each for each in found["starts"] if each["template"] != name] + new
        record.write("templates", {"sha256": {**found["sha256"], **used}, "starts": starts})


if __name__ == "__main__":
    main()
