"""Submit a job to Slurm: a mark in a ROOT_DIR that its nodes share with this machine, and sbatch."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clusterctl.errors import ClusterctlError, RefusedError, UnreachableError
from clusterctl.schedulers.slurm.commands import Slurm
from clusterctl.schedulers.slurm.records import SHARED, Records
from clusterctl.schedulers.slurm.script import ScriptOptions, look, script

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
