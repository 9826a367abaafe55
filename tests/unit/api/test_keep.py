"""When a keeper resumes a run: what ended it, who answers, and how long the others have been silent."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace
from typing import Any

import pytest

from clusterctl.api import keep
from clusterctl.api.keep import HOUR_S, Keeper, Resumes, end_of, readiness
from clusterctl.config import from_values
from clusterctl.errors import RefusedError
from clusterctl.inventory import build
from clusterctl.launch import plan
from clusterctl.observe.record.members import Members
from clusterctl.observe.record.status import JobStatus
from clusterctl.observe.why.first_cause import Explanation
from clusterctl.observe.why.node_report import NodeReport
from clusterctl.observe.why.report import WhyReport
from unit.agent.specs import make_spec

SETTINGS = from_values({"HOSTS": ["a", "b", "c", "d"], "NODE_GRACE_S": 30, "GRACE_S": 10})
LAUNCH = plan(SETTINGS, build(SETTINGS))
LOST = {"kind": "node_lost", "node": 0, "why": "no message"}
OWN = {"run": "0001", "tag": "step-000000010", "step": 10, "pass": 0, "dir": "checkpoints"}
EXIT = {"kind": "exit", "role": "trainer", "rank": 0}


def ended(node: int, state: str, cause: dict[str, Any] | None) -> dict[str, Any]:
    return {"event": "ended", "t": 50.0, "node": node, "state": state, "cause": cause}


def lost(node: int, other: int, t: float, silent_s: float) -> dict[str, Any]:
    return {"event": "lost", "t": t, "node": node, "lost_node": other, "silent_s": silent_s, "why": "no message"}


def report(state: str, nodes: int = 3, **answers: dict[str, Any]) -> WhyReport:
    """Return the report of a run on some nodes, of which those with an answer, such as `node1`, answer."""
    members = Members("0001", LAUNCH.nodes[:nodes], ())
    addresses = {node.id: node.label for node in LAUNCH.nodes}
    spec = LAUNCH.spec(LAUNCH.nodes[0], job="JOB", run="0001", addresses=addresses, lead=None).to_json()
    reports, views = [], []
    for node in members.nodes:
        answer = answers.get(node.label)
        views.append({"node": node.id, "ok": answer is not None, "state": (answer or {}).get("state", "unknown")})
        if answer is not None:
            reports.append(NodeReport(node.id, 0.0, 0.0, {"events": [], "spec": spec, **answer}))
    seen = JobStatus("JOB", members, state, [], views, [], None)  # type: ignore[arg-type]
    return WhyReport("JOB", members, state, seen, Explanation(None), tuple(reports), [], 1.0)


@pytest.mark.parametrize(
    ("state", "answers", "end"),
    [
        (
            "lost",
            {"node0": {"state": "lost"}, "node1": {"state": "failed", "events": [ended(1, "failed", LOST)]}},
            "lost",
        ),
        ("unknown", {"node1": {"state": "failed", "events": [ended(1, "failed", LOST)]}}, "lost"),
        ("unknown", {"node1": {"state": "lost"}, "node2": {"state": "lost"}}, "lost"),
        ("unknown", {"node1": {"state": "lost"}, "node2": {"state": "running"}}, "live"),
        ("failed", {"node0": {"state": "failed", "events": [ended(0, "failed", LOST)]}}, "lost"),
        ("failed", {"node0": {"state": "failed", "events": [ended(0, "failed", EXIT)]}}, "final"),
        (
            "unknown",
            {"node1": {"state": "failed", "events": [ended(1, "failed", EXIT)]}, "node2": {"state": "lost"}},
            "final",
        ),
        ("succeeded", {"node0": {"state": "succeeded", "events": [ended(0, "succeeded", None)]}}, "final"),
        ("unknown", {"node1": {"state": "succeeded", "events": [ended(1, "succeeded", None)]}}, "final"),
        ("unknown", {"node1": {"state": "lost", "stop_asked": True}, "node2": {"state": "lost"}}, "final"),
        ("unknown", {"node1": {"state": "stopped", "events": [ended(1, "stopped", None)]}}, "lost"),
        ("failed", {"node0": {"events": [ended(0, "failed", EXIT)]}, "node2": {"state": "running"}}, "final"),
    ],
)
def test_only_a_run_that_lost_machines_is_resumed(state: str, answers: dict[str, Any], end: str) -> None:
    assert end_of(report(state, **answers)) == end


def test_more_than_half_of_the_nodes_have_to_answer() -> None:
    answer = {"state": "lost", "events": [lost(1, 0, 40.0, 30.0)]}
    two = readiness(report("unknown", 2, node1=answer), since=100.0)
    assert (two.t, two.waits_for) == (None, "1 of its 2 nodes answer; more than half are needed")
    assert readiness(report("unknown", 4, node1=answer, node2=answer), since=100.0).t is None
    assert readiness(report("unknown", 3, node1=answer, node2=answer), since=100.0).t == 50.0


def test_a_silent_node_has_ended_its_processes_a_while_after_the_last_sign_that_any_node_had_of_it() -> None:
    early, late = lost(1, 0, 40.0, 30.0), lost(2, 0, 45.0, 31.0)
    some = report("unknown", 3, node1={"state": "lost", "events": [early]}, node2={"state": "lost", "events": [late]})
    assert readiness(some, since=0.0).t == 45.0 - 31.0 + 30.0 + 10.0
    nothing = {"state": "lost"}
    unknown = report("unknown", 3, node1=nothing, node2=nothing)
    assert readiness(unknown, since=100.0).t == 140.0
    assert readiness(report("lost", 2, node0=nothing, node1=nothing), since=100.0).t == 0.0


def test_signs_from_before_a_node_was_back_and_from_the_future_do_not_count() -> None:
    back = {"event": "rejoined", "t": 60.0, "node": 0}
    known = {"state": "lost", "events": [lost(1, 0, 40.0, 30.0), back]}
    assert readiness(report("unknown", 3, node1=known, node2={"state": "lost"}), since=100.0).t == 140.0
    future = {"state": "lost", "events": [lost(1, 0, time.time() + 1e6, 0.0)]}
    t = readiness(report("unknown", 3, node1=future, node2={"state": "lost"}), since=100.0).t
    assert t is not None
    assert t <= time.time() + 40.0


def test_a_run_is_resumed_a_limited_number_of_times_within_an_hour() -> None:
    resumes = Resumes(2)
    assert resumes.are_left(0.0)
    resumes.take(0.0)
    assert resumes.are_left(10.0)
    resumes.take(10.0)
    assert not resumes.are_left(20.0)
    assert resumes.are_left(HOUR_S + 1)
    assert not Resumes(0).are_left(0.0)


def keeper(monkeypatch: pytest.MonkeyPatch, *reports: WhyReport) -> Keeper:
    """Return a keeper that sees these reports, one after the other, a minute apart."""
    now = itertools.count(1000.0, 60.0)
    monkeypatch.setattr(
        keep, "time", SimpleNamespace(time=lambda: next(now), monotonic=lambda: 0.0, sleep=lambda _: None)
    )
    cluster: Any = SimpleNamespace(settings=SETTINGS)
    nothing: Any = lambda *_: None  # noqa: E731
    made = Keeper(cluster, "JOB", nothing, nothing, nothing, nothing)
    monkeypatch.setattr(made, "_report", lambda *_: seen.pop(0) if len(seen) > 1 else seen[0])
    seen = list(reports)
    return made


def test_a_run_that_goes_on_after_all_is_returned_but_not_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    alive = {name: {"state": "running"} for name in ("node0", "node1", "node2")}
    kept = keeper(monkeypatch, report("running", **alive))
    for _ in range(SETTINGS.resumes):
        found = kept.next_run("0001", lambda _: None)
        assert found is not None
        assert found.run == "0001"
    assert kept.next_run("0001", lambda _: None) is None


@pytest.mark.parametrize(("began", "message"), [({"load": "model"}, "a model"), ({"resume": OWN}, "no node has")])
def test_a_run_whose_beginning_is_not_known_does_not_begin_again(
    began: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec(**began)
    with pytest.raises(RefusedError, match=message):
        keeper(monkeypatch)._as_it_began(spec, LAUNCH)


def test_a_run_begins_again_with_its_arguments_its_name_and_the_same_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = make_spec(arguments=["--passes=2"], name="mine", resume={**OWN, "job": "JOB2"})
    origin, launch = keeper(monkeypatch)._as_it_began(spec, LAUNCH)
    assert (origin.resume_from, origin.is_patient) == ("JOB2", True)
    assert (launch.program_args, launch.name) == (("--passes=2",), "mine")
