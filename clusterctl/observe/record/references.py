"""The job and the run that a user names: JOB, JOB/RUN, or the name that a run was given."""

from __future__ import annotations

import posixpath
import re
import statistics
from dataclasses import dataclass
from pathlib import Path

from clusterctl.cluster import Cluster, NodeOutcome, raise_failures
from clusterctl.common.answers import NamedAnswer
from clusterctl.common.paths import is_job_id, is_label, job_key
from clusterctl.errors import UsageError
from clusterctl.inventory import Inventory
from clusterctl.observe.record.members import Members
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


def job_name(inventory: Inventory, job: str) -> str:
    """Return the job directory in a form valid on every node; the bare id if ROOT_DIR differs between hosts."""
    roots = {node.root_dir for node in inventory.nodes}
    return f"{roots.pop()}/{job}" if len(roots) == 1 else job


def job_ref(root_dir: str, ref: str | None) -> str | None:
    """Return the reference to send to the nodes: a job directory below `root_dir`, that of conf.py, becomes its id.

    The id is valid on every node. The local shell may have expanded the `~` of `root_dir` to this machine's home, which
    is meaningless on the nodes.
    """
    if ref is None:
        return None
    path = ref.rstrip("/")
    if not path:
        raise UsageError(f"{ref!r} is not a job", hint="clusterctl jobs lists the jobs on the nodes")
    if "/" not in path:
        return path
    if root_dir.startswith("~/"):
        home = str(Path.home())
        if path.startswith(home + "/"):
            path = "~" + path[len(home) :]
    parent, _, name = path.rpartition("/")
    root = re.escape(root_dir.rstrip("/")).replace(re.escape("{node}"), "[0-9]+")
    return name if re.fullmatch(root, parent) else path


def run_of(cluster: Cluster, text: str | None, number: int | None = None) -> Reference:
    """Return the run that a user named as JOB, JOB/RUN or with the name of a run; `number` is that of `--run`."""
    ref, run = (None, None) if text is None else split_run(text)
    ref = job_ref(cluster.settings.root_dir, ref)
    reference = Reference(ref, run) if run is not None else resolve(cluster, ref)
    if number is None or reference.run == run_number(number):
        return reference
    if reference.run is not None:
        hint = f"leave out --run {number}, or name the job: {reference.job}"
        raise UsageError(f"{text} is run {int(reference.run)} of {reference.job}, not run {number}", hint=hint)
    return Reference(reference.job, run_number(number))


def job_of(cluster: Cluster, text: str | None) -> str | None:
    """Return the job to send to the nodes. Raises UsageError if the text names another run of it than the newest."""
    return need_newest(cluster, run_of(cluster, text))


def run_title(job: str, members: Members) -> str:
    """Return the job, the run and its name: `JOB20261121-081530 run 1 (lr-0.1)`."""
    name = f" ({members.name})" if members.name else ""
    return f"{job} run {int(members.run or 0)}{name}"
