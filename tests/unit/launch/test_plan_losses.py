"""What `start --plan` says would happen if a node were lost."""

from __future__ import annotations

from typing import Any

from clusterctl.config import Host, from_values
from clusterctl.inventory import build
from clusterctl.launch import plan


def losses(*hosts: str | Host, **values: Any) -> list[Any]:
    settings = from_values({"HOSTS": list(hosts), "ON_NODE_LOSS": "move", **values})
    return plan(settings, build(settings)).describe_losses()


def test_the_processes_of_a_lost_node_go_to_spares_or_else_to_the_holder_of_its_copies() -> None:
    assert losses("a", "b", Host("c", spare=True)) == [
        {"node": 1, "moves": {"pserver1": 2, "trainer1": 2}},
        {"node": 2, "moves": {}},
    ]
    assert losses("a", "b", "c")[0] == {"node": 1, "moves": {"pserver1": 2, "trainer1": 2}}


def test_what_no_other_node_may_run_is_named() -> None:
    found = losses(Host("a", roles="pserver"), Host("b", roles="trainer"))  # type: ignore[arg-type]
    assert found == [{"node": 1, "fails": "trainer0: no other node that is left may run a trainer"}]
    cards = [Host(name, gpus=1) for name in ("a", "b")]
    assert losses(*cards, USE_GPU=True) == [
        {"node": 1, "fails": "trainer1: no node that is left has a GPU that no trainer uses"}
    ]


def test_nothing_is_said_where_processes_do_not_move() -> None:
    assert losses("a", "b", ON_NODE_LOSS="fail") == []


def test_trainers_move_only_to_copies_of_their_shards() -> None:
    (lost,) = losses("a", "b", SHARDS=["train.*"])
    assert lost == {"node": 1, "moves": {"pserver1": 0}, "gives_up": ["trainer1"]}
    both = losses("a", "b", "c", SHARDS=["train.*"], SHARD_COPIES=2)
    assert both == [
        {"node": 1, "moves": {"pserver1": 2, "trainer1": 2}},
        {"node": 2, "moves": {"pserver2": 0, "trainer2": 0}},
    ]
    gpus = [Host(name, gpus=1) for name in ("a", "b", "c")]
    assert losses(*gpus, SHARDS=["train.*"], SHARD_COPIES=2, USE_GPU=True)[0]["gives_up"] == ["trainer1"]


def test_copies_of_shards_are_on_the_next_machines_that_may_train() -> None:
    hosts = [Host("a"), Host("b"), Host("c", roles=("pserver",)), Host("d", spare=True)]
    settings = from_values({"HOSTS": hosts, "TRAINERS_PER_NODE": 2, "SHARDS": ["t*"], "SHARD_COPIES": 3})
    assert [node.shard_copies for node in build(settings).nodes] == [(2, 3), (0, 1), (), (0, 1, 2, 3)]
    assert not any(node.shard_copies for node in build(from_values({"HOSTS": hosts, "SHARD_COPIES": 2})).nodes)
