"""The processes of a fake cluster: found by their environment, held, let go, and ended as a power cut ends them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from clusterctl.common.procfs import Identity, environment_of, find_by_environment, is_alive, stat_fields, wait_until
from clusterctl.errors import ClusterctlError

ENVIRONMENT_NAME = "CLUSTERCTL_FAKE"
NODE_ENVIRONMENT_NAME = "CLUSTERCTL_FAKE_NODE"
NODES_GRACE_S = 3.0  # between TERM and KILL for what runs on the nodes
DEATH_S = 5.0

Find = Callable[[], Iterable[Identity]]


def marks(directory: Path, index: int | None = None) -> dict[str, str]:
    """What every process of a cluster, or of one of its nodes, has in its environment."""
    return {ENVIRONMENT_NAME: str(directory)} | ({} if index is None else {NODE_ENVIRONMENT_NAME: str(index)})


def on_cluster(directory: Path) -> list[Identity]:
    return find_by_environment(marks(directory))


def on_node(directory: Path, index: int) -> list[Identity]:
    return find_by_environment(marks(directory, index))


def counts_by_node(directory: Path) -> Counter[int]:
    """How many processes each node has."""
    name = f"{NODE_ENVIRONMENT_NAME}=".encode()
    return Counter(
        int(entry.removeprefix(name))
        for process in on_cluster(directory)
        for entry in environment_of(process.pid)
        if entry.startswith(name)
    )


def freeze(find: Find) -> set[Identity]:
    """Stop everything that `find` finds, what is started meanwhile included; returns whom."""
    frozen: set[Identity] = set()
    while new := set(find()) - frozen:
        _signal(new, signal.SIGSTOP)
        frozen |= new
    return frozen


def thaw(find: Find) -> None:
    """Let everything go on that `freeze` has stopped."""
    _signal(find(), signal.SIGCONT)


def cut_power(find: Find) -> int:
    """Kill everything that `find` finds, and nothing of it sees another part die; returns how many.

    Raises ClusterctlError when something survives.
    """
    frozen = freeze(find)
    _signal(frozen, signal.SIGKILL)
    if not wait_until(lambda: not any(map(is_alive, frozen)), DEATH_S):
        raise ClusterctlError(f"processes survive KILL: {sorted(who.pid for who in frozen if is_alive(who))}")
    return len(frozen)


def is_frozen(who: Identity) -> bool:
    """Whether a process is stopped."""
    fields = stat_fields(who.pid)
    return fields is not None and fields[0] == "T"


def _signal(processes: Iterable[Identity], number: int) -> None:
    for who in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if is_alive(who):
                os.kill(who.pid, number)
