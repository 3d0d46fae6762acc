"""Whoever is missing, came twice, shares a GPU or lacks room is named."""

from shardlab.preflight import who

from .made_up import GB, bad, cluster


def test_sixteen_healthy_hosts_are_one_line():
    (found,) = who.here(cluster(), 128, 60)
    assert found.line == "ok    who: 16 hosts with 8 ranks each"
    assert found.numbers["ranks_per_host"]["node15"] == 8


def test_missing_ranks_are_named():
    world = [each for each in cluster() if each["host"] != "node03"]
    (line,) = bad(who.here(world, 128, 60))
    assert line.startswith("FAIL  who: ranks 24-31 of 128 did not come within 60 s; see what was started there")


def test_a_host_with_fewer_ranks_is_named():
    world = [each for each in cluster() if each["rank"] < 124]
    *_, line = bad(who.here(world, 124, 60))
    assert line == "warn  who: 15 hosts with 8 ranks each, but node15 with 4 ranks (local 0-3)"


def test_two_hosts_with_one_node_rank():
    world = cluster(2)
    for each in world[8:]:
        each["node_rank"] = 0
    assert bad(who.here(world, 16, 60)) == [
        "FAIL  who: node00, node01 all have node rank 0; give each machine its own --node-rank"
    ]


def test_ranks_that_came_twice():
    world = [*cluster(1, 2), cluster(1, 2)[1] | {"host": "node07"}]
    lines = bad(who.here(world, 2, 60))
    assert "FAIL  who: rank 1 (node00, node07) came more than once; give each machine its own --node-rank" in lines


def test_two_ranks_on_one_gpu_of_a_host():
    world = cluster()
    world[9]["gpu"]["id"] = "GPU-0"
    (line,) = bad(who.devices(world))
    assert line.startswith("FAIL  devices: ranks 8-9 (node01) share one GPU")


def test_gpus_of_different_hosts_may_be_called_the_same():
    assert bad(who.devices(cluster())) == []


def test_a_rank_that_may_not_use_its_gpu_says_why():
    world = cluster(1, 2)
    world[1] |= {"gpu": None, "trouble": "2 ranks on this machine, but each sees 1 GPU"}
    lines = bad(who.devices(world))
    assert lines[0] == "FAIL  devices: rank 1 (node00): 2 ranks on this machine, but each sees 1 GPU"
    assert lines[1].startswith("FAIL  devices: rank 0: H100; rank 1: no GPU")


def test_gpus_of_two_kinds_are_a_warning():
    world = cluster(2)
    world[15]["gpu"]["name"] = "A100"
    (line,) = bad(who.devices(world))
    assert line.startswith("warn  devices: ranks 0-14: H100; rank 15: A100")


def test_without_gpus_ranks_use_gloo_and_say_so():
    (found,) = who.devices([each | {"gpu": None} for each in cluster(2)])
    assert found.line == "ok    devices: no rank has a GPU; they communicate over gloo, on CPUs"


def test_room_that_another_process_holds_or_that_a_container_lacks():
    world = cluster()
    assert bad(who.room(world)) == []
    world[3]["gpu"]["free"] = 12 * GB
    for each in world[8:16]:
        each |= {"shm": 64 * 10**6, "memory": 300 * GB}
    gpu, memory, shared = bad(who.room(world))
    assert gpu.startswith("warn  free GPU memory: rank 3 (node00): 12 GB; another process holds the rest")
    assert memory.startswith("warn  free host memory: ranks 8-15 (node01): 300 GB; half of the hosts have 800 GB")
    assert shared.startswith("warn  free /dev/shm: ranks 8-15 (node01): 64 MB; NCCL and")


def test_what_is_not_known_is_not_judged():
    world = [each | {"gpu": None, "shm": None, "memory": None} for each in cluster(1)]
    assert list(who.room(world)) == []
