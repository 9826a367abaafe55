"""The warning about host names that other machines cannot use."""

from __future__ import annotations

from typing import Any

from clusterctl.config import from_values
from clusterctl.inventory import build
from clusterctl.launch import LaunchPlan, plan
from clusterctl.launch.node_checks import NamedNode, check_host_names, wants_host_names


def made(**values: Any) -> LaunchPlan:
    settings = from_values({"HOSTS": ["10.0.0.0", "10.0.0.1"], "ENGINE": "paddle", **values})
    return plan(settings, build(settings))


def nodes(*machines: str, local: tuple[int, ...] = (1,)) -> dict[int, NamedNode]:
    return {node: {"machine": f"{name} 0,1", "local_name": node in local} for node, name in enumerate(machines)}


def test_a_loopback_name_matters_only_where_trainers_of_several_machines_meet() -> None:
    (finding,) = check_host_names(made(), nodes("a", "b"))
    assert (finding.nodes, finding.blocks) == ((1,), False)
    assert "/etc/hosts" in finding.hint
    assert check_host_names(made(), nodes("a", "a")) == [], "one machine"
    assert check_host_names(made(), nodes("a", "b", local=())) == []
    assert check_host_names(made(ENV={"PADDLE_WITH_GLOO": "0"}), nodes("a", "b")) == [], "turned off"
    assert check_host_names(made(TRAINERS=1), nodes("a", "b")) == [], "one trainer"
    assert check_host_names(made(ENGINE="clusterctl"), nodes("a", "b")) == []


def test_only_engines_that_meet_make_nodes_resolve_their_names() -> None:
    assert wants_host_names(made())
    assert not wants_host_names(made(ENGINE="torch"))
