"""What lies between ranks: addresses, clocks, and the rate of each link."""

import ipaddress
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from statistics import median

from shardlab.costs import units
from shardlab.costs.facts.network import Cluster

from .result import FAIL, OK, WARN, CheckResult, Facts, grouped, result, whom

LATE = 0.1  # s between two clocks
SLOW = 0.5  # of the rate that is expected
MOST_LINKS = 8  # that are named
Rates = Mapping[tuple[int, int], float]  # (from, to) -> bytes/s
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def addresses(world: Sequence[Facts]) -> Iterator[CheckResult]:
    """Tell what MASTER_ADDR and host names resolve to, and whether named interfaces exist."""
    several = len({each["host"] for each in world}) > 1
    yield from _master(world, several)
    lost = [
        each["rank"]
        for each in world
        if several and _loopback(each["addresses"]) and "GLOO_SOCKET_IFNAME" not in each["env"]
    ]
    if lost:
        found = next(each["addresses"][0] for each in world if each["rank"] == lost[0])
        yield result(
            "host name",
            FAIL,
            f"on {whom(world, lost)} the host's own name resolves to {found}, where no other host "
            "reaches it; correct /etc/hosts, or set GLOO_SOCKET_IFNAME to the interface to use",
        )
    for name in INTERFACES:
        unknown = [each["rank"] for each in world if not _exists(name, each)]
        if unknown:
            there = next(each for each in world if each["rank"] == unknown[0])
            text = f"no interface {there['env'][name]} on {whom(world, unknown)}; there are "
            yield result(name, FAIL, text + ", ".join(there["interfaces"]))


def _master(world: Sequence[Facts], several: bool) -> Iterator[CheckResult]:
    name = world[0]["master"]
    if not name:
        return
    kinds = grouped((each["rank"], tuple(each["master_addresses"])) for each in world)
    for found, ranks in kinds:
        text = f"{name} resolves to {', '.join(found) or 'nothing'} on {whom(world, ranks)}"
        if not found or (several and _loopback(found)):
            out = "; give a name or address at which every host reaches rank 0"
            yield result("MASTER_ADDR", FAIL, text + out)
        else:
            yield result("MASTER_ADDR", WARN if kinds[1:] else OK, text)


def clocks(world: Sequence[Facts], offsets: Mapping[int, tuple[float, float]]) -> CheckResult:
    """Compare clocks with rank 0's: rank of a host -> seconds it is ahead, and the error bar."""
    late = {rank: each for rank, each in offsets.items() if abs(each[0]) - each[1] > LATE}
    numbers = {"offsets": dict(offsets)}
    if late:
        texts = [f"{whom(world, [rank])} {_offset(*late[rank])}" for rank in late]
        why = "logs of ranks are put in order by time; start chrony or ntpd there"
        return result("clocks", WARN, f"{'; '.join(texts)}; {why}", **numbers)
    if not offsets:
        return result("clocks", OK, "all ranks are on one host and share its clock")
    worst = max(offsets.values(), key=lambda each: abs(each[0]))
    return result("clocks", OK, f"the worst host {_offset(*worst)}", **numbers)


def _offset(seconds: float, error: float) -> str:
    way = "ahead of" if seconds > 0 else "behind"
    amounts = (units.text(abs(each), "s") for each in (seconds, error))
    return "is {} (± {}) ".format(*amounts) + f"{way} rank 0"


def links(world: Sequence[Facts], rates: Rates, cluster: Cluster | None) -> Iterator[CheckResult]:
    """Name the links that are slower than half of what is expected, or of the median.

    cluster: what `costs` knows; None: compare links within hosts, and those between hosts.
    """
    hosts = {each["rank"]: each["host"] for each in world}
    if cluster:
        wanted, source = expected(world, rates, cluster), f"costs expects of {cluster.name}"
    else:
        wanted, source = _medians(hosts, rates), "is the median of such links"
    slow = [link for link in rates if rates[link] < SLOW * wanted[link]]
    slow.sort(key=rates.__getitem__)
    for a, b in slow[:MOST_LINKS]:
        amounts = [units.text(each, "B/s") for each in (rates[a, b], wanted[a, b])]
        text = f"rank {a} ({hosts[a]}) to rank {b} ({hosts[b]}): {amounts[0]}; {amounts[1]} "
        way_out = f"{source}; look at the host that returns most often"
        yield result("link", WARN, text + way_out, rate=rates[a, b], expected=wanted[a, b])
    if slow[MOST_LINKS:]:
        yield result("link", WARN, f"{len(slow) - MOST_LINKS} more links are as slow")
    a, b = least = min(rates, key=rates.__getitem__)
    amounts = [units.text(each, "B/s") for each in (rates[least], wanted[least])]
    text = f"{len(rates)} links carried messages; the slowest, rank {a} to {b}, {amounts[0]}; "
    yield result("links", OK, f"{text}{amounts[1]} {source}", slow=len(slow))


def expected(world: Sequence[Facts], rates: Rates, cluster: Cluster) -> Rates:
    """Return the rate of each link while all ranks send at the same distance: (from, to) -> B/s.

    Messages that share a hop share its bandwidth.
    """
    places = list(dict.fromkeys(each["host"] for each in world))
    gpu = {
        each["rank"]: places.index(each["host"]) * cluster.node.gpus + each["local_rank"]
        for each in world
    }

    def distance(link: tuple[int, int]) -> int:
        return (link[1] - link[0]) % len(gpu)

    found = {}
    for _, together in groupby(sorted(rates, key=distance), distance):
        paths = {(a, b): cluster.path(gpu[a], gpu[b]) for a, b in together}
        shared = Counter(hop for path in paths.values() for hop in path)
        for link, path in paths.items():
            found[link] = min(hop.bandwidth / shared[hop] for hop in path)
    return found


def _medians(hosts: Mapping[int, str], rates: Rates) -> Rates:
    inside = {link: hosts[link[0]] == hosts[link[1]] for link in rates}
    usual = {
        kind: median(rates[link] for link in rates if inside[link] == kind)
        for kind in set(inside.values())
    }
    return {link: usual[inside[link]] for link in rates}


def _loopback(found: Sequence[str]) -> bool:
    return any(ipaddress.ip_address(each.partition("%")[0]).is_loopback for each in found)


def _exists(name: str, facts: Facts) -> bool:
    """Tell whether an interface fits: a name to gloo; to NCCL a prefix, or =exact, or ^not."""
    wanted = facts["env"].get(name, "")
    if not wanted or wanted.startswith("^"):
        return True
    there = facts["interfaces"]
    names = wanted.removeprefix("=").split(",")
    if name.startswith("GLOO"):
        return set(names) <= set(there)
    if wanted.startswith("="):
        return bool(set(names) & set(there))
    return any(each.startswith(tuple(names)) for each in there)
