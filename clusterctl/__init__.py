"""clusterctl trains models on plain SSH machines.

This root is shipped to the nodes with `common`, `agent`, `runtime` and `torch`, so it imports little. The names of the
Python API are resolved on first use (PEP 562), on the control machine only. Start reading at `cli/app.py` or
`api/cluster.py`; docs/architecture.md shows the parts.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from clusterctl.api.cluster import Cluster
    from clusterctl.api.events import (
        Copied,
        Copying,
        CutDropped,
        Ended,
        Event,
        Exited,
        Held,
        Log,
        Lost,
        Nan,
        Pass,
        Paused,
        Phase,
        Ready,
        Rejoined,
        Restarting,
        RolledBack,
        Saved,
        Spawned,
        Stalled,
        Standstill,
        StateLost,
        Step,
        Suspect,
        TookOver,
        Usage,
        Warned,
    )
    from clusterctl.api.job import Job
    from clusterctl.api.metrics import Metrics
    from clusterctl.api.results import (
        Checked,
        Checkpoint,
        Comparison,
        Difference,
        Exported,
        Prepared,
        Pruned,
    )
    from clusterctl.api.run import Run
    from clusterctl.api.views import Cause, Collected, Executed, LogLine, Node, Outcome, Process, Status
    from clusterctl.check import Finding
    from clusterctl.errors import (
        ClusterctlError,
        ConfigError,
        JobFailedError,
        NodeError,
        RefusedError,
        UnreachableError,
        UsageError,
        WaitTimeoutError,
    )

__all__ = [
    "Cause",
    "Checked",
    "Checkpoint",
    "Cluster",
    "ClusterctlError",
    "Collected",
    "Comparison",
    "ConfigError",
    "Copied",
    "Copying",
    "CutDropped",
    "Difference",
    "Ended",
    "Event",
    "Executed",
    "Exited",
    "Exported",
    "Finding",
    "Held",
    "Job",
    "JobFailedError",
    "Log",
    "LogLine",
    "Lost",
    "Metrics",
    "Nan",
    "Node",
    "NodeError",
    "Outcome",
    "Pass",
    "Paused",
    "Phase",
    "Prepared",
    "Process",
    "Pruned",
    "Ready",
    "RefusedError",
    "Rejoined",
    "Restarting",
    "RolledBack",
    "Run",
    "Saved",
    "Spawned",
    "Stalled",
    "Standstill",
    "StateLost",
    "Status",
    "Step",
    "Suspect",
    "TookOver",
    "UnreachableError",
    "Usage",
    "UsageError",
    "WaitTimeoutError",
    "Warned",
]

_HOMES = {
    "Cluster": "api.cluster",
    "Finding": "check",
    "Job": "api.job",
    "Metrics": "api.metrics",
    "Run": "api.run",
    **dict.fromkeys(
        ("Cause", "Collected", "Executed", "LogLine", "Node", "Outcome", "Process", "Status"),
        "api.views",
    ),
    **dict.fromkeys(
        ("Checked", "Checkpoint", "Comparison", "Difference", "Exported", "Prepared", "Pruned"),
        "api.results",
    ),
}


def __getattr__(name: str) -> "Any":
    if name not in __all__:
        raise AttributeError(f"module 'clusterctl' has no attribute {name!r}")

    home = _HOMES.get(name) or ("errors" if name.endswith("Error") else "api.events")
    try:
        return getattr(importlib.import_module(f"clusterctl.{home}"), name)
    except ModuleNotFoundError as exc:
        if exc.name not in ("clusterctl.api", "clusterctl.errors"):
            raise
        words = "clusterctl's Python API is for the control machine; a training program imports clusterctl.runtime"
        raise ImportError(f"{words}, not clusterctl.{name}") from None
