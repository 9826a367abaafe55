"""A stand-in for a cluster: objects, and controllers of StatefulSets, pods and disks. Its pods are local processes.

It knows what clusterctl uses. Images, users, machines and networks are left out: a pod runs as this user, with an
address of its own in 127.0.0.0/8, another one each time it is made. Faults are attributes.
"""

from __future__ import annotations

import itertools
import os
import shutil
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from real.kubernetes.processes import PodProcesses

Json = dict[str, Any]
#: The kinds by the names of their resources.
KINDS = {
    "pods": "Pod",
    "services": "Service",
    "persistentvolumeclaims": "PersistentVolumeClaim",
    "events": "Event",
    "namespaces": "Namespace",
    "statefulsets": "StatefulSet",
}
NUMBERS = itertools.count(2)


class ApiError(Exception):
    """An answer that is no success: its HTTP status, Kubernetes' word for it, and a message."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


class Cluster:
    """The objects of a cluster. Any thread may use it.

    `forbidden` has pairs of a verb and a resource that this account may not use, such as `create` and `pods/exec`.
    Images whose names contain `missing` cannot be pulled, and on the machine of the pods `broken` none can. At most
    `capacity` pods find room, and at most `quota` may exist. The next `failures` requests fail. `cuts` has the numbers
    of bytes after which the output of the next execs breaks off. `execs` counts those of each pod.
    """

    def __init__(self, directory: Path) -> None:
        self.forbidden: set[tuple[str, str]] = set()
        self.capacity: int | None = None
        self.quota: int | None = None
        self.broken: set[str] = set()
        self.failures = 0
        self.cuts: list[int] = []
        self.execs: Counter[str] = Counter()
        self.namespaces = {"default", "research"}
        self._directory = directory
        self._lock = threading.RLock()
        self._objects: dict[tuple[str, str, str], Json] = {}
        self._processes: dict[str, PodProcesses] = {}  # by the uid of the pod, as the next ones
        self._beginning: dict[str, threading.Thread] = {}
        self._ending: set[str] = set()
        self._threads: list[threading.Thread] = []

    # What clients ask for.

    def list(self, resource: str, namespace: str, labels: str = "", fields: str = "") -> list[Json]:
        self.check("list", resource, namespace)
        wanted = _requirements(labels)
        with self._lock:
            found = [one for key, one in sorted(self._objects.items()) if key[:2] == (resource, namespace)]
            return [deepcopy(one) for one in found if _has_labels(one, wanted) and _has_fields(one, fields)]

    def get(self, resource: str, namespace: str, name: str) -> Json:
        self.check("get", resource, namespace)
        if resource == "namespaces" and name in self.namespaces:
            return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        return deepcopy(self._find(resource, namespace, name))

    def _find(self, resource: str, namespace: str, name: str) -> Json:
        with self._lock:
            if (found := self._objects.get((resource, namespace, name))) is None:
                raise ApiError(404, "NotFound", f'{_shown(resource)} "{name}" not found')
            return found

    def create(self, resource: str, namespace: str, given: Json) -> Json:
        self.check("create", resource, namespace)
        name = given["metadata"]["name"]
        if namespace not in self.namespaces:
            raise ApiError(404, "NotFound", f'namespaces "{namespace}" not found')
        with self._lock:
            if (resource, namespace, name) in self._objects:
                raise ApiError(409, "AlreadyExists", f'{_shown(resource)} "{name}" already exists')
            made = self._add(resource, namespace, given)
        self._reconcile()
        return made

    def delete(self, resource: str, namespace: str, name: str) -> Json:
        self.check("delete", resource, namespace)
        going = self._find(resource, namespace, name)
        with self._lock:
            going["metadata"].setdefault("deletionTimestamp", _now())
            if resource not in ("pods", "persistentvolumeclaims"):
                del self._objects[resource, namespace, name]
        self._reconcile()
        return going

    def processes(self, namespace: str, name: str) -> PodProcesses:
        """Return the processes of a pod that runs."""
        pod = self._find("pods", namespace, name)
        if (found := self._processes.get(pod["metadata"]["uid"])) is None:
            raise ApiError(400, "BadRequest", f"pod {name} does not have a host assigned")
        return found

    def make_room(self) -> None:
        """Let all pods find room, and exist."""
        self.capacity = self.quota = None
        self._reconcile()

    def restart_container(self, namespace: str, name: str) -> None:
        """End everything that runs in a pod, and run its container again, in place."""
        self.processes(namespace, name).restart()

    def check(self, verb: str, resource: str, namespace: str) -> None:
        if self.failures:
            self.failures -= 1
            raise ApiError(503, "ServiceUnavailable", "the server is currently unable to handle the request")
        if (verb, resource) in self.forbidden:
            message = (
                f'{_shown(resource)} is forbidden: User "me" cannot {verb} resource "{resource}" in API group "" in '
            )
            raise ApiError(403, "Forbidden", f'{message}the namespace "{namespace}"')

    # What controllers do.

    def _reconcile(self) -> None:
        """Make and end what has to be; pods begin and end in threads of their own."""
        with self._lock:
            for (resource, _, _), one in list(self._objects.items()):
                if resource == "statefulsets":
                    self._make_pods(one)
            for (resource, namespace, name), one in list(self._objects.items()):
                if resource == "pods" and self._is_going(one):
                    self._ending.add(one["metadata"]["uid"])
                    self._run(self._end_pod, one)
                elif resource == "persistentvolumeclaims" and "deletionTimestamp" in one["metadata"]:
                    self._remove_disk(namespace, name)

    def _is_going(self, pod: Json) -> bool:
        meta = pod["metadata"]
        owners = [one["uid"] for one in meta.get("ownerReferences", ())]
        present = {one["metadata"]["uid"] for one in self._objects.values()}
        if owners and owners[0] not in present:
            meta.setdefault("deletionTimestamp", _now())
        return "deletionTimestamp" in meta and meta["uid"] not in self._ending

    def _make_pods(self, owner: Json) -> None:
        meta, spec = owner["metadata"], owner["spec"]
        for number in range(spec["replicas"]):
            namespace, name = meta["namespace"], f"{meta['name']}-{number}"
            if (present := self._objects.get(("pods", namespace, name))) is not None:
                self._place(owner, present)
                continue
            if self.quota is not None and len(self._of("pods")) >= self.quota:
                self._warn(owner, f'create Pod {name} failed error: pods "{name}" is forbidden: exceeded quota: small')
                continue
            for claim in spec.get("volumeClaimTemplates", ()):
                disk = f"{claim['metadata']['name']}-{name}"
                if ("persistentvolumeclaims", namespace, disk) not in self._objects:
                    labels = {**spec["selector"]["matchLabels"], **claim["metadata"].get("labels", {})}
                    self._add("persistentvolumeclaims", namespace, {"metadata": {"name": disk, "labels": labels}})
            template = spec["template"]
            reference = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": meta["name"], "uid": meta["uid"]}
            given = {**template["metadata"], "name": name, "ownerReferences": [reference]}
            self._place(owner, self._add("pods", namespace, {"metadata": given, "spec": template["spec"]}))

    def _place(self, owner: Json, pod: Json) -> None:
        """Begin a pod that has not begun, unless something is in its way."""
        uid = pod["metadata"]["uid"]
        if uid in self._beginning or "deletionTimestamp" in pod["metadata"]:
            return
        if (status := self._obstacle(pod)) is not None:
            pod["status"] = status
            return
        claims = [one["metadata"]["name"] for one in owner["spec"].get("volumeClaimTemplates", ())]
        self._beginning[uid] = self._run(self._begin_pod, pod, claims)

    def _begin_pod(self, pod: Json, claims: list[str]) -> None:
        meta = pod["metadata"]
        own = self._directory / "pods" / meta["uid"]
        volumes = {name: self._disk(meta["namespace"], f"{name}-{meta['name']}") for name in claims}
        volumes |= {one["name"]: own / one["name"] for one in pod["spec"].get("volumes", ())}
        for path in volumes.values():
            path.mkdir(0o700, parents=True, exist_ok=True)
        processes = PodProcesses(meta["uid"], pod["spec"], volumes)
        processes.begin()
        number = next(NUMBERS)
        running = [{"name": one["name"], "ready": True, "state": {"running": {}}} for one in pod["spec"]["containers"]]
        with self._lock:
            self._processes[meta["uid"]] = processes
            pod["status"] = {
                "phase": "Running",
                "podIP": f"127.{os.getpid() % 250 + 1}.{number // 250}.{number % 250 + 1}",
                "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}],
                "containerStatuses": running,
            }

    def _obstacle(self, pod: Json) -> Json | None:
        """Return the status of a pod that cannot begin."""
        image = pod["spec"]["containers"][0]["image"]
        if self.capacity is not None and len(set(self._beginning) - self._ending) >= self.capacity:
            message = "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available."
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
            return {"phase": "Pending", "conditions": [condition]}
        if "missing" in image or pod["metadata"]["name"] in self.broken:
            waiting = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{image}"'}
            first = [{"name": pod["spec"]["initContainers"][0]["name"], "state": {"waiting": waiting}}]
            conditions = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "False"}]
            return {"phase": "Pending", "conditions": conditions, "initContainerStatuses": first}
        return None

    def _end_pod(self, pod: Json) -> None:
        meta = pod["metadata"]
        uid = meta["uid"]
        if uid in self._beginning:
            self._beginning[uid].join()
        with self._lock:
            processes = self._processes.pop(uid, None)
        if processes is not None:
            processes.end()
        shutil.rmtree(self._directory / "pods" / uid, ignore_errors=True)
        with self._lock:
            del self._objects["pods", meta["namespace"], meta["name"]]
        self._reconcile()

    def _remove_disk(self, namespace: str, name: str) -> None:
        """Remove a disk, unless a pod still uses it."""
        if not any(name.endswith(f"-{pod}") for _, where, pod in self._of("pods") if where == namespace):
            del self._objects["persistentvolumeclaims", namespace, name]
            shutil.rmtree(self._disk(namespace, name), ignore_errors=True)

    def _disk(self, namespace: str, name: str) -> Path:
        return self._directory / "disks" / namespace / name

    def _of(self, resource: str) -> list[tuple[str, str, str]]:
        return [key for key in self._objects if key[0] == resource]

    def _warn(self, about: Json, message: str) -> None:
        meta = about["metadata"]
        involved = {"kind": "StatefulSet", "name": meta["name"], "namespace": meta["namespace"]}
        given = {"metadata": {"name": f"{meta['name']}.{uuid.uuid4().hex[:16]}"}, "involvedObject": involved}
        event = {"type": "Warning", "reason": "FailedCreate", "message": message, "lastTimestamp": _now()}
        self._add("events", meta["namespace"], {**given, **event})

    def _add(self, resource: str, namespace: str, given: Json) -> Json:
        version = "apps/v1" if resource == "statefulsets" else "v1"
        meta = {**given["metadata"], "namespace": namespace, "uid": str(uuid.uuid4()), "creationTimestamp": _now()}
        made = {"apiVersion": version, "kind": KINDS[resource], **given, "metadata": meta}
        self._objects[resource, namespace, meta["name"]] = made
        return made

    def _run(self, work: Callable[..., None], *args: object) -> threading.Thread:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def close(self) -> None:
        """End all pods."""
        with self._lock:
            for key in [key for key in self._objects if key[0] == "statefulsets"]:
                del self._objects[key]
        self._reconcile()
        for thread in self._threads:
            thread.join(60)


def _shown(resource: str) -> str:
    return f"{resource}.apps" if resource == "statefulsets" else resource


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _requirements(selector: str) -> list[list[str]]:
    """Return the labels of a selector with their values."""
    wanted = [part.strip().replace("==", "=").split("=") for part in selector.split(",") if part]
    for pair in wanted:
        if len(pair) != 2 or " " in "".join(pair):
            raise ApiError(400, "BadRequest", f"unable to parse requirement: found '{'='.join(pair)}'")
    return wanted


def _has_labels(one: Mapping[str, Any], wanted: list[list[str]]) -> bool:
    labels = one["metadata"].get("labels", {})
    return all(labels.get(key) == value for key, value in wanted)


def _has_fields(one: Mapping[str, Any], selector: str) -> bool:
    for part in filter(None, selector.split(",")):
        path, _, wanted = part.partition("=")
        value: Any = one
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        if value != wanted:
            return False
    return True
