"""All jobs in a ROOT_DIR, seen from outside any allocation: their files, and what Slurm says about those it runs."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from clusterctl.config import Host, Settings
from clusterctl.schedulers.slurm.commands import Slurm
from clusterctl.schedulers.slurm.hosts import root_of_nodes
from clusterctl.schedulers.slurm.script import RUN_PREFIX

RUNNING, LOST, UNKNOWN = "running", "lost", "unknown"


def look_at_all(settings: Settings, environ: Mapping[str, str]) -> tuple[Settings, Callable[[str | None], str]]:
    """Return the settings with a host for each directory of a node, to be read here; no hosts if there is none.

    Also return a function for the state of a run by its name, if the run has not recorded its own end: unknown if it
    was not submitted. It raises UnreachableError if Slurm does not answer.
    """
    root = root_of_nodes(settings.root_dir)
    directories = (Path(root.replace("{node}", str(node))).expanduser() for node in itertools.count())
    count = sum(1 for _ in itertools.takewhile(Path.is_dir, directories))
    hosts = tuple(Host(f"node{node}") for node in range(count))
    alive = functools.cache(Slurm(environ).alive)

    def state_of(run: str | None) -> str:
        job = (run or "").removeprefix(RUN_PREFIX)
        if not job.isdecimal() or job == run:
            return UNKNOWN
        return RUNNING if job in alive() else LOST

    return replace(settings, hosts=hosts, root_dir=root, pservers=None, trainers=None), state_of
