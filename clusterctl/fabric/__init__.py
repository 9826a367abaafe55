"""Fabric over our connections: its Connection, its Group, and tasks for the nodes and for this machine.

This package is `clusterctl.fabric`; `import fabric` is the library, which no other part imports. May import `cluster`,
`config`, `errors`, `inventory`, `schedulers` and `transport`. Start reading at `connection.py`.
"""

from __future__ import annotations

from clusterctl.transport import paramiko_loader

# Before fabric, so that the loader hides no module from it, and before any connection.
paramiko_loader.load_whole()

from clusterctl.fabric.connection import Connection
from clusterctl.fabric.groups import Group, group

__all__ = ["Connection", "Group", "group"]
