"""fabric's Group over the nodes of a conf.py, with the bounded fan-out of all commands."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import fabric
from fabric.exceptions import GroupException

from clusterctl.cluster import Cluster
from clusterctl.config import load
from clusterctl.fabric.connection import Connection, make_config
from clusterctl.inventory import Node, build, select
from clusterctl.schedulers import resolve


class Group(fabric.Group):  # type: ignore[misc]
    """A `fabric.Group` of the nodes of a cluster. A context manager, which closes their connections.

    A method runs on up to 64 nodes at a time. Ctrl-C ends it on all of them.
    """

    def __init__(self, cluster: Cluster, connections: Iterable[Connection] | None = None) -> None:
        """Make a group of `connections` to nodes of the cluster; by default of one to each node."""
        super().__init__()
        self.cluster = cluster
        if connections is None:
            config = make_config()
            connections = [Connection(node, cluster.transport, config.clone()) for node in cluster.nodes]
        self.extend(connections)

    def get(self, remote: str, local: str = "{node}/", preserve_mode: bool = True) -> Any:
        """Download a file from every node; by default into a directory with the label of the node."""
        return self._do("get", remote, local, preserve_mode)

    def _do(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of every connection. Raises GroupException if it raised for any of them."""
        results = fabric.GroupResult()
        by_node = {connection.node.id: connection for connection in self}

        def call(node: Node) -> Any:
            connection = by_node[node.id]
            was_open = connection.is_connected
            try:
                return getattr(connection, method)(*args, **kwargs)
            except Exception as exc:  # noqa: BLE001 - it is the result for this node
                return exc
            finally:
                if not was_open:  # a large group must not hold more connections than are kept at a time
                    connection.close()

        for outcome in self.cluster.map(call, [connection.node for connection in by_node.values()]):
            results[by_node[outcome.node.id]] = outcome.get()
        if results.failed:
            raise GroupException(results)
        return results

    def close(self) -> None:
        """Give back every connection, and close those of the cluster."""
        super().close()
        self.cluster.transport.close()


def group(conf: str | os.PathLike[str] | None = None, *, only: str | None = None) -> Group:
    """Return the nodes of a conf.py as a group; `only` selects some of them, as `--only` does.

    Without `conf` it is the file in the variable CLUSTERCTL_CONF, else ./conf.py. Raises ConfigError for mistakes in
    it, and UsageError for an invalid `only`.
    """
    settings = resolve(load(None if conf is None else Path(conf), os.environ), os.environ)
    inventory = build(settings)
    nodes = select(inventory, only) if only else inventory.nodes
    made = Group(Cluster(settings, inventory, nodes))
    end: Callable[[], None] = made.cluster.transport.close
    weakref.finalize(made, end)
    return made
