"""Processes on this node: identified beyond their pid, found by their environment, killed whatever they do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clusterctl.common import procfs
from clusterctl.common.procfs import (
    Identity,
    cpu_and_memory,
    end_all,
    find_by_environment,
    identify,
    is_alive,
    run_environment,
    send_signal,
    wait_until,
)
from support.processes import assert_none_left

SLEEPS = "import time; print('up', flush=True); time.sleep(600)"
IGNORES = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
LEAVES_GRANDCHILD = (
    "import subprocess, sys;"
    "p = subprocess.Popen([sys.executable, '-c', %r], start_new_session=True, stdout=subprocess.PIPE);"
    "p.stdout.readline(); print(p.pid, flush=True)"
)


@contextmanager
def running(directory: Path, code: str = SLEEPS, run: str = "0001", **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program of a run that has printed its first line."""
    marks = run_environment(directory, run)
    process = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, **marks, **env}, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    process.first_line = process.stdout.readline()  # type: ignore[attr-defined]
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def pids_of(directory: Path, run: str | None = None) -> list[int]:
    return sorted(identity.pid for identity in find_by_environment(run_environment(directory, run)))


def test_this_very_process_is_known_and_alive() -> None:
    me = identify(os.getpid())
    assert me == identify(os.getpid())
    assert me is not None
    assert is_alive(me)
    cpu, memory = cpu_and_memory(os.getpid()) or (0, 0)
    assert cpu > 0
    assert memory > 1 << 20


def test_a_reused_pid_is_a_different_process() -> None:
    me = identify(os.getpid())
    assert me is not None
    assert not is_alive(Identity(me.pid, me.ticks - 1, me.boot))
    assert not is_alive(Identity(me.pid, me.ticks, "another"))
    assert not is_alive(None)


def test_a_signal_reaches_only_the_intended_process(tmp_path: Path) -> None:
    with running(tmp_path) as process:
        identity = identify(process.pid)
        assert identity is not None
        send_signal(Identity(identity.pid, identity.ticks + 1, identity.boot), signal.SIGKILL)
        assert process.poll() is None
        send_signal(identity, signal.SIGKILL)
        assert process.wait(180) == -signal.SIGKILL
        send_signal(identity, signal.SIGKILL)


def test_a_zombie_is_not_alive(tmp_path: Path) -> None:
    with running(tmp_path, "print('up')") as process:
        assert wait_until(lambda: identify(process.pid) is None, 180)
        os.kill(process.pid, 0)  # it still exists
        assert pids_of(tmp_path) == []


def test_a_process_with_brackets_and_spaces_in_its_name_is_identified(tmp_path: Path) -> None:
    program = tmp_path / "a) R (b"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "600"]) as process:
        try:
            identity = identify(process.pid)
            assert identity is not None
            assert identity.ticks >= identify(os.getpid()).ticks  # type: ignore[union-attr]
        finally:
            process.kill()


def test_processes_are_found_by_exact_job_and_run(tmp_path: Path) -> None:
    with (
        running(tmp_path / "JOB") as first,
        running(tmp_path / "JOB", run="0002") as second,
        running(tmp_path / "JOB-2"),
        running(tmp_path / "other", OTHER=f"CLUSTERCTL_JOB_DIR={tmp_path / 'JOB'}"),
    ):
        assert pids_of(tmp_path / "JOB", "0001") == [first.pid]
        assert pids_of(tmp_path / "JOB") == sorted([first.pid, second.pid])


def test_a_grandchild_in_its_own_session_is_found_after_its_parent_has_exited(tmp_path: Path) -> None:
    with running(tmp_path, LEAVES_GRANDCHILD % SLEEPS) as process:
        grandchild = int(process.first_line)  # type: ignore[attr-defined]
        process.wait(180)
        assert pids_of(tmp_path) == [grandchild]
        assert end_all(lambda: find_by_environment(run_environment(tmp_path)), 60.0) == (1, 0, 0)
    assert_none_left("CLUSTERCTL_JOB_DIR", str(tmp_path))


