"""When saves are copied and merged, and what is said about it."""

from __future__ import annotations

from typing import Any

from clusterctl.agent.lead.saving.copies import LIMIT_S, CopyPolicy, CopyTracker, MergePolicy, ResumedCheckpoint
from clusterctl.agent.lead.saving.messages import WrittenReport
from clusterctl.launch.plan import copy_plan

RING = {1: (0,), 2: (1,), 0: (2,)}


def tracker(*, merges: bool = False, sources: dict[int, tuple[int, ...]] | None = None) -> CopyTracker:
    made = CopyTracker(CopyPolicy(RING if sources is None else sources, MergePolicy(100, "py") if merges else None), 0)
    for node in range(3):
        assert made.come(node, f"h{node}:1", 0.0) == []
    return made


def save(tag: str, *, checkpoint: bool = False) -> WrittenReport:
    return {"do": "written", "tag": tag, "checkpoint": checkpoint, "bytes": 9, "sha256": "ab"}


def orders(actions: list[Any]) -> list[tuple[str, str, int]]:
    return [(a.message["do"], a.message["tag"], a.node) for a in actions if hasattr(a, "message")]


def events(actions: list[Any]) -> list[dict[str, Any]]:
    return [a.event for a in actions if hasattr(a, "event")]


def take(made: CopyTracker, node: int, tag: str, of: str = "copy", message: str | None = None) -> list[Any]:
    report: Any = {"do": "copied", "tag": tag, "of": of, "bytes": 5, **({"message": message} if message else {})}
    return made.take(node, report, 2.0)


def test_each_node_is_told_where_the_manifest_and_its_pieces_are() -> None:
    actions = tracker().offer(save("pass-00000"), 0.0)
    by_node = {a.node: a.message for a in actions}
    assert by_node[1]["sources"] == {"0": "h0:1"}
    assert by_node[1]["lead"] == [0, "h0:1"]
    assert (by_node[0]["sources"], by_node[0]["lead"]) == ({"2": "h2:1"}, None)


def test_without_copies_every_member_gets_the_manifest_and_nothing_is_claimed() -> None:
    made = tracker(sources={})
    assert orders(made.offer(save("a"), 0.0)) == [("copy", "a", 1), ("copy", "a", 2)]
    assert made.take(1, {"do": "copied", "tag": "a", "of": "copy", "bytes": 0}, 1.0) == []
    assert made.take(2, {"do": "copied", "tag": "a", "of": "copy", "bytes": 0}, 1.0) == []


def test_a_save_is_copied_when_all_have_reported_and_the_newest_of_each_kind_is_next() -> None:
    made = tracker(merges=True)
    assert ("merge", "pass-00000", 0) in orders(made.offer(save("pass-00000"), 0.0))
    assert made.offer(save("step-000000001", checkpoint=True), 0.0) == []
    assert made.offer(save("pass-00001"), 0.0) == made.offer(save("pass-00002"), 0.0) == []
    assert [take(made, node, "pass-00000") for node in range(3)] == [[], [], []]
    done = take(made, 0, "pass-00000", "merge")
    assert events(done) == [{"event": "copied", "tag": "pass-00000", "bytes": 15, "in_s": 2.0}]
    assert {tag for _, tag, _ in orders(done)} == {"step-000000001"}
    after = [action for node in range(3) for action in take(made, node, "step-000000001")]
    assert events(after)[0]["checkpoint"] is True
    assert {tag for _, tag, _ in orders(after)} == {"pass-00002"}


def test_a_failure_is_a_warning_once_and_no_copy_is_claimed() -> None:
    made = tracker()
    for tag in ("pass-00000", "pass-00001"):
        made.offer(save(tag), 0.0)
        warned = take(made, 1, tag, message=f"no room for {tag}")
        told = [event["message"] for event in events(warned)]
        assert told == ([f"model {tag} was not copied to node1: no room for {tag}"] if tag == "pass-00000" else [])
        assert [take(made, node, tag) for node in (0, 2)] == [[], []]


def test_a_failed_copy_of_what_has_a_successor_is_not_worth_a_word() -> None:
    made = tracker()
    made.offer(save("pass-00000"), 0.0)
    made.offer(save("pass-00001"), 0.0)
    assert take(made, 1, "pass-00000", message="it does not have pserver-00000.safetensors") == []


def test_a_checkpoint_that_was_discarded_does_not_count_as_one_that_waits_for_its_copy() -> None:
    made = tracker()
    for tag in ("step-1", "step-2", "step-3"):
        made.offer(save(tag, checkpoint=True), 0.0)
    made.discard("step-2")
    assert events(made.tick(60.0)) == []
    (behind,) = events(made.offer(save("step-4", checkpoint=True), 60.0))
    assert "the last 3 checkpoints were not copied" in behind["message"]


def doubts(made: CopyTracker) -> list[str]:
    return [warning["kind"] for warning in made.doubts([0, 1, 2])]


