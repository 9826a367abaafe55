"""A machine is upgraded while jobs are running: the new version sees, stops and resumes runs of the old version.

`old` and `new` are the two versions on one control machine. The contracts that these tests protect are invisible to
users, and they must not change unless the new version still reads the old form:

| test | contracts |
|---|---|
| a running job is seen ... | agent requests about a run of another version; spec.json, state.json, events.jsonl; \
logs and their index; job.json; the lock of a job |
| a running job is stopped ... | how processes are found: `/agent/entry.py`, their environment; signals to a \
supervisor; manifest.json and pieces of a checkpoint |
| nodes ... rejoin ... | messages between supervisors; keys of spec.json; `python -m clusterctl.runtime.pserver`; \
messages between trainers and pservers; keys/; fake.json and the control socket of the embedded backend |
| a trainer that was given up ... | SIGUSR1 to a supervisor; messages between a supervisor and its lead |
| an ended run ... | state.json and events.jsonl of a run that is over; job.json; saved models |
| runs that failed, a run that lost ... | events from which `why` derives causes, with the messages of the old version |
| an unchanged workspace ... | `manifest` and `seal` of a job directory; caches of the control machine: `sent-*`, \
`hashes/` |
| an edited workspace ... | the same; job.json of a job that the new version starts |
| the nodes on which ... | the cache behind `--only failed@last` |
| jobs side by side ... | abstract sockets `clusterctl-port-N` |
| prune ... | the lock of a job; an agent is in use while a command line names it |
| a cluster ... | fake.json, the environment of the processes, the checksum in conf.py, for both backends |
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from clusterctl.runtime import load_model
from contract.e2e.models import assert_same, model_of
from contract.e2e.programs import SLEEP
from real.upgrade.versions import NODES, old_cluster, old_site, processes_of
from support.processes import is_alive, wait_until
from support.site import Site, events_in

pytestmark = [pytest.mark.upgrade, pytest.mark.copies]  # as users have them: both versions copy and merge models

SETTINGS = {"PSERVERS": 2, "TRAINERS": NODES, "SAVE_EVERY": 7, "KEEP": 2}
STEPS, HELD_AT, SAVED_AT = 30, 17, 14
# Each trainer prints its steps. With an argument, trainer 0 waits at that step until the file `go` exists.
TRAIN = f"""
import os, sys, time
import numpy as np
from clusterctl.runtime import connect, Adagrad, Adam, uniform, zeros