def test_a_process_that_ignores_term_is_killed_after_the_grace_period(tmp_path: Path) -> None:
    looks: list[list[Identity]] = []

    def find() -> list[Identity]:
        """Find them. From the second look on, the other one has had the time to end, however busy the machine is."""
        if looks:
            other.wait(180)
        looks.append(find_by_environment(run_environment(tmp_path)))
        return looks[-1]

    with running(tmp_path, IGNORES) as stubborn, running(tmp_path) as other:
        assert end_all(find, 0.3) == (2, 1, 0)
        assert (stubborn.wait(180), other.wait(180)) == (-signal.SIGKILL, -signal.SIGTERM)


def test_a_process_that_reuses_a_pid_during_the_search_is_not_taken_for_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until its environment is read, the pid belongs to a process of the run; after that, to a stranger."""
    read_environment, read_stat, read = procfs.environment_of, procfs.stat_fields, set[int]()

    with running(tmp_path / "stranger") as stranger, running(tmp_path / "ours") as ours:
        marks = read_environment(ours.pid)

        def environment_of(pid: int) -> bytes:
            if pid != stranger.pid or pid in read:
                return read_environment(pid)
            read.add(pid)
            return marks

        def stat_fields(pid: int) -> list[str] | None:
            fields = read_stat(pid)
            if fields is not None and pid == stranger.pid and pid not in read:
                fields[19] = str(int(fields[19]) - 1)
            return fields

        monkeypatch.setattr(procfs, "environment_of", environment_of)
        monkeypatch.setattr(procfs, "stat_fields", stat_fields)
        assert pids_of(tmp_path / "ours") == [ours.pid]
        assert read, "its environment was read"


def test_short_lived_processes_that_start_the_next_one_are_found(tmp_path: Path) -> None:
    """A search that looks at each process once would find none of them, and report that nothing is left."""
    code = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('up', flush=True)\n"
        "end = time.monotonic() + 20\n"
        "while time.monotonic() < end:\n"
        "    time.sleep(0.02)\n"
        "    if os.fork():\n"
        "        os._exit(0)\n"
    )
    with running(tmp_path, code):
        count, _, survivors = end_all(lambda: find_by_environment(run_environment(tmp_path)), 0.3)
    assert count > 1
    assert survivors == 0
    assert_none_left("CLUSTERCTL_JOB_DIR", str(tmp_path))


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to start a process as another account")
def test_processes_of_other_accounts_are_ignored(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    env = {"PATH": os.environ["PATH"], **run_environment(tmp_path)}
    with subprocess.Popen(["/bin/sleep", "600"], env=env, user=65534, cwd="/") as process:
        try:
            assert wait_until(lambda: identify(process.pid) is not None, 180)
            assert pids_of(tmp_path) == []
        finally:
            process.kill()


def test_a_process_that_is_executing_another_program_is_checked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it changes programs it has no environment; a search that skipped it would report the job as stopped."""
    real, looks = procfs.environment_of, {"some": 2}

    with running(tmp_path) as program:

        def later(pid: int) -> bytes:
            if pid != program.pid or not looks["some"]:
                return real(pid)
            looks["some"] -= 1
            return b"\0\0"

        monkeypatch.setattr(procfs, "environment_of", later)
        assert [identity.pid for identity in find_by_environment(run_environment(tmp_path))] == [program.pid]


def test_a_process_without_any_environment_does_not_delay_the_search(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"], env={}) as bare, running(tmp_path) as program:
        try:
            assert wait_until(lambda: procfs.environment_of(bare.pid) == procfs.NO_ENVIRONMENT, 180)
            assert [identity.pid for identity in find_by_environment(run_environment(tmp_path))] == [program.pid]
        finally:
            bare.kill()
