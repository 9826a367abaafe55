"""Makes nodes ready to train: the same Python packages everywhere, in an environment that the agent makes."""

from clusterctl.setup.requirements import Requirements, read_requirements
from clusterctl.setup.setup import Group, NodeSetup, Prepared, Wishes, prepare

__all__ = ["Group", "NodeSetup", "Prepared", "Requirements", "Wishes", "prepare", "read_requirements"]
