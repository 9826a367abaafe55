"""The words of kubectl for what went wrong, and the errors that stand for them. real/kubernetes asks the real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.config import from_values
from clusterctl.config.host_sources import kubernetes
from clusterctl.errors import ClusterctlError, ConfigError, RefusedError, UnreachableError
from clusterctl.schedulers import resolve
from clusterctl.schedulers.kubernetes.kubectl import Forbidden, Kubectl

FORBIDDEN = 'User "me" cannot list resource "pods" in API group "" in the namespace "research"'
WORDS: list[tuple[str, type[ClusterctlError], str]] = [
    ('Error from server (NotFound): namespaces "x" not found', ConfigError, "there is no namespace x"),
    (f"Error from server (Forbidden): pods is forbidden: {FORBIDDEN}", Forbidden, f"pods is forbidden: {FORBIDDEN}"),
    (
        'Error from server (Forbidden): error when creating "STDIN": admission webhook "images" denied the request: no',
        ConfigError,
        'the API server refused kubectl get pods: admission webhook "images" denied the request: no',
    ),
    (
        'Error from server (Forbidden): error when creating "STDIN": services is forbidden: '
        'User "me" cannot create resource "services" in API group "" in the namespace "a"',
        Forbidden,
        'this account may not do what kubectl get pods needs: services is forbidden: User "me" cannot create',
    ),
    (
        'Error from server (AlreadyExists): error when creating "STDIN": services "a" already exists',
        RefusedError,
        'services "a" already exists',
    ),
    (
        "The connection to the server localhost:8080 was refused - did you specify the right host or port?",
        ConfigError,
        "kubectl knows no cluster on this machine",
    ),
    ('error: context "prod" does not exist', ConfigError, "kubectl knows no cluster on this machine"),
    ("error: You must be logged in to the server (Unauthorized)", UnreachableError, "does not accept this account"),
    (
        "The connection to the server 10.0.0.1:6443 was refused - did you specify the right host or port?",
        UnreachableError,
        "the API server does not answer",
    ),
    (
        "Unable to connect to the server: dial tcp: lookup k8s on 1.1.1.1:53: no such host",
        UnreachableError,
        "not answer",
    ),
    (
        'The StatefulSet "a" is invalid: \n* spec.replicas: Invalid value: -1',
        ConfigError,
        "the API server does not accept the manifest: * spec.replicas: Invalid value: -1",
    ),
    ("error: something new", UnreachableError, "kubectl get pods failed: error: something new"),
    ("", UnreachableError, "kubectl get pods failed: it printed nothing"),
]


def program(directory: Path, script: str) -> dict[str, str]:
    """Return an environment in which kubectl is this script."""
    path = directory / "kubectl"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return {"PATH": f"{directory}:/usr/bin:/bin"}


@pytest.mark.parametrize(("words", "kind", "message"), WORDS)
def test_what_kubectl_says_is_an_error_in_words(
    tmp_path: Path, words: str, kind: type[ClusterctlError], message: str
) -> None:
    (tmp_path / "words").write_text(words)
    with pytest.raises(ClusterctlError) as caught:
        Kubectl(program(tmp_path, f"cat {tmp_path}/words >&2; exit 1")).objects("pods", "app=train")
    assert type(caught.value) is kind
    assert message in caught.value.message
    assert "{" not in str(caught.value.hint)


def test_a_namespace_is_named_to_kubectl_and_requests_are_bounded(tmp_path: Path) -> None:
    environ = program(tmp_path, f'echo "$@" >{tmp_path}/argv; cat >{tmp_path}/input; echo \'{{"items": [1]}}\'')
    kubectl = Kubectl(environ, "research")
    assert kubectl.objects("pods", "app=train") == [1]
    assert (
        tmp_path / "argv"
    ).read_text() == "get pods --selector=app=train -o json -n research --request-timeout=20s\n"
    kubectl.create("kind: Service\n")
    assert (tmp_path / "input").read_text() == "kind: Service\n"


def test_a_kubectl_that_hangs_is_given_up(tmp_path: Path) -> None:
    environ = program(tmp_path, "exec sleep 60")
    with pytest.raises(UnreachableError, match=r"kubectl get pods did not end within 0.2 s"):
        Kubectl(environ, deadline_s=0.2).objects("pods", "app=train")


@pytest.mark.parametrize("text", ["{}", '{"items": [{'])
def test_another_answer_than_a_list_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "text").write_text(text)
    with pytest.raises(UnreachableError, match="printed something else than a list of objects, or broke off"):
        Kubectl(program(tmp_path, f"cat {tmp_path}/text")).objects("pods", "app=train")


def test_kubectl_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot run kubectl: No such file or directory"):
        resolve(from_values({"HOSTS": kubernetes("app=train")}), {"PATH": str(tmp_path)})
