"""The one port of pservers that are the user's own programs."""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.common.run_spec import RunSpec
from clusterctl.config import from_values
from clusterctl.inventory import build
from clusterctl.launch import LaunchPlan, plan
from clusterctl.launch.node_checks import NodeWithPorts, choose_pserver_port

OWN = {"HOSTS": ["10.0.0.0", "10.0.0.1", "10.0.0.2"], "PSERVER_COMMAND": "python ps.py"}


def made(**values: Any) -> LaunchPlan:
    settings = from_values({**OWN, **values})
    return plan(settings, build(settings))


def nodes(*taken: list[int], network: str = "stack") -> dict[int, NodeWithPorts]:
    return {node: {"taken": ports, "network": f"{network}{node}"} for node, ports in enumerate(taken)}


def test_it_is_the_first_port_that_is_free_on_all_nodes_with_pservers() -> None:
    assert choose_pserver_port(made(), nodes([], [], [])) == (7164, ())
    assert choose_pserver_port(made(), nodes([7164], [7164, 7166], [7165])) == (7167, ())
    assert choose_pserver_port(made(PSERVERS=2), nodes([7164], [], [7165])) == (7165, ())
    assert choose_pserver_port(made(PORT=9000, ENGINE="none"), nodes([9000], [], [])) == (9001, ())


@pytest.mark.parametrize("values", [{"PSERVER_COMMAND": None}, {"ENGINE": "paddle"}])
def test_other_pservers_choose_their_own(values: dict[str, Any]) -> None:
    assert choose_pserver_port(made(**values), nodes([7164], [], [])) == (None, ())


def test_where_pservers_must_have_different_ports_there_is_a_warning() -> None:
    port, (finding,) = choose_pserver_port(made(PSERVERS_PER_NODE=2, PSERVERS=2), nodes([], [], []))
    assert (port, finding.check, finding.nodes) == (None, "pserver_port", (0, 1))
    assert "several pservers share a machine" in finding.message
    shared: dict[int, NodeWithPorts] = {node: {"taken": [], "network": "one"} for node in range(3)}
    assert choose_pserver_port(made(), shared)[1][0].nodes == (0, 1, 2)
    assert choose_pserver_port(made(PSERVERS=1), shared) == (7164, ())
    port, (finding,) = choose_pserver_port(made(), nodes(list(range(7164, 7264)), [], []))
    assert port is None
    assert "no port in 7164..7227 is free on all nodes" in finding.message


def test_it_is_in_the_specs_only_if_there_is_one() -> None:
    launch = made()
    about: Any = {"job": "JOB20261121-081530", "run": "0001", "addresses": dict.fromkeys(range(3), "h"), "lead": None}
    spec = launch.spec(launch.nodes[1], **about, pserver_port=7167)
    assert (spec.ports.port, spec.ports.pserver_port) == (7164, 7167)
    assert RunSpec.from_json(spec.to_json()) == spec
    assert "pserver_port" not in launch.spec(launch.nodes[1], **about).to_json()
