"""The manifest of a job, as text, and the processes that it leaves to its pods."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterctl.errors import UsageError
from clusterctl.schedulers.kubernetes.manifest import (
    MAKE_HOME,
    STAY,
    ManifestOptions,
    dump,
    manifest,
    name_for,
    objects,
)
from clusterctl.schedulers.kubernetes.pods import parse_set
from support.processes import descendants, kill_all, wait_until

PR_SET_CHILD_SUBREAPER = 36
PLAIN = {"id": "0a1b2c3d", "name": "train-0a1b2c3d", "image": "train:1", "nodes": 4, "labels": {"app": "train"}}

EXPECTED = """\
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: train-0a1b2c3d
  namespace: research
  labels:
    app.kubernetes.io/managed-by: clusterctl
    app: train
    clusterctl/submission: "0a1b2c3d"
spec:
  serviceName: train-0a1b2c3d
  replicas: 4
  podManagementPolicy: Parallel
  selector:
    matchLabels:
      clusterctl/submission: "0a1b2c3d"
  template:
    metadata:
      labels:
        app.kubernetes.io/managed-by: clusterctl
        app: train
        clusterctl/submission: "0a1b2c3d"
      annotations:
        kubectl.kubernetes.io/default-container: clusterctl
    spec:
      automountServiceAccountToken: false
      enableServiceLinks: false
      securityContext:
        runAsNonRoot: true
        runAsUser: 1000
        runAsGroup: 1000
        fsGroup: 1000
        fsGroupChangePolicy: OnRootMismatch
        seccompProfile:
          type: RuntimeDefault
      initContainers:
        - name: make-home
          image: "train:1"
          command:
            - /bin/sh
            - "-c"
            - "mkdir -p -m 700 /disk/home"
          terminationMessagePolicy: FallbackToLogsOnError
          securityContext:
            allowPrivilegeEscalation: false
            capabilities:
              drop:
                - ALL
          volumeMounts:
            - name: disk
              mountPath: /disk
      containers:
        - name: clusterctl
          image: "train:1"
          command:
            - /bin/sh
            - "-c"
            - "trap \\"exit 0\\" TERM INT; while :; do sleep 3600 & wait $!; done"
          terminationMessagePolicy: FallbackToLogsOnError
          securityContext:
            allowPrivilegeEscalation: false
            capabilities:
              drop:
                - ALL
          volumeMounts:
            - name: disk
              mountPath: /home/clusterctl
              subPath: home
          env:
            - name: HOME
              value: /home/clusterctl
            - name: USER
              value: clusterctl
  volumeClaimTemplates:
    - metadata:
        name: disk
        labels:
          app.kubernetes.io/managed-by: clusterctl
          app: train
          clusterctl/submission: "0a1b2c3d"
      spec:
        accessModes:
          - ReadWriteOnce
        resources:
          requests:
            storage: "10Gi"
