"""The things that `prune` removes from a node or keeps: anything that is running, needed, or recent is kept."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterctl.agent.node.locks import DispatchLock, Holder, holder_of
from clusterctl.agent.node.runs import list_jobs
from clusterctl.agent.operations.prune import disk_bytes, find_content
from clusterctl.cluster.agent_call import boot_program
from clusterctl.common.files import delete, write_json
from clusterctl.common.paths import META, JobPaths
from clusterctl.common.requirements import RUNTIME_BEFORE, effective
from clusterctl.errors import NodeError
from clusterctl.prune import UnusedContent, choose, describe_retained
from support.processes import wait_until
from unit.agent.nodes import agent, ask, asked

OLD, NEW = "JOB20260101-000000", "JOB20260102-000000"
CAFE, BEEF = "cafe" * 8, "beef" * 8  # as long as real ones: they are searched for in the command lines of processes
FOREVER = [sys.executable, "-c", "print(flush=True); import time; time.sleep(600)"]
DAY_S = 86400.0


def make_job(root: Path, name: str) -> JobPaths:
    job = JobPaths(root / name)
    job.runs.mkdir(parents=True)
    job.output.mkdir()
    write_json(job.record, {"job": name, "node": 0, "nodes": 1})
    return job


def make_environment(root: Path, name: str, requirements: list[str], wheel: str) -> Path:
    place = root / META / "venvs" / name
    place.mkdir(parents=True)
    write_json(place / "clusterctl.json", {"lock": [["numpy.whl", wheel, 3]]})
    pointers = place.parent / "for"
    pointers.mkdir(exist_ok=True)
    write_json(pointers / f"key-{name}", {"environment": name, "requirements": requirements})
    store = root / META / "wheels" / wheel
    store.mkdir(parents=True)
    (store / "numpy.whl").write_bytes(b"123")
    return place


def remove(home: Path, *jobs: str, content: list[list[str]] | None = None) -> list[dict[str, Any]]:
    answer = ask(home, {"op": "prune", "remove": {"jobs": jobs, "content": content or []}})
    kept: list[dict[str, Any]] = answer["kept"]
    return kept


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root" / META).mkdir(0o700, parents=True)
    return tmp_path / "root"


def test_a_job_is_removed_with_its_read_only_directories_and_without_following_links(root: Path) -> None:
    job = make_job(root, OLD)
    (root / "precious").write_text("not of the job")
    (job.dir / "link").symlink_to("../precious")
    (job.dir / "loop").symlink_to(".")
    (job.dir / "locked/inside").mkdir(parents=True)
    (job.dir / "locked/inside/file").touch()
    (job.dir / "locked/inside").chmod(0o500)
    (job.dir / "locked").chmod(0)
    make_job(root, NEW)
    assert remove(root.parent, OLD) == []
    assert [job_info["job"] for job_info in list_jobs(root)] == [NEW]
    assert list((root / META / "incoming").iterdir()) == []
    assert (root / "precious").read_text() == "not of the job"


def test_a_job_with_running_processes_is_kept(root: Path) -> None:
    """A start holds the job's lock; a lost supervisor leaves processes that carry the job's directory."""
    locked, left = make_job(root, OLD), make_job(root, NEW)
    holder = [sys.executable, "-c", "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); " + FOREVER[2]]
    started = [
        subprocess.Popen([*holder, str(locked.lock)], stdout=subprocess.PIPE),
        subprocess.Popen(FOREVER, stdout=subprocess.PIPE, env={"CLUSTERCTL_JOB_DIR": str(left.dir)}),
    ]
    try:
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()
        assert [job["live"] for job in ask(root.parent, {"op": "prune"})["jobs"]] == [False, True]
        kept = remove(root.parent, OLD, NEW)
    finally:
        for process in started:
            process.kill()
            process.communicate()
    assert {item["name"]: item["why"] for item in kept} == {
        OLD: "it is running",
        NEW: f"it has leftover processes; to end them: clusterctl stop {NEW}",
    }
    assert {job_info["job"] for job_info in list_jobs(root)} == {OLD, NEW}


def test_nothing_is_removed_while_a_dispatch_is_under_way(root: Path) -> None:
    make_job(root, OLD)
    with (
        DispatchLock(root, {"by": "ada@desk"}),
        pytest.raises(NodeError, match=r"is running on this node \(by ada@desk\)"),
    ):
        remove(root.parent, OLD)
    assert [job_info["job"] for job_info in list_jobs(root)] == [OLD]


def test_an_agent_killed_during_removal_leaves_the_job_whole_or_gone(root: Path) -> None:
    job = make_job(root, OLD)
    for number in range(3000):
        (job.dir / str(number)).touch()
    process = agent(root.parent)
    with asked(root.parent, {"op": "prune"}) as call:  # the agent is already installed
        call.result()
    request = {"op": "prune", "remove": {"jobs": [OLD], "content": []}}
    process.write(boot_program() + json.dumps(request).encode() + b"\n")
    assert wait_until(lambda: not job.dir.exists())
    process.popen.kill()
    process.close()
    assert list_jobs(root) == []
    assert remove(root.parent, OLD) == []
    assert make_job(root, OLD).dir.exists()
    assert remove(root.parent, OLD) == []
    assert not (root / META / "incoming" / f"removed-{OLD}").exists()


def test_environments_and_wheels_are_removed_with_the_last_job_that_needs_them(root: Path) -> None:
    by_requirements, by_name = make_job(root, OLD), make_job(root, NEW)
    (by_requirements.dir / "requirements.txt").write_text("numpy==1\npyzmq\n")
    write_json(by_name.record, {"job": NEW, "python": f"{root}/{META}/venvs/{BEEF}/bin/python"})
    (by_name.dir / "requirements.txt").write_text("other\n")
    of_an_older_version = effective("numpy==1\npyzmq\n", True, RUNTIME_BEFORE)
    cafe = make_environment(root, CAFE, of_an_older_version, "aa" * 32)
    beef = make_environment(root, BEEF, ["whatever"], "bb" * 32)
    assert {item["name"]: item["needed_by"] for item in find_content(root)} == {
        CAFE: [OLD],
        BEEF: [NEW],
        "aa" * 32: [CAFE],
        "bb" * 32: [BEEF],
    }
    everything = [["environment", CAFE], ["environment", BEEF], ["wheel", "aa" * 32], ["wheel", "bb" * 32]]
    kept = remove(root.parent, OLD, content=everything)
    assert [(entry["name"], entry["why"]) for entry in kept] == [(BEEF, "it is in use"), ("bb" * 32, "it is in use")]
    assert (cafe.exists(), beef.exists()) == (False, True)
    assert remove(root.parent, NEW, content=everything) == []
    assert not beef.exists()


def test_an_agent_is_removed_unless_a_process_mentions_it_or_it_is_the_current_one(root: Path) -> None:
    for name in ("0123456789abcdef", "fedcba9876543210"):
        (root / META / "lib" / name).mkdir(0o700, parents=True)
    with subprocess.Popen([*FOREVER, "fedcba9876543210"], stdout=subprocess.PIPE) as old:
        assert old.stdout is not None
        old.stdout.readline()
        live = {item["name"]: item["live"] for item in ask(root.parent, {"op": "prune"})["content"]}
        kept = remove(root.parent, content=[["agent", name] for name in live])
        old.kill()
    assert (len(live), live["0123456789abcdef"], live["fedcba9876543210"]) == (3, False, True)
    assert {kept_item["name"] for kept_item in kept} == live.keys() - {"0123456789abcdef"}


def test_the_size_of_a_file_is_counted_once_and_deleting_nothing_is_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/file").write_bytes(bytes(100_000))
    (tmp_path / "loop").symlink_to(tmp_path)
    assert 100_000 <= disk_bytes(tmp_path) < 200_000
    assert disk_bytes(tmp_path / "missing") == 0
    delete(tmp_path / "missing")


def job(name: str, age_s: float, **more: Any) -> dict[str, Any]:
    return {"job": name, "state": "stopped", "runs": 1, "live": False, "bytes": 10, "output_bytes": 1} | {
        "age_s": age_s,
        **more,
    }


def piece(kind: str, name: str, *needed_by: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "name": name, "live": False, "needed_by": list(needed_by), "bytes": 5, "age_s": 9e9, **more}


def test_jobs_that_are_the_newest_or_recent_or_running_on_any_node_are_kept() -> None:
    names = [f"JOB2026010{day}-000000" for day in range(1, 6)]
    content = {
        0: {"jobs": [job(name, 5 * DAY_S) for name in names], "content": []},
        1: {
            "jobs": [job(names[0], 5 * DAY_S), job(names[1], 60.0), job(names[2], 5 * DAY_S, live=True)],
            "content": [],
        },
    }
    chosen = choose(content, 1, DAY_S)
    assert {item.job: item.keep for item in chosen.jobs} == dict(
        zip(names, [None, "young", "runs", None, "newest"], strict=True)
    )
    assert (chosen.going[1].nodes, chosen.going[1].bytes, chosen.bytes) == ((0, 1), 20, 30)
    assert chosen.on(1) == {"jobs": [names[0]], "content": []}
    assert chosen.on(7) == {"jobs": [], "content": []}
    assert not choose(content, 9, 0.0).going


def test_content_is_removed_when_everything_that_needs_it_is() -> None:
    content = [
        piece("wheel", "w1", "env"),
        piece("wheel", "w2", "env", "live-env"),
        piece("environment", "env", OLD),
        piece("environment", "live-env", OLD, live=True),
        piece("environment", "needed", OLD, NEW),
        piece("agent", "young", age_s=5.0),
        piece("leftover", "x"),
    ]
    jobs = [job(OLD, 2 * DAY_S), job(NEW, 0.0)]
    chosen = choose({0: {"jobs": jobs, "content": content}, 3: {"jobs": [], "content": content[-1:]}}, 0, DAY_S)
    assert chosen.content == [
        UnusedContent("environment", "env", 5, (0,)),
        UnusedContent("leftover", "x", 10, (0, 3)),
        UnusedContent("wheel", "w1", 5, (0,)),
    ]


def test_kept_items_are_listed_with_their_reasons() -> None:
    kept = [("job", OLD, "it is running"), ("wheel", "a", "x"), ("wheel", "b", "x"), ("environment", "c", "x")]
    description = describe_retained({"kind": kind, "name": name, "why": reason} for kind, name, reason in kept)
    assert description == f"{OLD} (it is running), 2 wheels, 1 environment (x)"


def test_the_holder_of_the_environments_is_named(root: Path) -> None:
    written = b'{"operation": "setup", "pid": 4711}'
    make_environment(root, CAFE, ["numpy"], "aa" * 32)
    lock = root / META / "venvs" / "lock"
    lock.write_bytes(written)
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        kept = remove(root.parent, content=[["environment", CAFE]])
    assert holder_of(written) == Holder("setup", 4711)
    assert [one["why"] for one in kept] == ["a setup is running on this node"]


def test_a_lock_without_a_named_holder_is_reported_as_held_by_a_process() -> None:
    for written in (b"", b"{}", b"[1]", b"somebody", b'{"operation": 1}'):
        assert holder_of(written) == Holder("process", None)
