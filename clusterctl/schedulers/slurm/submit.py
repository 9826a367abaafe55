"""Submit a job to Slurm: its script, a mark in a ROOT_DIR that its nodes share with this machine, and sbatch."""

from __future__ import annotations

import contextlib
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clusterctl.config import Settings
from clusterctl.config.host_sources import KubernetesHosts, SlurmHosts
from clusterctl.config.node_loss import reaction_to_loss
from clusterctl.errors import ClusterctlError, ConfigError, RefusedError, UnreachableError, UsageError
from clusterctl.schedulers.slurm.commands import Slurm
from clusterctl.schedulers.slurm.records import SHARED, Records
from clusterctl.schedulers.slurm.script import PLANNED, RUN_PREFIX, SAVE_S, ScriptOptions, look, script

IN_MEMORY = ("devtmpfs", "ramfs", "tmpfs")
MOUNTS = Path("/proc/self/mounts")


@dataclass(frozen=True)
class Submitted:
    """A job that Slurm has taken. `output` is the file for what its script prints, `notes` are warnings of sbatch."""

    id: str
    output: str
    script: str
    notes: list[str]


def submit(submission: ScriptOptions, root_dir: str, about: Mapping[str, Any], environ: Mapping[str, str]) -> Submitted:
    """Submit the script of a job, which begins by looking for a mark below `root_dir`. `about` is kept in its record.

    Raises RefusedError if it is clear by now that the nodes cannot see `root_dir`, UsageError if Slurm refuses the job,
    ConfigError or UnreachableError.
    """
    slurm, records = Slurm(environ), Records(root_dir)
    script(submission)  # raises what is wrong with the options before anything is written
    _check_shared(records.root, slurm)
    record = records.new(about)
    text = script(replace(submission, opening=look(str(record.directory))))
    try:
        job, notes = slurm.submit(text)
    except UnreachableError:  # the job may have been submitted all the same; it finds its record
        raise
    except ClusterctlError:
        record.forget()
        raise
    output = submission.output.replace("%j", job).replace("%%", "%")
    with contextlib.suppress(ClusterctlError):
        output = slurm.output_of(job) or output
    with contextlib.suppress(OSError):  # the job does the same
        record.submitted(job, output)
    return Submitted(job, output, text, notes)


def _check_shared(root: Path, slurm: Slurm) -> None:
    kind = file_system(root, MOUNTS.read_text(errors="replace") if MOUNTS.exists() else "")
    if kind in IN_MEMORY and slurm.machines() - {socket.gethostname().partition(".")[0]}:
        raise RefusedError(
            f"ROOT_DIR {root} is in the memory of this machine ({kind}), where the nodes cannot see it", hint=SHARED
        )


def file_system(path: Path, mounts: str) -> str:
    """Return the type of the file system on which a path is or would be, "" if that is unknown.

    `mounts` has the form of /proc/self/mounts.
    """
    rows = [row.split() for row in mounts.splitlines()]
    kinds = {Path(_unescaped(row[1])): row[2] for row in rows if len(row) > 2}
    real = path.resolve()
    return next((kinds[place] for place in (real, *real.parents) if place in kinds), "")


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


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
        outlives_nodes=reaction_to_loss(settings, nodes or 1, has_pservers=settings.pservers != 0) == "move",
        options=settings.sbatch,
    )
    return Order(submission, settings, conf, workspace)


def _check_hosts(settings: Settings) -> None:
    if settings.hosts_from != SlurmHosts():
        raise ConfigError(
            f"{settings.place('HOSTS')}submit --to slurm needs HOSTS = slurm(), the nodes that the job is given",
            hint="for pods, add --to kubernetes" if isinstance(settings.hosts_from, KubernetesHosts) else None,
        )
