"""HOSTS that a scheduler knows: values that say where hosts come from. Making one runs no program.

`schedulers.resolve` asks for the hosts once a command needs nodes.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True)
class HostSource(ABC):
    """A value of HOSTS in place of a list. Like `Host`, its constructor validates nothing, and `load` reports."""

    @abstractmethod
    def problem(self) -> str | None:
        """Return what is wrong with the value, to follow `HOSTS `; None if nothing is."""


@dataclass(frozen=True)
class SlurmHosts(HostSource):
    """The nodes of a Slurm job: of `job`, else of the one in whose allocation the command runs."""

    job: object = None

    def problem(self) -> str | None:
        if self.job is None or re.fullmatch(r"[0-9]{1,10}(_[0-9]{1,10})?", str(self.job)):
            return None
        return f"= slurm(job={self.job!r}): a job id is a number, such as 12345, or 12345_6 in an array"


def slurm(job: int | str | None = None) -> SlurmHosts:
    """Return the value for `HOSTS = slurm()` in conf.py."""
    return SlurmHosts(job)


@dataclass(frozen=True)
class OpenMpiHosts(HostSource):
    """The hosts in a hostfile of Open MPI; a relative path starts at the directory of conf.py."""

    file: object

    def problem(self) -> str | None:
        if isinstance(self.file, str | os.PathLike) and str(self.file):
            return None
        return f'= openmpi({self.file!r}): write the path of a hostfile, such as openmpi("hostfile")'


def openmpi(file: str | os.PathLike[str]) -> OpenMpiHosts:
    """Return the value for `HOSTS = openmpi("hostfile")` in conf.py."""
    return OpenMpiHosts(file)