def reader(pass_, rng):
    for number in range({STEPS // 2} * pass_, {STEPS // 2} * (pass_ + 1)):
        x = rng.standard_normal((32, 4), dtype=np.float32)
        yield number, x, x @ np.arange(4, dtype=np.float32), rng.integers(-500, 500, 64)

with connect() as ps:
    w = ps.dense("w", shape=(4,), rule=Adam(0.05), init=zeros())
    wide = ps.dense("wide", shape=(3, 30_000), rule=Adagrad(0.1), init=uniform(0.1))
    emb = ps.embedding("e", dim=3, rule=Adagrad(0.1), init=uniform(0.1))
    for number, x, y, ids in ps.steps(reader, passes=2):
        if ps.rank == 0 and sys.argv[1:] == [str(number)]:
            open("held", "w").close()
            while not os.path.exists("go"):
                time.sleep(0.01)
        print("step", number, flush=True)
        error = x @ w.value - y
        rows = emb.pull(ids)
        slope = {{w: x.T @ error / len(x), emb: (ids, rows), wide: wide.value * np.float32(0.1)}}
        ps.push(slope, samples=len(x), loss=float((error ** 2).mean()))
"""


@dataclass(frozen=True)
class Undisturbed:
    """A complete run of the old version on embedded nodes, with the files and the model that it collected."""

    workspace: Path
    job: str
    files: list[dict[str, Any]]
    model: dict[str, Any]


@pytest.fixture(scope="module")
def undisturbed(embedded_cluster: Site, installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """An undisturbed run, made once for all tests."""
    old = old_site(embedded_cluster, installed)
    old.directory = tmp_path_factory.mktemp("undisturbed")
    old.conf_path = old.directory / "conf.py"
    old.conf(**SETTINGS)
    job = old.dispatch(TRAIN)
    old.ok("start", "--job_workspace", job)
    collected = old.ok("collect", job, "--all", "-o", "home", "--json").json()
    files = sorted(collected["files"], key=itemgetter("path"))
    return Undisturbed(old.directory / "workspace", job, files, load_model(old.directory / collected["model"]))


@pytest.fixture
def expected(undisturbed: Undisturbed) -> dict[str, Any]:
    return undisturbed.model


def start_and_hold(old: Site, **settings: Any) -> str:
    """Start a job and return its id once its trainer 0 is waiting."""
    old.conf(**{**SETTINGS, **settings})
    job = old.dispatch(TRAIN)
    old.ok("start", "--job_workspace", job, "--detach", "--", str(HELD_AT))
    assert wait_until((old.job_dir(job, 0) / "held").exists)
    return job


def release(site: Site, job: str) -> None:
    (site.job_dir(job, 0) / "go").touch()


def release_and_finish(new: Site, job: str, expected: dict[str, Any]) -> None:
    release(new, job)
    assert new.run("logs", "-f", job).code == 0
    assert new.status(job)["state"] == "succeeded"
    new.assert_nothing_left(job)
    assert_same(model_of(new, job), expected)


def steps_of(json_lines: str) -> dict[int, list[int]]:
    """Return the steps in the output of `logs --json` by rank of the trainer."""
    steps: dict[int, list[int]] = {}
    for line in map(json.loads, json_lines.splitlines()):
        if line["line"].startswith("step "):
            steps.setdefault(line["rank"], []).append(int(line["line"].split()[1]))
    return steps


def agent_of(site: Site, job: str, node: int) -> str:
    """Return the digest of the agent that supervises a node's processes; each version has its own."""
    words = Path(f"/proc/{site.supervisor(job, node)}/cmdline").read_text().split("\0")
    (entry,) = [word for word in words if word.endswith("/agent/entry.py")]
    return Path(entry).parents[2].name


def processes(status: dict[str, Any]) -> set[tuple[Any, ...]]:
    return {(p["role"], p["rank"], p["node"], p["pid"], p["state"]) for p in status["processes"]}


def lead_events(site: Site, job: str) -> list[dict[str, Any]]:
    return events_in(site.job_dir(job, 0) / ".clusterctl/runs/0001/events.jsonl")


def test_a_running_job_is_seen_left_alone_and_followed_to_its_end(
    old: Site, new: Site, expected: dict[str, Any]
) -> None:
    job = start_and_hold(old)
    seen = new.status(job)
    assert (seen["state"], seen["run"], seen["members"]) == ("running", "0001", [0, 1, 2])
    assert processes(seen) == processes(old.status(job))
    assert {(role, rank, node, state) for role, rank, node, _, state in processes(seen)} == {
        ("pserver", 0, 0, "ready"),
        ("pserver", 1, 1, "ready"),
        *(("trainer", node, node, "running") for node in range(NODES)),
    }
    assert all(is_alive(process["pid"]) for process in seen["processes"])
    (listed,) = [one for one in new.ok("jobs", "--json").json()["jobs"] if one["job"] == job]
    assert [(run["run"], run["state"]) for run in listed["runs"]] == [("0001", "running")]
    why = new.ok("why", job, "--json").json()
    assert (why["state"], why["cause"], why["open"]) == ("running", None, [])
    refused = new.run("start", "--job_workspace", job, "--json")
    assert (refused.code, refused.json()["error"]["kind"]) == (4, "refused")

    with new.popen("logs", "-f", job, "--role", "trainer", "--json") as following:
        assert following.stdout is not None
        output = following.stdout.readline()
        release(new, job)
        output += following.stdout.read()
    assert following.returncode == 0
    assert steps_of(output) == {rank: list(range(STEPS)) for rank in range(NODES)}
    assert new.status(job)["state"] == "succeeded"
    new.assert_nothing_left(job)
    assert_same(model_of(new, job), expected)


def test_a_running_job_is_stopped_and_resumed_from_its_checkpoint(
    old: Site, new: Site, expected: dict[str, Any]
) -> None:
    job = start_and_hold(old)
    tag = f"step-{SAVED_AT:09d}"
    checkpoint = new.job_dir(job, 0) / f".clusterctl/runs/0001/checkpoints/{tag}/manifest.json"
    assert wait_until(checkpoint.exists)
    pids = [process.pid for process in new.processes(job)]
    stopped = new.ok("stop", job, "--json").json()
    assert stopped["survivors"] == 0
    assert [(node["node"], node["ok"], node["holders"]) for node in stopped["nodes"]] == [
        (node, True, []) for node in range(NODES)
    ]
    assert len(pids) >= 5 + NODES  # including the supervisors
    assert not [pid for pid in pids if is_alive(pid)]
    new.assert_nothing_left(job)
    why = new.ok("why", job, "--json").json()
    assert (why["state"], why["cause"]["kind"]) == ("stopped", "stopped")
    assert why["checkpoint"] == {"tag": tag, "step": SAVED_AT}

    plan = new.ok("start", "--resume", "--job_workspace", job, "--plan", "--json").json()
    assert (plan["job"], plan["resume"]["run"], plan["resume"]["tag"]) == (job, "0001", tag)
    new.ok("start", "--resume", "--job_workspace", job, "--")  # the first run was to wait at a step
    status = new.status(job)
    assert (status["run"], status["state"], status["resumed"]["tag"]) == ("0002", "succeeded", tag)
    logs = new.ok("logs", job, "--role", "trainer", "--json").out
    assert steps_of(logs) == {rank: list(range(SAVED_AT, STEPS)) for rank in range(NODES)}
    new.assert_nothing_left(job)
    assert_same(model_of(new, job), expected)


def test_nodes_that_a_run_waits_for_rejoin_with_new_supervisors_under_its_old_lead(
    old: Site, new: Site, expected: dict[str, Any]
) -> None:
    """The supervisor of node 1, which has a pserver, is killed; node 2 has a power cut."""
    job = start_and_hold(old, ON_TRAINER_LOSS="wait")
    lead, fake = new.supervisor(job, 0), str(new.nodes_directory)
    os.kill(new.supervisor(job, 1), signal.SIGKILL)
    new.ok("fake", "kill", "node2", "--dir", fake)
    assert wait_until(lambda: {e["node"] for e in lead_events(new, job) if e["event"] == "lost"} == {1, 2})
    nodes = new.ok("fake", "status", "--dir", fake, "--json").json()["nodes"]
    assert [node["state"] for node in nodes] == ["up", "up", "killed"]
    new.ok("fake", "heal", "node2", "--dir", fake)
    why = new.ok("why", job, "--json").json()
    assert (why["state"] in ("running", "starting"), why["cause"]) == (True, None)  # a rollback starts all processes
    assert sorted((one["kind"], one["node"]) for one in why["open"]) == [("node_lost", 1), ("node_lost", 2)]

    joined = new.ok("start", "--rejoin", "--job_workspace", job, "--json").json()
    assert [(node["node"], node["did"]) for node in joined["nodes"]] == [(0, "told"), (1, "joined"), (2, "joined")]
    agents = [agent_of(new, job, node) for node in range(NODES)]
    assert agents[0] != agents[1] == agents[2]
    assert new.supervisor(job, 0) == lead
    release_and_finish(new, job, expected)
    assert {e["node"] for e in lead_events(new, job) if e["event"] == "rejoined"} >= {1, 2}


def test_a_trainer_that_was_given_up_is_restarted_by_its_old_supervisor(
    old: Site, new: Site, expected: dict[str, Any]
) -> None:
    job = start_and_hold(old, ON_TRAINER_LOSS="wait")
    (pid,) = [p["pid"] for p in new.status(job)["processes"] if (p["role"], p["rank"]) == ("trainer", 1)]
    os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: any(e["event"] == "held" for e in lead_events(new, job)))
    joined = new.ok("start", "--rejoin", "--job_workspace", job, "--json").json()
    assert {node["did"] for node in joined["nodes"]} == {"told"}
    release_and_finish(new, job, expected)


def as_before(job: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """Return a listed job without the keys that later versions add to its runs."""
    pairs = zip(job["runs"], before["runs"], strict=True)
    return {**job, "runs": [{key: run[key] for key in run if key in known} for run, known in pairs]}


def test_an_ended_run_is_listed_read_and_collected(old: Site, new: Site, undisturbed: Undisturbed) -> None:
    job = undisturbed.job
    jobs = new.ok("jobs", "--json").json()["jobs"]
    before = old.ok("jobs", "--json").json()["jobs"]
    assert [as_before(one, other) for one, other in zip(jobs, before, strict=True)] == before
    assert [one["state"] for one in jobs if one["job"] == job] == ["succeeded"]
    assert new.status(job) == old.status(job)
    assert steps_of(new.ok("logs", job, "--json").out) == {rank: list(range(STEPS)) for rank in range(NODES)}
    why = new.ok("why", job, "--json").json()
    assert (why["state"], why["cause"]) == ("succeeded", None)

    collected = new.ok("collect", job, "--all", "-o", "home", "--json").json()
    for file in collected["files"]:
        data = (new.directory / "home" / file["path"]).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (file["bytes"], file["sha256"])
    assert sorted(collected["files"], key=itemgetter("path")) == undisturbed.files
    assert_same(load_model(new.directory / collected["model"]), undisturbed.model)


# By reason: the settings, the program, and fields of the cause that `why` reports. One node suffices.
FAILURES: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "import_error": ({}, "import nosuchmodule", {"subject": "nosuchmodule", "where": "train.py:1", "exit_code": 1}),
    "out_of_memory": ({"MEMORY_LIMIT_MB": 500}, "bytearray(10**9)", {"error": "MemoryError", "exit_code": 1}),
    "killed": ({}, "import os; os.kill(os.getpid(), 9)", {"signal": "SIGKILL", "exit_code": -9}),
    "stalled": (
        {"ENGINE": "clusterctl", "PSERVERS": 1, "STALL_S": 1, "ON_STALL": "fail"},
        TRAIN.replace("time.sleep(0.01)", "os.kill(os.getpid(), 19)"),
        {"kind": "stalled", "exit_code": None},
    ),
}
NAMED_IN_ADVICE = {"import_error": "clusterctl setup", "out_of_memory": "MEMORY_LIMIT_MB", "stalled": "kill -CONT"}


@pytest.mark.nodes(1)
@pytest.mark.parametrize("reason", FAILURES)
def test_the_cause_of_runs_that_failed_before_the_upgrade_is_named(old: Site, new: Site, reason: str) -> None:
    settings, train, about = FAILURES[reason]
    old.conf(**{"ENGINE": "none", "PSERVERS": 0, "TRAINERS": 1, **settings})
    assert old.run("start", "--job_dispatch_package", str(old.workspace(train)), "--", "5").code == 1
    report = new.ok("why", "--json").json()
    expected = {"reason": reason, "role": "trainer", "rank": 0, "node": 0, **about}
    assert {name: report["cause"][name] for name in expected} == expected
    assert report["state"] == "failed"
    assert NAMED_IN_ADVICE.get(reason, "") in report["advice"]


@pytest.mark.nodes(2)
def test_a_run_that_lost_a_node_before_the_upgrade_is_explained_from_the_start_of_the_silence(
    old: Site, new: Site
) -> None:
    old.conf(ENGINE="none", HEARTBEAT_S=2, NODE_GRACE_S=4)  # it is lost before it would become suspect after 6 s
    job = old.start(SLEEP)
    supervisor = new.supervisor(job, 1)
    os.kill(supervisor, signal.SIGSTOP)
    try:
        assert wait_until(lambda: any(event["event"] == "ended" for event in lead_events(new, job)))
        cause = new.ok("why", job, "--json").json()["cause"]
    finally:
        os.kill(supervisor, signal.SIGCONT)
    new.assert_nothing_left(job)
    assert (cause["kind"], cause["reason"], cause["node"]) == ("node_lost", "node_silent", 1)
    assert cause["noted"] - cause["t"] >= 4


@pytest.mark.nodes(2)
def test_an_unchanged_workspace_is_the_same_job_and_sends_nothing(
    old: Site, new: Site, undisturbed: Undisturbed
) -> None:
    package = str(undisturbed.workspace)  # its files are old enough for the cache of digests
    job = old.ok("dispatch", package, "--json").json()["job"]
    assert new.status(job)["state"] == "dispatched"  # now every node also has the new agent
    before = touched(new), cache_of(new)
    for options in ((), ("--rehash",)):
        again = new.ok("dispatch", package, "--json", *options).json()
        assert again["job"] == job
        assert [(node["kept"], node["files_sent"], node["bytes_sent"]) for node in again["nodes"]] == [(True, 0, 0)] * 2
        if not options:  # the seals were enough: no node took its lock
            assert (touched(new), cache_of(new)) == before
    plan = new.ok("dispatch", package, "--plan", "--json").json()
    assert [(node["job"], node["send"], node["delete"]) for node in plan["nodes"]] == [(job, [], [])] * 2


def touched(site: Site) -> list[int]:
    """Return the time of the last change to each node's directory of locks and journals."""
    return [(site.home(node) / "clusterctl/.clusterctl").stat().st_mtime_ns for node in range(len(site.hosts))]


def cache_of(site: Site) -> dict[str, bytes]:
    """Return the dispatch caches of the control machine: contents by path."""
    top = site.nodes_directory / "cache"
    kept = [path for name in ("sent-*", "hashes/*") for path in top.glob(f"clusterctl/{name}")]
    assert kept
    return {str(path): path.read_bytes() for path in kept}


@pytest.mark.nodes(2)
def test_an_edited_workspace_replaces_an_unstarted_job_and_copies_from_a_started_one(old: Site, new: Site) -> None:
    old.conf(ENGINE="none", PSERVERS=0, TRAINERS=2)
    notes = "not sent again " * 100
    first = old.ok("dispatch", str(old.workspace("print('one')", **{"notes.txt": notes})), "--json").json()["job"]
    edited = new.ok("dispatch", str(new.workspace("print('two')")), "--json").json()
    assert [(node["kept"], node["files_sent"], node["bytes_copied"]) for node in edited["nodes"]] == [(False, 1, 0)] * 2
    assert first not in jobs_of(new)

    job = old.ok("dispatch", str(old.workspace("print('three')")), "--json").json()["job"]
    new.ok("start", "--job_workspace", job)
    assert jobs_of(new)[job] == "succeeded"
    lines = [json.loads(line)["line"] for line in new.ok("logs", job, "--json").out.splitlines()]
    assert lines == ["three", "three"]
    after = new.ok("dispatch", str(new.workspace("print('four')")), "--json").json()
    assert [(node["files_sent"], node["bytes_copied"]) for node in after["nodes"]] == [(1, len(notes))] * 2
    assert {job, after["job"]} <= jobs_of(new).keys()
    for node in range(2):
        directory = new.job_dir(after["job"], node)
        assert (directory / "train.py").read_text() == "print('four')"
        assert (directory / "notes.txt").read_text() == notes


def jobs_of(site: Site) -> dict[str, str]:
    """Return the states of all jobs by id."""
    return {job["job"]: job["state"] for job in site.ok("jobs", "--json").json()["jobs"]}


def test_the_nodes_on_which_the_last_command_failed_are_known(old: Site, new: Site) -> None:
    assert old.run("exec", "--", "test $CLUSTERCTL_FAKE_NODE != 1").code == 3
    again = new.ok("exec", "--only", "failed@last", "--json", "--", "true").json()
    assert [node["node"] for node in again["nodes"]] == [1]


@pytest.mark.nodes(1)
def test_jobs_side_by_side_never_choose_the_same_port(old: Site, new: Site) -> None:
    """No process listens on these ports yet, so both jobs could bind the same one."""
    old.conf(ENGINE="torch", PSERVERS=0, TRAINERS=1)
    train = f"import os\nprint('port', os.environ['MASTER_PORT'], flush=True)\n{SLEEP}"
    jobs = [site.start(train) for site in (old, new)]
    logs = [new.job_dir(job, 0) / "log/train.log" for job in jobs]
    assert wait_until(lambda: all("up" in log.read_text() for log in logs))
    ports = {int(log.read_text().split()[1]) for log in logs}
    assert len(ports) == 2
    claimed = Path("/proc/net/unix").read_text().split()
    assert {f"@clusterctl-port-{port}" for port in ports} <= set(claimed)
    for job in jobs:
        assert new.ok("stop", job, "--json").json()["survivors"] == 0


@pytest.mark.nodes(2)
def test_prune_removes_neither_a_running_job_nor_its_agent(old: Site, new: Site) -> None:
    old.conf(ENGINE="none", ROOT_DIR="~/pruned")  # a directory that no other test uses
    roots = [new.home(node) / "pruned" for node in range(2)]
    done, running = (old.start(train, "--quiet") for train in ("print('done')", SLEEP))
    (agent,) = (roots[0] / ".clusterctl/lib").iterdir()

    def pruned(*options: str) -> Any:
        return new.ok("prune", "--keep", "0", "--older-than", "0s", "--json", *options).json()

    for options in (("--plan",), ("--yes",)):
        document = pruned(*options)
        assert {job["job"]: (job["keep"], job["nodes"]) for job in document["jobs"]} == {
            done: (None, [0, 1]),
            running: ("runs", [0, 1]),
        }
        assert (document["content"], document["removed"]) == ([], "--yes" in options)
        assert [(root / done).exists() for root in roots] == ["--plan" in options] * 2
    assert new.status(running)["state"] == "running"
    assert new.ok("stop", running, "--json").json()["survivors"] == 0

    document = pruned("--yes")
    assert [(item["kind"], item["name"], item["nodes"]) for item in document["content"]] == [
        ("agent", agent.name, [0, 1])
    ]
    for root in roots:
        (left,) = (root / ".clusterctl/lib").iterdir()
        assert left.name != agent.name
        assert not list(root.glob("JOB*"))


def test_a_cluster_with_a_running_job_is_taken_down(backend: str, installed: Path, tmp_path: Path) -> None:
    with old_cluster(installed, backend, tmp_path) as new:
        new.conf(ENGINE="none", PSERVERS=0, TRAINERS=1)
        job = old_site(new, installed).start(SLEEP)
        running = new.processes(job)
        fake = new.nodes_directory
        status = new.ok("fake", "status", "--dir", str(fake), "--json").json()
        assert (status["backend"], status["alive"]) == (backend, True)
        assert [(node["state"], node["answers"]) for node in status["nodes"]] == [("up", True)] * NODES
        down = new.ok("fake", "down", "--yes", "--dir", str(fake), "--json").json()
        assert down["killed"] >= len(running) > 1
        assert processes_of(fake) == []
        assert [path.name for path in fake.iterdir()] == ["cache"]  # the cache of the control machine
