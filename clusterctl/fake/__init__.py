"""A fake cluster on this machine: real processes behind embedded SSH servers, OpenSSH daemons, or containers.

May import `common`, `errors` and `templates`. Start reading at `cluster.py`.
"""

from clusterctl.fake.backend import NodeStatus
from clusterctl.fake.cluster import (
    DownCluster,
    FakeCluster,
    FakeStatus,
    HealedNode,
    check_backend,
    down,
    find_down,
    harm,
    heal,
    running_jobs,
    status,
    up,
)
from clusterctl.fake.layout import FakeNode

__all__ = [
    "DownCluster",
    "FakeCluster",
    "FakeNode",
    "FakeStatus",
    "HealedNode",
    "NodeStatus",
    "check_backend",
    "down",
    "find_down",
    "harm",
    "heal",
    "running_jobs",
    "status",
    "up",
]