def test_a_last_model_that_lacks_pieces_or_copies_is_a_doubt_about_the_run() -> None:
    made = tracker()
    assert doubts(made) == []
    made.offer(save("pass-00000"), 0.0)
    assert doubts(made) == ["model_not_copied"]
    for node in range(3):
        take(made, node, "pass-00000")
    assert doubts(made) == []
    made.leave(2, 1.0)
    assert doubts(made) == [], "node 0 has its pieces"
    made.offer(save("pass-00001"), 1.0)
    take(made, 1, "pass-00001")
    [lost] = made.doubts([0, 1, 2])
    assert lost["kind"] == "model_lost"
    assert "the last model, pass-00001, cannot be completed: its pieces on node2 were lost" in lost["message"]
    assert made.doubts([0, 1])[0]["kind"] == "model_not_copied", "node 2 has written no piece"
    made.back(2)
    assert doubts(made) == ["model_not_copied"]


def test_the_doubt_says_why_the_last_model_was_not_copied() -> None:
    made = tracker()
    made.offer(save("pass-00000"), 0.0)
    take(made, 1, "pass-00000", message="no room")
    assert made.doubts([0, 1, 2])[0]["message"].endswith("; the last attempt failed: node1: no room")
    for node in (0, 2):
        take(made, node, "pass-00000")
    made.offer(save("pass-00001"), 0.0)
    for node in range(3):
        take(made, node, "pass-00001")
    assert doubts(made) == []


def test_a_new_supervisor_does_not_know_the_orders_of_the_one_before() -> None:
    made = tracker()
    made.offer(save("pass-00000"), 0.0)
    assert take(made, 0, "pass-00000") == take(made, 1, "pass-00000") == []
    made.come(2, "h2:2", 1.0)
    assert not made.waits(1.0)
    assert made.come(2, "h2:2", 1.0) == []
    assert ("copy", "pass-00001", 2) in orders(made.offer(save("pass-00001"), 2.0))


def test_the_end_waits_for_a_manifest_that_is_being_written() -> None:
    made = tracker()
    made.expect()
    assert made.waits(0.0)
    made.offer(save("pass-00000"), 0.0)
    assert [take(made, node, "pass-00000") for node in (0, 1)] == [[], []]
    take(made, 2, "pass-00000")
    assert not made.waits(1.0)


def test_a_node_that_never_reports_is_given_up() -> None:
    made = tracker()
    made.offer(save("pass-00000"), 0.0)
    made.offer(save("pass-00001"), 0.0)
    assert [take(made, node, "pass-00000") for node in (0, 1)] == [[], []]
    assert made.tick(LIMIT_S - 1) == []
    actions = made.tick(LIMIT_S + 1)
    assert "pass-00000 was not copied within 30 min: node2" in events(actions)[0]["message"]
    assert {tag for _, tag, _ in orders(actions)} == {"pass-00001"}


def test_copies_go_to_the_next_member_on_another_machine() -> None:
    machines = {0: "a", 1: "a", 2: "b", 3: "c"}
    members = [0, 1, 2, 3]
    assert copy_plan(members, members, machines, 1) == {}
    assert copy_plan(members, members, machines, 2) == {"2": (0, 1), "3": (2,), "0": (3,)}
    assert copy_plan([1], members, machines, 3) == {"2": (1,), "3": (1,)}
    assert copy_plan([0, 1], [0, 1], {0: "a", 1: "a"}, 2) == {"1": (0,), "0": (1,)}, "a fake cluster"
    assert copy_plan([0], [0], {0: "a"}, 2) == {}


def test_after_a_loss_the_newest_checkpoint_is_copied_once_more_from_those_that_have_copies() -> None:
    """Node 2 has copies of what node 1 wrote. Then node 1 is lost, and node 0 copies from node 2 what it lacks."""
    made = tracker()
    made.offer(save("step-000000001", checkpoint=True), 0.0)
    for node in range(3):
        take(made, node, "step-000000001")
    assert made.holders("step-000000001", 1) == {2}
    made.leave(1, 3.0)
    by_node = {a.node: a.message for a in made.replan({0: (2,), 2: (0,)}, {1}, "step-000000001", 3.0)}
    assert (by_node[0]["sources"], by_node[0]["held_by"]) == ({"2": "h2:1", "1": "h2:1"}, {"1": 2})
    assert (by_node[2]["sources"], "held_by" in by_node[2]) == ({"0": "h0:1"}, False)
    for node in (0, 2):
        take(made, node, "step-000000001")
    assert made.holders("step-000000001", 1) == {0, 2}


def test_a_resumed_checkpoint_is_copied_once_all_are_there_from_the_nodes_that_have_it() -> None:
    """node3 wrote a piece, and is not in this run; node1 has the only copy."""
    tag = "step-000000140"
    resumed = ResumedCheckpoint(save(tag, checkpoint=True), {"p0": 3, "p1": 1}, {3: {1}, 1: {1, 2}})
    made = CopyTracker(CopyPolicy(RING, resumed=resumed), 0)
    for node in range(3):
        assert made.tick(float(node)) == []
        made.come(node, f"h{node}:1", 0.0)
    by_node = {a.node: a.message for a in made.tick(3.0)}
    assert (by_node[2]["sources"], by_node[2]["held_by"]) == ({"1": "h1:1", "3": "h1:1"}, {"3": 1})
    assert by_node[1]["sources"] == {"0": "h0:1"}
    assert made.tick(4.0) == []
    assert made.holders_of_file(tag, "p0") == {1}
    done = [action for node in range(3) for action in take(made, node, tag)]
    assert [event["event"] for event in events(done)] == ["copied"]
    assert (made.holders_of_file(tag, "p0"), made.holders_of_file(tag, "p1")) == ({1, 2}, {2})
    assert made.held(True) == {tag}
