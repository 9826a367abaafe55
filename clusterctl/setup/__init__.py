"""Prepare nodes for training: the same Python packages everywhere, in an environment that the agent builds."""

from clusterctl.setup.requirements import Requirements, read_requirements
from clusterctl.setup.setup import Group, NodeSetup, Prepared, Wishes, prepare

__all__ = ["Group", "NodeSetup", "Prepared", "Requirements", "Wishes", "prepare", "read_requirements"]
