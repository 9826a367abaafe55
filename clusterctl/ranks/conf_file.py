"""The conf.py with which commands find the nodes of an mpirun."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

LIVE = '''\
"""The nodes of {job}, which mpirun started. Written by clusterctl-rank."""

from socket import gethostname

ROOT_DIR = {root!r}
PYTHON = {python!r}


def node(host, trainers, *via):
    return Host(host, trainers=trainers, via="local" if host == gethostname() else via)


HOSTS = [
{nodes}
]
'''
ENDED = '''\
"""The nodes of {job}, which mpirun started. Written by clusterctl-rank."""

ROOT_DIR = {root!r}
PYTHON = {python!r}
VIA = "local"
HOSTS = [
{nodes}
]
'''


class ConfNode(NamedTuple):
    """A node: its machine, the number of its trainers, and the words of the carrier while the run is under way."""

    host: str
    trainers: int
    via: Sequence[str]


def conf_text(job: str, root: str, python: str, nodes: Sequence[ConfNode], *, live: bool) -> str:
    """Return the file. While the run is live, nodes on other machines are reached through their ranks."""
    lines = [
        f"    node({', '.join(repr(word) for word in (host, trainers, *via))}),"
        if live
        else f"    Host({host!r}, trainers={trainers}),"
        for host, trainers, via in nodes
    ]
    return (LIVE if live else ENDED).format(job=job, root=root, python=python, nodes="\n".join(lines))
