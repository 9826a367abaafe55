"""A new life of a job waits for the former one, on other machines by its signs of life only."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.agent.node import locks
from clusterctl.agent.node.checkpoint_files import remove_half_written
from clusterctl.agent.node.jobs import is_free
from clusterctl.agent.node.locks import JobLock, LockHolder, starter_of
from clusterctl.agent.operations import takeover
from clusterctl.agent.operations.takeover import await_earlier_run
from clusterctl.agent.peer import Peer
from clusterctl.common.errors import AgentError, Gone
from clusterctl.common.files import write_json
from clusterctl.common.paths import JobPaths, RunPaths
from clusterctl.common.procfs import boot_id, identify
from unit.agent.specs import spec_json

NAME = "JOB20261121-081530"
GRACE_S = 30.0
ELSEWHERE = {"pid": 1, "ticks": 2, "boot": "another", "host": "n7"}
ENDED = {"state": "stopped", "cause": None}


class World:
    """A clock that a look at the former life advances by a second; `then` is called at each look with the time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.then: Callable[[float], None] = lambda now: None

    def __call__(self) -> float:
        self.now += 1.0
        self.then(self.now)
        return self.now


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Peer]:
    monkeypatch.setattr(takeover, "POLL_S", 0.0)
    (incoming, ours), nobody = os.pipe(), os.open(os.devnull, os.O_WRONLY)
    made = Peer(incoming, nobody)
    yield made
    for fd in (incoming, ours, nobody):
        os.close(fd)


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    """A run that was started on another machine and has recorded no end."""
    job = JobPaths(tmp_path / NAME)
    job.meta.mkdir(parents=True)
    write_json(job.record, {"job": NAME})
    made = job.run("0001")
    made.dir.mkdir(parents=True)
    write_json(made.spec, spec_json(node=1, members=[0, 1], node_grace_s=GRACE_S, grace_s=5.0))
    write_json(job.lock, ELSEWHERE)
    sign(made)
    return made


def sign(run: RunPaths, **state: Any) -> None:
    write_json(run.state, {"processes": [], "supervisor": [1, 2, "another"], "ended": None, "phase": None, **state})


def silent_for(run: RunPaths, seconds: float) -> None:
    for path in (run.state, run.job.lock):
        status = path.stat()
        os.utime(path, (status.st_atime, status.st_mtime - seconds))


def wait(run: RunPaths, peer: Peer, world: World, **request: Any) -> float:
    """Return the seconds that the new life has waited."""
    world.now = 0.0
    await_earlier_run(run.job, peer, **request, clock=world)
    return world.now


def test_the_lock_names_its_process_its_boot_and_its_host(run: RunPaths) -> None:
    with JobLock(run.job):
        me = identify(os.getpid())
        assert me is not None
        assert starter_of(run.job) == LockHolder(me.pid, me.ticks, boot_id(), os.uname().nodename)
        assert json.loads(run.job.lock.read_text())["host"] == os.uname().nodename


@pytest.mark.parametrize("text", ["", "[]", "7", "{}", '{"pid": 1}', '[1, 2, "boot"]'])
def test_a_lock_that_names_nobody_is_nobodys(run: RunPaths, text: str) -> None:
    run.job.lock.write_text(text)
    assert starter_of(run.job) is None


