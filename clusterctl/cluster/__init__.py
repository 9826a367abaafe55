"""The nodes of a command, and one conversation with the agent of each.

May import `common`, `config`, `errors`, `inventory` and `transport`. The stages reach nodes through it alone. Start
reading at `cluster.py`.
"""

from clusterctl.cluster.agent_call import AGENT_ENDED, ANSWER_S, AgentCall
from clusterctl.cluster.answers import NONSENSE, JobChoice, SeveralRunningError, choose_job, senseless
from clusterctl.cluster.cluster import FIRST_LINE, Cluster, who_asks
from clusterctl.cluster.outcomes import NodeOutcome, combined, failures, fold_errors, raise_failures

__all__ = [
    "AGENT_ENDED",
    "ANSWER_S",
    "FIRST_LINE",
    "NONSENSE",
    "AgentCall",
    "Cluster",
    "JobChoice",
    "NodeOutcome",
    "SeveralRunningError",
    "choose_job",
    "combined",
    "failures",
    "fold_errors",
    "raise_failures",
    "senseless",
    "who_asks",
]
