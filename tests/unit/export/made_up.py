"""Made-up records of runs, with hostile text in them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clusterctl.common.curves import Bucket, Curve
from clusterctl.common.points import Rollback
from clusterctl.config import from_values
from clusterctl.inventory import build
from clusterctl.observe.record.members import Members
from clusterctl.observe.record.model import Mark, NodeRecord, ProcessRecord, RunRecord, Span
from clusterctl.observe.record.points import NodePoints
from clusterctl.observe.record.secrets import Redactor

JOB = "JOB20261121-081530"
#: Escape sequences, an end of a script, a formula, text that runs backwards, quotes, a lone surrogate, a new line.
EVIL = '=1+1\x1b]0;owned\x07</script><!--\u202e",\'\\\n\ud800{x="y"} 1'
SECRET = "hunter2-in-env"
T = 1.7e9
NODES = build(from_values({"HOSTS": ["a", "b"]})).nodes
PROCESSES = tuple(ProcessRecord(role, node.id, node=node) for node in NODES for role in ("pserver", "trainer"))


def bucket(t: float, mean: float | None, *, gaps: int = 0) -> Bucket:
    """A bucket of one point."""
    return Bucket(t, t, 1, 1, int(mean is not None), 1.0, mean, mean, mean, mean, gaps)


def record(**changes: Any) -> RunRecord:
    """Return a run of two nodes: the second did not answer."""
    spans = (Span("starting", T, T + 1, 1), Span("running", T + 1, None, 1))
    processes = tuple(
        ProcessRecord(one.role, one.rank, "running", node=one.node, spans=spans if one.node.id == 0 else ())
        for one in PROCESSES
    )
    values: dict[str, Any] = {
        "job": JOB,
        "run": "0001",
        "members": Members("0001", NODES, ()),
        "state": "running",
        "mode": "sync",
        "started_t": T,
        "ended_t": None,
        "read_t": T + 10,
        "processes": processes,
        "nodes": (NodeRecord(NODES[0], "running", 0.5, 0.01), NodeRecord(NODES[1], "unknown", problem=EVIL)),
        "curves": (
            Curve("trainer", 0, "step", "samples_per_s", (bucket(T + 2, 10.0), bucket(T + 3, None, gaps=1)), False),
            Curve("trainer", 0, "step", "samples_per_s", (bucket(T + 1.5, 9.0),), undone=True),
            Curve("trainer", 0, "usage", "cpu", (bucket(T + 2.5, 0.5),), False),
            Curve("trainer", 0, "log", EVIL, (bucket(T + 2.5, 0.5),), False),
        ),
        "marks": (
            Mark(T, "phase", "starting pservers"),
            Mark(T + 4, "nan", EVIL, 0, "trainer", 0),
            Mark(T + 3, EVIL, EVIL, 1),
        ),
    }
    return RunRecord(**{**values, **changes})


def node_points(
    path: Path, *events: dict[str, Any], offset_s: float = 0.0, node: int = 0, rollbacks: Sequence[Rollback] = ()
) -> NodePoints:
    """Return the points of the events of `trainer0`, `pserver0`, ... as they arrive from a node."""
    keys = {(one.role, one.rank) for one in PROCESSES if one.node.id == node}
    points = NodePoints(NODES[node], offset_s, path, keys, Redactor({"API": SECRET}), rollbacks)
    path.write_text("".join(json.dumps(event) + "\n" for event in events if points.add(event)))
    return points


def event(
    name: str, t: float, *, role: str = "trainer", rank: int = 0, attempt: int = 1, **more: Any
) -> dict[str, Any]:
    return {"event": name, "t": T + t, "node": 0, "role": role, "rank": rank, "attempt": attempt, **more}
