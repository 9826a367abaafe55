"""`HOSTS = kubernetes("app=train")`: pods as nodes, and kubectl exec as their carrier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from clusterctl.config import Host, Settings
from clusterctl.config.host_sources import KubernetesHosts
from clusterctl.errors import ConfigError, UnreachableError
from clusterctl.schedulers.kubernetes.kubectl import Forbidden, Kubectl
from clusterctl.schedulers.kubernetes.pods import Pod, PodSet, members, parse_pod, parse_set


def with_hosts(settings: Settings, source: KubernetesHosts, environ: Mapping[str, str]) -> Settings:
    """Return the settings with the pods as hosts, in the order of their ordinals, with the IP addresses they have now.

    A pod that was deleted and is not back yet is a host, too, without an address.
    """
    kubectl = Kubectl(environ, source.in_namespace)
    pods, sets = _found(kubectl, str(source.selector))
    nodes = members(pods, sets)
    if not nodes:
        raise UnreachableError(
            f"{settings.place('HOSTS')}there is no pod with {source.selector} {kubectl.where}",
            hint=f"see kubectl get pods --show-labels{kubectl.option}; clusterctl submit --to kubernetes makes some",
        )
    first: Pod | PodSet = pods[0] if pods else sets[0]
    via = carrier(first.namespace, _container(settings, source, first))
    addresses = {pod.name: pod.address for pod in pods} if settings.nic is None else {}
    return replace(settings, hosts=tuple(Host(name, address=addresses.get(name), via=via) for name in nodes))


def carrier(namespace: str, container: str) -> tuple[str, ...]:
    """Return the words that run a command in a pod; `{host}` stands for the pod."""
    return ("kubectl", "exec", "-i", "-n", namespace, "-c", container, "{host}", "--")


def _found(kubectl: Kubectl, selector: str) -> tuple[list[Pod], list[PodSet]]:
    try:
        items = kubectl.objects("statefulsets,pods", selector)
    except Forbidden:  # an account may perhaps see pods, but not StatefulSets
        items = kubectl.objects("pods", selector)
    pods = [parse_pod(item) for item in items if item["kind"] == "Pod"]
    return pods, [parse_set(item) for item in items if item["kind"] == "StatefulSet"]


def _container(settings: Settings, source: KubernetesHosts, one: Pod | PodSet) -> str:
    if isinstance(source.container, str) and source.container in one.containers:
        return source.container
    if source.container is None and one.container is not None:
        return one.container
    problem, hint = f"there is no container {source.container}", "correct container="
    if source.container is None:
        problem, hint = "there are several containers", "name one: kubernetes(..., container=...)"
    raise ConfigError(
        f"{settings.place('HOSTS')}{problem} in {one.name}, which has {', '.join(one.containers)}", hint=hint
    )
