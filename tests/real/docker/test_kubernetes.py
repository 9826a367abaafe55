"""The manifest of docker/kubernetes is valid and consistent with the image. It is not run here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from real.docker.compose import FILE, docker, image, volumes
from support.processes import wait_until

MANIFEST = FILE.parent / "kubernetes" / "ssh-nodes.yaml"


@pytest.fixture
def validator() -> Path:
    program = Path(sys.executable).with_name("kubernetes-validate")
    if not program.exists():
        (pytest.fail if os.environ.get("CI") else pytest.skip)("needs kubernetes-validate: pip install '.[docker]'")
    return program


def validate(validator: Path, manifest: Path) -> subprocess.CompletedProcess[str]:
    command = [str(validator), "--strict", str(manifest)]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)


def test_the_manifest_is_valid(validator: Path, tmp_path: Path) -> None:
    assert validate(validator, MANIFEST).returncode == 0
    broken = tmp_path / "broken.yaml"
    broken.write_text(MANIFEST.read_text().replace("replicas:", "replica:"))
    assert "'replica' was unexpected" in validate(validator, broken).stdout


def test_the_parts_of_the_manifest_refer_to_one_another(validator: Path) -> None:
    import yaml  # noqa: PLC0415 - comes with the validator

    parts: dict[str, Any] = {part["kind"]: part for part in yaml.safe_load_all(MANIFEST.read_text())}
    secret, service, nodes = parts["Secret"], parts["Service"], parts["StatefulSet"]["spec"]
    pod = nodes["template"]
    (container,) = pod["spec"]["containers"]
    (variable,) = container["env"]
    assert service["spec"]["clusterIP"] == "None"
    assert nodes["serviceName"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == nodes["selector"]["matchLabels"] == pod["metadata"]["labels"]
    assert variable["valueFrom"]["secretKeyRef"]["name"] == secret["metadata"]["name"]
    assert variable["valueFrom"]["secretKeyRef"]["key"] in secret["stringData"]
    claims = {claim["metadata"]["name"] for claim in nodes["volumeClaimTemplates"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == claims


def test_the_image_keeps_its_key_and_jobs_on_the_volumes_that_the_manifest_mounts() -> None:
    """Run two containers in succession, as when a pod moves."""
    with volumes(2) as (keys, data):
        mounts = ("-v", f"{keys}:/etc/ssh/host_keys", "-v", f"{data}:/data")
        seen = [in_new_container(mounts) for _ in range(2)]
    assert seen[0] == seen[1]
    assert seen[0].startswith("ssh-ed25519 ")


def in_new_container(mounts: tuple[str, ...]) -> str:
    """Return the public host key once sshd answers and the user has written to the volume."""
    name = docker("run", "-d", "--rm", "--network=none", *mounts, image("CLUSTERCTL_NODE_IMAGE")).strip()
    try:
        assert wait_until(lambda: docker("exec", name, "sh", "-c", "sshd-answers 2>/dev/null; echo $?") == "0\n")
        docker("exec", "-u", "trainer", name, "mkdir", "-p", "/data/clusterctl")
        return docker("exec", name, "cat", "/etc/ssh/host_keys/ssh_host_ed25519_key.pub").rpartition(" ")[0]
    finally:
        docker("rm", "-f", name)
