"""The Python API over real nodes: a program sees what the commands show, and its terminal sees nothing."""

from __future__ import annotations

import importlib
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clusterctl
from clusterctl.runtime import load_model
from contract.e2e.programs import LEAVE, REGRESSION, SLEEP
from support.site import Site, events_in

pytestmark = pytest.mark.nodes(2)
WAIT_S = 120.0
FAILS = "raise SystemExit('no more disk')\n"
ALONE = {"ENGINE": "none", "PSERVERS": 0}


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in signal.valid_signals()]


def test_a_job_goes_from_dispatch_to_arrays_without_a_word_on_the_terminal(
    site: Site, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(site.nodes_directory / "cache"))
    before, lines = (Path.cwd(), handlers()), list[str]()
    with clusterctl.Cluster.from_conf(site.conf_path, progress=lines.append) as cluster:
        job = cluster.dispatch(site.workspace(REGRESSION))
        assert (job.state, job.warnings) == ("dispatched", ())
        with pytest.raises(clusterctl.UsageError, match="never started"):
            job.run()
        run = job.start(["--num_passes=4"], name="first", timeout=WAIT_S)
        assert_every_event_comes_once_and_in_order(site, cluster, run)
        assert run.wait(timeout=WAIT_S).ok
        assert_the_run_is_found(cluster, job, run)
        assert_its_figures_and_logs_are_those_of_the_program(run)
        collected = job.collect(site.directory / "result")
        run.stop()  # is over, and stays as it is
        assert run.state == "succeeded"
    assert np.abs(load_model(collected.directory)["w"] - np.arange(4)).max() < 1.0
    assert collected.model == site.directory / "result/model/model.safetensors"
    assert collected.directory / "node-1/log/train.log" in collected.files
    assert f"{run.id} is up on 2 nodes" in lines
    assert all(line.isprintable() for line in lines)
    assert (Path.cwd(), handlers()) == before
    assert capfd.readouterr() == ("", "")


@pytest.mark.nodes(1)
def test_each_dispatch_of_a_program_gives_a_job_of_its_own_unless_it_may_be_one_there(
    site: Site, cluster: clusterctl.Cluster
) -> None:
    workspace = site.workspace(LEAVE)
    first, second = cluster.dispatch(workspace), cluster.dispatch(workspace)
    assert first.id != second.id
    assert cluster.dispatch(workspace, fresh=False).id == second.id
    with clusterctl.Cluster.from_conf(site.conf_path) as other:
        newest = other.dispatch(workspace)
        assert newest.id not in {first.id, second.id}
        again = site.dispatch_again(workspace)
        assert again != newest.id, "a program that has a job keeps it for itself"
    assert site.dispatch_again(workspace) == again


def assert_every_event_comes_once_and_in_order(site: Site, cluster: clusterctl.Cluster, run: clusterctl.Run) -> None:
    events: list[clusterctl.Event] = []
    for event in run.events():
        events.append(event)
        if len(events) == 5:
            cluster._session.nodes.transport.abort()  # every connection breaks
    for node in range(2):
        recorded = events_in(site.job_dir(run.job, node) / ".clusterctl/runs/0001/events.jsonl")
        assert [event.raw for event in events if event.node == node] == recorded
    phases = [event.phase for event in events if isinstance(event, clusterctl.Phase)]
    assert [one for one in phases if one != "gathering"] == ["pservers", "trainers", "running", "finishing"]
    assert {event.process for event in events if isinstance(event, clusterctl.Pass)} == {"trainer0", "trainer1"}
    assert isinstance(events[-1], clusterctl.Ended)
    assert events[-1].state == "succeeded"


def assert_the_run_is_found(cluster: clusterctl.Cluster, job: clusterctl.Job, run: clusterctl.Run) -> None:
    assert [cluster.jobs()[0].id, cluster.job().id, cluster.job("first").id] == [job.id] * 3
    assert [one.id for one in job.runs()] == [run.id] == [f"{job.id}/1"]
    assert [cluster.run("first").id, cluster.run(run.id).id, job.run(1).id] == [run.id] * 3
    status = run.status()
    assert (status.run, status.name, status.state, status.errors, run.name) == (1, "first", "succeeded", (), "first")
    assert {process.name for process in status.processes} == {"pserver0", "pserver1", "trainer0", "trainer1"}
    assert status.document["job"] == job.id
    outcome = run.outcome()
    assert (outcome.state, outcome.cause, outcome.step, outcome.pass_) == ("succeeded", None, 20, 3)


def assert_its_figures_and_logs_are_those_of_the_program(run: clusterctl.Run) -> None:
    metrics = run.metrics()
    steps, losses = metrics.curve("loss")
    assert steps[-1] == 20
    assert 0 < losses[-1] < losses[0]
    assert metrics.last("score") == 1.0
    assert set(metrics.select("score")["role"]) == {"trainer"}
    last = "end of pass 3 on trainer 1"
    assert [line.text for line in run.logs(role="trainer", rank=1, grep="end of pass", tail=1)] == [last]
    assert {line.node for line in run.logs(node=1)} == {1}
    assert list(run.logs(since=4e9)) == []
    with pytest.raises(clusterctl.UsageError, match="there is no trainer 7"):
        run.logs(role="trainer", rank=7)


