"""Tasks of Fabric, on the nodes and on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from clusterctl.cluster import Cluster, NodeOutcome, combined
from clusterctl.config import Settings
from clusterctl.errors import ClusterctlError
from clusterctl.inventory import Node

if TYPE_CHECKING:
    from clusterctl.fabric.tasks import Call, TaskFile


def load_tasks(settings: Settings) -> TaskFile:
    """Run the file of tasks beside conf.py."""
    import clusterctl.fabric.tasks

    assert settings.source is not None
    return clusterctl.fabric.tasks.load(settings.source.absolute().parent)


def run_here(file: TaskFile, name: str, tasks: Sequence[Any], show: Callable[[str], None]) -> None:
    """Run tasks, or calls of them, on this machine, with the settings of the task `name`.

    `show` prints the result of a task with autoprint. Raises ClusterctlError for the first failure.
    """
    from clusterctl.fabric.connection import make_config
    from clusterctl.fabric.execution import here
    from clusterctl.fabric.tasks import calls_of

    here(calls_of(tasks), make_config(file.settings_of(name)), file.path, show)


def run_on_nodes(
    cluster: Cluster,
    file: TaskFile,
    call: Call,
    show: Callable[[str], None],
    output: Callable[[Node], AbstractContextManager[None]],
    end: Callable[[Node, int | None, ClusterctlError | None], None],
) -> list[NodeOutcome[ClusterctlError | None]]:
    """Call a task for every node. Its failure is the value of an outcome.

    In the thread of a node, `output(node)` is entered around the call, and `end(node, code, failure)` follows it; the
    code is None if the connection failed.
    """
    from clusterctl.fabric.connection import Connection, make_config
    from clusterctl.fabric.execution import exit_code, on_node

    assert call.called_as is not None
    config = make_config(file.settings_of(call.called_as))

    def work(node: Node) -> ClusterctlError | None:
        with Connection(node, cluster.transport, config.clone()) as connection, output(node):
            failure = on_node(call, connection, file.path, show)
        end(node, exit_code(failure), failure)
        return failure

    return cluster.map(work)


def problem(outcomes: Sequence[NodeOutcome[ClusterctlError | None]], name: str) -> ClusterctlError | None:
    """Return the error to report if the task failed on some nodes."""
    errors = [failure for outcome in outcomes if (failure := outcome.error or outcome.value)]
    return combined(errors, len(outcomes), f"task {name}") if errors else None
