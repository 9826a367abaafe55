"""Nodes to test against: embedded servers or real OpenSSH daemons, behind one interface."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clusterctl import fake
from support.nodes import TestNode, TestSettings
from support.openssh import openssh_cluster

KINDS = ("embedded", "openssh")


@dataclass(frozen=True)
class Cluster:
    """Some nodes of either kind, and the settings to reach them."""

    kind: str
    directory: Path
    nodes: list[TestNode]
    settings: TestSettings


@contextlib.contextmanager
def make_cluster(kind: str, directory: Path, n: int, *sshd_options: str) -> Iterator[Cluster]:
    """Bring up `n` nodes under a directory, and take them down afterwards."""
    if kind == "embedded":
        with fake.up(directory / "fake", n, lifeline=True) as up:  # it ends with pytest in any case
            nodes = [TestNode(f"node{node.index}", node.port) for node in up.nodes]
            yield Cluster(kind, up.directory, nodes, TestSettings(up.ssh_config, up.identity, up.known_hosts))
        return
    with openssh_cluster(directory / "sshd", n, *sshd_options) as sshd:
        nodes = [TestNode(f"node{index}", daemon.port) for index, daemon in enumerate(sshd.daemons)]
        settings = TestSettings(sshd.ssh_config, sshd.identity, sshd.known_hosts)
        yield Cluster(kind, sshd.directory, nodes, settings)
