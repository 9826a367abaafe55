"""The state of a job and of its processes, and the list of all jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from clusterctl.api.opening import CallResult
from clusterctl.api.scheduled import scheduled_part
from clusterctl.cluster import Cluster
from clusterctl.common.schema import typed, types_of
from clusterctl.documents.jobs import JobsDocument, ProcessDocument, StatusDocument, StatusNotes, run_label
from clusterctl.errors import ClusterctlError
from clusterctl.observe.record import jobs as on_nodes
from clusterctl.observe.record import status as reading
from clusterctl.observe.record.model import JobOverview, OccasionalFigures, ProcessRecord
from clusterctl.observe.record.references import job_name
from clusterctl.observe.record.status import JobStatus, unheard
from clusterctl.schedulers import ScheduledJob

OCCASIONAL = tuple(types_of(OccasionalFigures))


@dataclass(frozen=True)
class Process:
    """A process of a run and its newest figures, each None until it is known.

    `cpu` is in cores, `memory` in bytes; `values` has the numbers that the program logged last.
    """

    node: int
    host: str
    role: str
    rank: int
    state: str
    restarts: int
    exit_code: int | None
    pid: int | None
    pass_: int | None
    step: int | None
    loss: float | None
    samples_per_s: float | None
    cpu: float | None
    memory: int | None
    values: Mapping[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """`trainer0`."""
        return f"{self.role}{self.rank}"


@dataclass(frozen=True)
class Status(CallResult):
    """The state of a job and of the processes of one of its runs; `run` is None if it was never started.

    `errors` are those of nodes that did not answer; `known` is the whole state.
    """

    job: str
    run: int | None
    name: str | None
    state: str
    processes: tuple[Process, ...]
    errors: tuple[ClusterctlError, ...]
    known: JobStatus = field(repr=False, compare=False)


def status(cluster: Cluster, job: str | None, run: str | None = None, *, gpus: bool = False) -> Status:
    """Ask the nodes for the state of a run, by default of the newest one."""
    known = reading.status(cluster, job, run=run, gpus=gpus)
    return Status(
        known.job,
        None if known.run is None else int(known.run),
        known.members.name,
        known.state,
        tuple(map(_process, known.processes)),
        tuple(known.errors),
        known,
        document=_document(cluster, known),
        problem=unheard(known.errors, len(cluster.nodes)),
    )


def _process(record: ProcessRecord) -> Process:
    figures = record.figures
    return Process(
        record.node.id,
        record.node.where,
        record.role,
        record.rank,
        record.state,
        record.restarts,
        record.exit_code,
        record.pid,
        figures.get("pass"),
        figures.get("step"),
        figures.get("loss"),
        figures.get("samples_per_s"),
        figures.get("cpu"),
        figures.get("memory"),
        dict(figures.get("values") or {}),
    )


def _document(cluster: Cluster, current: JobStatus) -> StatusDocument:
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
        "job_workspace": job_name(cluster.inventory, current.job),
        **current.members.to_json(),
        "resumed": (current.lead or {}).get("resumed"),
        **notes,
        "processes": [_process_document(process) for process in current.processes],
        "nodes": current.nodes,
        **scheduled_part(None),  # the command adds it
    }


def _process_document(process: ProcessRecord) -> ProcessDocument:
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


@dataclass(frozen=True)
class JobList(CallResult):
    """The jobs on the nodes that answered, newest first. `errors` are those of the others."""

    jobs: Sequence[JobOverview]
    errors: Sequence[ClusterctlError]


def list_jobs(
    cluster: Cluster | None,
    state_of: Callable[[str | None], str] | None = None,
    waiting: Sequence[ScheduledJob] = (),
) -> JobList:
    """Ask all nodes for their jobs; without a cluster there are only those that are `waiting` for nodes.

    `state_of` tells the state of a run where that is not for nodes to say.
    """
    found, errors = ([], []) if cluster is None else on_nodes.jobs(cluster, state_of)
    document = JobsDocument(tuple(found), tuple(job.to_json() for job in waiting) or None)
    problem = None if cluster is None else unheard(errors, len(cluster.nodes))
    return JobList(found, errors, document=document.to_json(), problem=problem)
