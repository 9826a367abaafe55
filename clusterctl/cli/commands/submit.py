"""`clusterctl submit`: hand a job to a scheduler, or show the script with which it would run it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.cli import style
from clusterctl.cli.invocation import Invocation
from clusterctl.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from clusterctl.config import Settings
    from clusterctl.schedulers.slurm.script import Submission


def submit(
    invocation: Invocation,
    workspace: Path,
    *,
    to: str,
    nodes: int | None,
    time: str | None,
    requeue: bool,
    plan: bool,
    for_pods: bool = False,
) -> None:
    from clusterctl.schedulers.slurm.mark import PLANNED
    from clusterctl.schedulers.slurm.script import SAVE_S, Submission, script

    if to != "slurm":
        raise UsageError(
            f"--to {to}: not a scheduler that clusterctl knows", hint="write --to slurm or --to kubernetes"
        )
    if for_pods:
        raise UsageError("--image, --namespace and --storage are for --to kubernetes only")
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
    submission = Submission(
        name=workspace.absolute().name,
        directory=str(conf.parent),
        output=str(conf.parent).replace("%", "%%") + "/slurm-%j.out",
        start=(*base, "start", *package, *name, *arguments),
        resume=(*base, "start", *package, *name, "--resume", *arguments),
        save=(*base, "save", Submission.RUN, "--timeout", str(SAVE_S)),
        nodes=nodes,
        time=time,
        requeue=requeue,
        options=settings.sbatch,
    )
    if plan:
        text = script(replace(submission, opening=PLANNED))
        invocation.console.document({"to": to, "script": text})
        invocation.console.say(text.rstrip("\n"))
        return
    _submit(invocation, submission, settings, {"conf": str(conf), "workspace": str(workspace.absolute())})


def _submit(invocation: Invocation, submission: Submission, settings: Settings, about: dict[str, str]) -> None:
    from clusterctl.schedulers.slurm.script import RUN_PREFIX
    from clusterctl.schedulers.slurm.submit import submit

    console = invocation.console
    done = submit(submission, settings.root_dir, about, invocation.environ)
    for line in done.notes:
        console.warn(line)
    job = {"id": done.id, "run": f"{RUN_PREFIX}{done.id}", "output": done.output}
    console.document({"to": "slurm", **job, "root_dir": settings.root_dir, "script": done.script})
    nodes = f"{submission.nodes} {'node' if submission.nodes == 1 else 'nodes'}" if submission.nodes else ""
    limit = f"time limit {submission.time}" if submission.time else ""
    asked = ", ".join(word for word in (nodes, limit) if word)
    console.say(style.good(f"submitted: Slurm job {done.id}") + (f"  {asked}" if asked else ""))
    console.say(f"what its script prints: {done.output}")
    console.say(f"next: clusterctl status {done.id}     clusterctl logs -f {done.id}     clusterctl stop {done.id}")


def _check_hosts(settings: Settings) -> None:
    from clusterctl.config.host_sources import KubernetesHosts, SlurmHosts

    if settings.hosts_from != SlurmHosts():
        raise ConfigError(
            f"{settings.place('HOSTS')}submit --to slurm needs HOSTS = slurm(), the nodes that the job is given",
            hint="for pods, add --to kubernetes" if isinstance(settings.hosts_from, KubernetesHosts) else None,
        )
