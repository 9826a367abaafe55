"""The error of a dispatch that failed on some nodes, and its one hint."""

from __future__ import annotations

from clusterctl.api.dispatch import may_go_on, partial_failure
from clusterctl.config import from_values
from clusterctl.dispatch import Dispatched
from clusterctl.errors import ClusterctlError, NodeError, UnreachableError
from clusterctl.inventory import build
from clusterctl.transport import WorkOutcome

JOB = "JOB20261121-081530"
NODES = build(from_values({"HOSTS": ["host0", "host1", "host2"]})).nodes
CHANGED = {"hint": "dispatch again when nothing writes to the workspace", "details": {"changed": "data"}}


def dispatched(*errors: ClusterctlError | None) -> Dispatched:
    return Dispatched(JOB, [WorkOutcome(node, None, error, 0.0) for node, error in zip(NODES, errors, strict=True)])


def test_failed_nodes_can_be_repeated() -> None:
    done = dispatched(None, None, UnreachableError("no route", node="node2", hint="check it"))
    error = partial_failure(done, 3)
    assert error is not None
    assert error.message.splitlines() == [
        "no route",
        "  check it",
        f"2/3 nodes have {JOB}; start needs it on all nodes, or --allow-partial",
    ]
    assert error.hint == "retry the others: clusterctl dispatch --only failed@last"
    assert may_go_on(done)


def test_a_dispatch_from_a_changed_workspace_has_only_the_hint_to_dispatch_again() -> None:
    changed = NodeError("'data' shrank while it was being sent", **CHANGED)  # type: ignore[arg-type]
    found = NodeError("'data' does not have the announced contents", node="node1", **CHANGED)  # type: ignore[arg-type]
    for others in (changed, found, UnreachableError("no route", node="node1")):
        done = dispatched(changed, others, changed)
        error = partial_failure(done, 3)
        assert error is not None
        assert error.message.startswith("'data' shrank while it was being sent\n")
        assert error.message.endswith(f"0/3 nodes have {JOB}")
        assert ("node1  no route" in error.message) == isinstance(others, UnreachableError)
        assert error.hint == CHANGED["hint"]
        assert not may_go_on(done)
