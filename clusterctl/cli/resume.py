"""`start --resume`: the choice of the job, and the messages about its checkpoint."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.cli.chosen_settings import shown_option
from clusterctl.cli.console import clean
from clusterctl.cli.invocation import Invocation

if TYPE_CHECKING:
    from collections.abc import Collection

    from clusterctl.cluster import Cluster
    from clusterctl.config import Settings
    from clusterctl.launch import LaunchPlan, Resume


def check_job(job_workspace: str | None, package: Path | None, resume: bool) -> None:
    """Raise UsageError unless the options name the job to start in exactly one way."""
    from clusterctl.errors import UsageError

    if resume and package is not None:
        raise UsageError(
            "--resume continues a job that is on the nodes; --job_dispatch_package creates a new one",
            hint="name the job with --job_workspace DIR, or leave it out for the one that ran last",
        )
    if not resume and (job_workspace is None) == (package is None):
        raise UsageError(
            "start needs a job: --job_workspace DIR, or --job_dispatch_package WORKSPACE to dispatch one first",
            hint="clusterctl jobs lists the jobs on the nodes",
        )


def would_resume(cluster: Cluster, launch: LaunchPlan, ref: str | None) -> tuple[str, Resume]:
    """Return the job and the checkpoint that it would resume from."""
    from clusterctl.launch import choose
    from clusterctl.observe.status import find

    job, _ = find(cluster, ref, to_resume=True)
    return job, choose(cluster, job, launch.nodes, launch)


def kept_settings(cluster: Cluster, ref: str | None, given: Collection[str]) -> tuple[str, dict[str, str]]:
    """Return the job to resume, and the `--set`s of its run that apply again; those `given` now replace them."""
    from clusterctl import launch
    from clusterctl.observe.status import find

    job, _ = find(cluster, ref, to_resume=True)
    return job, launch.kept_settings(cluster, job, given)


def tell_resume(invocation: Invocation, resume: Resume, settings: Settings) -> None:
    """Print the checkpoint that a run resumes from, and the newer ones that are unusable."""
    for line in resume.warnings:
        invocation.console.warn(clean(line, keep_newlines=True))
    kept = resume.arguments if invocation.program_args is None else None
    arguments = f" with its arguments: {shlex.join(kept)}" if kept else ""
    again = [shown_option(name, text) for name, text in resume.settings.items() if settings.chosen.get(name) == text]
    options = f"{' and' if kept else ' with'} its settings: {' '.join(again)}" if again else ""
    invocation.console.output(clean(f"resuming from {resume}{arguments}{options}"))
