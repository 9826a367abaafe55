"""Settings whose HOSTS a scheduler knows become settings with hosts."""

from __future__ import annotations

from collections.abc import Mapping

from clusterctl.config import Settings
from clusterctl.config.host_sources import KubernetesHosts, SlurmHosts


def resolve(settings: Settings, environ: Mapping[str, str]) -> Settings:
    """Return the settings with their hosts. Those that list hosts are returned as they are, and no program runs.

    `environ` says in whose allocation the command runs, and where the scheduler's commands are.
    Raises ConfigError, UsageError or UnreachableError with what the scheduler says.
    """
    source = settings.hosts_from
    if isinstance(source, SlurmHosts):
        from clusterctl.schedulers.slurm.hosts import with_hosts

        return with_hosts(settings, source, environ)
    if isinstance(source, KubernetesHosts):
        from clusterctl.schedulers.kubernetes.hosts import with_hosts as with_pods

        return with_pods(settings, source, environ)
    return settings
