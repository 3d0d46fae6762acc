"""Addresses that nobody reaches, late clocks and slow links are named with the hosts at both ends."""

import pytest

from shardlab.costs.facts import nodes
from shardlab.costs.facts.network import Cluster
from shardlab.preflight import between

from .made_up import bad, cluster


def healthy(world, inside=400e9, across=50e9):
    ranks = {each["rank"]: each["host"] for each in world}
    return {(a, b): inside if ranks[a] == ranks[b] else across for a in ranks for b in ranks if a != b}


def test_healthy_addresses_are_one_line():
    (found,) = between.addresses(cluster(2))
    assert found.line == "ok    MASTER_ADDR: node00 resolves to 10.0.0.1 on ranks 0-15 (node00, node01)"


def test_a_host_name_that_is_a_loopback_address():
    """Debian writes 127.0.1.1 into /etc/hosts; on one host that is no fault, and an interface by name helps."""
    world = cluster(2)
    for each in world[8:]:
        each["addresses"] = ["127.0.1.1"]
    (line,) = bad(between.addresses(world))
    assert line.startswith("FAIL  host name: on ranks 8-15 (node01) the host's own name resolves to 127.0.1.1")
    assert bad(between.addresses(world[8:])) == []
    for each in world[8:]:
        each["env"]["GLOO_SOCKET_IFNAME"] = "eth0"
    assert bad(between.addresses(world)) == []


@pytest.mark.parametrize(
    ("found", "line"),
    [
        ([], "FAIL  MASTER_ADDR: node00 resolves to nothing on ranks 0-15 (node00, node01); give a name"),
        (["127.0.0.1"], "FAIL  MASTER_ADDR: node00 resolves to 127.0.0.1 on ranks 0-15"),
    ],
)
def test_an_address_at_which_rank_0_is_not(found, line):
    assert bad(between.addresses([each | {"master_addresses": found} for each in cluster(2)]))[0].startswith(line)


def test_a_name_with_two_meanings():
    world = cluster(2)
    for each in world[8:]:
        each["master_addresses"] = ["10.9.0.1"]
    assert len(bad(between.addresses(world))) == 2


@pytest.mark.parametrize(
    ("name", "value", "exists"),
    [
        *(("NCCL_SOCKET_IFNAME", value, True) for value in ("eth", "eth0", "=eth0", "ib,eth", "^docker", "")),
        *(("NCCL_SOCKET_IFNAME", value, False) for value in ("ib", "=eth")),
        *(("GLOO_SOCKET_IFNAME", value, True) for value in ("eth0", "lo,eth0")),
        *(("GLOO_SOCKET_IFNAME", value, False) for value in ("eth", "eth0,ib0")),
    ],
)
def test_an_interface_is_there_as_each_library_reads_its_name(name, value, exists):
    world = cluster(1, 1)
    world[0]["env"] = {name: value}
    lines = bad(between.addresses(world))
    assert lines == ([] if exists else [f"FAIL  {name}: no interface {value} on rank 0 (node00); there are lo, eth0"])


def test_a_late_clock_among_sixteen():
    world = cluster()
    offsets = {8 * host: (0.001, 0.0002) for host in range(1, 16)}
    assert between.clocks(world, offsets).line == "ok    clocks: the worst host is 1 ms (± 200 µs) ahead of rank 0"
    found = between.clocks(world, offsets | {48: (-3.5, 0.0002)})
    assert found.line == (
        "warn  clocks: rank 48 (node06) is 3.5 s (± 200 µs) behind rank 0; "
        "logs of ranks are put in order by time; start chrony or ntpd there"
    )


def test_an_offset_within_its_error_bar_is_no_finding():
    assert between.clocks(cluster(2), {8: (0.3, 0.25)}).verdict == "ok"


def test_a_slow_link_is_named_against_the_median_of_its_kind():
    world = cluster(4)
    rates = healthy(world)
    (found,) = between.links(world, rates, None)
    assert found.line.startswith("ok    links: 992 links carried messages; the slowest, rank 0 to 8, 50 GB/s")
    rates[3, 17] = 20e9
    rates[1, 2] = 150e9
    assert bad(between.links(world, rates, None)) == [
        "warn  link: rank 3 (node00) to rank 17 (node02): 20 GB/s; 50 GB/s is the median of such links; "
        "look at the host that returns most often",
        "warn  link: rank 1 (node00) to rank 2 (node00): 150 GB/s; 400 GB/s is the median of such links; "
        "look at the host that returns most often",
    ]


def test_of_many_slow_links_the_slowest_are_named():
    world = cluster(4)
    rates = {link: rate / (10 if 30 in link else 1) for link, rate in healthy(world).items()}
    lines = bad(between.links(world, rates, None))
    assert len(lines) == between.MOST_LINKS + 1
    assert lines[-1] == f"warn  link: {62 - between.MOST_LINKS} more links are as slow"


def test_what_costs_expects_finds_links_that_are_all_slow():
    """The median knows only that they are alike."""
    world, known = cluster(2), Cluster(node=nodes.node("DGX H100"), num_nodes=2)
    rates = healthy(world, across=10e9)
    assert bad(between.links(world, rates, None)) == []
    lines = bad(between.links(world, rates, known))
    assert "10 GB/s; 50 GB/s costs expects of 2 × DGX H100" in lines[0]
    assert bad(between.links(world, healthy(world, across=45e9), known)) == []


def test_messages_that_share_a_card_share_its_rate():
    world, known = cluster(2), Cluster(node=nodes.node("PCIe box, 100 GbE"), num_nodes=2)
    card = known.node.network_bandwidth
    wanted = between.expected(world, healthy(world), known)
    assert wanted[0, 8] == card / 8  # at this distance all eight cross
    assert wanted[7, 8] == card  # and at this one a single one
