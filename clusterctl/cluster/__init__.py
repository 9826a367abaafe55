"""The nodes that a command is about, and one conversation with the agent of each.

May import config, inventory, transport and common; the stages reach nodes through it. Start reading at `cluster.py`.
"""

from clusterctl.cluster.cluster import (
    AgentCall,
    Cluster,
    Message,
    NodeOutcome,
    combined,
    failures,
    fold_errors,
    raise_failures,
)

__all__ = [
    "AgentCall",
    "Cluster",
    "Message",
    "NodeOutcome",
    "combined",
    "failures",
    "fold_errors",
    "raise_failures",
]
