"""The choice of the job id and of each node's part in a dispatch; and the keepalive of waiting nodes."""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.common.paths import is_job_id, job_key
from clusterctl.dispatch.decision import DesiredTrees, decide
from clusterctl.errors import RefusedError

OLD, NEW = "JOB20261121-000001", "JOB20261121-000002"
WANTED = DesiredTrees({0: "t", 1: "t"}, "here", 2, None)


def answer(at: int, newest: str | None = OLD, *, jobs: tuple[str, ...] | None = None, **about: Any) -> dict[str, Any]:
    """Return the answer of a node whose newest job has the wanted tree, changed by `about`."""
    job = {"job": newest, "started": False, "exact": True, "tree": "t", "source": "here", "node": at, "nodes": 2}
    named = (newest,) if newest else ()
    return {
        "jobs": list(named if jobs is None else jobs),
        "newest": {**job, **about} if newest else None,
        "holds": False,
    }


def test_nodes_with_the_complete_job_keep_it() -> None:
    assert decide(NEW, {0: answer(0), 1: answer(1)}, WANTED) == (OLD, {0: {"keep": OLD}, 1: {"keep": OLD}})


def test_a_node_without_the_job_gets_it_under_the_id_the_others_have() -> None:
    target, words = decide(NEW, {0: answer(0), 1: answer(1, None)}, WANTED)
    assert target == OLD
    assert words == {0: {"keep": OLD}, 1: {"go": OLD, "supersede": None}}


@pytest.mark.parametrize("about", [{"source": "there"}, {"node": 1}, {"nodes": 3}])
def test_a_job_from_elsewhere_is_neither_kept_nor_replaced(about: dict[str, Any]) -> None:
    target, words = decide(NEW, {0: answer(0, **about)}, DesiredTrees({0: "t"}, "here", 2, None))
    assert (target, words) == (NEW, {0: {"go": NEW, "supersede": None}})


@pytest.mark.parametrize("about", [{"tree": "other"}, {"exact": False}, {"started": True, "exact": False}])
def test_a_job_that_one_node_cannot_keep_gets_a_new_id_on_all(about: dict[str, Any]) -> None:
    target, words = decide(NEW, {0: answer(0), 1: answer(1, **about)}, WANTED)
    assert target == NEW
    assert words[0]["go"] == words[1]["go"] == NEW


def test_a_job_is_replaced_only_if_no_node_ever_started_it() -> None:
    other = {"tree": "other"}
    _, words = decide(NEW, {0: answer(0, **other), 1: answer(1, **other)}, WANTED)
    assert [word["supersede"] for word in words.values()] == [OLD, OLD]
    started = answer(1, tree="other", started=True, exact=False)
    _, words = decide(NEW, {0: answer(0, **other), 1: started}, WANTED)
    assert [word["supersede"] for word in words.values()] == [None, None]
    younger = answer(1, "JOB20261121-000009", jobs=("JOB20261121-000009", OLD), source="there")
    _, words = decide(NEW, {0: answer(0, **other), 1: younger}, WANTED)
    assert [word["supersede"] for word in words.values()] == [None, None]


def test_an_id_that_is_taken_on_any_node_gets_a_suffix() -> None:
    taken = answer(1, NEW, jobs=(NEW, f"{NEW}-2"), source="there")
    assert decide(NEW, {0: answer(0, None), 1: taken}, WANTED)[0] == f"{NEW}-3"


@pytest.mark.parametrize("newest", ["JOB20990101-000000", "JOB20990101-000000-2", "JOB20990101-000000-10"])
def test_a_job_is_newer_than_one_from_a_machine_whose_clock_was_ahead(newest: str) -> None:
    ahead = answer(1, newest, jobs=(OLD, newest), source="there")
    made, _ = decide(NEW, {0: answer(0, None), 1: ahead}, WANTED)
    assert job_key(made) > job_key(newest)
    assert made.startswith("JOB20990101-000000-")
    assert is_job_id(made)


def test_completing_a_dispatch_never_touches_another_job_of_that_id() -> None:
    wanted = DesiredTrees({0: "t", 1: "t"}, "here", 2, OLD)
    target, words = decide(NEW, {0: {**answer(0), "holds": True}, 1: answer(1, None)}, wanted)
    assert (target, words[0]) == (OLD, {"keep": OLD})
    assert words[1]["go"] == OLD
    other = answer(1, "JOB20261120-000001", tree="other")
    assert decide(NEW, {1: other}, wanted)[1] == {1: {"go": OLD, "supersede": None}}
    with pytest.raises(RefusedError, match=f"{OLD} is a different job on this node") as raised:
        decide(NEW, {1: answer(1, tree="other")}, wanted)
    assert raised.value.node == "node1"
