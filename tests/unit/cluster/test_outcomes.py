"""The errors of several nodes as one: its kind, which is the exit code, and what it names."""

from __future__ import annotations

from typing import Any

from clusterctl.cluster import combined
from clusterctl.errors import ClusterctlError, NodeError, RefusedError, UnreachableError, UsageError


def lacks_job(node: int) -> NodeError:
    return NodeError("there is no job X", node=f"node{node}", hint="see jobs", details={"reason": "no_job"})


def nodes_of(error: ClusterctlError) -> list[Any]:
    return [one["node"] for one in error.details["nodes"]]


def test_a_job_that_no_node_has_is_a_mistake_of_the_user() -> None:
    error = combined([lacks_job(0), lacks_job(1)], 2, "status")
    assert (type(error), error.message, error.node, error.hint) == (UsageError, "there is no job X", None, "see jobs")


def test_a_job_that_other_nodes_have_is_missing_on_these() -> None:
    error = combined([lacks_job(1)], 2, "save")
    assert (type(error), error.node, nodes_of(error)) == (NodeError, "node1", ["node1"])
    error = combined([lacks_job(0), lacks_job(2)], 3, "save")
    assert (type(error), nodes_of(error)) == (NodeError, ["node0", "node2"])
    assert error.message.startswith("save failed on 2 of 3 nodes\n")


def test_a_missing_job_is_not_reported_beside_another_failure() -> None:
    error = combined([lacks_job(0), UnreachableError("no route", node="node1")], 2, "stop")
    assert (type(error), error.message, error.node) == (UnreachableError, "no route", "node1")
    assert nodes_of(error) == ["node0", "node1"]


def test_of_several_kinds_a_refusal_counts_most() -> None:
    broken, gone = NodeError("the disk is full", node="node0"), UnreachableError("no route", node="node1")
    refused = RefusedError("another run is running", node="node2")
    assert type(combined([gone, gone], 3, "start")) is UnreachableError
    assert type(combined([broken, gone], 3, "start")) is NodeError
    assert type(combined([broken, gone, refused], 3, "start")) is RefusedError


def test_a_mistake_on_this_machine_is_reported_once() -> None:
    error = combined([NodeError("no such key: ~/.ssh/id") for _ in range(3)], 3, "check")
    assert (error.message, error.node, error.details) == ("no such key: ~/.ssh/id", None, {})
