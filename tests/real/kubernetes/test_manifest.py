"""The manifest is valid, obeys the pod security standard "restricted", and says as YAML what it says as JSON."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.schedulers.kubernetes.manifest import ManifestOptions, manifest, objects

pytestmark = pytest.mark.kubernetes
SUBMISSIONS = [
    ManifestOptions("0a1b2c3d", "train-0a1b2c3d", "registry.example.org:5000/a/train@sha256:12ab", 4, {"app": "train"}),
    ManifestOptions(
        "12345678", "job-12345678", "train", 1, {"app": "yes", "example.org/x": "1"}, "research", storage="10Gi"
    ),
]


@pytest.mark.parametrize("submission", SUBMISSIONS, ids=["directory", "disk"])
def test_the_manifest_is_valid(submission: ManifestOptions, tmp_path: Path) -> None:
    validator = Path(sys.executable).with_name("kubernetes-validate")
    if not validator.exists():
        (pytest.fail if os.environ.get("CI") else pytest.skip)("needs kubernetes-validate: make kubernetes installs it")

    def validated(text: str) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "manifest.yaml"
        path.write_text(text)
        command = [str(validator), "--strict", str(path)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    done = validated(manifest(submission))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "'replica' was unexpected" in validated(manifest(submission).replace("replicas:", "replica:")).stdout


@pytest.mark.parametrize("submission", SUBMISSIONS, ids=["directory", "disk"])
def test_the_yaml_says_what_the_objects_are(submission: ManifestOptions) -> None:
    yaml = pytest.importorskip("yaml")  # comes with the validator
    assert list(yaml.safe_load_all(manifest(submission))) == objects(submission)


@pytest.mark.parametrize("submission", SUBMISSIONS, ids=["directory", "disk"])
def test_pods_are_restricted(submission: ManifestOptions) -> None:
    """As kubernetes.io/docs/concepts/security/pod-security-standards asks for; what is left out is allowed."""
    _, made = objects(submission)
    pod = made["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] != 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in (*pod["initContainers"], *pod["containers"]):
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        assert "ports" not in container
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert all(set(volume) <= {"name", "emptyDir"} for volume in pod.get("volumes", ()))


@pytest.mark.parametrize("submission", SUBMISSIONS, ids=["directory", "disk"])
def test_the_parts_refer_to_one_another(submission: ManifestOptions) -> None:
    service, made = objects(submission)
    spec = made["spec"]
    assert spec["serviceName"] == service["metadata"]["name"] == made["metadata"]["name"]
    labels = spec["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    assert submission.labels.items() <= labels.items()
    claims = {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", ())}
    volumes = claims | {volume["name"] for volume in spec["template"]["spec"].get("volumes", ())}
    pod = spec["template"]["spec"]
    mounted = {mount["name"] for one in (*pod["initContainers"], *pod["containers"]) for mount in one["volumeMounts"]}
    assert mounted == volumes
    for claim in spec.get("volumeClaimTemplates", ()):
        assert claim["metadata"]["labels"] == labels  # by which stop --delete finds disks
