"""The devices of a node are dealt to its trainers."""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.common.process_environment import LaunchFacts, deal, environment, inherited_devices
from unit.agent.specs import make_process, make_spec

FOUR = ["0", "1", "2", "3"]
PROCESSES = [{"role": role, "rank": index, "index": index} for role in ("pserver", "trainer") for index in range(2)]
NAMES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")


@pytest.mark.parametrize(
    ("devices", "shares", "dealt"),
    [
        (FOUR, 2, ["0,1", "2,3"]),
        (FOUR, 3, ["0,1", "2", "3"]),
        (FOUR, 6, [*FOUR, "0", "1"]),
        (["2"], 3, ["2", "2", "2"]),
        (["MIG-a", "MIG-b", "MIG-c"], 2, ["MIG-a", "MIG-b"]),
        ([], 2, ["", ""]),
    ],
)
def test_shares_are_even_contiguous_and_in_order(devices: list[str], shares: int, dealt: list[str]) -> None:
    assert [",".join(deal(devices, share, shares)) for share in range(shares)] == dealt


@pytest.mark.parametrize(
    ("value", "devices"),
    [
        (None, None),
        ("", ()),
        ("2, 3", ("2", "3")),
        ("GPU-a,MIG-b", ("GPU-a", "MIG-b")),
        ("0,-1,1", ("0",)),
        ("1,,2", ("1",)),
    ],
)
def test_what_an_account_or_scheduler_allows_is_read_as_cuda_reads_it(
    value: str | None, devices: tuple[str, ...] | None
) -> None:
    assert inherited_devices({} if value is None else {NAMES[0]: value}) == devices


def variables(role: str, index: int, inherited: dict[str, str] | None = None, **spec: Any) -> dict[str, str]:
    made = make_spec(**{"processes": PROCESSES, "trainers": 2, "pservers": 2, **spec})
    facts = LaunchFacts("/j", "/l", 8, (), "7", inherited or {}, {"trainer0": "h:1"})
    env = environment(made, make_process(role, index, index=index), facts)
    return {name: env[name] for name in NAMES if name in env}


def test_trainers_see_their_share_in_the_order_of_nvidia_smi_and_pservers_see_none() -> None:
    dealt = {"gpus": {"devices": FOUR}}
    assert variables("trainer", 1, **dealt) == {NAMES[0]: "2,3", NAMES[1]: "PCI_BUS_ID"}
    assert variables("pserver", 1, **dealt) == {NAMES[0]: ""}


def test_nothing_changes_on_a_node_without_gpus() -> None:
    assert variables("trainer", 0) == {}
    assert variables("trainer", 0, {NAMES[0]: ""}) == {NAMES[0]: ""}
    assert variables("trainer", 0, gpus={"first": 0, "shares": 4}) == {}


def test_env_of_conf_py_wins() -> None:
    env = {NAMES[0]: "3"}
    assert variables("trainer", 0, env=env, gpus={"devices": FOUR}) == env
    assert variables("pserver", 0, env=env, gpus={"devices": FOUR}) == env
    order = {NAMES[1]: "FASTEST_FIRST"}
    assert variables("trainer", 0, env=order, gpus={"devices": FOUR}) == {NAMES[0]: "0,1", **order}


def test_devices_of_an_account_or_scheduler_keep_their_order() -> None:
    inherited = {NAMES[0]: "4,6"}
    assert variables("trainer", 1, inherited, gpus={"devices": ["4", "6"]}) == {NAMES[0]: "6"}


@pytest.mark.parametrize("engine", ["torch", "mpi"])
def test_engines_with_local_ranks_leave_all_devices_to_every_trainer(engine: str) -> None:
    assert variables("trainer", 1, engine=engine, gpus={"devices": FOUR}) == {}
    limited = {"limit": 2, "devices": ["0", "1"]}
    assert variables("trainer", 1, engine=engine, gpus=limited) == {NAMES[0]: "0,1", NAMES[1]: "PCI_BUS_ID"}


def test_nodes_of_one_machine_have_different_shares() -> None:
    beside = {"devices": FOUR, "first": 2, "shares": 4}
    assert [variables("trainer", index, gpus=beside)[NAMES[0]] for index in range(2)] == ["2", "3"]
