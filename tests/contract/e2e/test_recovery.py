"""kill -9 of a pserver or a trainer during a run: it recovers, and the model is that of an undisturbed run."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clusterctl
from contract.e2e.models import assert_same, model_of
from contract.e2e.test_copies import NOBODY
from support.processes import is_alive, kill_all, processes_with_environment, wait_until
from support.site import Site, agent_processes, events_in

pytestmark = [pytest.mark.nodes(3), pytest.mark.slow]

QUICK = {"PSERVERS": 2, "TRAINERS": 3, "SAVE_EVERY": 7, "KEEP": 2, "RESTARTS": 3}
STEPS = 60
# For each argument KIND:STEP, trainer 0 kills a process of that kind at that step, once. With "last" the last trainer
# kills itself at that step, every time; with "hold" trainer 0 waits there until the file `go` exists.
TRAIN = """
import os, random, signal, sys, time
import numpy as np
from clusterctl.runtime import connect, Adagrad, Adam, uniform, zeros

at = {int(step): kind for kind, step in (word.split(":") for word in sys.argv[1:])}
words = {"trainer": "train.py", "pserver": "clusterctl.runtime.pserver", "self": "train.py"}

def read(pid, name):
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read().decode(errors="replace").replace(chr(0), " ")
    except OSError:
        return ""

def kill(kind, step):
    with open(f"killed-{step}", "a") as file:  # only once, even if the step is repeated
        if file.tell():
            return
        file.write("done")
    nodes = os.getcwd().partition("/node0/")[0]
    pids = [pid for pid in os.listdir("/proc") if pid.isdigit() and words[kind] in read(pid, "cmdline")]
    pids = [int(pid) for pid in pids if nodes in read(pid, "environ")]
    os.kill(os.getpid() if kind == "self" else random.choice(pids), signal.SIGKILL)

def reader(pass_, rng):
    for number in range(20 * pass_, 20 * pass_ + 20):
        x = rng.standard_normal((32, 4), dtype=np.float32)
        yield number, x, x @ np.arange(4, dtype=np.float32), rng.integers(-500, 500, 64)

with connect() as ps:
    w = ps.dense("w", shape=(4,), rule=Adam(0.05), init=zeros())
    wide = ps.dense("wide", shape=(3, 70_000), rule=Adagrad(0.1), init=uniform(0.1))
    emb = ps.embedding("e", dim=3, rule=Adagrad(0.1), init=uniform(0.1))
    for number, x, y, ids in ps.steps(reader, passes=3, shard="last" in at.values()):
        kind = at.get(number)
        if kind == "last" and ps.rank == ps.trainers - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "hold" and ps.rank == 0:
            open("held", "w").close()
            while not os.path.exists("go"):
                time.sleep(0.01)
        elif kind in words and ps.rank == 0:
            kill(kind, number)
        error = x @ w.value - y
        rows = emb.pull(ids)
        slope = {w: x.T @ error / len(x), emb: (ids, rows), wide: wide.value * np.float32(0.1)}
        ps.push(slope, samples=len(x), loss=float((error ** 2).mean()))
