"""Pservers load what other pservers saved, from the nodes that have it: models, and checkpoints of another job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusterctl.runtime import load_model
from contract.e2e.models import assert_same, model_of
from contract.e2e.test_resume import QUICK, TRAIN, checkpoints, crash
from support.site import Site, events_in

pytestmark = [pytest.mark.nodes(3), pytest.mark.copies]

#: Saves what it has loaded, as `copy`.
LOAD = """
import sys
from clusterctl.runtime import connect, Adam, Adagrad, SGD, uniform, zeros

with connect(*sys.argv[1:]) as ps:
    w = ps.dense("w", shape=(4,), rule=SGD(0.05), init=zeros())
    wide = ps.dense("wide", shape=(3, 70_000), rule=SGD(0.1), init=uniform(0.1))
    emb = ps.embedding("e", dim=3, rule=Adam(0.1), init=uniform(0.1))
    ps.save("copy")
"""


@pytest.fixture(scope="module")
def trained(embedded_site: Site, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """A job that three pservers have trained, and its model."""
    site = embedded_site
    site.directory = tmp_path_factory.mktemp("trained")
    site.conf_path = site.directory / "conf.py"
    site.conf(HOSTS=site.hosts[:3], **QUICK)
    job = site.dispatch(TRAIN)
    site.ok("start", "--job_workspace", job)
    return job, model_of(site, job)


def copy_of(site: Site, job: str, out: str = "loaded") -> dict[str, Any]:
    site.ok("collect", job, "--tag", "copy", "-o", out)
    return load_model(site.directory / out / "model")


def pieces(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("pserver-*"))


@pytest.mark.slow
def test_two_pservers_with_more_lanes_load_what_three_saved(site: Site, trained: tuple[str, dict[str, Any]]) -> None:
    old, expected = trained
    site.conf(HOSTS=site.hosts[:3], PSERVERS=2, PORTS_NUM_FOR_SPARSE=2, COPIES=1)
    job = site.dispatch(LOAD)
    plan = site.ok("start", "--job_workspace", job, "--load", old, "--plan", "--json").json()
    assert plan["load"] == {"job": old, "run": "0001", "tag": "pass-00004", "step": 85, "pass": 4}
    started = site.ok("start", "--job_workspace", job, "--load", old)
    assert f"loading model pass-00004 of {old} run 1 (step 85)" in started.out
    assert_same(copy_of(site, job), expected)
    site.ok("start", "--job_workspace", job, "--load", job, "--load-tag", "copy", "--load-run", "1")
    assert_same(copy_of(site, job, "again"), expected)
    spec = json.loads((site.job_dir(job, 1) / ".clusterctl/runs/0002/spec.json").read_text())
    assert spec["sources"]["job"] == job
    unknown = site.run("start", "--job_workspace", job, "--load", old, "--load-tag", "pass-00099", "--json")
    assert (unknown.code, unknown.json()["error"]["message"]) == (2, f"{old} has no model pass-00099")
    assert "pass-00004 (run 1)" in unknown.json()["error"]["hint"]
    assert site.status(job)["run"] == "0002"


@pytest.mark.slow
def test_a_program_loads_a_model_of_an_earlier_run_by_its_path(site: Site, trained: tuple[str, dict[str, Any]]) -> None:
    """A fresh start has moved the outputs of the run before; its manifest is on all nodes."""
    old, expected = trained
    site.conf(HOSTS=site.hosts[:3], PSERVERS=2)
    job = site.dispatch(LOAD)
    site.ok("start", "--job_workspace", job, "--load", old)
    site.conf(HOSTS=site.hosts[:3])
    site.ok("start", "--job_workspace", job, "--", "output/copy")
    assert_same(copy_of(site, job), expected)


@pytest.mark.slow
def test_a_mended_program_takes_the_checkpoint_of_the_job_before_and_survives_a_killed_pserver(
    site: Site, trained: tuple[str, dict[str, Any]]
) -> None:
    """With fewer pservers, and killed before its first checkpoint: then it rolls back to that of the other job."""
    _, expected = trained
    site.conf(HOSTS=site.hosts[:3], **QUICK)
    old = site.dispatch(TRAIN)
    crash(site, "--job_workspace", old, "--", "trainer", "50", "0001")
    site.assert_nothing_left(old)
    last = checkpoints(site, old)[-1]
    mended = TRAIN.replace('(2 if run == "0001" else 1)', "1").replace(
        "if mine == run and", 'if mine == run and os.environ["CLUSTERCTL_ATTEMPT"] == "1" and'
    )
    site.conf(HOSTS=site.hosts[:3], **{**QUICK, "PSERVERS": 2, "SAVE_EVERY": "100 passes", "RESTARTS": 3})
    job = site.dispatch(mended)
    resume = ("start", "--job_workspace", job, "--resume-from", old)
    plan = site.ok(*resume, "--plan", "--json").json()
    assert (plan["job"], plan["resume"]["job"], plan["resume"]["tag"]) == (job, old, last)
    resumed = site.ok(*resume, "--", "pserver", "60", "0001")
    assert f"resuming from checkpoint {last} of {old} run 1 " in resumed.out
    for node in range(3):  # no node has more than it had
        directory = site.job_dir(job, node) / f".clusterctl/runs/0001/checkpoints/{last}"
        assert f"pserver-{node:05d}.safetensors" in pieces(directory)
        assert len(pieces(directory)) < 3
    events = events_in(site.job_dir(job, 0) / ".clusterctl/runs/0001/events.jsonl")
    assert [event["tag"] for event in events if event["event"] == "rolled_back"] == [last]
    assert site.status(job)["resumed"]["job"] == old
    assert_same(model_of(site, job), expected)
    assert checkpoints(site, old) != []


def test_options_that_exclude_each_other_are_usage_errors(site: Site) -> None:
    for args in (
        ("--resume", "--load", "JOB1"),
        ("--resume", "--resume-from", "JOB1"),
        ("--resume-from", "JOB1", "--load", "JOB2", "--job_workspace", "JOB3"),
        ("--load-tag", "best", "--job_workspace", "JOB3"),
        ("--load", "JOB1"),
    ):
        assert site.run("start", *args).code == 2, args
