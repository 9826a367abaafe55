"""HOSTS that a scheduler knows: values, whose making asks nobody."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from clusterctl.config import from_values, load
from clusterctl.config.host_sources import SlurmHosts, slurm
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
