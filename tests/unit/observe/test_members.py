"""The members of the newest run, and how other nodes' answers count towards a job's state."""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.cluster import NodeOutcome
from clusterctl.config import from_values
from clusterctl.errors import ClusterctlError, NodeError, RefusedError, UnreachableError
from clusterctl.inventory import build
from clusterctl.observe.record.live import LiveRecord
from clusterctl.observe.record.members import members_of
from clusterctl.observe.record.status import JobStatus, merge_states, status

INVENTORY = build(from_values({"HOSTS": ["a", "b", "c", "d"], "ON_NODE_LOSS": "fail"}))
NEVER = {"run": None, "state": "dispatched"}


def says(run: str, state: str, members: list[int] | None, t: float = 1.0, **more: Any) -> dict[str, Any]:
    return {"run": run, "state": state, "members": members, "started": t, "left_out": [], **more}


def outcomes(*seen: dict[str, Any] | ClusterctlError) -> list[NodeOutcome[dict[str, Any]]]:
    return [
        NodeOutcome(node, None, one, 0.0) if isinstance(one, ClusterctlError) else NodeOutcome(node, one, None, 0.0)
        for node, one in zip(INVENTORY.nodes, seen, strict=True)
    ]


def state(*seen: dict[str, Any] | ClusterctlError) -> str:
    made = outcomes(*seen)
    return merge_states(made, members_of(INVENTORY, [one.get() for one in made if one.ok]))


class Nodes:
    """A cluster whose nodes always answer the same."""

    def __init__(self, *seen: dict[str, Any] | ClusterctlError) -> None:
        self.inventory = INVENTORY
        self._outcomes = outcomes(*seen)

    def ask(self, request: object, *, answer_s: float) -> list[NodeOutcome[dict[str, Any]]]:
        return self._outcomes

    def status(self) -> JobStatus:
        return status(self, "JOB")  # type: ignore[arg-type]


def test_all_nodes_are_members_of_a_job_that_never_started_and_of_a_run_without_a_member_list() -> None:
    for answers in ([], [NEVER, NEVER], [NEVER, says("0001", "running", None)]):
        members = members_of(INVENTORY, answers)
        assert (list(members.by_id), members.lead, members.left_out) == ([0, 1, 2, 3], 0, ())


def test_the_newest_run_lists_its_members_and_why_the_others_were_left_out() -> None:
    why = [{"node": 0, "message": "gone"}]
    newest = says("0010", "running", [1, 2], left_out=why)
    members = members_of(INVENTORY, [says("0009", "failed", [0, 1, 2, 3], t=5.0), newest, NEVER])
    assert (members.run, list(members.by_id), members.lead) == ("0010", [1, 2], 1)
    assert members.nodes[0].trainer_ranks == (0,)
    assert members.left_out == ({"node": 0, "message": "gone"}, {"node": 3, "message": "not in conf.py at the time"})


def test_of_two_runs_with_the_same_name_the_later_counts() -> None:
    answers = [says("0002", "succeeded", [0, 1], t=7.0), says("0002", "failed", [2, 3], t=6.0)]
    assert list(members_of(INVENTORY, answers).by_id) == [0, 1]
    assert list(members_of(INVENTORY, answers[::-1]).by_id) == [0, 1]


GONE = UnreachableError("gone")


@pytest.mark.parametrize(
    ("seen", "merged"),
    [
        ((GONE, says("0001", "running", [1, 2, 3]), GONE, GONE), "running"),
        ((GONE, says("0001", "succeeded", [1, 2, 3]), says("0001", "lost", [1, 2, 3]), GONE), "succeeded"),
        ((says("0001", "failed", [0, 1, 2, 3]), *[says("0002", "running", [1, 2, 3])] * 3), "running"),
        ((NEVER, NEVER, NEVER, NEVER), "dispatched"),
        ((NEVER, NEVER, NEVER, GONE), "unknown"),
        ((GONE, says("0001", "running", [0, 1, 2, 3]), GONE, GONE), "unknown"),
    ],
)
def test_the_first_member_decides_the_state_and_other_nodes_do_not_count(seen: Any, merged: str) -> None:
    assert state(*seen) == merged


def test_a_node_outside_the_run_may_be_unreachable_or_lack_the_job_but_must_have_its_host_key() -> None:
    members = members_of(INVENTORY, [says("0001", "running", [1, 2])])
    lost, no_job, changed = UnreachableError("lost"), NodeError("no job"), RefusedError("changed")
    assert members.errors(outcomes(no_job, lost, NEVER, GONE)) == [lost]
    assert members.errors(outcomes(no_job, NEVER, NEVER, changed)) == [changed]


def full(answer: dict[str, Any], *states: str) -> dict[str, Any]:
    """Return an answer with trainers 0, 1, ... in these states."""
    trainers = [{"role": "trainer", "rank": rank, "state": state} for rank, state in enumerate(states)]
    return {"job": "JOB", "dir": "/job", "processes": trainers, **answer}


def test_only_processes_of_this_run_are_shown_and_those_of_a_silent_node_with_their_ranks_in_it() -> None:
    now = says("0002", "running", [1, 2])
    seen = Nodes(full(says("0001", "failed", None), "failed"), GONE, full(now), GONE).status()
    assert [(one.node.id, one.role, one.rank, one.state) for one in seen.processes] == [
        (1, "pserver", 0, "unknown"),
        (1, "trainer", 0, "unknown"),
    ]
    assert [node["state"] for node in seen.nodes] == [None, "unknown", "running", None]
    assert (seen.run, seen.state, seen.lead, seen.errors) == ("0002", "unknown", None, [GONE])


def test_a_lead_that_lost_the_job_and_got_it_again_knows_nothing_of_the_run() -> None:
    run = full(says("0001", "failed", [0, 1, 2, 3]), "failed")
    others = [{**run, "processes": [{**run["processes"][0], "rank": rank}]} for rank in (1, 2, 3)]
    seen = Nodes(full(NEVER), *others).status()
    assert (seen.state, seen.lead, len(seen.processes)) == ("failed", None, 3)


def test_a_process_that_has_moved_is_shown_where_it_is() -> None:
    answer = full(says("0001", "running", [0, 1, 2, 3]))
    old = {"role": "trainer", "rank": 2, "restarts": 0, "state": "failed"}
    new = {"role": "trainer", "rank": 2, "restarts": 1, "state": "running"}
    for away in (GONE, {**answer, "processes": [old]}):
        seen = Nodes(answer, {**answer, "processes": [new]}, away, answer).status()
        assert [(p.node.id, p.state) for p in seen.processes if p.name == "trainer2"] == [(1, "running")]


def test_a_view_takes_the_end_of_the_run_from_the_lead_whichever_node_that_is() -> None:
    view = LiveRecord(INVENTORY.nodes[1:])
    view.take({"event": "ended", "node": 2, "state": "failed"})
    assert view.ended is None
    view.take({"event": "ended", "node": 1, "state": "stopped"})
    assert view.ended == {"event": "ended", "node": 1, "state": "stopped"}


def test_a_run_that_succeeds_may_still_have_warnings() -> None:
    view = LiveRecord(INVENTORY.nodes)
    for step in (3, 4):
        view.take({"event": "nan", "role": "trainer", "rank": 1, "message": f"the loss is not finite (step {step})"})
    view.take({"event": "lost", "node": 2, "message": "nothing heard"})
    view.take({"event": "lost", "node": 2, "role": "trainer", "rank": 2, "message": "node2 is lost"})
    assert view.doubts == ["the loss is not finite (step 3) (first occurrence)", "trainer2 was left out: node2 is lost"]
