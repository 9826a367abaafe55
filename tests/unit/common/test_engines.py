"""The exact environment variables of each engine, and which processes are given a port."""

from __future__ import annotations

import json

import pytest

from clusterctl.common.engines import ENGINES, ports_of
from clusterctl.common.run_spec import ProcessSpec
from unit.agent.specs import make_process, make_spec

PROCESSES = [make_process("pserver", 1), make_process("trainer", 2), make_process("trainer", 3, index=1)]
SCHEDULER = make_process("scheduler", 0)
SPEC = make_spec(address="10.0.0.2", trainers=4, pservers=2, processes=[process.to_json() for process in PROCESSES])
ENDPOINTS = {
    "scheduler0": "10.0.0.1:7164",
    **{f"pserver{rank}": f"10.0.0.{1 + rank}:7165" for rank in range(2)},
    **{f"trainer{rank}": f"10.0.0.{1 + rank // 2}:{7166 + rank % 2}" for rank in range(4)},
}
SERVER, FIRST, SECOND = PROCESSES


def variables(engine: str, process: ProcessSpec, endpoints: dict[str, str] | None = None) -> dict[str, str]:
    values = ENGINES[engine].variables(SPEC, process, endpoints or ENDPOINTS)
    assert all(isinstance(value, str) for value in values.values())
    return values


def test_paddle() -> None:
    common = {
        "PADDLE_TRAINERS_NUM": "4",
        "PADDLE_PSERVERS_IP_PORT_LIST": "10.0.0.1:7165,10.0.0.2:7165",
        "PADDLE_TRAINER_ENDPOINTS": "10.0.0.1:7166,10.0.0.1:7167,10.0.0.2:7166,10.0.0.2:7167",
        "POD_IP": "10.0.0.2",
    }
    assert variables("paddle", SERVER) == {**common, "PADDLE_TRAINER_ID": "1", "PADDLE_PORT": "7165"}
    assert variables("paddle", SECOND) == {**common, "PADDLE_TRAINER_ID": "3", "PADDLE_PORT": "7167"}


@pytest.mark.parametrize("process", PROCESSES)
def test_paddle_processes_meet_at_the_second_port_of_pserver_0(process: ProcessSpec) -> None:
    values = variables("paddle", process, {**ENDPOINTS, "rendezvous0": "10.0.0.1:7170"})
    assert {name: value for name, value in values.items() if "GLOO" in name} == {
        "PADDLE_WITH_GLOO": "1",
        "PADDLE_GLOO_RENDEZVOUS": "3",
        "PADDLE_GLOO_HTTP_ENDPOINT": "10.0.0.1:7170",
    }


def test_the_user_can_turn_gloo_off_as_with_paddles_launcher() -> None:
    spec = SPEC.replace(env={"PADDLE_WITH_GLOO": "0"})
    values = ENGINES["paddle"].variables(spec, FIRST, {**ENDPOINTS, "rendezvous0": "10.0.0.1:7170"})
    assert values["PADDLE_WITH_GLOO"] == "0"


def test_a_paddle_process_finds_itself_in_a_list_of_ipv6_addresses_too() -> None:
    endpoints = {name: end.replace("10.0.0.", "[fd00::").replace(":7", "]:7") for name, end in ENDPOINTS.items()}
    values = variables("paddle", SERVER, endpoints)
    assert f"{values['POD_IP']}:{values['PADDLE_PORT']}" in values["PADDLE_PSERVERS_IP_PORT_LIST"].split(",")


def test_torch() -> None:
    assert variables("torch", SECOND) == {
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "7166",
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
    }
    assert variables("torch", FIRST, {"trainer0": "[fd00::1]:7166"})["MASTER_ADDR"] == "fd00::1"


def test_mpi() -> None:
    assert variables("mpi", SECOND) == {
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "OMPI_COMM_WORLD_NODE_RANK": "1",
    }


@pytest.mark.parametrize(
    ("process", "own"),
    [
        (SCHEDULER, {"DMLC_ROLE": "scheduler"}),
        (SERVER, {"DMLC_ROLE": "server", "DMLC_SERVER_ID": "1"}),
        (SECOND, {"DMLC_ROLE": "worker", "DMLC_WORKER_ID": "3"}),
    ],
)
def test_dmlc(process: ProcessSpec, own: dict[str, str]) -> None:
    assert variables("dmlc", process) == {
        "DMLC_PS_ROOT_URI": "10.0.0.1",
        "DMLC_PS_ROOT_PORT": "7164",
        "DMLC_NUM_SERVER": "2",
        "DMLC_NUM_WORKER": "4",
        "DMLC_NODE_HOST": "10.0.0.2",
        **own,
    }


def test_tensorflow() -> None:
    config = json.loads(variables("tensorflow", SERVER)["TF_CONFIG"])
    assert config["task"] == {"type": "ps", "index": 1}
    assert config["cluster"]["ps"] == ["10.0.0.1:7165", "10.0.0.2:7165"]
    assert config["cluster"]["worker"][3] == "10.0.0.2:7167"
    assert json.loads(variables("tensorflow", SECOND)["TF_CONFIG"])["task"] == {"type": "worker", "index": 3}


@pytest.mark.parametrize(
    ("engine", "with_ports"),
    [
        ("clusterctl", {"pserver0", "pserver1"}),
        ("none", {"pserver0", "pserver1"}),
        ("paddle", {"pserver0", "rendezvous0", "pserver1", "trainer0", "trainer2"}),
        ("torch", {"pserver0", "pserver1", "trainer0"}),
        ("mpi", {"pserver0", "pserver1"}),
        ("dmlc", {"pserver0", "pserver1", "scheduler0"}),
        ("tensorflow", {"pserver0", "pserver1", "trainer0", "trainer2"}),
    ],
)
def test_ports_are_chosen_for_the_processes_that_need_them(engine: str, with_ports: set[str]) -> None:
    zeros = [make_process("pserver", 0), make_process("trainer", 0)]
    candidates = [SERVER, *zeros, FIRST, *([SCHEDULER] if ENGINES[engine].scheduled else [])]
    assert {name for process in candidates for name in ports_of(engine, process)} == with_ports


def test_our_own_pservers_choose_their_own_ports() -> None:
    assert not ports_of("clusterctl", SERVER.replace(ours=True))
