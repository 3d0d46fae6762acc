"""The ranks that differ from the majority are named, with both values."""

from shardlab.preflight import alike

from .made_up import bad, cluster


def test_another_torch_on_one_of_sixteen_hosts():
    world = cluster()
    for each in world[40:48]:
        each["versions"]["torch"] = "2.12.0"
    assert bad(alike.software(world)) == [
        "FAIL  torch: 2.12.0 on ranks 40-47 (node05), but 2.13.0 on 120 of 128 ranks; install the same everywhere"
    ]


def test_other_code_on_one_rank():
    world = cluster(2)
    world[9]["code"] = "xyz"
    (line,) = bad(alike.software(world))
    assert line.startswith("FAIL  code: xyz, the hash of 3 files on rank 9 (node01), but abc, the hash of 3 files on")


def test_a_folder_without_code_says_how_to_name_it():
    *_, code = alike.software([each | {"files": 0} for each in cluster(1)])
    assert code.line == "ok    code: no *.py in this folder; --code PATH names what is started"


def test_a_variable_that_is_not_set_everywhere():
    world = cluster(2)
    for each in world[8:]:
        del each["env"]["NCCL_IB_HCA"]
    world[0]["env"]["OMP_NUM_THREADS"] = "4"
    first, second = bad(alike.environment(world))
    assert first.startswith("warn  NCCL_IB_HCA: not set on ranks 8-15 (node01), but mlx5 on 8 of 16 ranks")
    assert second.startswith("warn  OMP_NUM_THREADS: 4 on rank 0 (node00), but not set on 15 of 16 ranks")


def test_variables_that_are_alike_are_one_line():
    (found,) = alike.environment(cluster())
    assert found.line == "ok    environment: alike on all ranks: NCCL_IB_HCA, NCCL_SOCKET_IFNAME"


def test_a_rank_that_computes_wrongly():
    world = cluster(2)
    sums = {each["rank"]: "e0be" for each in world}
    assert alike.results(world, sums).verdict == "ok"
    found = alike.results(world, sums | {13: "ffff"})
    assert found.line.startswith("FAIL  checksum: ffff on rank 13 (node01), but e0be on 15 of 16 ranks; it compute")
    assert found.numbers["ranks"]["ffff"] == [13]