@pytest.mark.nodes(1)
def test_a_failed_run_is_an_error_with_its_first_cause_or_an_outcome(site: Site, cluster: clusterctl.Cluster) -> None:
    job = cluster.dispatch(site.workspace(FAILS))
    with pytest.raises(clusterctl.UsageError, match=r"args\[1\] has to be a text, not the float 0.1") as refused:
        job.start(["--lr", 0.1])  # type: ignore[list-item]
    assert (refused.value.hint, job.runs()) == ("write str(0.1)", [])
    run = job.start(set=ALONE)
    with pytest.raises(clusterctl.JobFailedError, match=r"run 1 failed: .*trainer.*no more disk") as raised:
        run.wait(timeout=WAIT_S)
    assert raised.value.details["state"] == "failed"
    outcome = run.wait(timeout=WAIT_S, check=False)
    assert not outcome.ok
    assert outcome.cause is not None
    assert (outcome.cause.kind, outcome.cause.role) == ("exit", "trainer")
    assert "no more disk" in outcome.cause.lines[-1]
    with pytest.raises(clusterctl.JobFailedError):
        job.run().wait_until_running()


@pytest.mark.slow
@pytest.mark.nodes(1)
def test_an_interrupt_or_a_time_limit_leaves_the_run_running(site: Site, cluster: clusterctl.Cluster) -> None:
    job = cluster.dispatch(site.workspace(SLEEP))
    run = job.start(set=ALONE)
    with pytest.raises(KeyboardInterrupt):
        interrupt_once_it_runs(run)
    run.wait_until_running(timeout=WAIT_S)
    assert run.state == "running"
    with pytest.raises(clusterctl.WaitTimeoutError, match=r"has not ended within 0\.5 s; it continues") as raised:
        run.wait(timeout=0.5)
    assert isinstance(raised.value, TimeoutError)
    with pytest.raises(clusterctl.RefusedError, match="is already running"):
        job.start()
    run.stop()
    assert run.outcome().cause is None
    with pytest.raises(clusterctl.JobFailedError, match="was stopped"):
        run.wait(timeout=WAIT_S)
    site.assert_nothing_left(job.id)


def interrupt_once_it_runs(run: clusterctl.Run) -> None:
    for event in run.events():
        if isinstance(event, clusterctl.Phase) and event.phase == "running":
            signal.raise_signal(signal.SIGINT)


@pytest.mark.slow
@pytest.mark.nodes(1)
def test_an_interrupt_of_a_start_stops_what_it_has_started(
    site: Site, cluster: clusterctl.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    launching = importlib.import_module("clusterctl.launch.start")  # the package has a function of this name
    go = launching._go

    def interrupted(*args: Any) -> float:
        go(*args)
        raise KeyboardInterrupt

    job = cluster.dispatch(site.workspace(SLEEP))
    monkeypatch.setattr(launching, "_go", interrupted)
    with pytest.raises(KeyboardInterrupt):
        job.start()
    assert job.state == "stopped"
    site.assert_nothing_left(job.id)


def test_a_command_has_an_outcome_on_every_node(site: Site, cluster: clusterctl.Cluster) -> None:
    results = cluster.exec('echo "in $(basename "$PWD")"; echo no >&2; [ "$(basename "$HOME")" != node1 ]')
    assert [result.exit_code for result in results] == [0, 1]
    assert [result.ok for result in results] == [True, False]
    assert [(result.stdout, result.stderr, result.dropped_bytes) for result in results] == [
        (f"in node{node}\n", "no\n", 0) for node in range(2)
    ]
    job = cluster.dispatch(site.workspace(LEAVE))
    (first, _) = cluster.exec(["cat", "train.py"], job=job)
    assert first.stdout == LEAVE
    assert [result.exit_code for result in cluster.exec(["false"], job=job.id)] == [1, 1]


def test_a_node_that_cannot_be_reached_is_named_or_left_out(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(site.nodes_directory / "cache"))
    site.conf(HOSTS=[site.hosts[0], "127.0.0.1:1"])
    lines: list[str] = []
    with clusterctl.Cluster.from_conf(site.conf_path, progress=lines.append) as cluster:
        reached, other = cluster.exec(["true"])
        assert reached.ok
        assert (other.ok, other.exit_code) == (False, None)
        assert isinstance(other.error, clusterctl.UnreachableError)
        with pytest.raises(clusterctl.UnreachableError, match="node1"):
            cluster.dispatch(site.workspace(LEAVE))
        job = cluster.dispatch(site.workspace(LEAVE), allow_partial=True)
        assert job.id in [one.id for one in cluster.jobs()]
        assert lines[-1].startswith("node1")
        assert lines[-1].endswith("its jobs are left out")


@pytest.mark.nodes(1)
def test_a_program_that_does_not_close_its_cluster_ends(site: Site) -> None:
    program = (
        "import clusterctl; cluster = clusterctl.Cluster.from_conf(); print(cluster.exec(['echo', 'hi'])[0].stdout)"
    )
    ran = site.run("-c", program, program=(sys.executable,))
    assert (ran.code, ran.out, ran.err) == (0, "hi\n\n", "")
