"""Jobs and runs as users name them."""

from __future__ import annotations

import re
from pathlib import Path

from clusterctl.cluster import Cluster
from clusterctl.config import Settings
from clusterctl.errors import UsageError
from clusterctl.inventory import Inventory
from clusterctl.observe.record.members import Members
from clusterctl.observe.record.references import Reference, need_newest, resolve, run_number, split_run


def job_name(settings: Settings, inventory: Inventory, job: str) -> str:
    """Return the job directory in a form valid on every node; the bare id if ROOT_DIR differs between hosts."""
    roots = {node.root_dir for node in inventory.nodes}
    return f"{roots.pop()}/{job}" if len(roots) == 1 else job


def job_ref(settings: Settings, ref: str | None) -> str | None:
    """Return the reference to send to the nodes: a job directory below ROOT_DIR becomes its id, valid on every node.

    The local shell may have expanded the `~` of ROOT_DIR to this machine's home, which is meaningless on the nodes.
    """
    if ref is None:
        return None
    path = ref.rstrip("/")
    if not path:
        raise UsageError(f"{ref!r} is not a job", hint="clusterctl jobs lists the jobs on the nodes")
    if "/" not in path:
        return path
    if settings.root_dir.startswith("~/"):
        home = str(Path.home())
        if path.startswith(home + "/"):
            path = "~" + path[len(home) :]
    parent, _, name = path.rpartition("/")
    root = re.escape(settings.root_dir.rstrip("/")).replace(re.escape("{node}"), "[0-9]+")
    return name if re.fullmatch(root, parent) else path


def run_of(cluster: Cluster, text: str | None, number: int | None = None) -> Reference:
    """Return the run that a user named as JOB, JOB/RUN or with the name of a run; `number` is that of `--run`."""
    ref, run = (None, None) if text is None else split_run(text)
    ref = job_ref(cluster.settings, ref)
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
