"""Facts of ranks on hosts that do not exist."""

from copy import deepcopy

GB = 10**9
FACTS = {
    **{"node_rank": 0, "trouble": "", "memory": 800 * GB, "shm": 64 * GB, "code": "abc", "files": 3},
    "versions": {"python": "3.12.1", "torch": "2.13.0"},
    "env": {"NCCL_IB_HCA": "mlx5", "NCCL_SOCKET_IFNAME": "eth"},
    "interfaces": ["lo", "eth0"],
    **{"addresses": ["10.0.0.7"], "master": "node00", "master_addresses": ["10.0.0.1"]},
}


def facts(host, local_rank, ranks=8):
    """What one rank with a GPU knows of itself."""
    gpu = {"index": local_rank, "name": "H100", "id": f"GPU-{local_rank}", "free": 79 * GB, "total": 80 * GB}
    own = {"rank": host * ranks + local_rank, "local_rank": local_rank, "host": f"node{host:02}", "gpu": gpu}
    return deepcopy(FACTS) | own | {"node_rank": host}


def cluster(hosts=16, ranks=8):
    """What the ranks of healthy hosts know."""
    return [facts(host, local_rank, ranks) for host in range(hosts) for local_rank in range(ranks)]


def bad(results):
    """The lines that are not ok."""
    return [each.line for each in results if each.verdict != "ok"]
