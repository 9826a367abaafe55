"""From a workspace to a verified, identical job directory on every node."""

from clusterctl.dispatch.send import Dispatched, NodeDispatch, Progress, dispatch
from clusterctl.dispatch.workspace import Workspace, scan

__all__ = ["Dispatched", "NodeDispatch", "Progress", "Workspace", "dispatch", "scan"]
