"""The state of a job as a document."""

from __future__ import annotations

from clusterctl.api.operations.references import job_name
from clusterctl.api.operations.scheduled import scheduled_part
from clusterctl.cluster import Cluster
from clusterctl.common.schema import typed, types_of
from clusterctl.documents.jobs import ProcessDocument, StatusDocument, StatusNotes, run_label
from clusterctl.observe.record.model import OccasionalFigures, ProcessRecord
from clusterctl.observe.record.status import JobStatus
from clusterctl.schedulers import JobWatch

OCCASIONAL = tuple(types_of(OccasionalFigures))


def document(cluster: Cluster, current: JobStatus, scheduled: JobWatch | None = None) -> StatusDocument:
    """Return the document of `status --json`, of a job of a scheduler if it is `scheduled`."""
    notes: StatusNotes = {}
    if dropped := current.cut_dropped:
        trainers = list(dropped["trainers"])
        notes["cut_dropped"] = {"t": dropped["t"], "message": dropped["message"], "trainers": trainers}
    if current.warnings:
        notes["warnings"] = current.warnings
    return {
        "job": current.job,
        "run": current.run,
        **run_label(current.members.name),
        "state": current.state,
        "job_workspace": job_name(cluster.settings, cluster.inventory, current.job),
        **current.members.to_json(),
        "resumed": (current.lead or {}).get("resumed"),
        **notes,
        "processes": [_process(process) for process in current.processes],
        "nodes": current.nodes,
        **scheduled_part(scheduled),
    }


def _process(process: ProcessRecord) -> ProcessDocument:
    figures = process.figures
    return {
        "node": process.node.id,
        "host": process.node.where,
        "role": process.role,
        "rank": process.rank,
        "state": process.state,
        "pid": process.pid,
        "restarts": process.restarts,
        "exit_code": process.exit_code,
        "pass": figures.get("pass"),
        "step": figures.get("step"),
        "loss": figures.get("loss"),
        "samples_per_s": figures.get("samples_per_s"),
        "compute": figures.get("compute"),
        "wait": figures.get("wait"),
        "wire": figures.get("wire"),
        "cpu": figures.get("cpu"),
        "memory": figures.get("memory"),
        "values": figures.get("values"),
        "started": figures.get("started"),
        "staleness": figures.get("staleness"),
        "tables": figures.get("tables"),
        "lost": figures.get("lost"),
        **typed(OccasionalFigures, {name: figures[name] for name in OCCASIONAL if name in figures}),  # type: ignore[literal-required]
    }
