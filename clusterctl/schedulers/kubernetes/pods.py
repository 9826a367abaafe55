"""Pods and StatefulSets as the API server describes them: which pods are the nodes, and why one is not ready. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from clusterctl.config import Host, Settings
from clusterctl.config.host_sources import KubernetesHosts
from clusterctl.errors import ConfigError, UnreachableError
from clusterctl.schedulers.kubernetes.kubectl import Forbidden, Kubectl

Json = Mapping[str, Any]
#: Reasons that last until somebody changes the manifest, the image or a setting.
HOPELESS = frozenset(
    {
        *("CrashLoopBackOff", "CreateContainerConfigError", "CreateContainerError", "RunContainerError"),
        *("ErrImageNeverPull", "ImageInspectError", "ImagePullBackOff", "InvalidImageName"),
    }
)
#: A container that waits for these will go on.
PASSING = frozenset({"ContainerCreating", "PodInitializing"})
#: So is a pod without an explanation.
ON_THEIR_WAY = frozenset({"Absent", "Pending", "Running", *PASSING})
DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"


class PodProblem(NamedTuple):
    """Why a pod is not ready: Kubernetes' word, such as ImagePullBackOff, and its explanation, "" without one."""

    reason: str
    text: str = ""

    @property
    def is_hopeless(self) -> bool:
        return self.reason in HOPELESS

    @property
    def is_on_its_way(self) -> bool:
        """True for what every pod goes through."""
        return not self.text and self.reason in ON_THEIR_WAY

    def __str__(self) -> str:
        return f"{self.reason}: {self.text}" if self.text else self.reason


@dataclass(frozen=True)
class Pod:
    """A pod. `owner` is the name of its StatefulSet. `address` is its IP address, None until it has one.

    `container` is its default container, or its only one; None if `containers` leave the choice open.
    """

    name: str
    namespace: str
    owner: str | None
    address: str | None
    containers: tuple[str, ...]
    container: str | None
    problem: PodProblem | None
    is_over: bool


@dataclass(frozen=True)
class PodSet:
    """A StatefulSet: its pods are `NAME-N` for each of `ordinals`, whether or not they exist now."""

    name: str
    namespace: str
    ordinals: range
    containers: tuple[str, ...]
    container: str | None


def parse_pod(item: Json) -> Pod:
    meta, status = item["metadata"], item.get("status", {})
    containers, container = _containers(item)
    owners = [owner["name"] for owner in meta.get("ownerReferences", ()) if owner.get("kind") == "StatefulSet"]
    return Pod(
        name=meta["name"],
        namespace=meta.get("namespace", "default"),
        owner=owners[0] if owners else None,
        address=status.get("podIP") or None,
        containers=containers,
        container=container,
        problem=_problem(meta, status),
        is_over=status.get("phase") in ("Succeeded", "Failed"),
    )


def parse_set(item: Json) -> PodSet:
    meta, wanted = item["metadata"], item["spec"]
    containers, container = _containers(wanted["template"])
    first, count = wanted.get("ordinals", {}).get("start", 0), wanted.get("replicas", 1)
    return PodSet(meta["name"], meta.get("namespace", "default"), range(first, first + count), containers, container)


def _containers(pod: Json) -> tuple[tuple[str, ...], str | None]:
    """Return the containers of a pod or of a template, and the one that commands are meant for."""
    names = tuple(container["name"] for container in pod["spec"]["containers"])
    chosen = pod.get("metadata", {}).get("annotations", {}).get(DEFAULT_CONTAINER)
    return names, chosen or (names[0] if len(names) == 1 else None)


def members(pods: Sequence[Pod], sets: Iterable[PodSet]) -> list[str]:
    """Return the names of the nodes in order, `train-2` before `train-10`.

    A pod of a StatefulSet that is absent now has its place all the same, so that the others keep their ids. Without the
    StatefulSet itself that holds for all but the last ones. Other pods count unless they have ended.
    """
    ordinals = {one.name: one.ordinals for one in sets}
    for pod in pods:
        if pod.owner is not None and pod.owner not in ordinals:
            numbers = [int(one.name.rpartition("-")[2]) for one in pods if one.owner == pod.owner]
            ordinals[pod.owner] = range(max(numbers) + 1)
    names = {f"{name}-{number}" for name, numbers in ordinals.items() for number in numbers}
    names |= {pod.name for pod in pods if pod.owner is None and not pod.is_over}
    return sorted(names, key=_natural)


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", name)]


def _problem(meta: Json, status: Json) -> PodProblem | None:
    """Return why a pod is not ready, None if it is."""
    if "deletionTimestamp" in meta:
        return PodProblem("Terminating")
    phase = status.get("phase", "Pending")
    if phase in ("Succeeded", "Failed"):
        return PodProblem(status.get("reason", phase), status.get("message", ""))
    conditions = {condition["type"]: condition for condition in status.get("conditions", ())}
    if conditions.get("Ready", {}).get("status") == "True":
        return None
    for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        if problem := _problem_of(container):
            return problem
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return PodProblem(phase, scheduled.get("message", ""))
    waiting = [one.get("state", {}).get("waiting", {}).get("reason") for one in status.get("containerStatuses", ())]
    return PodProblem(next(filter(None, waiting), phase))


def _problem_of(container: Json) -> PodProblem | None:
    """Return why a container does not run; what ended it before says more than that it is to wait now."""
    state, before = container.get("state", {}), container.get("lastState", {}).get("terminated", {})
    if (waiting := state.get("waiting")) and waiting.get("reason") not in (None, *PASSING):
        return PodProblem(waiting["reason"], _ended(before) or waiting.get("message", ""))
    ended = state.get("terminated", {})
    return PodProblem(ended.get("reason", "Error"), _ended(ended)) if ended.get("exitCode") else None


def _ended(terminated: Json) -> str:
    if not terminated:
        return ""
    return str(terminated.get("message") or f"its command exited with code {terminated.get('exitCode')}")


def problem_lines(problems: Mapping[str, PodProblem]) -> list[str]:
    """Return a line for each problem, with the pods that have it: `train-0, train-1: Pending: ... Insufficient cpu`."""
    groups: dict[PodProblem, list[str]] = {}
    for name in sorted(problems, key=_natural):
        groups.setdefault(problems[name], []).append(name)
    return [f"{shortened(names)}: {problem}" for problem, names in groups.items()]


def shortened(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


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
