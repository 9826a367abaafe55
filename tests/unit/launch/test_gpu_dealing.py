"""How the GPUs of machines are dealt, and the warnings of `start` about them."""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.config import Host, from_values
from clusterctl.inventory import build
from clusterctl.launch import LaunchPlan, plan
from clusterctl.launch.gpus import check_gpus, dealing

TWO = {"devices": ["0", "1"], "problem": None}
NONE = {**TWO, "devices": None}


def launch(*gpus: int | None, **values: Any) -> LaunchPlan:
    hosts = [Host(f"10.0.0.{at}", gpus=one) for at, one in enumerate(gpus)]
    settings = from_values({"HOSTS": hosts, "TRAINERS_PER_NODE": 2, **values})
    return plan(settings, build(settings))


def answers(*pools: str, devices: Any = TWO) -> Any:
    return {at: {"devices": {**devices, "pool": pool}} for at, pool in enumerate(pools)}


def dealt(launch: LaunchPlan, answers: Any) -> list[Any]:
    gpus = [dealing(node, launch, answers) for node in launch.nodes]
    return [one and one.to_json() for one in gpus]


def messages(launch: LaunchPlan, answers: Any) -> list[tuple[tuple[int, ...], str]]:
    return [(finding.nodes, finding.message) for finding in check_gpus(launch, answers)]


def test_a_node_of_its_own_deals_by_itself_and_specs_of_nodes_without_gpus_do_not_change() -> None:
    assert dealt(launch(None, None), answers("a", "b")) == [None, None]
    assert dealt(launch(None, None), answers("a", "a", devices=NONE)) == [None, None]


def test_nodes_on_one_machine_share_its_gpus_unless_conf_py_says_how_many_they_have() -> None:
    shares = [{"first": 0, "shares": 4}, {"limit": 1}, {"first": 2, "shares": 4}, None]
    assert dealt(launch(None, 1, None, None), answers("a", "a", "a", "b")) == shares


@pytest.mark.parametrize(
    ("run", "wanted"),
    [
        (launch(2), []),
        (launch(None), []),
        (launch(None, USE_GPU=True, TRAINERS_PER_NODE=3), [((0,), "3 trainers share 2 GPUs")]),
        (launch(2, TRAINERS_PER_NODE=3), [((0,), "3 trainers share 2 GPUs")]),
        (launch(None, TRAINERS_PER_NODE=3), []),
        (launch(2, TRAINERS_PER_NODE=3, ENV={"CUDA_VISIBLE_DEVICES": "0"}), []),
    ],
)
def test_trainers_that_share_gpus_are_a_warning_if_conf_py_wants_gpus(run: LaunchPlan, wanted: Any) -> None:
    assert messages(run, answers("a")) == wanted


def test_trainers_of_all_nodes_of_a_machine_count_once() -> None:
    assert messages(launch(None, None, USE_GPU=True), answers("a", "a")) == [((0, 1), "4 trainers share 2 GPUs")]


def test_a_broken_driver_is_a_warning() -> None:
    broken = {"devices": None, "problem": "nvidia-smi exited with code 9"}
    assert messages(launch(None), answers("a", devices=broken)) == [((0,), "nvidia-smi exited with code 9")]


def test_the_plan_shows_the_gpus_that_conf_py_names() -> None:
    described = launch(4, None).describe("JOB20261121-081530")
    visible = [(p["role"], p["rank"], p["env"].get("CUDA_VISIBLE_DEVICES")) for p in described if p["node"] == 0]
    assert visible == [("pserver", 0, ""), ("trainer", 0, "0,1"), ("trainer", 1, "2,3")]
    assert not any("CUDA_VISIBLE_DEVICES" in p["env"] for p in described if p["node"] == 1)
