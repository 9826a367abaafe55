"""`start --resume`: which job, and what is said of its checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.cli.console import clean
from clusterctl.cli.invocation import Session

if TYPE_CHECKING:
    from clusterctl.cluster.cluster import Cluster
    from clusterctl.launch import LaunchPlan, Resume


def check_job(job_workspace: str | None, package: Path | None, resume: bool) -> None:
    """Raises UsageError unless the options name the job to start, in one way."""
    from clusterctl.errors import UsageError

    if resume and package is not None:
        raise UsageError(
            "--resume goes on with a job that is on the nodes, --job_dispatch_package makes a new one",
            hint="name the job: --job_workspace DIR, or none for the newest",
        )
    if not resume and (job_workspace is None) == (package is None):
        raise UsageError(
            "start needs a job to start: --job_workspace DIR, or --job_dispatch_package WORKSPACE to send one first",
            hint="clusterctl jobs lists what is on the nodes",
        )


def would_resume(cluster: Cluster, launch: LaunchPlan, ref: str | None) -> tuple[str, Resume]:
    """The job, and the checkpoint from which it would go on."""
    from clusterctl.launch import choose
    from clusterctl.observe.status import find

    job, _ = find(cluster, ref)
    return job, choose(cluster, job, launch.nodes, launch)


def tell_resume(session: Session, resume: Resume) -> None:
    """Says from which checkpoint a run goes on, and which newer ones are no good."""
    for line in resume.warnings:
        session.console.warn(clean(line, keep_newlines=True))
    session.console.say(f"goes on from {resume}")
