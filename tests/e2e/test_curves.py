"""The curves of a real run, as its nodes reduce them, compared with the events that they recorded."""

from __future__ import annotations

import os
from typing import Any

import pytest

from clusterctl.cluster import Cluster, answers
from clusterctl.common.curves import Curve
from clusterctl.config import load
from clusterctl.inventory import build
from e2e.programs import REGRESSION
from support.processes import wait_until
from support.site import Site, events_in

pytestmark = pytest.mark.nodes(2)


def curves_of(site: Site, job: str, buckets: int) -> list[dict[Any, Any]]:
    """Return each node's curves, by (role, rank, of, name)."""
    settings = load(site.conf_path, os.environ)
    inventory = build(settings)
    received: list[dict[Any, Any]] = []
    with Cluster(settings, inventory, inventory.nodes) as cluster:
        for node in cluster.nodes:
            curves: list[Curve] = []
            with cluster.call(node, {"op": "curves", "ref": job, "run": "0001", "buckets": buckets}) as call:
                while "done" not in (message := call.receive()):
                    curves += answers.curves(message)
            assert message["done"] == {
                "job": job,
                "run": "0001",
                "left": {},
                "at": message["done"]["at"],
                "now": message["done"]["now"],
            }
            assert not any(curve.undone for curve in curves)
            received.append({(c.role, c.rank, c.of, c.name): list(c.buckets) for c in curves})
            assert len(received[-1]) == len(curves)
    return received


def recorded(site: Site, job: str, node: int) -> list[dict[str, Any]]:
    return events_in(site.job_dir(job, node) / ".clusterctl/runs/0001/events.jsonl")


def points_of(events: list[dict[str, Any]]) -> dict[Any, list[tuple[Any, ...]]]:
    """Return (time, step, value, weight) of each figure in the events of one node."""
    points: dict[Any, list[tuple[Any, ...]]] = {}
    for event in events:
        figures: dict[Any, tuple[Any, float]] = {}
        if event["event"] == "step":
            names = ("samples_per_s", "compute", "wait", "wire", "apply_s", "send_s")
            figures = {("step", name): (event[name], 1.0) for name in names if name in event}
            figures |= {("table", table["name"]): (table["rows"], 1.0) for table in event.get("tables", ())}
            figures |= {("step", "loss"): (event["loss"], event["samples"])} if "loss" in event else {}
        elif event["event"] == "log":
            figures = {("log", name): (value, event["weight"]) for name, value in event.get("values", {}).items()}
        for (of, name), (value, weight) in figures.items():
            key = (event["role"], event["rank"], of, name)
            points.setdefault(key, []).append((event["t"], event.get("step"), value, weight))
    return points


def test_the_curves_of_a_run_hold_the_figures_that_its_nodes_recorded(site: Site) -> None:
    job = site.start(REGRESSION, "--", "--num_passes=4")
    assert wait_until(lambda: site.has_ended(job))
    site.assert_nothing_left(job)
    exact, coarse = curves_of(site, job, 1000), curves_of(site, job, 2)
    for node in range(2):
        points = points_of(recorded(site, job, node))
        of_pserver = {("pserver", node, "step", name) for name in ("apply_s", "send_s")}
        assert of_pserver | {("pserver", node, "table", "e"), ("trainer", node, "log", "score")} <= set(points)
        assert len(points["trainer", node, "step", "loss"]) >= 4, "one in each pass"
        assert set(points) == set(exact[node]) == set(coarse[node])
        for key, expected in points.items():
            single = [(t, t, step, step, 1, weight, *[value] * 4, 0) for t, step, value, weight in expected]
            assert exact[node][key] == single
            whole = coarse[node][key]
            values = [value for _, _, value, _ in expected]
            assert len(whole) <= 2
            assert sum(bucket[4] for bucket in whole) == len(expected)
            assert (min(b[6] for b in whole), max(b[7] for b in whole)) == (min(values), max(values))
            assert sum(b[8] * b[5] for b in whole) == pytest.approx(sum(v * w for _, _, v, w in expected))
        assert sum(value for _, _, value, _ in points["pserver", node, "step", "apply_s"]) > 0
        assert sum(value for _, _, value, _ in points["pserver", node, "step", "send_s"]) > 0
    for process in site.status(job)["processes"]:
        assert ({"apply_s", "send_s"} <= set(process)) == (process["role"] == "pserver")
