"""Hostfiles of Open MPI, and `HOSTS = openmpi(...)`."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.config import Settings, load
from clusterctl.errors import ConfigError
from clusterctl.inventory import build
from clusterctl.schedulers import resolve
from clusterctl.schedulers.openmpi.hostfile import HostfileError, HostLine, parse


def hosts_of(directory: Path, hostfile: str, *lines: str, call: str = 'openmpi("hosts")') -> Settings:
    (directory / "hosts").write_text(hostfile)
    (directory / "conf.py").write_text("\n".join([f"HOSTS = {call}", *lines, ""]))
    environ = {"HOME": str(directory)}
    return resolve(load(directory / "conf.py", environ), environ)


def test_slots_are_trainers_in_the_order_of_the_file(tmp_path: Path) -> None:
    settings = hosts_of(tmp_path, "b slots=2\n\n# a comment\na slots=4 max_slots=8  # another\nc\n")
    assert [(host.spec, host.trainers) for host in settings.hosts] == [("b", 2), ("a", 4), ("c", 1)]
    assert [node.trainer_ranks for node in build(settings).nodes] == [(0, 1), (2, 3, 4, 5), (6,)]
    assert {node.via for node in build(settings).nodes} == {"ssh"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h count=3 max-slots=4", HostLine(1, "h", 3, 4)),
        ("h slots=0", HostLine(1, "h", 0)),
        ("h SLOTS=2 // as Open MPI has comments, too", HostLine(1, "h", 2)),
        ("root@h slots=2", HostLine(1, "h", 2, user="root")),
        ("h user=root port=2222", HostLine(1, "h", 1, user="root", port=2222)),
        ("fd00::7 slots=2", HostLine(1, "fd00::7", 2)),
        ("h user=root\nh", HostLine(1, "h", 2, user="root")),
        ("h slots=1 max_slots=2\nh slots=1", HostLine(1, "h", 2, 2)),
    ],
)
def test_a_host_is_read(text: str, expected: HostLine) -> None:
    assert parse(text) == [expected]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("h slots=two", 1, "slots=two: must be a whole number"),
        ("h slots", 1, "'slots' is not understood"),
        ("h slots=1 slots=2", 1, "slots= is given twice"),
        ("h ssh_args=-v", 1, "'ssh_args=-v' is not understood"),
        ("h slots=4 max_slots=2", 1, "h has 4 slots, and max_slots=2"),
        ("a\nh max_slots=1\nh", 2, "h has 2 slots, and max_slots=1"),
        ("^h", 1, "'^h' names no host"),
        ("h user=a\n\nh user=b", 3, "user of h differs from line 1"),
        ("h port=0", 1, "port must be 1 to 65535"),
        ("a:b@h", 1, "passwords are not accepted here"),
    ],
)
def test_the_line_that_is_wrong_is_named(text: str, line: int, message: str) -> None:
    with pytest.raises(HostfileError) as caught:
        parse(text)
    assert (caught.value.line, message in str(caught.value)) == (line, True), str(caught.value)


def test_an_error_names_the_file_and_the_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        hosts_of(tmp_path, "a\nb ssh_args=-v\n")
    assert str(caught.value) == f"{tmp_path}/hosts:2: 'ssh_args=-v' is not understood"
    assert caught.value.hint is not None
    assert "~/.ssh/config" in caught.value.hint


def test_a_file_that_is_missing_is_named_with_the_line_of_conf_py(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        hosts_of(tmp_path, "a\n", call='openmpi("absent")')
    assert str(caught.value) == f"{tmp_path}/conf.py:1: {tmp_path}/absent: No such file or directory"


@pytest.mark.parametrize("call", ['openmpi("~/hosts")', 'openmpi(__file__.replace("conf.py", "hosts"))'])
def test_a_file_may_be_in_the_home_or_have_a_full_path(tmp_path: Path, call: str) -> None:
    assert [host.spec for host in hosts_of(tmp_path, "a\n", call=call).hosts] == ["a"]


def test_trainers_per_node_overrides_the_slots(tmp_path: Path) -> None:
    settings = hosts_of(tmp_path, "a slots=4\nb slots=2\n", "TRAINERS_PER_NODE = 3")
    assert [len(node.trainer_ranks) for node in build(settings).nodes] == [3, 3]


def test_hosts_that_contradict_other_settings_are_named_with_their_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"/hosts:2: 'root@b': a user needs VIA"):
        hosts_of(tmp_path, "a\nroot@b\n", 'VIA = "local"', 'ROOT_DIR = "/data/node{node}"')


def test_a_user_and_a_port_are_those_of_ssh(tmp_path: Path) -> None:
    node = build(hosts_of(tmp_path, "h user=root port=2222 slots=2\n")).nodes[0]
    assert (node.ssh_user, node.ssh_host, node.ssh_port) == ("root", "h", 2222)


@pytest.mark.parametrize("call", ["openmpi(3)", 'openmpi("")'])
def test_a_hostfile_has_a_path(tmp_path: Path, call: str) -> None:
    with pytest.raises(ConfigError, match="write the path of a hostfile"):
        hosts_of(tmp_path, "a\n", call=call)


def test_loading_conf_py_does_not_read_the_file(tmp_path: Path) -> None:
    (tmp_path / "conf.py").write_text('HOSTS = openmpi("absent")\n')
    assert load(tmp_path / "conf.py", {}).hosts == ()
