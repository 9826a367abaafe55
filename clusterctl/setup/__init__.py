"""Makes nodes ready to train: the same Python packages everywhere, in an environment that the agent makes."""

from clusterctl.setup.nodes import Group, NodeSetup, Prepared, Wishes, prepare
from clusterctl.setup.requirements import Requirements, read_requirements

__all__ = ["Group", "NodeSetup", "Prepared", "Requirements", "Wishes", "prepare", "read_requirements"]
