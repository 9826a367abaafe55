"""`HOSTS = kubernetes(...)`: the pods that kubectl finds, and errors in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clusterctl.config import Settings, from_values
from clusterctl.config.host_sources import kubernetes
from clusterctl.errors import ConfigError, UnreachableError
from clusterctl.schedulers import resolve
from real.kubernetes.lab import SUBMISSION, Lab

pytestmark = [pytest.mark.kubernetes, pytest.mark.xdist_group("pods")]
NAMES = [f"{SUBMISSION.name}-{number}" for number in range(SUBMISSION.nodes)]


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


def test_a_namespace_that_is_not_there(pods: Lab) -> None:
    with pytest.raises(ConfigError, match="there is no namespace nowhere"):
        resolved(pods, namespace="nowhere")


def test_labels_that_no_pod_has(pods: Lab) -> None:
    with pytest.raises(UnreachableError, match="there is no pod with app=other in the namespace of kubectl's context"):
        resolved(pods, "app=other")
    pods.cluster.forbidden.add(("get", "namespaces"))
    with pytest.raises(UnreachableError, match="there is no pod with app=train in namespace research"):
        resolved(pods, namespace="research")


def test_a_container_that_pods_do_not_have(pods: Lab) -> None:
    with pytest.raises(ConfigError, match="there is no container other in train-0a1b2c3d-0, which has clusterctl"):
        resolved(pods, container="other")


def test_kubectl_knows_no_cluster(pods: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pods.environment, "KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setitem(pods.environment, "HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="kubectl knows no cluster on this machine"):
        resolved(pods)


def test_an_api_server_that_does_not_answer(pods: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "kubeconfig"
    config.write_text(Path(pods.environment["KUBECONFIG"]).read_text().replace("127.0.0.1:", "127.0.0.9:"))
    monkeypatch.setitem(pods.environment, "KUBECONFIG", str(config))
    with pytest.raises(UnreachableError, match="the API server does not answer"):
        resolved(pods)


def test_labels_that_are_malformed(pods: Lab) -> None:
    with pytest.raises(ConfigError, match="the labels are malformed"):
        resolved(pods, "app in train")
