"""What two agents of torchrun say that were started wrongly, one cause at a time, and after how many seconds.

Rows with names of hosts run on two hosts (bench/two_hosts.py: Linux, as root), each with its own /etc/hosts. Time-outs
are those of the rows, 4 or 5 s; what would still wait is ended, and its exit code is null. Ports, paths and the name of
this machine are replaced; what is said is as torch prints it, without frames, times and processes.
"""

import concurrent.futures
import dataclasses
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import record
import two_hosts
from two_agents.agents import LIMIT, Start, StartOutcome, meet
from two_agents.starts import SOUND, STAGES, STARTS, UNEQUAL

from shardlab.files.terminal import no_arguments
from shardlab.ranks.observe.torchrun import said

LIMITS = {  # s, where a row must show that its time-out does not end it, or that torch's fixed one does
    "unequal nnodes": 330.0,
    "silent": 120.0,
    "port in use": 120.0,
    "port in use, c10d": 120.0,
}
RIGHT = {"node-a": two_hosts.ADDRESSES[0], "node-b": two_hosts.ADDRESSES[1]}
LOOPBACK = "127.0.1.1"
NAMES = {  # what each of the hosts takes a name for
    "right": (RIGHT, RIGHT),
    "own is loopback": ({**RIGHT, "node-a": LOOPBACK}, {**RIGHT, "node-b": LOOPBACK}),
    "others are loopback": (RIGHT, {"node-a": LOOPBACK, "node-b": LOOPBACK}),
}
INSIDE = 'mount --bind "$1" /etc/hosts && hostname "$2" && shift 2 && exec "$@"'


def on_hosts(start: Start, folder: Path) -> Start:
    """The row with each agent inside its host, at the port that the firewall lets pass."""
    nodes = []
    for index, (host, name) in enumerate(zip(two_hosts.NAMES, RIGHT, strict=True)):
        file = folder / name
        known = NAMES[start.names][index]
        file.write_text("127.0.0.1 localhost\n" + "".join(f"{each} {key}\n" for key, each in known.items()))
        inside = ("unshare", "--mount", "--uts", "sh", "-c", INSIDE, "sh", str(file), name)
        node = start.nodes[index]
        arguments = tuple(each.replace("{port}", str(two_hosts.PORT)) for each in node.arguments)
        launcher = ("ip", "netns", "exec", host, *inside, *node.launcher)
        nodes.append(dataclasses.replace(node, arguments=arguments, launcher=launcher))
    return dataclasses.replace(start, nodes=tuple(nodes))


def firewall() -> None:
    """Let both hosts drop what comes by the cable, but for the port of the rendezvous and what it answers."""
    port = two_hosts.PORT
    coming = ("iif", two_hosts.CABLE, "ipproto", "tcp")
    for host in two_hosts.NAMES:
        rules = [
            ("pref", "100", "lookup", "local"),
            ("pref", "40", *coming, "sport", str(port), "lookup", "local"),
            ("pref", "50", *coming, "dport", f"1024-{port - 1}", "blackhole"),
            ("pref", "51", *coming, "dport", f"{port + 1}-65534", "blackhole"),
        ]
        for rule in rules:
            subprocess.run(["ip", "-n", host, "rule", "add", *rule], check=True)
        subprocess.run(["ip", "-n", host, "rule", "delete", "pref", "0"], check=True)


def outcome(start: Start) -> StartOutcome | None:
    """Run a row where it belongs; None where there can be no two hosts."""
    if not start.names:
        return meet(start, LIMITS.get(start.name, LIMIT))
    if two_hosts.unavailable():
        return None
    with tempfile.TemporaryDirectory() as folder, two_hosts.TwoHosts(rate=1e9):
        if start.firewall:
            firewall()
        return meet(on_hosts(start, Path(folder)), LIMIT)


def row(start: Start) -> dict[str, Any]:
    """One row of the results."""
    found = outcome(start)
    result = {key: getattr(start, key) for key in ("name", "cause", "command", "phrases", "stage")}
    result["hosts"] = 2 if start.names else 1
    result["agents"] = found and [
        {"exit code": code, "seconds": seconds, "said": said(message)}
        for code, seconds, message in zip(found.codes, found.seconds, found.messages, strict=True)
    ]
    print(start.name, found and (found.codes, found.seconds), flush=True)
    return result


def main() -> None:
    rows = (SOUND, UNEQUAL, *STARTS)
    with concurrent.futures.ThreadPoolExecutor(len(LIMITS)) as waiting:  # they only wait: they disturb nobody
        longer = {start.name: waiting.submit(row, start) for start in rows if start.name in LIMITS}
        others = {start.name: row(start) for start in rows if start.name not in LIMITS}
        every = {**others, **{name: each.result() for name, each in longer.items()}}
    result = {
        "stages": STAGES,
        "limits": {"usual": LIMIT, **LIMITS},
        "rows": [every[start.name] for start in rows],
    }
    print("written to", record.write("starts", result).name)


if __name__ == "__main__":
    no_arguments(__doc__)
    main()