def test_another_boot_may_be_that_of_another_machine_with_the_same_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod that has moved keeps its name. A machine that was restarted is not told from it, and is silent."""
    monkeypatch.setattr(locks, "host_name", lambda: "n7")
    assert LockHolder(1, 2, "before", "n7").is_elsewhere
    assert not LockHolder(1, 2, boot_id(), "n7").is_elsewhere
    assert LockHolder(1, 2, boot_id(), "n8").is_elsewhere


def test_a_job_that_never_ran_or_ran_here_or_has_ended_is_not_waited_for(
    run: RunPaths, peer: Peer, world: World, tmp_path: Path
) -> None:
    sign(run, ended=ENDED)
    assert wait(run, peer, world, patient=True) < 5
    sign(run)
    with JobLock(run.job):
        pass
    assert wait(run, peer, world, patient=True) == 0
    fresh = JobPaths(tmp_path / "JOB20261121-081531")
    fresh.meta.mkdir(parents=True)
    await_earlier_run(fresh, peer, clock=world)
    assert world.now == 0


@pytest.mark.parametrize("patient", [False, True])
def test_a_silent_life_elsewhere_is_waited_for_until_its_grace_is_over(
    run: RunPaths, peer: Peer, world: World, patient: bool
) -> None:
    assert GRACE_S <= wait(run, peer, world, patient=patient) <= GRACE_S + 3
    silent_for(run, 20)
    assert GRACE_S - 20 - 1 <= wait(run, peer, world, patient=patient) <= GRACE_S - 20 + 3


def test_however_old_the_last_sign_seems_it_is_watched_for_a_moment(run: RunPaths, peer: Peer, world: World) -> None:
    """The clock of the machine that wrote it may be wrong."""
    silent_for(run, 1e6)
    assert takeover.WATCH_S <= wait(run, peer, world) <= takeover.WATCH_S + 3

    def lives(now: float) -> None:
        sign(run)
        silent_for(run, 1e6 - now)

    world.then = lives
    with pytest.raises(AgentError, match="is still running on n7"):
        wait(run, peer, world)


def test_the_control_machine_hears_what_a_start_waits_for(
    run: RunPaths, peer: Peer, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[dict[str, Any]] = []
    monkeypatch.setattr(peer, "heartbeat", lambda **news: heard.append(news))
    wait(run, peer, world)
    assert heard[0] == {"waits": "waiting for an earlier run on n7 to end"}


def test_a_life_elsewhere_that_ends_meanwhile_is_waited_for_no_longer(run: RunPaths, peer: Peer, world: World) -> None:
    """It has lost its lead: it goes on for a while, then ends its processes, and says so."""
    world.then = lambda now: sign(run, **({} if now < 20 else {"ended": ENDED}))
    assert 20 <= wait(run, peer, world, patient=True) <= 24


def test_a_life_elsewhere_that_goes_silent_has_the_whole_grace_from_then_on(
    run: RunPaths, peer: Peer, world: World
) -> None:
    world.then = lambda now: sign(run) if now < 15 else None
    assert 15 + GRACE_S - 2 <= wait(run, peer, world, patient=True) <= 15 + GRACE_S + 3


def test_a_life_elsewhere_that_goes_on_is_refused_in_the_end_and_by_the_impatient_at_once(
    run: RunPaths, peer: Peer, world: World
) -> None:
    world.then = lambda now: sign(run, t=now)
    for patient, limit_s in ((False, 3.0), (True, GRACE_S + 10 + takeover.ENDING_S + 3)):
        with pytest.raises(AgentError) as raised:
            wait(run, peer, world, patient=patient)
        assert (raised.value.kind, raised.value.details["locked"]) == ("refused", True)
        assert world.now <= limit_s
    assert world.now > GRACE_S + 10


def test_an_end_that_a_stop_elsewhere_has_written_is_no_sign_that_the_processes_ended(
    run: RunPaths, peer: Peer, world: World
) -> None:
    sign(run, ended={**ENDED, "late": True})
    assert wait(run, peer, world, patient=True) >= GRACE_S


def test_the_lock_of_a_machine_that_is_gone_counts_no_more(run: RunPaths, peer: Peer, world: World) -> None:
    """NFS may keep it for longer than the machine lived."""
    with JobLock(run.job):
        run.job.lock.write_text(json.dumps(ELSEWHERE))
        with pytest.raises(AgentError, match=f"{NAME} is in use on n7"), JobLock(run.job):
            pass
        assert wait(run, peer, world) == 0, "the impatient are refused by the lock"
        assert not is_free(run.job)
        assert wait(run, peer, world, patient=True) >= GRACE_S
        with JobLock(run.job):
            assert not is_free(run.job)


@pytest.mark.parametrize(
    ("state", "request_", "waits"),
    [
        ({"phase": "stopping"}, {"patient": True}, True),
        ({"phase": "running"}, {"patient": True, "locked": 0}, True),
        ({"phase": "running"}, {"patient": True, "locked": 2}, False),
        ({"phase": "running"}, {"patient": True, "locked": None}, False),
        ({"phase": "stopping"}, {"locked": 0}, False),
    ],
)
def test_here_only_what_is_ending_is_waited_for(
    run: RunPaths, peer: Peer, world: World, state: dict[str, Any], request_: dict[str, Any], waits: bool
) -> None:
    """It is ending if it says so, or if its lead's lock is free: then its lead is gone."""
    sign(run, **state)
    lock = JobLock(run.job)
    lock.__enter__()

    def end(now: float) -> None:
        if now > 9:
            lock.__exit__()

    world.then = end
    waited = wait(run, peer, world, **request_)
    if waits:
        assert 9 <= waited <= 12
        return
    assert waited == 0
    lock.__exit__()


def test_a_supervisor_that_has_lost_its_lead_is_ended_by_the_next_start(
    run: RunPaths, peer: Peer, world: World
) -> None:
    """A process that sleeps stands for it; the lock is free once it has ended."""
    lock = JobLock(run.job)
    lock.__enter__()
    with subprocess.Popen(["sleep", "600"]) as supervisor:
        sign(run, supervisor=identify(supervisor.pid), away=True)

        def end(now: float) -> None:
            if supervisor.returncode is None:
                supervisor.wait()
                lock.__exit__()

        world.then = end
        assert wait(run, peer, world) >= 1
        assert supervisor.returncode == -signal.SIGTERM


def test_nobody_waits_for_a_control_machine_that_has_left(run: RunPaths, world: World) -> None:
    incoming, ours = os.pipe()
    os.close(ours)
    with Path(os.devnull).open("wb") as nobody, pytest.raises(Gone):
        await_earlier_run(run.job, Peer(incoming, nobody.fileno()), clock=world)
    os.close(incoming)


def test_a_former_life_removes_nothing_that_the_new_one_is_writing(run: RunPaths) -> None:
    half = run.job.output / "pass-00003/.pserver-00000.safetensors-x"
    for written in (half, run.checkpoints / "step-000000005/.pserver-00000.safetensors-x"):
        written.parent.mkdir(parents=True)
        written.touch()
    later = run.job.run("0002")
    later.dir.mkdir()
    remove_half_written(run)
    assert half.exists()
    assert list(run.checkpoints.iterdir()) == []
    remove_half_written(later)
    assert not half.exists()
