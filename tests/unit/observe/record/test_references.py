"""JOB, JOB/RUN and names of runs: what a reference means, and which run of a name is the newest."""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.cluster import NodeOutcome
from clusterctl.common.paths import is_label
from clusterctl.config import from_values
from clusterctl.errors import ClusterctlError, NodeError, UsageError
from clusterctl.inventory import Node, build
from clusterctl.observe.record.references import Reference, is_known, resolve, split_run

FIRST, SECOND = "JOB20261121-081530", "JOB20261122-081530"
NODES = build(from_values({"HOSTS": ["10.0.0.1", "10.0.0.2", "10.0.0.3"]})).nodes


class Asked:
    """A cluster whose nodes answer `find_named`; None is a node that cannot be reached."""

    def __init__(self, *answers: Any) -> None:
        self.answers = answers
        self.asked = 0

    def ask(self, request: dict[str, Any]) -> list[NodeOutcome[Any]]:
        assert request["op"] == "find_named"
        self.asked += 1
        return [self._outcome(node, answer) for node, answer in zip(NODES, self.answers, strict=False)]

    def _outcome(self, node: Node, answer: Any) -> NodeOutcome[Any]:
        if isinstance(answer, ClusterctlError):
            return NodeOutcome(node, None, answer, 0.0)
        return NodeOutcome(node, answer, None, 0.0)


def runs(*rows: tuple[str, str, float | None]) -> dict[str, Any]:
    return {"job": None, "runs": [{"job": job, "run": run, "t": t} for job, run, t in rows]}


@pytest.mark.parametrize(
    ("ref", "expected"),
    [
        (FIRST, (FIRST, None)),
        (f"{FIRST}/2", (FIRST, "0002")),
        (f"{FIRST}/0012/", (FIRST, "0012")),
        (f"~/clusterctl/{FIRST}/2", (f"~/clusterctl/{FIRST}", "0002")),
        ("ctr-model/3", ("ctr-model", "0003")),
        ("/srv/runs/3", ("/srv/runs/3", None)),
        ("JOB/1234567890", ("JOB/1234567890", None)),
    ],
)
def test_a_run_is_split_off_where_the_rest_can_be_a_job(ref: str, expected: tuple[str, str | None]) -> None:
    assert split_run(ref) == expected


def test_only_what_can_be_a_name_is_asked_for() -> None:
    for ref in (None, FIRST, "JOB2026", "JOB", "~/clusterctl/x", "/srv/x"):
        cluster: Any = Asked()
        assert resolve(cluster, ref) == Reference(ref)
        assert cluster.asked == 0
    assert not any(map(is_label, (FIRST, "JOB", "JOB2", "a/b", "", "-a", ".a", "\u00e4", "a b", "x" * 65)))
    assert all(map(is_label, ("lr-0.1", "JOBX", "J", "a=b+c_d", "7", "x" * 64)))


def test_the_newest_run_of_a_name_is_meant_by_the_median_of_the_clocks() -> None:
    slow = runs((FIRST, "0001", 10.0), (SECOND, "0001", 1.0))
    good = runs((FIRST, "0001", 10.0), (SECOND, "0001", 20.0))
    cluster: Any = Asked(slow, good, good)
    assert resolve(cluster, "lr-0.1") == Reference(SECOND, "0001", chosen=True)
    cluster = Asked(NodeError("away", node="node0"), good, runs((FIRST, "0002", 30.0)))
    assert resolve(cluster, "lr-0.1") == Reference(FIRST, "0002", chosen=True)
    cluster = Asked(runs((FIRST, "0001", None), (FIRST, "0002", None)))
    assert resolve(cluster, "lr-0.1") == Reference(FIRST, "0002", chosen=True)


def test_a_job_wins_over_a_run_of_its_name_and_an_unknown_name_comes_back() -> None:
    cluster: Any = Asked(runs((FIRST, "0001", 10.0)), {"job": "ctr-model", "runs": []})
    assert resolve(cluster, "ctr-model") == Reference("ctr-model")
    assert is_known(cluster, "ctr-model")
    cluster = Asked(runs(), runs())
    assert resolve(cluster, "lr-0.1") == Reference("lr-0.1")
    assert not is_known(cluster, "lr-0.1")
    assert not is_known(cluster, "./lr-0.1")


def test_without_any_answer_the_errors_of_the_nodes_are_raised() -> None:
    ambiguous = UsageError("J is ambiguous")
    cluster: Any = Asked(ambiguous, ambiguous)
    with pytest.raises(UsageError, match="ambiguous"):
        resolve(cluster, "J")
    assert not is_known(cluster, "J")
