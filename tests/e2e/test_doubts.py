"""Runs that succeed without learning: warned of once each, with the state and the exit code unchanged."""

from __future__ import annotations

from typing import Any

import pytest

from support.site import Site

pytestmark = pytest.mark.nodes(2)
TRAIN = """
import sys
import numpy as np
from clusterctl.runtime import connect, Adagrad, zeros

reader = lambda pass_, rng: [1.0, 2.0]
with connect() as ps:
    w = ps.dense("w", shape=(4,), rule=Adagrad(0.5), init=zeros())
    {body}
"""
STEPS = "for x in ps.steps(reader, passes=2): ps.push({{w: np.full(4, {gradient})}}, samples=1, loss={loss})"
LEARNS = STEPS.format(gradient="x", loss="x if ps.rank else np.nan")
NO_PUSH = "w.pull()"
BAD_LOSS = STEPS.format(gradient="x", loss="np.nan")
BAD_MODEL = STEPS.format(gradient="np.inf", loss="x")


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        pytest.param(LEARNS, [], marks=pytest.mark.slow),
        (NO_PUSH, ["no_push"]),
        pytest.param(BAD_LOSS, ["loss_not_finite"], marks=pytest.mark.slow),
        pytest.param(BAD_MODEL, ["model_not_finite"], marks=pytest.mark.slow),
    ],
    ids=["learns", "no push", "no finite loss", "a model that is not finite"],
)
def test_a_run_that_learned_nothing_succeeds_with_a_warning_that_every_command_shows(
    site: Site, body: str, kinds: list[str]
) -> None:
    package = str(site.workspace(TRAIN.format(body=body)))
    started = site.ok("start", "--job_dispatch_package", package)
    status = site.ok("status", "--json").json()
    job, warnings = status["job"], status.get("warnings", [])
    assert (status["state"], [one["kind"] for one in warnings]) == ("succeeded", kinds)
    jobs: dict[str, Any] = {one["job"]: one for one in site.ok("jobs", "--json").json()["jobs"]}
    assert jobs[job]["runs"][0].get("warnings", []) == warnings
    assert site.ok("why", job, "--json").json()["warnings"] == warnings
    assert site.ok("collect", job, "-o", "home", "--json").json()["warnings"] == warnings
    shown = [
        started.out + started.err,
        *(one.out + one.err for one in (site.ok("status", job), site.ok("why", job), site.ok("collect", job))),
    ]
    for text in shown:
        assert [text.count(f"warning: {one['message']}") for one in warnings] == [1] * len(kinds), text
    assert ("succeeded (warning)" in site.ok("jobs").out.split(job)[1].splitlines()[0]) == bool(kinds)


@pytest.mark.slow
def test_a_resumed_run_with_nothing_left_to_do_is_not_doubted(site: Site) -> None:
    site.conf(SAVE_EVERY=1)
    job = site.dispatch(TRAIN.format(body=LEARNS))
    site.ok("start", "--job_workspace", job)
    resumed = site.ok("start", "--resume", "--job_workspace", job)
    assert "warning" not in resumed.out + resumed.err
    assert "warnings" not in site.ok("status", job, "--json").json()
