"""The nodes of a command, and one conversation with the agent of each.

May import `common`, `config`, `errors`, `inventory` and `transport`. The stages reach nodes through it alone. Start
reading at `cluster.py`.
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
