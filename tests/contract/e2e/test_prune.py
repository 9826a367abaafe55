"""Old jobs can be started again, and be removed on all nodes."""

from __future__ import annotations

import socket

import pytest

from contract.e2e.programs import SLEEP
from support.site import Site

OLD = ("--keep", "0", "--older-than", "0s")


def jobs(site: Site) -> dict[str, str]:
    return {job["job"]: job["content"] for job in site.ok("jobs", "--json").json()["jobs"]}


@pytest.mark.slow
def test_an_earlier_job_directory_starts_again_and_equal_contents_are_recognised(site: Site) -> None:
    site.conf(ENGINE="none")
    one, other = str(site.workspace("print('the first')")), str(site.workspace("print('the second')", "other"))
    first, _, third = (site.ok("dispatch", package, "--json").json()["job"] for package in (one, other, one))
    site.ok("start", "--job_workspace", first)
    contents = {job: content for job, content in jobs(site).items() if job >= first}
    assert contents[first] == contents[third]
    assert len(set(contents.values())) == 2
    site.ok("start", "--job_workspace", first)
    status = site.status(first)
    assert (status["run"], status["state"]) == ("0002", "succeeded")
    assert "the first" in site.ok("logs", first, "--role=trainer").out


@pytest.mark.slow
def test_prune_shows_asks_removes_and_keeps_running_jobs(site: Site) -> None:
    site.conf(ENGINE="none")
    done = site.start("print('done')", "--quiet")
    running = site.start(SLEEP)
    view = site.job_dir(done, 0).parent / f".clusterctl/views/{done}/0001/trainer1"
    view.mkdir(parents=True)
    before = jobs(site)
    assert {done, running} <= before.keys()
    shown = site.ok("prune", *OLD, "--plan")
    assert done in shown.out
    assert "1 running" in shown.out
    unconfirmed = site.run("prune", *OLD, "--json")
    assert (unconfirmed.code, "prune --yes" in unconfirmed.err) == (2, True)
    assert site.ok("prune").out.startswith("nothing to remove")
    assert jobs(site) == before
    document = site.ok("prune", *OLD, "--yes", "--json").json()
    views = {job["job"]: job for job in document["jobs"]}
    assert (views[done]["keep"], views[done]["nodes"], views[running]["keep"]) == (None, [0, 1, 2, 3], "runs")
    assert document["removed"] is True
    assert document["bytes"] > 0
    assert set(jobs(site)) == {running}
    assert not site.job_dir(done, 0).exists()
    assert not view.parent.parent.exists()
    assert site.status(running)["state"] == "running"
    site.ok("stop", running)


def test_prune_works_on_the_reachable_nodes_and_names_the_others(site: Site) -> None:
    job = site.dispatch(SLEEP)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        site.conf(HOSTS=[*site.hosts[:3], f"127.0.0.1:{sock.getsockname()[1]}"])
        result = site.run("prune", *OLD, "--yes", "--json")
        site.conf()
    assert (result.code, result.json()["error"]["node"]) == (3, "node3")
    assert [site.job_dir(job, node).exists() for node in range(4)] == [False, False, False, True]
    bad = site.run("prune", "--older-than", "soon")
    assert (bad.code, "'soon' is not an age" in bad.err) == (2, True)
