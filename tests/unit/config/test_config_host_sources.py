"""HOSTS that a scheduler knows: values, whose making asks nobody."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from clusterctl.config import from_values, load
from clusterctl.config.host_sources import KubernetesHosts, SlurmHosts, kubernetes, slurm
from clusterctl.errors import ConfigError


def test_loading_a_conf_py_with_hosts_of_slurm_runs_no_program(tmp_path: Path) -> None:
    path = tmp_path / "conf.py"
    path.write_text("HOSTS = slurm()\n")
    started: list[str] = []
    listening = True

    def hook(event: str, _: object) -> None:
        if listening and event in ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.exec", "os.system"):
            started.append(event)

    sys.addaudithook(hook)
    settings = load(path, {"PATH": "/nonexistent"})
    listening = False
    assert started == []
    assert (settings.hosts, settings.hosts_from) == ((), SlurmHosts())
    assert settings.place("HOSTS") == f"{path}:1: "


def test_a_list_of_hosts_has_no_other_source() -> None:
    assert from_values({"HOSTS": ["h"]}).hosts_from is None


@pytest.mark.parametrize("job", [12, "12", "12_3"])
def test_a_job_may_be_named(job: object) -> None:
    assert from_values({"HOSTS": slurm(job)}).hosts_from == SlurmHosts(job)  # type: ignore[arg-type]


@pytest.mark.parametrize("job", ["x", "", "-1", "12;ls", 1.5, True, "12 13"])
def test_a_job_id_is_a_number(job: object, tmp_path: Path) -> None:
    path = tmp_path / "conf.py"
    path.write_text(f"PORT = 7164\nHOSTS = slurm(job={job!r})\n")
    with pytest.raises(ConfigError, match="a job id is a number") as caught:
        load(path, {})
    assert f"{path}:2: HOSTS = slurm(job={job!r})" in str(caught.value)


def test_a_wrong_argument_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "conf.py"
    path.write_text("HOSTS = slurm(id=3)\n")
    with pytest.raises(ConfigError, match=r"conf.py:1: TypeError: slurm\(\) got an unexpected keyword argument 'id'"):
        load(path, {})


def test_loading_a_conf_py_with_pods_runs_no_program(tmp_path: Path) -> None:
    path = tmp_path / "conf.py"
    path.write_text('HOSTS = kubernetes("app=train", namespace="research", container="trainer")\n')
    settings = load(path, {"PATH": "/nonexistent"})
    assert settings.hosts == ()
    assert settings.hosts_from == KubernetesHosts("app=train", "research", "trainer")


@pytest.mark.parametrize("selector", ["app=train", "app==train,tier in (a, b)", "!old, example.org/app != x", "app"])
def test_pods_are_chosen_as_kubectl_does(selector: str) -> None:
    assert from_values({"HOSTS": kubernetes(selector)}).hosts_from == KubernetesHosts(selector)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ('""', "HOSTS = kubernetes(''): must be labels of pods, such as \"app=train\""),
        ('"-A"', "HOSTS = kubernetes('-A'): must be labels"),
        ('"app=train; ls"', "must be labels"),
        ("3", "HOSTS = kubernetes(3): must be labels"),
        ('"app=train", namespace="-A"', "HOSTS = kubernetes(namespace='-A'): must consist of lower-case letters"),
        ('"app=train", container="a b"', "HOSTS = kubernetes(container='a b'): must consist of"),
        ('"app=train", container=""', "must consist of"),
    ],
)
def test_what_is_wrong_with_pods_is_named_with_its_line(tmp_path: Path, arguments: str, message: str) -> None:
    path = tmp_path / "conf.py"
    path.write_text(f"PORT = 7164\nHOSTS = kubernetes({arguments})\n")
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load(path, {})
    assert f"{path}:2: " in str(caught.value)


@pytest.mark.parametrize(
    ("selector", "labels"),
    [
        ("app=train", {"app": "train"}),
        ("app==train , example.org/Tier=a.b", {"app": "train", "example.org/Tier": "a.b"}),
        ("app", None),
        ("app=train,tier!=x", None),
        ("app in (a, b)", None),
        ("app=", None),
    ],
)
def test_labels_of_pods_are_those_that_a_selector_asks_for(selector: str, labels: dict[str, str] | None) -> None:
    assert KubernetesHosts(selector).labels == labels
