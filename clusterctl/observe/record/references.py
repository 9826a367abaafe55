"""The job and the run that a user names: JOB, JOB/RUN, or the name that a run was given."""

from __future__ import annotations

import posixpath
import statistics
from dataclasses import dataclass

from clusterctl.cluster import Cluster, NodeOutcome, raise_failures
from clusterctl.common.answers import NamedAnswer
from clusterctl.common.paths import is_job_id, is_label, job_key
from clusterctl.errors import UsageError
from clusterctl.observe.record.status import find, no_such_run

MOST_DIGITS = 9


@dataclass(frozen=True)
class Reference:
    """A run of a job. None: the job that is meant if none is named, and its newest run.

    `job` is an id, a unique prefix of one or a directory. It is `chosen` if the nodes chose it for a name.
    """

    job: str | None
    run: str | None = None
    chosen: bool = False


def split_run(ref: str) -> tuple[str, str | None]:
    """Split JOB/RUN; without a run it is None. JOB may be a directory."""
    job, slash, number = ref.rstrip("/").rpartition("/")
    is_number = number.isascii() and number.isdigit() and len(number) <= MOST_DIGITS
    if slash and is_number and job and ("/" not in job or is_job_id(posixpath.basename(job))):
        return job, run_number(int(number))
    return ref, None


def run_number(number: int) -> str:
    """Return the name of the directory of a run."""
    return f"{number:04d}"


def resolve(cluster: Cluster, ref: str | None, run: str | None = None) -> Reference:
    """Return the run that `ref` names. Only if it can be the name of a run, the nodes are asked.

    A job wins over a run of this name; of several runs of this name the newest is meant. Something that neither is
    comes back as it is. Raises UsageError if `run` is another one than the run of this name.
    """
    if ref is None or run is not None or not is_label(ref):
        return Reference(ref, run)
    found = _newest_named(cluster.ask({"op": "find_named", "ref": ref}))
    return Reference(ref) if found is None else Reference(*found, chosen=True)


def _newest_named(outcomes: list[NodeOutcome[NamedAnswer]]) -> tuple[str, str] | None:
    """Return the newest run that any node knows by this name; None if a node has a job of this name.

    The clocks of nodes differ: the median of the times counts.
    """
    answers = [outcome.get() for outcome in outcomes if outcome.ok]
    if not answers:
        raise_failures(outcomes, "the request")
    times: dict[tuple[str, str], list[float]] = {}
    for row in (row for answer in answers for row in answer["runs"]):
        times.setdefault((row["job"], row["run"]), []).append(row["t"] or 0.0)
    if not times or any(answer["job"] for answer in answers):
        return None
    return max(times, key=lambda run: (statistics.median(times[run]), job_key(run[0]), int(run[1])))


def need_newest(cluster: Cluster, reference: Reference) -> str | None:
    """Return the job. Raises UsageError if the reference names another run of it than the newest."""
    if reference.run is None:
        return reference.job
    job, members = find(cluster, reference.job)
    if members.run == reference.run:
        return job
    if members.run is None or int(reference.run) > int(members.run):
        raise no_such_run(job, reference.run)
    raise UsageError(
        f"this works on the newest run of a job only: {job} has run {int(members.run)} by now",
        hint=f"to mean that one, name the job: {job}",
    )


def is_known(cluster: Cluster, ref: str) -> bool:
    """Return True if a node that answers has a job that `ref` names, or a run of this name."""
    if "/" in ref and not ref.startswith(("/", "~")):
        return False
    outcomes: list[NodeOutcome[NamedAnswer]] = cluster.ask({"op": "find_named", "ref": ref})
    return any(outcome.ok and (outcome.get()["job"] or outcome.get()["runs"]) for outcome in outcomes)
