"""`HOSTS = kubernetes(...)`: the pods that kubectl finds, and errors in words."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from clusterctl.config import Settings, from_values
from clusterctl.config.host_sources import kubernetes
from clusterctl.errors import ConfigError, UnreachableError
from clusterctl.schedulers import resolve
from clusterctl.schedulers.kubernetes.kubectl import Kubectl
from clusterctl.schedulers.kubernetes.manifest import Submission
from clusterctl.schedulers.kubernetes.submit import make_ready
from kubernetes.lab import IMAGE, Lab

pytestmark = pytest.mark.kubernetes
SUBMISSION = Submission("0a1b2c3d", "train-0a1b2c3d", IMAGE, 11, {"app": "train"})
NAMES = [f"train-0a1b2c3d-{number}" for number in range(11)]


@pytest.fixture
def pods(lab: Lab) -> Lab:
    make_ready(Kubectl(lab.environment), SUBMISSION, print, poll_s=0.1)
    return lab


def resolved(lab: Lab, selector: str = "app=train", *, nic: str | None = None, **given: Any) -> Settings:
    return resolve(from_values({"HOSTS": kubernetes(selector, **given), "NIC": nic}), lab.environment)


def test_pods_are_hosts_in_the_order_of_their_numbers_with_their_addresses(pods: Lab) -> None:
    hosts = resolved(pods).hosts
    assert [host.hostname for host in hosts] == NAMES
    addresses = {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in pods.pods()}
    assert [host.address for host in hosts] == [addresses[name] for name in NAMES]
    words = ("kubectl", "exec", "-i", "-n", "default", "-c", "clusterctl", "{host}", "--")
    assert {host.via for host in hosts} == {words}
    assert resolved(pods).root_dir == "~/clusterctl"


def test_nic_decides_on_the_addresses(pods: Lab) -> None:
    assert {host.address for host in resolved(pods, nic="eth0").hosts} == {None}


def test_a_pod_that_is_away_keeps_its_place(pods: Lab) -> None:
    pods.cluster.quota = 10  # it cannot come back
    assert pods.kubectl("delete", "pod", NAMES[3], "--wait=false").code == 0
    hosts = resolved(pods).hosts
    assert [host.hostname for host in hosts] == NAMES


def test_an_account_need_not_see_stateful_sets(pods: Lab) -> None:
    pods.cluster.forbidden.add(("list", "statefulsets"))
    assert [host.hostname for host in resolved(pods).hosts] == NAMES


def test_what_is_forbidden_is_named(pods: Lab) -> None:
    pods.cluster.forbidden.add(("list", "pods"))
    with pytest.raises(
        UnreachableError, match=r"this account may not do what kubectl get pods needs: .*cannot list"
    ) as caught:
        resolved(pods)
    assert caught.value.hint == "see what it may do: kubectl auth can-i --list"


def test_a_namespace_that_is_not_there(lab: Lab) -> None:
    with pytest.raises(ConfigError, match="there is no namespace nowhere"):
        resolved(lab, namespace="nowhere")


def test_labels_that_no_pod_has(lab: Lab) -> None:
    with pytest.raises(UnreachableError, match="there is no pod with app=train in the namespace of kubectl's context"):
        resolved(lab)
    lab.cluster.forbidden.add(("get", "namespaces"))
    with pytest.raises(UnreachableError, match="there is no pod with app=train in namespace research"):
        resolved(lab, namespace="research")


def test_a_container_that_pods_do_not_have(pods: Lab) -> None:
    with pytest.raises(ConfigError, match="there is no container other in train-0a1b2c3d-0, which has clusterctl"):
        resolved(pods, container="other")


def test_kubectl_is_missing(lab: Lab) -> None:
    lab.environment["PATH"] = "/nonexistent"
    with pytest.raises(ConfigError, match="cannot run kubectl: No such file or directory") as caught:
        resolved(lab)
    assert caught.value.hint == "install kubectl on this machine, or add its directory to PATH"


def test_kubectl_knows_no_cluster(lab: Lab, tmp_path: Path) -> None:
    lab.environment |= {"KUBECONFIG": str(tmp_path / "none"), "HOME": str(tmp_path)}
    with pytest.raises(ConfigError, match="kubectl knows no cluster on this machine"):
        resolved(lab)


def test_an_api_server_that_does_not_answer(lab: Lab) -> None:
    config = Path(lab.environment["KUBECONFIG"])
    config.write_text(config.read_text().replace("127.0.0.1:", "127.0.0.9:"))
    with pytest.raises(UnreachableError, match="the API server does not answer"):
        resolved(lab)


def test_labels_that_are_malformed(lab: Lab) -> None:
    with pytest.raises(ConfigError, match="the labels are malformed"):
        resolved(lab, "app in train")


def test_an_answer_that_breaks_off_is_no_list_of_pods(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "kubectl"
    program.write_text("#!/bin/sh\necho '{\"items\": [{'\n")
    program.chmod(0o755)
    lab.environment["PATH"] = f"{program.parent}:{os.environ['PATH']}"
    with pytest.raises(UnreachableError, match="printed something else than a list of objects, or broke off"):
        resolved(lab)
