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
    from clusterctl.api.collect import Collected
    from clusterctl.api.control import Checkpoint, Rejoining, Stopped
    from clusterctl.api.diff import Comparison, Difference
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
        Moved,
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
    from clusterctl.api.exec import Executed
    from clusterctl.api.job import Job
    from clusterctl.api.logs import LogLine
    from clusterctl.api.metrics import Metrics
    from clusterctl.api.nodes import Checked, Prepared, Pruned
    from clusterctl.api.opening import Node
    from clusterctl.api.outcome import Cause, Outcome
    from clusterctl.api.report import Exported
    from clusterctl.api.run import Run
    from clusterctl.api.status import Process, Status
    from clusterctl.api.sweep import Sweep, Trial
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
    "Moved",
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
    "Rejoining",
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
    "Stopped",
    "Suspect",
    "Sweep",
    "TookOver",
    "Trial",
    "UnreachableError",
    "Usage",
    "UsageError",
    "WaitTimeoutError",
    "Warned",
]

_HOMES = {
    "Finding": "check",
    **{
        name: f"api.{module}"
        for module, names in {
            "cluster": ("Cluster",),
            "collect": ("Collected",),
            "control": ("Checkpoint", "Rejoining", "Stopped"),
            "diff": ("Comparison", "Difference"),
            "exec": ("Executed",),
            "job": ("Job",),
            "logs": ("LogLine",),
            "metrics": ("Metrics",),
            "nodes": ("Checked", "Prepared", "Pruned"),
            "opening": ("Node",),
            "outcome": ("Cause", "Outcome"),
            "report": ("Exported",),
            "run": ("Run",),
            "status": ("Process", "Status"),
            "sweep": ("Sweep", "Trial"),
        }.items()
        for name in names
    },
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
