"""The conf.py with which commands find the nodes of an mpirun."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

TEXT = '''\
"""The nodes of {job}, which mpirun started. Written by clusterctl-rank."""

from os.path import isdir
from socket import gethostname

ROOT_DIR = {root!r}
PYTHON = {python!r}
is_live = isdir({ranks!r})


def node(host, trainers, *through_its_rank):
    is_far = is_live and host != gethostname()
    return Host(host, trainers=trainers, via=through_its_rank if is_far else "local")


HOSTS = [
{nodes}
]
'''


class ConfNode(NamedTuple):
    """A node: its machine, the number of its trainers, and the words of the carrier while the run is under way."""

    host: str
    trainers: int
    via: Sequence[str]


def conf_text(job: str, root: str, python: str, ranks: str, nodes: Sequence[ConfNode]) -> str:
    """Return the file. While the directory `ranks` exists, other machines are reached through their ranks."""
    lines = [f"    node({', '.join(repr(word) for word in (host, trainers, *via))})," for host, trainers, via in nodes]
    return TEXT.format(job=job, root=root, python=python, ranks=ranks, nodes="\n".join(lines))
