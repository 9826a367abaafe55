"""Waiting for the processes of a run whose events do not reach us: the lead's last word counts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterctl.api.start import wait_until_up
from clusterctl.cluster import NodeOutcome
from clusterctl.config import from_values
from clusterctl.errors import NodeError
from clusterctl.inventory import Node, build
from clusterctl.observe.record.live import LiveRecord

JOB, RUN = "JOB20261121-081530", "0001"
INVENTORY = build(from_values({"HOSTS": ["a"]}))
NODES = INVENTORY.nodes


def waited(ended: dict[str, Any] | None, state: str) -> bool:
    """Wait for a run that cannot be followed, and that is in `state` when the lead is asked."""
    answer: dict[str, Any] = {"job": JOB, "dir": f"/{JOB}", "run": RUN, "state": state, "processes": []}
    answer |= {"members": [0], "started": 1.0, "left_out": [], "ended": ended}

    def call(node: Node, *_: object, **__: object) -> None:
        raise NodeError("the event log cannot be read", node=node.label)

    def ask(*_: object, **__: object) -> list[NodeOutcome[dict[str, Any]]]:
        return [NodeOutcome(NODES[0], answer, None, 0.0)]

    cluster: Any = SimpleNamespace(call=call, ask=ask, inventory=INVENTORY)
    return wait_until_up(cluster, JOB, RUN, NODES, LiveRecord(NODES))


@pytest.mark.parametrize(("state", "is_up"), [("succeeded", True), ("failed", False), ("stopped", False)])
def test_a_run_that_has_ended_was_up_if_it_succeeded(state: str, is_up: bool) -> None:
    assert waited({"event": "ended", "t": 2.0, "node": 0, "state": state, "cause": None}, state) is is_up


def test_a_run_without_an_end_and_without_events_is_not_up() -> None:
    assert waited(None, "running") is False
