"""The manifest of a job: a StatefulSet of pods that wait for commands, and its headless Service. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterctl.errors import UsageError
from clusterctl.schedulers.kubernetes.pods import DEFAULT_CONTAINER

#: What needs no quotes, apart from words that YAML takes for something else than text.
PLAIN = re.compile(r"[A-Za-z/][\w./-]*", re.ASCII)
OTHER_TYPES = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


def dump(value: object) -> str:
    """Return a document: mappings and lists in blocks, text in double quotes where it needs them."""
    return "".join(f"{line}\n" for line in _lines(value))


def _lines(value: object) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _entry(f"{_scalar(key)}:", item)
    elif isinstance(value, Sequence) and not isinstance(value, str) and value:
        for item in value:
            first, *rest = _lines(item)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
    else:
        yield _scalar(value)


def _entry(key: str, item: object) -> Iterator[str]:
    if not item or isinstance(item, str | int | float):
        yield f"{key} {_scalar(item)}"
        return
    yield key
    yield from (f"  {line}" for line in _lines(item))


def _scalar(value: object) -> str:
    if isinstance(value, str) and PLAIN.fullmatch(value) and value.lower() not in OTHER_TYPES:
        return value
    return json.dumps(value, ensure_ascii=False)


#: The label with the id of a submission. `stop --delete` removes what has it, and nothing else.
SUBMISSION = "clusterctl/submission"
MANAGED_BY = {"app.kubernetes.io/managed-by": "clusterctl"}
CONTAINER = "clusterctl"
HOME = "/home/clusterctl"
USER = "clusterctl"
USER_ID = 1000
DISK = "disk"
#: Keeps the container running and reaps what jobs leave behind, as an init process does. It ends at once: without it
#: the kernel kills all others, and the run takes the pod for a lost node, which is right if it is moved to another one.
STAY = 'trap "exit 0" TERM INT; while :; do sleep 3600 & wait $!; done'
#: Kubernetes makes the top directory of a disk writable for its group, or for everybody. Keys need a private one.
MAKE_HOME = f"mkdir -p -m 700 /{DISK}/home"
RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
MOST_NAME_CHARS = 30  # with the id, and what Kubernetes appends to it in a label of at most 63
HEADER = """\
# Written by clusterctl. kubectl create -f FILE makes these pods, if you have changed something here;
# then clusterctl start WORKSPACE runs a job on them, and clusterctl stop --delete removes them.
"""


@dataclass(frozen=True)
class ManifestOptions:
    """What the manifest is made of.

    `id` is unique; `name` is that of the StatefulSet. Pods have the `labels`, by which HOSTS finds them, and the id.
    `namespace`: None means that of kubectl's context. `storage` is the size of a disk for each pod, such as 10Gi; with
    None it is a directory that is gone with the pod.
    """

    id: str
    name: str
    image: str
    nodes: int
    labels: Mapping[str, str]
    namespace: str | None = None
    container: str = CONTAINER
    storage: str | None = None

    @property
    def selector(self) -> str:
        """What only this submission's objects have."""
        return f"{SUBMISSION}={self.id}"


def name_for(workspace: str, id_: str) -> str:
    """Return a name that Kubernetes accepts for a StatefulSet, a Service and, with a number, a machine."""
    word = re.sub(r"[^a-z0-9]+", "-", workspace.lower()).strip("-")[:MOST_NAME_CHARS].strip("-")
    return f"{word if word[:1].isalpha() else 'job'}-{id_}"


def manifest(submission: ManifestOptions) -> str:
    """Return the manifest in YAML. Raises UsageError for values that Kubernetes does not accept."""
    return HEADER + "---\n".join(dump(one) for one in objects(submission))


def objects(submission: ManifestOptions) -> list[dict[str, Any]]:
    """Return the objects of the manifest. Raises UsageError for values that Kubernetes does not accept."""
    _check(submission)
    return [_service(submission), _stateful_set(submission)]


def _check(submission: ManifestOptions) -> None:
    if submission.nodes < 1:
        raise UsageError(f"--nodes {submission.nodes}: must be 1 or more")
    if not re.fullmatch(r"[\w./:@-]+", submission.image, re.ASCII):
        raise UsageError(f"--image {submission.image!r}: not the name of an image", hint="write REGISTRY/NAME:TAG")
    size = submission.storage
    if size is not None and not re.fullmatch(r"0*[1-9][0-9]*(\.[0-9]+)?([KMGTPE]i|[kMGTPE])?", size):
        raise UsageError(f"--storage {size}: not a size", hint="write 10Gi")
    if SUBMISSION in submission.labels:
        raise UsageError(f"HOSTS: the label {SUBMISSION} is set by clusterctl itself")


def _metadata(submission: ManifestOptions) -> dict[str, Any]:
    namespace = {"namespace": submission.namespace} if submission.namespace else {}
    return {"name": submission.name, **namespace, "labels": _labels(submission)}


def _labels(submission: ManifestOptions) -> dict[str, str]:
    return {**MANAGED_BY, **submission.labels, SUBMISSION: submission.id}


def _service(submission: ManifestOptions) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(submission),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {SUBMISSION: submission.id},
        },
    }


def _stateful_set(submission: ManifestOptions) -> dict[str, Any]:
    wanted = {
        "serviceName": submission.name,
        "replicas": submission.nodes,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": {SUBMISSION: submission.id}},
        "template": {
            "metadata": {
                "labels": _labels(submission),
                "annotations": {DEFAULT_CONTAINER: submission.container},  # a cluster may add others to each pod
            },
            "spec": _pod(submission),
        },
    }
    if submission.storage is not None:
        wanted["volumeClaimTemplates"] = [_claim(submission, submission.storage)]
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": _metadata(submission), "spec": wanted}


def _pod(submission: ManifestOptions) -> dict[str, Any]:
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "initContainers": [
            _container("make-home", submission.image, MAKE_HOME, [{"name": DISK, "mountPath": f"/{DISK}"}]),
        ],
        "containers": [
            {
                **_container(
                    submission.container, submission.image, STAY, [{"name": DISK, "mountPath": HOME, "subPath": "home"}]
                ),
                "env": [{"name": "HOME", "value": HOME}, {"name": "USER", "value": USER}],
            }
        ],
    }
    if submission.storage is None:
        pod["volumes"] = [{"name": DISK, "emptyDir": {}}]
    return pod


def _container(name: str, image: str, script: str, mounts: list[dict[str, str]]) -> dict[str, Any]:
    return {
        "name": name,
        "image": image,
        "command": ["/bin/sh", "-c", script],
        "terminationMessagePolicy": "FallbackToLogsOnError",  # so that its last words say why a pod is not ready
        "securityContext": RESTRICTED,
        "volumeMounts": mounts,
    }


def _claim(submission: ManifestOptions, size: str) -> dict[str, Any]:
    return {
        "metadata": {"name": DISK, "labels": _labels(submission)},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}},
    }
