"""Send the curves of a run's figures, reduced on this node: see `agent/node/curves.py`.

They are in messages `{"curves": [{"role", "rank", "of", "name", "undone", "buckets"}, ...]}`, those of a process in one
unless they are very many. The answer has `left`: by process, how many names of metrics and tables were left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from clusterctl.agent.node.curves import ProcessCurves
from clusterctl.agent.node.jobs import find_job, pick_run
from clusterctl.agent.node.log_files import EventReader
from clusterctl.agent.node.runs import need_spec
from clusterctl.agent.peer import Peer
from clusterctl.common.requests import CurvesRequest

BATCH_BUCKETS = 40_000  # of a message; each is about 200 bytes


def curves(root: Path, request: CurvesRequest, peer: Peer) -> dict[str, Any]:
    """Reduce the events of the requested run, else of the newest, to `buckets` per curve.

    `at` is the offset after the events that were read, at which `follow` may continue; `now` is this node's time.
    """
    job = find_job(root, request["ref"])
    run = pick_run(job, request.get("run"))
    if run is None or not run.spec.is_file():
        return {"job": job.dir.name, "run": None, "left": {}, "at": 0, "now": time.time()}
    plans = need_spec(run).processes
    processes = {(plan.role, plan.rank): ProcessCurves() for plan in plans}
    reader = EventReader(run.events)
    for events in _batches(reader):
        peer.heartbeat()
        for event in events:
            role, rank = event.get("role"), event.get("rank")
            if isinstance(role, str) and isinstance(rank, int) and (role, rank) in processes:
                processes[role, rank].add(event)
    for (role, rank), process in processes.items():
        for batch in _batched({"role": role, "rank": rank, **curve} for curve in process.curves(request["buckets"])):
            peer.send({"curves": batch})
    left = {plan.name: processes[plan.role, plan.rank].left for plan in plans}
    kept = {name: count for name, count in left.items() if count}
    return {"job": job.dir.name, "run": run.run, "left": kept, "at": reader.offset, "now": time.time()}


def _batches(reader: EventReader) -> Iterator[list[dict[str, Any]]]:
    """Yield the events up to the present end; a batch is empty if all its lines are torn."""
    at = -1
    while reader.offset != at:
        at = reader.offset
        yield reader.read()


def _batched(curves: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    buckets = 0
    for curve in curves:
        if batch and buckets + len(curve["buckets"]) > BATCH_BUCKETS:
            yield batch
            batch, buckets = [], 0
        batch.append(curve)
        buckets += len(curve["buckets"])
    if batch:
        yield batch
