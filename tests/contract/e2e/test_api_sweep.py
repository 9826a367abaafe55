"""A sweep over real nodes: jobs of its own, results as they end, and nothing that runs on after an exception."""

from __future__ import annotations

import asyncio

import pytest

import clusterctl
from contract.e2e.programs import REGRESSION
from support.site import Site

pytestmark = pytest.mark.nodes(1)
WAIT_S = 120.0
FAILS_ON_REQUEST = REGRESSION + "\nimport sys\nif '--fail=yes' in sys.argv: raise SystemExit('asked to fail')\n"


@pytest.mark.slow
def test_a_sweep_runs_each_of_the_settings_as_a_job_and_gives_a_table(site: Site, cluster: clusterctl.Cluster) -> None:
    settings = [{"num_passes": 2, "MODE": "async"}, {"num_passes": 1, "fail": "yes", "RESTARTS": 0}]
    sweep = cluster.map(
        settings, workspace=site.workspace(FAILS_ON_REQUEST), most=2, timeout=WAIT_S, collect=site.directory / "swept"
    )
    trials = list(sweep)
    assert sorted(trial.ok for trial in trials) == [False, True]
    first, second = sweep.trials
    assert [one.settings for one in (first, second)] == settings
    assert first.job.id != second.job.id
    assert isinstance(second.error, clusterctl.JobFailedError)
    assert first.run is not None
    assert (first.run.name, first.outcome and first.outcome.pass_) == ("num_passes=2+MODE=async", 1)
    assert first.collected is not None
    assert first.collected.directory == site.directory / "swept" / first.job.id
    rows = sweep.table()
    assert [row["state"] for row in rows] == ["succeeded", "failed"]
    assert isinstance(rows[0]["loss"], float)


def test_a_program_of_asyncio_follows_and_awaits_a_run(site: Site, cluster: clusterctl.Cluster) -> None:
    run = cluster.dispatch(site.workspace("")).start(set={"ENGINE": "none", "PSERVERS": 0})

    async def follow() -> tuple[list[str], clusterctl.Outcome]:
        names = [event.name async for event in run.events_async()]
        return names, await run.wait_async(timeout=WAIT_S)

    names, outcome = asyncio.run(follow())
    assert names[-1] == "ended"
    assert outcome.ok
