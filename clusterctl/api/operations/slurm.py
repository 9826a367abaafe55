"""Hand a job to Slurm: the script with which it would run it, and its submission."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clusterctl.config import Settings
from clusterctl.config.host_sources import KubernetesHosts, SlurmHosts
from clusterctl.errors import ConfigError, UsageError
from clusterctl.schedulers.slurm.script import PLANNED, RUN_PREFIX, SAVE_S, ScriptOptions, script
from clusterctl.schedulers.slurm.submit import Submitted, submit


@dataclass(frozen=True)
class Order:
    """A workspace to run in a job of Slurm, and the script for it."""

    submission: ScriptOptions
    settings: Settings
    conf: Path
    workspace: Path

    def script(self) -> str:
        """Return the script, with a note in place of what only a submission knows. Raises UsageError."""
        return script(replace(self.submission, opening=PLANNED))

    def submit(self, environ: Mapping[str, str]) -> tuple[Submitted, str]:
        """Submit it; return what Slurm says, and the name that the run will have."""
        about = {"conf": str(self.conf), "workspace": str(self.workspace)}
        done = submit(self.submission, self.settings.root_dir, about, environ)
        return done, f"{RUN_PREFIX}{done.id}"


def order(
    settings: Settings,
    workspace: Path,
    args: Sequence[str] | None,
    *,
    nodes: int | None = None,
    time: str | None = None,
    requeue: bool = False,
) -> Order:
    """Return what to submit. Raises ConfigError if HOSTS are not those of Slurm, and UsageError without a workspace."""
    _check_hosts(settings)
    if not workspace.is_dir():
        raise UsageError(f"{workspace} is not a directory")
    conf, workspace = (settings.source or Path("conf.py")).absolute(), workspace.absolute()
    base = (sys.executable, "-m", "clusterctl", "--conf", str(conf))
    package = ("--job_dispatch_package", str(workspace))
    name = ("--name", ScriptOptions.RUN)
    arguments = ("--", *args) if args else ()
    submission = ScriptOptions(
        name=workspace.name,
        directory=str(conf.parent),
        output=str(conf.parent).replace("%", "%%") + "/slurm-%j.out",
        start=(*base, "start", *package, *name, *arguments),
        resume=(*base, "start", *package, *name, "--resume", *arguments),
        save=(*base, "save", ScriptOptions.RUN, "--timeout", str(SAVE_S)),
        nodes=nodes,
        time=time,
        requeue=requeue,
        options=settings.sbatch,
    )
    return Order(submission, settings, conf, workspace)


def _check_hosts(settings: Settings) -> None:
    if settings.hosts_from != SlurmHosts():
        raise ConfigError(
            f"{settings.place('HOSTS')}submit --to slurm needs HOSTS = slurm(), the nodes that the job is given",
            hint="for pods, add --to kubernetes" if isinstance(settings.hosts_from, KubernetesHosts) else None,
        )
