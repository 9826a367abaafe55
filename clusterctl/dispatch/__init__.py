"""Turn a workspace into a verified, identical job directory on every node.

May import `certificates`, `cluster`, `common`, `errors`, `escape` and `inventory`. Start reading at `dispatch.py`.
"""

from clusterctl.dispatch.dispatch import dispatch, new_job_id, plan
from clusterctl.dispatch.outcomes import Dispatched, NodeDispatch, Planned, Progress
from clusterctl.dispatch.reservations import Reservations
from clusterctl.dispatch.workspace import Workspace, check_exists, scan

__all__ = [
    "Dispatched",
    "NodeDispatch",
    "Planned",
    "Progress",
    "Reservations",
    "Workspace",
    "check_exists",
    "dispatch",
    "new_job_id",
    "plan",
    "scan",
]
