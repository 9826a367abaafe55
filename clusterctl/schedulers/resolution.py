"""Settings whose HOSTS a scheduler knows become settings with hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from clusterctl.config import Settings
from clusterctl.config.host_sources import KubernetesHosts, OpenMpiHosts, SlurmHosts
from clusterctl.schedulers.kubernetes import pods as kubernetes
from clusterctl.schedulers.openmpi import hostfile as openmpi
from clusterctl.schedulers.scheduled import JobWatch, ScheduledJob
from clusterctl.schedulers.slurm import hosts as slurm
from clusterctl.schedulers.slurm import view
from clusterctl.schedulers.slurm.hosts import look_at_all


def resolve(settings: Settings, environ: Mapping[str, str]) -> Settings:
    """Return the settings with their hosts. Those that list hosts are returned as they are, and no program runs.

    `environ` says in whose allocation the command runs, and where the scheduler's commands are.
    Raises ConfigError, UsageError or UnreachableError with what the scheduler says.
    """
    source = settings.hosts_from
    if isinstance(source, SlurmHosts):
        return slurm.with_hosts(settings, source, environ)
    if isinstance(source, OpenMpiHosts):
        return openmpi.with_hosts(settings, source, environ)
    if isinstance(source, KubernetesHosts):
        return kubernetes.with_hosts(settings, source, environ)
    return settings


def resolve_job(settings: Settings, environ: Mapping[str, str], ref: str | None) -> tuple[Settings, JobWatch | None]:
    """Do the same for a job that is only looked at, and may wait or be over: `ref` is what a user calls it.

    If this is not on its nodes, return the job as its scheduler sees it, too. Raises NoRunError, beside the errors of
    `resolve`, for one that has had no nodes yet.
    """
    source = settings.hosts_from
    if isinstance(source, SlurmHosts):
        return view.look_at(settings, source, environ, ref)
    return resolve(settings, environ), None


def resolve_all(settings: Settings, environ: Mapping[str, str]) -> tuple[Settings, Callable[[str | None], str] | None]:
    """Do the same to look at all jobs. Outside an allocation of Slurm their files are read on this machine.

    Then the hosts stand for the directories of nodes, if there are any, and the function tells the state of a run, by
    its name, that has not recorded its own end.
    """
    source = settings.hosts_from
    if isinstance(source, SlurmHosts) and source.job is None and slurm.INSIDE not in environ:
        return look_at_all(settings, environ)
    return resolve(settings, environ), None


def queued(settings: Settings, environ: Mapping[str, str]) -> list[ScheduledJob]:
    """Return the jobs that were submitted and wait for nodes; outside an allocation of Slurm there may be some."""
    source = settings.hosts_from
    if isinstance(source, SlurmHosts):
        return view.queued(settings, environ)
    return []


def cancel(settings: Settings, environ: Mapping[str, str], job: ScheduledJob) -> ScheduledJob:
    """Cancel a scheduler's job; one that was queued only if it still is. Return what the scheduler says after that."""
    return view.cancel(settings, environ, job)
