"""Prepare nodes for training: the same Python packages everywhere, in an environment that the agent builds.

May import `cluster`, `common`, `config`, `dispatch`, `errors`, `inventory` and `transport`. Start reading at
`setup.py`.
"""

from clusterctl.setup.requirements import Requirements, read_requirements
from clusterctl.setup.setup import NodeGroup, NodeSetup, SetupOptions, SetupResult, prepare

__all__ = ["NodeGroup", "NodeSetup", "Requirements", "SetupOptions", "SetupResult", "prepare", "read_requirements"]
