"""`clusterctl submit`: the script with which a scheduler runs a job."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.cli.invocation import Invocation
from clusterctl.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from clusterctl.config import Settings


def submit(
    invocation: Invocation,
    workspace: Path,
    *,
    to: str,
    nodes: int | None,
    time: str | None,
    requeue: bool,
    plan: bool,
) -> None:
    from clusterctl.schedulers.slurm.script import Submission, script

    if to != "slurm":
        raise UsageError(
            f"--to {to}: not a scheduler that clusterctl knows", hint="write --to slurm or --to kubernetes"
        )
    if not plan:
        raise UsageError(
            "submit only prints the script as yet", hint="add --plan > job.sh, then submit it yourself: sbatch job.sh"
        )
    if invocation.options.only:
        raise UsageError("this command does not accept --only: Slurm chooses the nodes")
    settings = invocation.settings()
    _check_hosts(settings)
    if not workspace.is_dir():
        raise UsageError(f"{workspace} is not a directory")
    conf = (settings.source or Path("conf.py")).absolute()
    base = (sys.executable, "-m", "clusterctl", "--conf", str(conf))
    package = ("--job_dispatch_package", str(workspace.absolute()))
    name = ("--name", Submission.RUN)
    arguments = ("--", *invocation.program_args) if invocation.program_args else ()
    text = script(
        Submission(
            name=workspace.absolute().name,
            directory=str(conf.parent),
            output=str(conf.parent).replace("%", "%%") + "/slurm-%j.out",
            start=(*base, "start", *package, *name, *arguments),
            resume=(*base, "start", Submission.RUN, "--resume", *name),
            stop=(*base, "stop", Submission.RUN),
            nodes=nodes,
            time=time,
            requeue=requeue,
            options=settings.sbatch,
        )
    )
    invocation.console.document({"to": to, "script": text})
    invocation.console.say(text.rstrip("\n"))


def _check_hosts(settings: Settings) -> None:
    from clusterctl.config.host_sources import SlurmHosts

    if settings.hosts_from != SlurmHosts():
        raise ConfigError(
            f"{settings.place('HOSTS')}submit --to slurm needs HOSTS = slurm(), the nodes that the job is given"
        )
