"""Atomic file writes, and the address at which this node is reached."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from clusterctl.agent.node.addresses import find_address
from clusterctl.common.errors import AgentError
from clusterctl.common.files import write_atomic
from clusterctl.common.paths import JobPaths, expand, find_jobs, job_key, log_stem


def test_a_file_is_written_with_private_mode_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    write_atomic(tmp_path / "f", b"one")
    write_atomic(tmp_path / "f", b"two")
    assert (tmp_path / "f").read_bytes() == b"two"
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_a_link_at_the_temporary_name_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / f".f.{os.getpid()}").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        write_atomic(tmp_path / "f", b"theirs")
    assert victim.read_text() == "mine"


def test_a_link_at_the_target_is_replaced_and_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "f").symlink_to(victim)
    write_atomic(tmp_path / "f", b"theirs")
    assert victim.read_text() == "mine"
    assert not (tmp_path / "f").is_symlink()


# The address at which this node is reached.


def test_an_address_in_conf_py_takes_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.9 5000 10.0.0.1 22")
    assert find_address("10.9.9.9", "lo") == "10.9.9.9"


def test_an_interface_gives_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    assert find_address(None, "lo") == "127.0.0.1"


def test_an_error_about_a_missing_interface_lists_the_existing_ones() -> None:
    with pytest.raises(AgentError, match="there is no interface") as raised:
        find_address(None, "nope0")
    assert "lo" in str(raised.value.hint)


@pytest.mark.parametrize(
    ("connection", "address"),
    [
        ("10.0.0.9 5000 10.0.0.1 22", "10.0.0.1"),
        ("::1 5000 2001:db8::1 22", "2001:db8::1"),
    ],
)
def test_by_default_the_address_is_that_of_the_ssh_connection(
    monkeypatch: pytest.MonkeyPatch, connection: str, address: str
) -> None:
    monkeypatch.setenv("SSH_CONNECTION", connection)
    assert find_address(None, None) == address


@pytest.mark.parametrize("connection", ["", "fe80::9%eth0 5000 fe80::1%eth0 22"])
def test_an_unknown_address_is_an_error_with_a_hint(monkeypatch: pytest.MonkeyPatch, connection: str) -> None:
    monkeypatch.setenv("SSH_CONNECTION", connection)
    with pytest.raises(AgentError) as raised:
        find_address(None, None)
    assert "NIC" in str(raised.value.hint)


# Paths.


def test_a_tilde_is_this_accounts_home_and_nothing_else_is_expanded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expand("~/a/../b") == tmp_path / "b"
    assert expand("/x/~") == Path("/x/~")


def test_jobs_are_listed_newest_first_in_numerical_order(tmp_path: Path) -> None:
    names = ["JOB20261121-081530", "JOB20261121-081530-2", "JOB20261121-081530-10", "JOB20261120-235959"]
    for name in names:
        JobPaths(tmp_path / name).meta.mkdir(parents=True)
        JobPaths(tmp_path / name).record.write_text("{}")
    for other in ("JOB20261122-000000", "other", "JOBx"):
        (tmp_path / other).mkdir()
    assert [job.dir.name for job in find_jobs(tmp_path)] == sorted(names, key=job_key, reverse=True)
    assert next(find_jobs(tmp_path)).dir.name == "JOB20261121-081530-10"
    assert list(find_jobs(tmp_path / "none")) == []


def test_runs_are_counted_and_logs_are_named_as_the_old_launcher_did(tmp_path: Path) -> None:
    job = JobPaths(tmp_path)
    assert job.newest_run() is None
    for name in ("0002", "0010", "notes"):
        (job.runs / name).mkdir(parents=True)
    assert job.newest_run() == "0010"
    assert [log_stem("trainer", 0), log_stem("trainer", 1), log_stem("pserver", 0)] == ["train", "train.1", "server"]
