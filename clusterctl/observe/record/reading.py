"""Ask nodes for the curves of a run."""

from __future__ import annotations

import time
from typing import NamedTuple

from clusterctl.cluster import Cluster, answers
from clusterctl.cluster.answers import CurvesEnd
from clusterctl.common.curves import Curve
from clusterctl.inventory import Node

CURVES_S = 120.0
MOST_BYTES = 32 << 20  # of the curves of one node


class NodeCurves(NamedTuple):
    """The curves of one node's processes, by its own clock; `at` is the offset after the events that they are from.

    `offset_s` is our clock minus the node's; the time that its answer took is not subtracted.
    """

    curves: list[Curve]
    at: int
    offset_s: float


def read_curves(cluster: Cluster, node: Node, job: str, run: str | None, buckets: int) -> NodeCurves:
    """Return the curves, each with at most `buckets` buckets."""
    curves: list[Curve] = []
    with cluster.call(node, {"op": "curves", "ref": job, "run": run, "buckets": buckets}, answer_s=CURVES_S) as call:
        call.limit(MOST_BYTES)
        while "done" not in (message := call.receive(CURVES_S)):
            curves += answers.curves(message)
    end: CurvesEnd = answers.read(CurvesEnd, message["done"], "curves")
    return NodeCurves(curves, end["at"], time.time() - end["now"])
