"""A fake cluster on this machine: real processes behind embedded SSH servers, with no root and no sshd."""

from clusterctl.fake.cluster import FakeCluster, FakeStatus, NodeStatus, down, status, up
from clusterctl.fake.layout import FakeNode

__all__ = ["FakeCluster", "FakeNode", "FakeStatus", "NodeStatus", "down", "status", "up"]
