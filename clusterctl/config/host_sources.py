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

    @property
    def allocation(self) -> str | None:
        """The scheduler's job that has the hosts, if other jobs may use the same ROOT_DIR at the same time."""
        return None


@dataclass(frozen=True)
class SlurmHosts(HostSource):
    """The nodes of a Slurm job: of `job`, else of the one in whose allocation the command runs."""

    job: object = None

    def problem(self) -> str | None:
        if self.job is None or re.fullmatch(r"[0-9]{1,10}(_[0-9]{1,10})?", str(self.job)):
            return None
        return f"= slurm(job={self.job!r}): a job id is a number, such as 12345, or 12345_6 in an array"

    @property
    def allocation(self) -> str | None:
        return None if self.job is None else str(self.job)


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


_NAME = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_WORD = r"[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?"
_LABEL = re.compile(rf"\s*((?:[a-z0-9.-]{{1,253}}/)?{_WORD})\s*==?\s*({_WORD})\s*", re.ASCII)


@dataclass(frozen=True)
class KubernetesHosts(HostSource):
    """The pods that `selector` chooses by their labels, in `namespace`, else in that of kubectl's context.

    Commands run in `container`; if it is None, in the pod's default container, or its only one.
    """

    selector: object
    namespace: object = None
    container: object = None

    def problem(self) -> str | None:
        if not isinstance(self.selector, str) or not re.fullmatch(r"[\w!][\w./!=(), -]*", self.selector, re.ASCII):
            return f'= kubernetes({self.selector!r}): must be labels of pods, such as "app=train"'
        for name, value in (("namespace", self.namespace), ("container", self.container)):
            if value is not None and not (isinstance(value, str) and re.fullmatch(_NAME, value)):
                return f"= kubernetes({name}={value!r}): must consist of lower-case letters, digits and dashes"
        return None

    @property
    def in_namespace(self) -> str | None:
        """The namespace as text."""
        return None if self.namespace is None else str(self.namespace)

    @property
    def labels(self) -> dict[str, str] | None:
        """The labels of a pod that `selector` chooses; None if it is not a list of KEY=VALUE."""
        found = [_LABEL.fullmatch(part) for part in str(self.selector).split(",")]
        return None if None in found else {match[1]: match[3] for match in found if match}


def kubernetes(selector: str, *, namespace: str | None = None, container: str | None = None) -> KubernetesHosts:
    """Return the value for `HOSTS = kubernetes("app=train")` in conf.py."""
    return KubernetesHosts(selector, namespace, container)