"""


@pytest.fixture(scope="module")
def expected(embedded_site: Site, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    site = embedded_site
    site.directory = tmp_path_factory.mktemp("undisturbed")
    site.conf_path = site.directory / "conf.py"
    site.conf(**QUICK)
    job = site.dispatch(TRAIN)
    site.ok("start", "--job_workspace", job)
    return model_of(site, job)


def test_in_sync_mode_the_model_after_kills_of_every_kind_is_that_of_an_undisturbed_run(
    site: Site, expected: dict[str, Any]
) -> None:
    site.conf(**QUICK, SAVE_MODEL_EVERY="9 steps")
    job = site.dispatch(TRAIN)
    victims = ["pserver", "pserver", "self", "self", "trainer"]  # trainer 0 at most RESTARTS times
    kills = [f"{kind}:{step}" for kind, step in zip(victims, random.sample(range(1, STEPS), 5), strict=True)]
    done = site.ok("start", "--job_workspace", job, "--", *kills)
    site.assert_nothing_left(job)
    assert_same(model_of(site, job), expected)
    assert site.status(job)["state"] == "succeeded", done.out


def test_outside_sync_mode_only_the_pserver_is_rolled_back_and_the_loss_is_reported(site: Site) -> None:
    site.conf(**{**QUICK, "SAVE_EVERY": "9 passes"}, MODE="async")
    job = site.dispatch(TRAIN)
    done = site.ok("start", "--job_workspace", job, "--", "pserver:57")
    site.assert_nothing_left(job)
    assert "killed by signal 9; restarting in 1 s (restart 1 of 3)" in done.out
    assert re.search("restarting pserver[01] from (checkpoint step-|the beginning)", done.out)
    words = site.ok("logs", job, "--role", "pserver").out
    assert re.search(r"\b[1-9][0-9]* pushes were lost with the pserver before this one", words), words
    passes = re.findall(r"trainer0@node0  pass (\d): (\d+) steps", done.out)
    assert [steps for _, steps in passes[:2]] == ["20", "20"], done.out
    assert len(passes) == 3, f"trainers continue where they were: {done.out}"
    assert int(passes[2][1]) < 20, done.out
    assert all(np.isfinite(model_of(site, job)["w"]))


def test_the_others_continue_without_a_trainer_that_was_given_up_and_share_its_batches(site: Site) -> None:
    site.conf(**{**QUICK, "RESTARTS": {"trainer": 1}}, ON_TRAINER_LOSS="shrink")
    job = site.dispatch(TRAIN)
    done = site.ok("start", "--job_workspace", job, "--", "last:5", "last:8")
    site.assert_nothing_left(job)
    assert "trainer2@node2 was killed by signal 9; restarting in 1 s (restart 1 of 1)" in done.out
    assert "was killed by signal 9; restarted once, the RESTARTS limit" in done.out
    assert re.search(r"continues without trainer 2, which gave \d+ samples of pass 0: the rest of its share", done.out)
    passes = re.findall(r"trainer0@node0  pass (\d): (\d+) steps", done.out)
    assert [steps for _, steps in passes] in (["7", "10", "10"], ["7", "7", "10"])
    states = {(p["role"], p["rank"]): p["state"] for p in site.status(job)["processes"]}
    assert states["trainer", 2] == "failed"
    assert states["trainer", 0] == states["trainer", 1] == "succeeded"


def start_and_hold(site: Site, job: str) -> None:
    """Start the job and return once trainer 0 is waiting in its second pass."""
    site.ok("start", "--job_workspace", job, "--detach", "--", "hold:25")
    assert wait_until((site.job_dir(job, 0) / "held").exists)


def release_and_finish(site: Site, job: str) -> None:
    (site.job_dir(job, 0) / "go").touch()
    followed = site.run("logs", "-f", job)
    assert followed.code == 0, followed.err
    assert site.status(job)["state"] == "succeeded"
    site.assert_nothing_left(job)


def test_a_run_waits_for_a_node_whose_supervisor_died_until_it_rejoins(site: Site, expected: dict[str, Any]) -> None:
    """Node 2 has only a trainer, node 1 a pserver as well."""
    site.conf(**QUICK, ON_TRAINER_LOSS="wait")
    job = site.dispatch(TRAIN)
    start_and_hold(site, job)
    lead = site.job_dir(job, 0) / ".clusterctl/runs/0001/events.jsonl"
    for count, node in enumerate((2, 1), 1):
        os.kill(site.supervisor(job, node), signal.SIGKILL)
        assert wait_until(lambda count=count: lead.read_text().count('"event":"lost"') == count)
        waiting = f"the run is waiting for node{node}; once it is fixed: clusterctl start --rejoin"
        assert waiting in site.ok("status", job).out
        waits = site.ok("why", job).out
        assert waits.count("its supervisor was killed, and its processes with it") == count
        assert f"the run is waiting for node{node}; when it is fixed" in waits
        joined = site.ok("start", "--rejoin", "--only", f"node{node}", "--job_workspace", job)
        assert f"node{node} has rejoined run 1" in joined.out
    release_and_finish(site, job)
    assert_same(model_of(site, job), expected)
    after = site.ok("why", job).out
    assert "nothing has failed for good" in after
    assert after.count("its supervisor was killed, and its processes with it") == 2


def on_node(site: Site, job: str, node: int) -> list[int]:
    """Return the processes of a job on a node: supervisor, guardian, piece server and programs."""
    directory = str(site.job_dir(job, node))
    found = [*processes_with_environment("CLUSTERCTL_JOB_DIR", directory), *agent_processes(directory)]
    return [process.pid for process in found]


@pytest.mark.copies
def test_the_processes_of_lost_nodes_move_and_the_model_is_that_of_an_undisturbed_run(
    site: Site, expected: dict[str, Any]
) -> None:
    """Node 2, with only a trainer, freezes. It wakes up when that runs elsewhere, and takes over from node 1, which has
    a pserver, too.
    """
    site.conf(**QUICK, NODE_GRACE_S=6, SHARDS=["part-*"], SHARD_COPIES=2)
    job = site.dispatch_again(site.workspace(TRAIN, **{f"part-{rank}": "data" for rank in range(3)}))
    assert "if node2 is lost: clusterctl moves trainer2 to node" in site.ok("start", job, "--plan").out
    start_and_hold(site, job)
    lead = site.job_dir(job, 0) / ".clusterctl/runs/0001/events.jsonl"
    frozen = on_node(site, job, 2)
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    assert wait_until(lambda: '"event":"moved","role":"trainer","rank":2' in lead.read_text())
    assert '"event":"rolled_back"' not in lead.read_text()
    for pid in frozen:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    assert wait_until(lambda: not processes_with_environment("CLUSTERCTL_JOB_DIR", str(site.job_dir(job, 2))))
    assert wait_until(lambda: '"event":"rejoined"' in lead.read_text())
    assert wait_until(lambda: '"event":"copied"' in lead.read_text().partition('"event":"moved"')[2])
    kill_all(on_node(site, job, 1))
    assert wait_until(lambda: '"event":"moved","role":"pserver","rank":1' in lead.read_text())
    moved = {(e["role"], e["rank"]): e["node"] for e in events_in(lead) if e["event"] == "moved"}
    assert moved == {("trainer", 2): 0, ("pserver", 1): 2, ("trainer", 1): 2}
    rejoined = site.ok("start", "--rejoin", "--only", "node1", "--job_workspace", job)
    assert "node1 has rejoined run 1" in rejoined.out
    assert wait_until(lambda: [e["node"] for e in events_in(lead) if e["event"] == "rejoined"] == [2, 1])
    shown = site.ok("status", job).out
    assert re.search(r"pserver +1 ", shown)
    assert shown.count("trainer ") == 3, shown
    (site.job_dir(job, 0) / "go").touch()
    assert wait_until(lambda: site.status(job)["state"] == "succeeded")
    site.assert_nothing_left(job)
    assert_same(model_of(site, job), expected)
    assert "node2 is lost" in site.ok("why", job).out
    views = [site.job_dir(job, node).parent / f".clusterctl/views/{job}/0001" for node in (0, 2)]
    assert [path.name for view in views for path in view.glob("*/part-*")] == ["part-2", "part-1"]


@pytest.mark.copies
def test_nodes_that_have_lost_their_lead_are_taken_over_by_the_next_run(site: Site) -> None:
    """The machine of the lead freezes for good; the others still hope to reach it."""
    site.conf(**QUICK, NODE_GRACE_S=6)
    job = site.dispatch(TRAIN)
    start_and_hold(site, job)
    lead = site.job_dir(job, 0) / ".clusterctl/runs/0001/events.jsonl"
    assert wait_until(lambda: '"event":"copied"' in lead.read_text())
    frozen = on_node(site, job, 0)
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    site.conf(**QUICK, NODE_GRACE_S=6, HOSTS=[NOBODY, *site.hosts[1:3]])
    assert wait_until(lambda: [node["state"] for node in site.status(job)["nodes"]] == ["unknown", "lost", "lost"])
    assert "first cause: node0 is lost: no message from the lead" in site.run("why", job).out
    for node in (1, 2):
        (site.job_dir(job, node) / "go").touch()
    done = site.ok("start", "--job_workspace", job, "--resume", "--allow-partial")
    assert "succeeded after" in done.out
    for pid in frozen:
        os.kill(pid, signal.SIGKILL)


def test_a_keeper_resumes_a_run_as_often_as_it_loses_its_lead(
    site: Site, expected: dict[str, Any], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside it, a program keeps the job, too. One of them wins."""
    site.conf(**QUICK, NODE_GRACE_S=6)
    job = site.dispatch(TRAIN)
    assert site.run("start", job, "--keep", "--set", "ON_NODE_LOSS=fail").code == 2
    assert "no keeper runs on this machine" in site.ok("keep", "--status").out
    site.ok("start", job, "--detach", "--keep", "--", "hold:25")
    (keeper,) = json.loads(site.ok("--json", "keep", "--status").out)["keepers"]
    request.addfinalizer(lambda: kill_all([keeper["pid"]]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(site.nodes_directory / "cache"))
    cluster = clusterctl.Cluster.from_conf(site.conf_path)
    request.addfinalizer(cluster.close)
    pool = ThreadPoolExecutor(1)
    kept = pool.submit(cluster.job(job).keep)
    pool.shutdown(wait=False)
    assert wait_until((site.job_dir(job, 0) / "held").exists)
    kill_all(on_node(site, job, 0))  # its machine is still there, and takes part again
    second = site.job_dir(job, 0) / ".clusterctl/runs/0002"
    assert wait_until(lambda: site.status(job)["run"] == "0002" and site.status(job)["state"] == "running")
    again = site.run("keep", job)
    assert (again.code, "already has a keeper on this machine" in again.err) == (4, True)
    assert wait_until(lambda: f"keeping {job} run 2" in site.ok("keep", "--status").out)
    kill_all(on_node(site, job, 0))
    (site.job_dir(job, 0) / "go").touch()
    assert wait_until(lambda: site.status(job)["run"] == "0003")
    assert wait_until(lambda: not is_alive(keeper["pid"]))
    (resumed,) = (event for event in events_in(second / "events.jsonl") if event["event"] == "resumed_by")
    assert resumed["message"].startswith("run 1 was lost: node0 is lost")
    assert kept.result(timeout=180).run == 3
    assert f"{job} run 3 succeeded" in Path(keeper["log"]).read_text()
    assert_same(model_of(site, job), expected)
    site.assert_nothing_left(job)


def test_a_run_that_is_lost_before_its_first_checkpoint_begins_again_as_it_began(
    site: Site, expected: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    site.conf(**{**QUICK, "SEED": 1}, NODE_GRACE_S=6)
    job = site.dispatch(TRAIN)
    site.ok("start", job, "--detach", "--keep", "--set", "SEED=0", "--", "hold:3")
    (keeper,) = json.loads(site.ok("--json", "keep", "--status").out)["keepers"]
    request.addfinalizer(lambda: kill_all([keeper["pid"]]))
    assert wait_until((site.job_dir(job, 0) / "held").exists)
    (site.job_dir(job, 0) / "held").unlink()
    kill_all(on_node(site, job, 0))
    assert wait_until((site.job_dir(job, 0) / "held").exists)
    (site.job_dir(job, 0) / "go").touch()
    assert wait_until(lambda: not is_alive(keeper["pid"]))
    assert f"{job} run 2 succeeded" in Path(keeper["log"]).read_text()
    assert_same(model_of(site, job), expected)
    site.assert_nothing_left(job)


def test_a_run_waits_for_a_trainer_that_was_given_up_until_it_is_told_to_rejoin(
    site: Site, expected: dict[str, Any]
) -> None:
    site.conf(**{**QUICK, "RESTARTS": 0}, ON_TRAINER_LOSS="wait")
    job = site.dispatch(TRAIN)
    start_and_hold(site, job)
    (pid,) = [p["pid"] for p in site.status(job)["processes"] if (p["role"], p["rank"]) == ("trainer", 1)]
    os.kill(pid, signal.SIGKILL)
    lead = site.job_dir(job, 0) / ".clusterctl/runs/0001/events.jsonl"
    assert wait_until(lambda: "the run is waiting for start --rejoin" in lead.read_text())
    assert "the run is waiting for trainer1; once it is fixed" in site.ok("status", job).out
    rejoined = site.ok("start", "--rejoin").out
    assert "node1 is already in run 1; restarting any trainer that failed there" in rejoined
    release_and_finish(site, job)
    refused = site.run("start", "--rejoin", "--job_workspace", job)
    assert (refused.code, "is not running" in refused.err) == (4, True)
    assert_same(model_of(site, job), expected)


def test_all_processes_of_other_engines_restart_up_to_the_restarts_limit(site: Site) -> None:
    train = """
import os, sys, time
mine, attempt = os.environ["RANK"], int(os.environ["CLUSTERCTL_ATTEMPT"])
print(f"rank {mine}, attempt {attempt}, by port {os.environ['MASTER_PORT']}", flush=True)
if mine == "1" and attempt < 3:
    sys.exit(7)
while mine == "0" and attempt < 3:
    time.sleep(0.1)
"""
    site.conf(TRAINERS=2, ENGINE="torch", RESTARTS=2)
    job = site.dispatch(train)
    done = site.ok("start", "--job_workspace", job)
    assert "trainer1@node1 exited with code 7; restarting in 2 s (restart 2 of 2)" in done.out
    words = site.ok("logs", job).out
    seen = re.findall(r"rank (\d), attempt (\d)", words)
    assert {("1", "1"), ("1", "2"), ("1", "3"), ("0", "3")} <= set(seen)
    other = (site.job_dir(job, 0) / ".clusterctl/runs/0001/events.jsonl").read_text()
    assert other.count('"event":"spawned"') == 3  # even if it was terminated before it printed anything
    site.conf(TRAINERS=2, ENGINE="torch", RESTARTS=1)
    failed = site.run("start", "--job_workspace", job)
    assert failed.code == 1
    assert 'exited with code 7: "rank 1, attempt 2' in failed.err
    assert "2 times the same way" in failed.err
    site.assert_nothing_left(job)
