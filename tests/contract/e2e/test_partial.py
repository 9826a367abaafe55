"""`--allow-partial`: a run on whichever nodes are available, and later commands on that run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.runtime import load_model
from contract.e2e.programs import REGRESSION, SLEEP
from support.site import Site


@pytest.fixture
def refused() -> Iterator[str]:
    """A host and port that refuse connections."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{sock.getsockname()[1]}"


@pytest.mark.slow
def test_a_run_without_node_0_trains_to_the_end_and_is_complete(site: Site, refused: str) -> None:
    site.conf(HOSTS=[refused, *site.hosts[1:]], ON_NODE_LOSS="fail")
    package = str(site.workspace(REGRESSION))
    alone = site.run("start", "--job_dispatch_package", package, "--json")
    assert (alone.code, "--allow-partial" in alone.err) == (3, True)
    job = site.ok("dispatch", package, "--allow-partial", "--json").json()["job"]
    assert site.run("start", "--job_workspace", job).code == 3
    assert not site.processes(job)
    assert not list(site.job_dir(job, 1).glob(".clusterctl/runs/*"))

    started = site.ok("start", "--job_workspace", job, "--allow-partial", "--num_passes=1", "--json")
    assert "1 of 4 nodes left out; the run has 3 of 4 pservers and 3 of 4 trainers" in started.err
    last = json.loads(started.out.splitlines()[-1])
    assert (last["state"], last["members"]) == ("succeeded", [1, 2, 3])
    assert [row["node"] for row in last["left_out"]] == [0]
    assert site.run("exec", "--only", "failed@last", "--", "true").code == 3

    status = site.ok("status", job, "--json").json()
    assert (status["state"], status["members"], status["left_out"]) == ("succeeded", [1, 2, 3], last["left_out"])
    assert [(p["node"], p["role"], p["rank"]) for p in status["processes"]] == [
        (node, role, node - 1) for node in (1, 2, 3) for role in ("pserver", "trainer")
    ]
    assert [node["state"] for node in status["nodes"]] == [None, "succeeded", "succeeded", "succeeded"]
    assert "node0 not in this run (left out: connection to" in site.ok("status", job).out
    logs = site.ok("logs", job, "--role", "trainer", "--grep", "end of pass").out
    assert [f"trainer{rank}@node{rank + 1}" in logs for rank in range(4)] == [True, True, True, False]
    assert site.ok("stop", job, "--json").json()["survivors"] == 0

    site.conf()  # node 0 is back, without the job
    assert site.ok("status", job, "--json").json()["nodes"][0]["state"] is None
    runs = next(one["runs"] for one in site.ok("jobs", "--json").json()["jobs"] if one["job"] == job)
    assert [run["state"] for run in runs] == ["succeeded"]
    collected = site.ok("collect", job, "-o", "home", "--json").json()
    assert {file["node"] for file in collected["files"]} == {1, 2, 3}
    assert load_model(Path(site.directory, collected["model"]))["w"].shape == (4,)


@pytest.mark.slow
def test_the_first_member_leads_and_its_death_ends_the_run(site: Site, refused: str) -> None:
    site.conf(ENGINE="none", HOSTS=[refused, *site.hosts[1:]])
    job = site.start(SLEEP, "--allow-partial")
    assert site.status(job)["state"] == "running"
    os.kill(site.supervisor(job, 1), signal.SIGKILL)
    site.assert_nothing_left(job)
    lost = site.run("status", job, "--json")
    assert (lost.code, lost.json()["state"]) == (0, "lost")
    events = site.job_dir(job, 2) / ".clusterctl/runs/0001/events.jsonl"
    assert "the lead on node1 is lost: " in events.read_text()
    site.ok("stop", job)
    assert site.status(job)["state"] == "stopped"


@pytest.mark.slow
def test_a_node_that_lacks_the_job_is_left_out_but_an_untrusted_one_is_an_error(site: Site) -> None:
    site.conf(ON_NODE_LOSS="fail")
    job = site.dispatch(SLEEP)
    shutil.rmtree(site.job_dir(job, 2))
    assert site.run("start", "--job_workspace", job, "--detach").code == 3
    known = site.directory / "known_hosts"
    lines = site.paths["KNOWN_HOSTS"].read_text().splitlines(keepends=True)
    known.write_text("".join(lines[:-1]))
    site.conf(KNOWN_HOSTS=known, ON_NODE_LOSS="fail")
    assert site.run("start", "--job_workspace", job, "--detach", "--allow-partial").code == 4
    site.conf(ON_NODE_LOSS="fail")
    assert not site.processes(job)
    started = site.ok("start", "--job_workspace", job, "--detach", "--allow-partial", "--json").json()
    assert started["members"] == [0, 1, 3]
    assert "no job" in started["left_out"][0]["message"]
    assert [p["rank"] for p in site.status(job)["processes"] if p["node"] == 3] == [2, 2]
    assert site.run("logs", job, "--node", "node2").code == 2
    stopped = site.ok("stop", job, "--json").json()
    assert (stopped["survivors"], stopped["members"]) == (0, [0, 1, 3])


def test_nothing_is_started_when_no_pserver_is_left(site: Site, refused: str) -> None:
    site.conf(HOSTS=[refused, *site.hosts[1:]], PSERVERS=1, ON_NODE_LOSS="fail")
    failed = site.run("start", "--job_dispatch_package", str(site.workspace(SLEEP)), "--allow-partial", "--json")
    assert failed.code == 3
    error = json.loads(failed.out.splitlines()[-1])["error"]
    assert "no pserver" in error["message"]
    assert [node["node"] for node in error["details"]["nodes"]] == ["node0"]
    assert "refused" in failed.err
