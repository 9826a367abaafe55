"""`clusterctl report` of real runs, by the command, by `collect`, and at the end of an attached start."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from contract.e2e.programs import REGRESSION, SLEEP
from support.site import Result, Site

pytestmark = pytest.mark.nodes(2)

HOSTILE = "</script><b>x"
FAIL = REGRESSION.replace(
    "ps.log(score=1.0, weight=2)",
    f"ps.log(**{{{HOSTILE!r}: 1.5}})\n        print('token=' + __import__('os').environ['API_TOKEN'])\n"
    "        pass_ == 1 and ps.rank == 1 and [].pop()",
)
SECRET = "hush-hush-hush"


def report_of(job: str, run: int = 1) -> str:
    return f"{job}-run{run}.html"


@pytest.mark.slow
def test_an_attached_start_ends_with_a_report_if_the_settings_ask_for_one(site: Site) -> None:
    site.conf(REPORT=True, ENV={"API_TOKEN": SECRET})
    job = site.dispatch(FAIL)
    done = site.run("start", "--job_workspace", job, "--", "--api-key", SECRET)
    assert done.code == 1
    assert f"report: {report_of(job)}\n" in done.out
    page = (site.directory / report_of(job)).read_text()
    assert "Failed after" in page
    assert "IndexError" in page
    assert "&lt;/script&gt;&lt;b&gt;x" in page
    assert HOSTILE not in page
    assert SECRET not in page
    assert "API_TOKEN" in page


@pytest.mark.slow
def test_collect_brings_a_report_along(site: Site) -> None:
    job = site.dispatch(REGRESSION)
    site.ok("start", "--job_workspace", job)
    assert not list(site.directory.glob(f"{job}*.html"))
    brought = site.ok("collect", job, "-o", "home", "--json").json()
    assert brought["report"] == "home/report.html"
    assert "Succeeded after" in (site.directory / "home/report.html").read_text()
    site.ok("collect", job, "-o", "home")


@pytest.mark.slow
def test_a_report_that_cannot_be_written_is_only_a_warning(site: Site) -> None:
    site.conf(REPORT=True)
    job = site.dispatch(REGRESSION)
    file = site.directory / report_of(job)
    file.write_text("of somebody else\n")
    done = site.ok("start", "--job_workspace", job)
    assert f"no report was written: {file.name} is not a report of clusterctl" in done.err
    assert file.read_text() == "of somebody else\n"
    home = site.directory / "again"
    site.ok("collect", job, "-o", "again")
    (home / "report.html").unlink()
    (home / "report.html").mkdir()
    done = site.ok("collect", job, "-o", "again", "--json")
    assert done.json()["report"] is None
    assert "no report was written: " in done.err


@pytest.mark.slow
def test_a_report_goes_where_it_should_and_replaces_only_reports(site: Site) -> None:
    job = site.dispatch(REGRESSION)
    site.ok("start", "--job_workspace", job)
    first = site.ok("report", job)
    file = site.directory / report_of(job)
    assert f"{job} run 1, succeeded: {file.name} (" in first.out
    (site.directory / "reports").mkdir()
    answer = site.ok("report", job, "-o", "reports", "--run", "1", "--json").json()
    assert answer == {
        **{
            "schema": "clusterctl/1",
            "job": job,
            "run": "0001",
            "state": "succeeded",
            "members": [0, 1],
            "left_out": [],
        },
        **{"file": f"reports/{file.name}", "bytes": (site.directory / "reports" / file.name).stat().st_size},
    }
    site.ok("report", job, "-o", file.name)
    refused(site.run("report", job, "-o", "conf.py"), 4, "conf.py is not a report of clusterctl", "-o FILE")
    refused(site.run("report", job, "-o", "missing/r.html"), 2, "missing is not a directory", "mkdir -p missing")
    refused(site.run("report", job, "--run", "7"), 2, f"{job} has no run 7", "clusterctl jobs")
    assert list(site.directory.glob(".*.html*")) == []


def refused(done: Result, code: int, message: str, hint: str) -> None:
    assert done.code == code, done.out + done.err
    assert message in done.err
    assert hint in done.err


def test_a_job_that_never_ran_has_no_report(site: Site) -> None:
    job = site.dispatch(REGRESSION)
    refused(site.run("report", job), 2, f"{job} was never started", f"clusterctl start --job_workspace {job}")


@pytest.mark.slow
def test_a_run_that_continues_has_a_report_and_a_silent_node_is_named_in_it(site: Site, tmp_path: Path) -> None:
    job = site.start(SLEEP)
    page = tmp_path / "report.html"
    assert "running: " in site.ok("report", job, "-o", str(page)).out
    assert "The run continues; this report shows it at " in page.read_text()
    site.conf(HOSTS=[site.hosts[0], "nobody@127.0.0.1:1"])
    done = site.run("report", job, "-o", str(page))
    assert done.code == 3
    assert "node1 is missing in it: " in done.err
    assert "node1 (127.0.0.1:1) did not answer: " in page.read_text()
    site.conf()
    site.ok("stop", job)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["stopped", "detached"])
def test_a_start_that_stops_its_run_writes_a_report_and_one_that_detaches_does_not(
    site: Site, number: signal.Signals, code: int
) -> None:
    site.conf(REPORT=True)
    job = site.dispatch(SLEEP)
    with site.popen("start", "--job_workspace", job) as starting:
        assert starting.stdout is not None
        next(line for line in starting.stdout if "all processes are running" in line)
        starting.send_signal(number)
        starting.communicate(timeout=180)
    assert starting.returncode == code
    pages = [page.read_text() for page in site.directory.glob(f"{job}*.html")]
    assert ["Stopped after" in page for page in pages] == ([True] if number == signal.SIGINT else [])
    if number == signal.SIGTERM:
        site.ok("stop", job)
    site.assert_nothing_left(job)
