"""The plan of a run in which only some nodes take part: the processes of each node, their ranks, and the lead."""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.common.run_spec import LeftOut, ShardCopies
from clusterctl.config import Host, from_values
from clusterctl.errors import ConfigError, NodeError
from clusterctl.inventory import build
from clusterctl.launch import LaunchPlan, plan
from clusterctl.launch.keys import make_keys


def launch(nodes: int = 4, **values: Any) -> LaunchPlan:
    hosts = [f"10.0.0.{node}" for node in range(nodes)]
    settings = from_values({"HOSTS": hosts, "ON_NODE_LOSS": "fail", **values})
    return plan(settings, build(settings), ["--num_passes=2"])


def placed(launch: LaunchPlan, role: str) -> list[tuple[int, int]]:
    """Return (node, rank) of all processes of a role."""
    return [(process.node, process.rank) for process in launch.processes if process.role == role]


def test_ranks_have_no_gap_and_node_ids_are_unchanged() -> None:
    part = launch().among([1, 3])
    assert placed(part, "trainer") == placed(part, "pserver") == [(1, 0), (3, 1)]
    assert {process.argv[-1] for process in part.processes if process.role == "trainer"} == {"--num_passes=2"}
    assert [node.id for node in part.nodes] == [1, 3]


def test_ranks_are_consecutive_across_nodes_with_several_processes_or_none() -> None:
    part = launch(TRAINERS_PER_NODE=2, PSERVERS=["10.0.0.0", "10.0.0.3"]).among([0, 2, 3])
    assert placed(part, "trainer") == [(0, 0), (0, 1), (2, 2), (2, 3), (3, 4), (3, 5)]
    assert placed(part, "pserver") == [(0, 0), (3, 1)]


def test_the_spec_names_the_members_and_why_others_are_left_out() -> None:
    part = launch().among([3, 1])
    addresses = {1: "10.1.0.1", 3: "10.1.0.3"}
    why = [{"node": 0, "message": "gone"}, {"node": 2, "message": "gone"}]
    left_out = [LeftOut.from_json(node) for node in why]
    spec = part.spec(part.nodes[1], job="JOB", run="0001", addresses=addresses, lead=None, left_out=left_out).to_json()
    assert (spec["node"], spec["members"], spec["left_out"]) == (3, [1, 3], why)
    assert (spec["trainers"], spec["pservers"]) == (2, 2)
    assert spec["pserver_hosts"] == ["10.1.0.1", "10.1.0.3"]
    assert [(process["role"], process["rank"]) for process in spec["processes"]] == [("pserver", 1), ("trainer", 1)]
    assert {process["node"] for process in spec["all_processes"]} == {1, 3}


def test_only_members_get_keys_and_every_pserver_admits_only_their_trainers() -> None:
    files = make_keys(launch().among([1, 2]))
    assert sorted(files) == [1, 2]
    assert sorted(files[1]) == ["ca.pem", "pserver-0.json", "tls.pem", "trainer-0.json"]
    assert "trainer-1" in files[1]["pserver-0.json"]
    assert "trainer-2" not in files[1]["pserver-0.json"]


@pytest.mark.parametrize(("role", "setting"), [("pserver", "PSERVERS"), ("trainer", "TRAINERS")])
def test_a_role_without_a_process_left_is_an_error(role: str, setting: str) -> None:
    with pytest.raises(NodeError) as raised:
        launch(**{setting: 1}).among([1, 2, 3])
    assert f"no {role}" in str(raised.value)
    assert "node[1-3]" in str(raised.value)


def test_an_engine_without_pservers_needs_none() -> None:
    part = launch(ENGINE="none").among([2])
    assert placed(part, "trainer") == [(2, 0)]


def test_a_conf_without_any_trainer_is_wrong_whichever_nodes_take_part() -> None:
    with pytest.raises(ConfigError):
        launch(TRAINERS_PER_NODE=0)


def test_under_move_the_others_have_the_processes_of_missing_nodes_under_their_ranks() -> None:
    part = launch(ON_NODE_LOSS="move").among([1, 2, 3])
    assert placed(part, "pserver") == [(1, 0), (1, 1), (2, 2), (3, 3)]
    assert placed(part, "trainer") == [(1, 1), (2, 0), (2, 2), (3, 3)]
    two = launch(ON_NODE_LOSS="move", PSERVERS=["10.0.0.0", "10.0.0.3"]).among([2, 3])
    assert placed(two, "pserver") == [(2, 0), (3, 1)]
    spec = two.spec(two.nodes[0], job="JOB", run="0001", addresses={2: "c", 3: "d"}, lead=None).to_json()
    assert (spec["pserver_hosts"], spec["pservers"], spec["trainers"]) == (["c", "d"], 2, 4)


def test_addresses_of_pservers_are_in_order_of_their_ranks_wherever_they_run() -> None:
    hosts = [Host("a"), Host("b", trainers=2), Host("c", roles=("trainer",)), Host("d")]
    part = launch(HOSTS=hosts, ON_NODE_LOSS="move").among([1, 2, 3])
    assert placed(part, "pserver") == [(1, 1), (3, 0), (3, 2)]
    addresses = {1: "b", 2: "c", 3: "d"}
    spec = part.spec(part.nodes[0], job="JOB", run="0001", addresses=addresses, lead=None).to_json()
    assert spec["pserver_hosts"] == ["d", "b", "d"]


def test_a_process_that_no_other_node_may_run_prevents_a_start_without_its_own() -> None:
    hosts = [Host("a"), Host("b", roles=("trainer",))]
    with pytest.raises(NodeError, match=r"not all processes can run on node1: pserver0: no other node") as caught:
        launch(HOSTS=hosts, ON_NODE_LOSS="move").among([1])
    assert "--set ON_NODE_LOSS=fail" in (caught.value.hint or "")


def test_trainers_with_shards_do_not_start_where_their_shards_are_missing() -> None:
    part = launch(ON_NODE_LOSS="move", SHARDS=["data/*"]).among([1, 3])
    assert placed(part, "trainer") == placed(part, "pserver") == [(1, 0), (3, 1)]


def test_trainers_start_where_copies_of_their_shards_were_found() -> None:
    def shards_in_specs(part: LaunchPlan) -> list[tuple[Any, Any]]:
        facts: Any = {"job": "JOB", "run": "0001", "addresses": dict.fromkeys(range(4), "a"), "lead": None}
        specs = [part.spec(node, **facts, machines=dict.fromkeys(range(4), "m")) for node in part.nodes]
        return [(one.shard_copies, place.shards) for one, place in zip(specs, specs[0].places or (), strict=True)]

    whole = launch(ON_NODE_LOSS="move", SHARDS=["data/*"], SHARD_COPIES=2)
    part = whole.with_shard_copies({1: [0], 3: [2]}).among([1, 3])
    assert placed(part, "trainer") == [(1, 0), (1, 1), (3, 2), (3, 3)]
    patterns = ("data/*",)
    assert shards_in_specs(part) == [(ShardCopies(patterns, (0,)), (0, 1)), (ShardCopies(patterns, (2,)), (2, 3))]
    alone = whole.with_shard_copies({1: [], 3: [2]}).among([1, 3])  # node1 has none: it was dispatched to before
    assert placed(alone, "trainer") == placed(alone, "pserver") == [(1, 0), (3, 1)]
    assert shards_in_specs(alone) == [(None, (0,)), (None, (1,))]
