"""Opening a conf.py, without a node that answers."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

import pytest

import clusterctl
from clusterctl.api.session import texts


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path = tmp_path / "conf.py"
    path.write_text('HOSTS = ["a@10.0.0.1", Host("b@10.0.0.2:2222", tags=("big",), trainers=2)]\nPSERVERS = 1\n')
    return path


def test_the_nodes_of_a_conf_py_are_known_without_asking_them(conf: Path) -> None:
    with clusterctl.Cluster.from_conf(conf) as cluster:
        first, second = cluster.nodes
    assert (first.label, first.host, first.pservers, first.trainers) == ("node0", "10.0.0.1", (0,), (0,))
    assert (second.host, second.tags, second.pservers, second.trainers) == ("10.0.0.2:2222", ("big",), (), (1, 2))


def test_the_file_is_that_of_the_environment_and_stays_so_when_the_directory_changes(
    conf: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CLUSTERCTL_CONF", "conf.py")
    monkeypatch.chdir(conf.parent)
    with clusterctl.Cluster.from_conf() as cluster:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        monkeypatch.delenv("CLUSTERCTL_CONF")
        assert cluster._session.settings({"KEEP": "7"}).keep == 7


def test_settings_are_chosen_as_values_or_as_text(conf: Path) -> None:
    with clusterctl.Cluster.from_conf(conf, set={"KEEP": 5, "MODE": "ssp(4)", "ENV": {"A": "b"}}) as cluster:
        settings = cluster._session.settings({"KEEP": "6"})
    assert (settings.keep, str(settings.mode), settings.env) == (6, "ssp(4)", {"A": "b"})
    assert texts({"KEEP": 5, "PORT": "7100", "PADDLE_PORT": 7200}) == {"KEEP": "5", "PADDLE_PORT": "7200"}


def test_mistakes_have_the_errors_of_the_command_line(conf: Path, tmp_path: Path) -> None:
    with pytest.raises(clusterctl.ConfigError, match="nowhere"):
        clusterctl.Cluster.from_conf(tmp_path / "nowhere.py")
    with pytest.raises(clusterctl.ConfigError, match="--set KEEPS"):
        clusterctl.Cluster.from_conf(conf, set={"KEEPS": 3})
    with pytest.raises(clusterctl.UsageError, match="HOSTS is not possible"):
        clusterctl.Cluster.from_conf(conf, set={"HOSTS": ["c"]})
    with pytest.raises(clusterctl.UsageError, match="node7"):
        clusterctl.Cluster.from_conf(conf, only="node7")


def test_a_part_of_the_nodes_starts_and_stops_nothing(conf: Path) -> None:
    with clusterctl.Cluster.from_conf(conf, only="big") as cluster:
        assert [node.label for node in cluster.nodes] == ["node1"]
        job = clusterctl.Job(cluster._session, "JOB20261121-081530")
        for act in (job.start, job.stop):
            with pytest.raises(clusterctl.UsageError, match="only big"):
                act()


def test_arguments_that_contradict_each_other_are_refused_before_any_node_is_asked(conf: Path) -> None:
    with clusterctl.Cluster.from_conf(conf) as cluster:
        job = clusterctl.Job(cluster._session, "JOB20261121-081530")
        with pytest.raises(clusterctl.UsageError, match="exclude each other"):
            job.start(resume=True, load="JOB20261121-081531")
        with pytest.raises(clusterctl.UsageError, match="load_tag"):
            job.start(load_tag="pass-00001")
        with pytest.raises(clusterctl.UsageError, match="list of arguments"):
            job.start("--num_passes=5")
        with pytest.raises(clusterctl.UsageError, match="cannot be the name of a run"):
            job.start(name="-")
        with pytest.raises(clusterctl.UsageError, match="not possible"):
            job.start(set={"ROOT_DIR": "x"})
        with pytest.raises(clusterctl.UsageError, match="tag of a model"):
            job.collect("result", tag="../x")


def test_a_closed_cluster_says_so(conf: Path) -> None:
    cluster = clusterctl.Cluster.from_conf(conf)
    cluster.close()
    cluster.close()
    with pytest.raises(clusterctl.UsageError, match="closed"):
        cluster.jobs()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have notes since Python 3.11")
def test_the_traceback_of_an_error_shows_its_hint(conf: Path) -> None:
    cluster = clusterctl.Cluster.from_conf(conf)
    cluster.close()
    with pytest.raises(clusterctl.UsageError) as raised:
        cluster.jobs()
    assert traceback.format_exception(raised.value)[-1] == "hint: open another one with Cluster.from_conf\n"
