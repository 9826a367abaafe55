"""What `submit` makes: create it, wait until its pods are ready, find it again, and remove it."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clusterctl.config import Settings
from clusterctl.config.host_sources import KubernetesHosts
from clusterctl.errors import ClusterctlError, ConfigError, RefusedError, UnreachableError, UsageError
from clusterctl.schedulers.kubernetes.kubectl import Forbidden, Kubectl
from clusterctl.schedulers.kubernetes.manifest import (
    CONTAINER,
    SUBMISSION,
    ManifestOptions,
    manifest,
    name_for,
    objects,
)
from clusterctl.schedulers.kubernetes.pods import PodProblem, parse_pod, parse_set, problem_lines, shortened

READY_S = 600.0
REMOVED_S = 180.0
POLL_S = 0.25  # at first; then less often
MOST_POLL_S = 2.0
MOST_FAILURES = 5  # of kubectl, one after the other, while pods are waited for
OWNERS = "statefulsets,services"
DISKS = "persistentvolumeclaims"
CLAIM = "PersistentVolumeClaim"
#: What every pod is at first: nothing to report.
USUAL = (PodProblem("Absent"), PodProblem("Pending"))
#: Takes a line about what keeps pods from being ready.
Notify = Callable[[str], None]


@dataclass(frozen=True)
class CreatedObjects:
    """What a submission has made and is there now, named as kubectl does: `service/train-0a`."""

    id: str
    sets: tuple[str, ...]
    services: tuple[str, ...]
    pods: tuple[str, ...]
    disks: tuple[str, ...]

    @property
    def selector(self) -> str:
        return f"{SUBMISSION}={self.id}"

    @property
    def names(self) -> list[str]:
        return [*self.sets, *self.services, *self.pods, *self.disks]


def make_ready(
    kubectl: Kubectl, submission: ManifestOptions, notify: Notify, warn: Notify, *, limit_s: float = READY_S
) -> None:
    """Create the objects of a submission and return once all its pods are ready; else remove them and raise why.

    Raises RefusedError if there are pods with the same labels: HOSTS would mean these too. `warn` is told what could
    not be removed.
    """
    _refuse_namesakes(kubectl, submission)
    try:
        kubectl.create(manifest(submission))
        _await_ready(kubectl, submission, notify, limit_s)
    except BaseException:  # Ctrl-C too
        _undo(kubectl, submission, notify, warn)
        raise


def _undo(kubectl: Kubectl, submission: ManifestOptions, notify: Notify, warn: Notify) -> None:
    """Remove what was made. What goes wrong here is a warning: the error that led to it is the one to raise."""
    notify(f"removing what was made for {submission.name}")
    try:
        remove(kubectl, submission.selector)
    except (ClusterctlError, KeyboardInterrupt) as exc:
        why = f": {exc}" if isinstance(exc, ClusterctlError) else ""
        warn(f"not everything of {submission.name} was removed{why}\n  to remove the rest: clusterctl stop --delete")


def _refuse_namesakes(kubectl: Kubectl, submission: ManifestOptions) -> None:
    labels = ",".join(f"{key}={value}" for key, value in submission.labels.items())
    with contextlib.suppress(Forbidden):
        found = [item["metadata"]["name"] for item in kubectl.objects("statefulsets,pods", labels)]
        if found:
            raise RefusedError(
                f"there is already something with {labels} {kubectl.where}: {shortened(found)}",
                hint="run this on its pods: clusterctl start WORKSPACE; or remove them first: clusterctl stop --delete",
            )


def _await_ready(kubectl: Kubectl, submission: ManifestOptions, notify: Notify, limit_s: float) -> None:
    deadline, failures = time.monotonic() + limit_s, 0
    told_before = set(USUAL)
    for poll_s in _polls():
        try:
            problems, failures = _problems(kubectl, submission), 0
        except UnreachableError as exc:
            failures += 1
            if isinstance(exc, Forbidden) or failures == MOST_FAILURES:
                raise
        else:
            if not problems:
                return
            is_hopeless = _is_hopeless(problems, submission.nodes)
            if is_hopeless or time.monotonic() > deadline:
                raise _not_ready(submission, problems, None if is_hopeless else limit_s)
            news = {name: problem for name, problem in problems.items() if problem not in told_before}
            told_before.update(news.values())
            for line in problem_lines(news):
                notify(line)
        time.sleep(poll_s)


def _polls() -> Iterator[float]:
    """Yield the times between two questions: pods may be ready at once, or in ten minutes."""
    poll_s = POLL_S
    while True:
        yield poll_s
        poll_s = min(MOST_POLL_S, 2 * poll_s)


def _is_hopeless(problems: Mapping[str, PodProblem], nodes: int) -> bool:
    """Return True if no waiting helps. Where one pod becomes ready, the others may only have met a faulty machine."""
    found = set(problems.values())
    none_is_ready = len(problems) == nodes and not any(problem.is_on_its_way for problem in found)
    return none_is_ready and any(problem.is_hopeless for problem in found)


def _problems(kubectl: Kubectl, submission: ManifestOptions) -> dict[str, PodProblem]:
    """Return the reason for each pod that is not ready. Events of the StatefulSet explain why pods are absent."""
    items = kubectl.objects("statefulsets,pods", submission.selector)
    pods = {pod.name: pod for pod in map(parse_pod, (item for item in items if item["kind"] == "Pod"))}
    sets = [parse_set(item) for item in items if item["kind"] == "StatefulSet"]
    if not sets:
        raise ConfigError(f"{submission.name} is gone: somebody has deleted it")
    names = [f"{one.name}-{number}" for one in sets for number in one.ordinals]
    problems = {name: pods[name].problem for name in names if name in pods}
    absent = [name for name in names if name not in pods]
    if absent:
        problems.update(dict.fromkeys(absent, _why_absent(kubectl, submission)))
    return {name: problem for name, problem in problems.items() if problem is not None}


def _why_absent(kubectl: Kubectl, submission: ManifestOptions) -> PodProblem:
    with contextlib.suppress(ClusterctlError):  # an account need not be allowed to see events
        warnings = [one for one in kubectl.events("StatefulSet", submission.name) if one.get("type") == "Warning"]
        if warnings:
            last = max(warnings, key=lambda one: str(one.get("lastTimestamp") or one.get("eventTime") or ""))
            return PodProblem(last.get("reason", "Absent"), last.get("message", ""))
    return PodProblem("Absent")


def _not_ready(submission: ManifestOptions, problems: dict[str, PodProblem], after_s: float | None) -> UnreachableError:
    when = "" if after_s is None else f" after {after_s:g} s"
    message = f"{len(problems)} of {submission.nodes} pods are not ready{when}"
    details = {"pods": {name: str(problem) for name, problem in problems.items()}}
    hint = "correct the reason and submit again; clusterctl submit --to kubernetes --plan prints the manifest"
    return UnreachableError(
        "\n".join([message, *(f"  {line}" for line in problem_lines(problems))]), hint=hint, details=details
    )


def find(kubectl: Kubectl, selector: str) -> CreatedObjects | None:
    """Return what `submit` has made among the objects with these labels; None if there is nothing with them.

    Raises RefusedError if it has made none of them, or if they are of several submissions.
    """
    items = _objects(kubectl, selector)
    ids = {item["metadata"].get("labels", {}).get(SUBMISSION) for item in items} - {None}
    names = shortened([_name(item) for item in items])
    if not items:
        return None
    if not ids:
        raise RefusedError(
            f"clusterctl submit has made nothing of what has {selector} {kubectl.where}: {names}",
            hint="kubectl delete removes what was made otherwise",
        )
    if len(ids) > 1:
        hint = f'choose one in HOSTS: kubernetes("{SUBMISSION}={min(ids)}"), or kubectl delete the others'
        raise RefusedError(f"{len(ids)} submissions have {selector} {kubectl.where}: {names}", hint=hint)
    (id_,) = ids
    ours = _objects(kubectl, f"{SUBMISSION}={id_}")
    kinds = ("StatefulSet", "Service", "Pod", CLAIM)
    return CreatedObjects(id_, *(tuple(_name(item) for item in ours if item["kind"] == kind) for kind in kinds))


def remove(kubectl: Kubectl, selector: str, *, limit_s: float = REMOVED_S) -> None:
    """Delete everything with these labels, and return when it is gone. `selector` has the id of a submission."""
    kubectl.delete(OWNERS, selector)  # first, or it would make disks and pods again
    deadline = time.monotonic() + limit_s
    for poll_s in _polls():
        left = _objects(kubectl, selector)
        if not left:
            return
        if time.monotonic() > deadline:
            names = [_name(item) for item in left]
            raise UnreachableError(
                f"{shortened(names)} {'is' if len(names) == 1 else 'are'} still there after {limit_s:g} s",
                hint=f"see kubectl describe {names[0]}{kubectl.option}; clusterctl stop --delete tries again",
            )
        if any(item["kind"] == CLAIM and "deletionTimestamp" not in item["metadata"] for item in left):
            kubectl.delete(DISKS, selector)
        time.sleep(poll_s)


def _objects(kubectl: Kubectl, selector: str) -> list[dict[str, Any]]:
    try:
        return kubectl.objects(f"{OWNERS},pods,{DISKS}", selector)
    except Forbidden:  # an account that may not see disks has none
        return kubectl.objects(f"{OWNERS},pods", selector)


def _name(item: dict[str, Any]) -> str:
    return f"{item['kind'].lower()}/{item['metadata']['name']}"


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

    def make(self, environ: Mapping[str, str], tell: Notify, warn: Notify) -> KubernetesHosts:
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
