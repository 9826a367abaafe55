"""Pods that are made for a job, and their removal."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clusterctl.config import Settings
from clusterctl.config.host_sources import KubernetesHosts
from clusterctl.errors import ConfigError, UsageError
from clusterctl.schedulers.kubernetes.kubectl import Kubectl
from clusterctl.schedulers.kubernetes.manifest import CONTAINER, ManifestOptions, manifest, name_for, objects
from clusterctl.schedulers.kubernetes.submit import CreatedObjects, find, make_ready, remove


def hosts_of(settings: Settings, command: str) -> KubernetesHosts:
    """Return the HOSTS of the settings. Raises ConfigError if they are no pods."""
    if not isinstance(settings.hosts_from, KubernetesHosts):
        raise ConfigError(
            f"{settings.place('HOSTS')}{command} needs pods as hosts", hint='write HOSTS = kubernetes("app=train")'
        )
    return settings.hosts_from


def in_namespace(hosts: KubernetesHosts, namespace: str | None) -> KubernetesHosts:
    """Return HOSTS with a namespace, which other commands do not know. Raises UsageError if HOSTS has another one."""
    if namespace is None or namespace == hosts.namespace:
        return hosts
    if hosts.namespace is not None:
        raise UsageError(f"--namespace {namespace}: HOSTS has the namespace {hosts.namespace}", hint="give one of them")
    chosen = replace(hosts, namespace=namespace)
    if problem := chosen.problem():
        raise UsageError(f"--namespace: {problem.removeprefix('= ')}")
    return chosen


@dataclass(frozen=True)
class Pods:
    """Pods to make for a workspace, which become those of `hosts`."""

    submission: ManifestOptions
    hosts: KubernetesHosts

    @property
    def manifest(self) -> str:
        return manifest(self.submission)

    @property
    def objects(self) -> list[dict[str, Any]]:
        """The objects of the manifest."""
        return objects(self.submission)

    def make(
        self, environ: Mapping[str, str], tell: Callable[[str], None], warn: Callable[[str], None]
    ) -> KubernetesHosts:
        """Make them; once all are ready, return the HOSTS that mean exactly these. See `make_ready`."""
        one = self.submission
        make_ready(Kubectl(environ, one.namespace), one, tell, warn)
        return replace(self.hosts, selector=one.selector, container=one.container)


def pods_for(
    workspace: Path, hosts: KubernetesHosts, *, nodes: int | None, image: str | None, storage: str | None
) -> Pods:
    """Return the pods to make. Raises UsageError if something is missing for them."""
    if not workspace.is_dir():
        raise UsageError(f"{workspace} is not a directory")
    if nodes is None or image is None:
        raise UsageError(f"submit --to kubernetes needs {'--nodes' if nodes is None else '--image'}")
    if hosts.labels is None:
        raise UsageError(
            f"HOSTS = kubernetes({hosts.selector!r}): submit cannot give such labels to pods",
            hint='write KEY=VALUE, as in kubernetes("app=train")',
        )
    id_ = secrets.token_hex(4)
    submission = ManifestOptions(
        id=id_,
        name=name_for(workspace.absolute().name, id_),
        image=image,
        nodes=nodes,
        labels=hosts.labels,
        namespace=hosts.in_namespace,
        container=str(hosts.container or CONTAINER),
        storage=storage,
    )
    return Pods(submission, hosts)


@dataclass(frozen=True)
class CreatedPods:
    """The pods that `submit` created for HOSTS. `made` is None if it created none."""

    kubectl: Kubectl
    made: CreatedObjects | None

    @property
    def where(self) -> str:
        """The namespace for messages."""
        return self.kubectl.where

    def delete(self) -> None:
        """Delete it, with all jobs on its disks; return once it is gone."""
        if self.made is not None:
            remove(self.kubectl, self.made.selector)


def find_made(hosts: KubernetesHosts, environ: Mapping[str, str]) -> CreatedPods:
    """Look for the pods that `submit` created for HOSTS."""
    kubectl = Kubectl(environ, hosts.in_namespace)
    return CreatedPods(kubectl, find(kubectl, str(hosts.selector)))
