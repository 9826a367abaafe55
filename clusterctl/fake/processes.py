"""Find the processes of a fake cluster by their environment; freeze, thaw and kill them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from clusterctl.common.procfs import (
    Identity,
    arguments_of,
    environment_of,
    find_by_environment,
    is_alive,
    stat_fields,
    variable,
    wait_until,
)
from clusterctl.errors import ClusterctlError

ENVIRONMENT_NAME = "CLUSTERCTL_FAKE"
NODE_ENVIRONMENT_NAME = "CLUSTERCTL_FAKE_NODE"
NODES_GRACE_S = 3.0  # between TERM and KILL for processes on the nodes
STOP_S = 5.0
DEATH_S = 5.0

Find = Callable[[], Iterable[Identity]]


def marks(directory: Path, index: int | None = None) -> dict[str, str]:
    """Return the environment variables that mark every process of a cluster, or of one of its nodes."""
    return {ENVIRONMENT_NAME: str(directory)} | ({} if index is None else {NODE_ENVIRONMENT_NAME: str(index)})


def on_cluster(directory: Path) -> list[Identity]:
    return find_by_environment(marks(directory))


def on_node(directory: Path, index: int) -> list[Identity]:
    return find_by_environment(marks(directory, index))


def counts_by_node(directory: Path) -> Counter[int]:
    """Return the number of processes per node."""
    name = NODE_ENVIRONMENT_NAME.encode()
    nodes = (variable(environment_of(process.pid), name) for process in on_cluster(directory))
    return Counter(int(node) for node in nodes if node is not None)


def commands_on(directory: Path) -> list[str]:
    """Return the command lines of the processes on a cluster's nodes."""
    return [_command(process.pid) for process in on_cluster(directory)]


def _command(pid: int) -> str:
    return " ".join(map(os.fsdecode, arguments_of(pid)))


def freeze(find: Find) -> set[Identity]:
    """Stop all processes that `find` returns, including any started in the meantime. Return the stopped processes."""
    frozen: set[Identity] = set()
    while new := set(find()) - frozen:
        _signal(new, signal.SIGSTOP)
        frozen |= new
    wait_until(lambda: not any(map(_runs, frozen)), STOP_S)  # a process that waits for a processor stops later
    return frozen


def thaw(find: Find) -> None:
    """Resume the processes that `freeze` stopped."""
    _signal(find(), signal.SIGCONT)


def cut_power(find: Find) -> int:
    """Kill all processes that `find` returns, so that no process sees another die. Return their number.

    Raises ClusterctlError if a process survives.
    """
    frozen = freeze(find)
    _signal(frozen, signal.SIGKILL)
    if not wait_until(lambda: not any(map(is_alive, frozen)), DEATH_S):
        survivors = sorted(process.pid for process in frozen if is_alive(process))
        raise ClusterctlError(f"processes survived KILL: {survivors}")
    return len(frozen)


def is_frozen(process: Identity) -> bool:
    """Return True if a process is stopped."""
    fields = stat_fields(process.pid)
    return fields is not None and fields[0] == "T"


def _runs(process: Identity) -> bool:
    fields = stat_fields(process.pid)
    return fields is not None and fields[0] not in "TZX" and is_alive(process)


def _signal(processes: Iterable[Identity], number: int) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if is_alive(process):
                os.kill(process.pid, number)