"""


def test_the_manifest_is_text_that_people_read() -> None:
    text = manifest(ManifestOptions(**PLAIN, namespace="research", storage="10Gi"))
    assert text.startswith("# Written by clusterctl.")
    assert text.endswith(EXPECTED)
    assert "  clusterIP: None\n  publishNotReadyAddresses: true\n" in text


def test_without_storage_a_directory_ends_with_its_pod() -> None:
    text = manifest(ManifestOptions(**PLAIN))
    assert "      volumes:\n        - name: disk\n          emptyDir: {}\n" in text
    assert "volumeClaimTemplates" not in text
    assert "namespace" not in text


def test_commands_run_in_the_container_that_hosts_name() -> None:
    _, made = objects(ManifestOptions(**PLAIN, container="trainer"))
    template = made["spec"]["template"]
    assert [one["name"] for one in template["spec"]["containers"]] == ["trainer"]
    template["spec"]["containers"].insert(0, {"name": "proxy"})  # as a service mesh does
    assert parse_set(made).container == "trainer"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": "yes", "b": "No", "c": "null", "d": "~"}, 'a: "yes"\nb: "No"\nc: "null"\nd: "~"\n'),
        ({"a": "1", "b": "1e3", "c": "0x1", "d": "2026-11-24"}, 'a: "1"\nb: "1e3"\nc: "0x1"\nd: "2026-11-24"\n'),
        ({"a": "", "b": "x: y", "c": "- x", "d": "#x"}, 'a: ""\nb: "x: y"\nc: "- x"\nd: "#x"\n'),
        ({"a": 'quo"te\n', "b": "ä\t"}, 'a: "quo\\"te\\n"\nb: "ä\\t"\n'),
        ({"a": 1, "b": True, "c": 0, "d": None, "e": {}, "f": []}, "a: 1\nb: true\nc: 0\nd: null\ne: {}\nf: []\n"),
        ([["a", "b"], {"c": ["d"]}], "- - a\n  - b\n- c:\n    - d\n"),
    ],
)
def test_yaml_has_quotes_where_it_needs_them(value: Any, text: str) -> None:
    assert dump(value) == text


@pytest.mark.parametrize(
    ("workspace", "name"),
    [
        ("train", "train-0a"),
        ("My Work_space", "my-work-space-0a"),
        ("...", "job-0a"),
        ("w" * 80, f"{'w' * 30}-0a"),
        ("größe", "gr-e-0a"),
    ],
)
def test_a_name_is_one_that_kubernetes_accepts(workspace: str, name: str) -> None:
    assert name_for(workspace, "0a") == name


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"nodes": 0}, "--nodes 0: must be 1 or more"),
        ({"image": "a b"}, "--image 'a b': not the name of an image"),
        ({"storage": "10 GB"}, "--storage 10 GB: not a size"),
        ({"storage": "0Gi"}, "--storage 0Gi: not a size"),
        ({"labels": {"clusterctl/submission": "x"}}, "the label clusterctl/submission is set by clusterctl itself"),
    ],
)
def test_what_kubernetes_would_not_accept_is_an_error_of_usage(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        objects(ManifestOptions(**{**PLAIN, **given}))


#: Adopts orphans, as process 1 of a container does, and becomes the command.
ADOPTING = f"""
import ctypes, os, sys
ctypes.CDLL(None).prctl({PR_SET_CHILD_SUBREAPER}, 1, 0, 0, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""
#: Leaves a process that ends with its input, and prints its number.
ORPHAN = "exec 3<&0; (sh -c 'read line <&3; exit 3' & echo $!)"


@pytest.mark.parametrize("shell", ["dash", "bash", "busybox"])
def test_the_command_of_a_container_reaps_orphans_and_ends_at_once(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"this machine has no {shell}")
    words = [shell, "sh"] if shell == "busybox" else [shell]
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", ADOPTING, *words, "-c", f"{ORPHAN}; {STAY}"]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            pid = int(process.stdout.readline())
            assert wait_until(lambda: parent_of(pid) == process.pid, 10)
            process.stdin.close()
            assert wait_until(lambda: not Path(f"/proc/{pid}").exists(), 10), "a zombie is left"
            left = descendants(process.pid)
            process.terminate()
            assert process.wait(5) == 0
            kill_all(left)  # as the kernel does in a container
        finally:
            kill_all(descendants(process.pid))
            process.kill()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_home_is_private_and_is_made_once(tmp_path: Path) -> None:
    """The top directory of a disk is open to its group; what is made in it gets the same group."""
    disk = tmp_path / "disk"
    disk.mkdir()
    disk.chmod(0o2777)
    for _ in range(2):
        subprocess.run(["/bin/sh", "-c", MAKE_HOME.replace("/disk", str(disk))], check=True)
        assert (disk / "home").stat().st_mode & 0o777 == 0o700
        (disk / "home" / "kept").touch()
