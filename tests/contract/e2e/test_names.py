"""Runs by name and by number, what `jobs` shows about them, and `start X` for a directory or a job."""

from __future__ import annotations

import pytest

from contract.e2e.programs import REGRESSION, SLEEP
from support.processes import wait_until
from support.site import Result, Site

pytestmark = pytest.mark.nodes(2)
# Accuracies go up and down, so that the best is neither the first nor the last.
SCORES = REGRESSION.replace(
    "ps.log(score=1.0, weight=2)",
    "ps.log(accuracy=[0.5, 0.75, 0.25][pass_ % 3] + ps.rank / 10, rmse=[2.0, 1.0, 3.0][pass_ % 3])",
).replace('parser.add_argument("--num_passes"', 'parser.add_argument("--api-key")\nparser.add_argument("--num_passes"')


def refused(done: Result, *words: str) -> None:
    assert done.code == 2, done
    for word in words:
        assert word in done.err


@pytest.mark.slow
def test_runs_have_names_numbers_and_figures(site: Site) -> None:
    job = site.dispatch(SCORES)
    site.ok("start", job, "--name", "lr-0.1", "--", "--num_passes=3", "--api-key", "hush-hush")
    last = site.ok("start", job, "--name=lr-0.01", "--json", "--", "--num_passes=1").out.splitlines()[-1]
    assert '"name": "lr-0.01"' in last

    for named in ("lr-0.1", f"{job}/1", f"{job}/0001", f"~/clusterctl/{job}/1"):
        seen = site.ok("status", named, "--json").json()
        assert (seen["job"], seen["run"], seen["name"]) == (job, "0001", "lr-0.1"), named
    assert site.ok("status", job, "--json").json()["name"] == "lr-0.01"
    assert f"{job} run 1 (lr-0.1) · sync" in site.ok("status", f"{job}/1").out
    assert f"{job} run 1 (lr-0.1) succeeded" in site.ok("why", "lr-0.1").out
    assert site.ok("why", "lr-0.1", "--json").json()["name"] == "lr-0.1"
    assert "end of pass 2" in site.ok("logs", "lr-0.1").out
    assert "end of pass 2" in site.ok("logs", "-f", f"{job}/1").out
    assert "end of pass 2" not in site.ok("logs", "lr-0.01").out
    site.ok("report", "lr-0.1", "-o", "r.html")
    assert f"{job} · run 1 · lr-0.1" in (site.directory / "r.html").read_text()
    assert site.ok("collect", f"{job}/1", "-o", "first", "--json").json()["run"] == "0001"
    assert site.ok("collect", "lr-0.1", "--json", cwd=site.workspace("", "home")).json()["run"] == "0001"
    assert (site.directory / "home" / job).is_dir()
    assert site.ok("export", "out", "lr-0.1", "--to", "csv", "--json").json()["run"] == "0001"

    refused(site.run("stop", "lr-0.1"), "newest run of a job only", f"{job} has run 2 by now")
    refused(site.run("exec", "--in-job", f"{job}/1", "--", "true"), "newest run of a job only")
    assert "already ended" in site.ok("stop", "lr-0.01").out
    assert "already ended" in site.ok("stop", f"{job}/2").out
    for words in (["status", f"{job}/7"], ["logs", f"{job}/7"], ["why", f"{job}/7"], ["stop", f"{job}/7"]):
        refused(site.run(*words), f"{job} has no run 7")
    refused(site.run("status", "lr-1"), "there is no job lr-1", "clusterctl jobs")
    refused(site.run("stop", "lr-1"), "there is no job lr-1")
    refused(site.run("report", "lr-0.1", "--run", "2"), f"lr-0.1 is run 1 of {job}, not run 2")
    refused(site.run("start", "--resume", "lr-0.1"), f"{job} has run 2 by now")
    (listed,) = [one for one in site.ok("jobs", "--json").json()["jobs"] if one["job"] == job]
    first, second = listed["runs"]
    assert (first["name"], second["name"]) == ("lr-0.1", "lr-0.01")
    assert first["arguments"] == ["--num_passes=3", "--api-key", "[hidden]"]
    assert 0 < first["seconds"] < 60
    assert first["loss"] > 0
    assert first["metrics"]["accuracy"] == {"last": pytest.approx(0.30), "best": pytest.approx(0.80)}
    assert first["metrics"]["rmse"] == {"last": 3.0, "best": 1.0}
    shown = site.ok("jobs").out
    assert "lr-0.01" in shown
    assert "accuracy 0.55" in shown
    assert "rmse 2 (best 2)" in shown


@pytest.mark.slow
def test_of_several_runs_of_a_name_the_newest_is_meant_and_a_resumed_run_keeps_it(site: Site) -> None:
    site.conf(SAVE_EVERY=5)
    older = site.dispatch(REGRESSION)
    site.ok("start", older, "--name", "other")
    newer = site.dispatch(REGRESSION + "# newer")
    for job in (newer, older):
        site.ok("start", "--job_workspace", job, "--name", "twice")
    assert site.ok("status", "twice", "--json").json()["run"] == "0002"
    resumed = site.ok("start", "--resume", "twice", "--json").out
    assert '"name": "twice"' in resumed.splitlines()[-1]
    seen = site.ok("status", "twice", "--json").json()
    assert (seen["job"], seen["run"]) == (older, "0003")
    planned = site.ok("start", newer, "--load", f"{older}/1", "--plan", "--json").json()
    assert planned["load"]["run"] == "0001"
    assert site.ok("start", newer, "--load", "twice", "--plan", "--json").json()["load"]["job"] == older
    assert site.ok("start", newer, "--resume-from", "twice", "--plan", "--json").json()["resume"]["job"] == older
    assert "name" not in site.ok("status", site.start(REGRESSION), "--json").json()


@pytest.mark.parametrize("name", ["a/b", "", "JOB2026", "JOB", "-x", ".", "a b", "\u00e4", "x" * 65, "a,b"])
def test_a_name_that_could_be_something_else_is_a_usage_error(site: Site, name: str) -> None:
    refused(site.run("start", f"--name={name}", "JOB20261121-081530"), "cannot be the name of a run", "letters")


@pytest.mark.slow
def test_start_takes_a_directory_for_a_workspace_and_anything_else_for_a_job(site: Site) -> None:
    workspace = site.workspace(SLEEP, "train-me")
    site.conf(ENGINE="none", PSERVERS=0)
    job = site.ok("start", "train-me", "--detach", "--json", "--name", "sleeper", "--", "train-me").json()["job"]
    assert site.ok("status", "sleeper", "--json").json()["job"] == job
    site.ok("stop", "sleeper")
    assert site.ok("start", job, "--detach", "--json", "--name", "train-me").json()["run"] == "0002"
    both = site.run("start", "train-me", "--detach")
    refused(both, "'train-me' is a directory here, and a job on the nodes", "--job_dispatch_package", "--job_workspace")
    refused(site.run("start", "train-me", "--job_workspace", job), "'train-me' and --job_workspace both name")
    refused(site.run("start", job, "--job_dispatch_package", str(workspace)), "--job_dispatch_package both name")
    refused(site.run("start"), "start needs a job")
    refused(site.run("start", "no-such-thing"), "there is no job no-such-thing on the nodes, and no directory")
    assert site.run("start", "--job_workspace", "train-me").code == 4  # it is running
    site.ok("stop", job)
    again = site.ok("start", "./train-me", "--detach", "--json").json()["job"]
    assert wait_until(lambda: site.status(again)["state"] == "running")
    site.ok("stop", again)
    site.assert_nothing_left(again)
