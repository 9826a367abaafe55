"""The specs that a plan produces, compared with recorded ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusterctl.common.run_spec import LeadAddress, LeftOut, ResumePoint, RunSpec
from clusterctl.config import from_values
from clusterctl.inventory import build
from clusterctl.launch import plan
from clusterctl.observe.record.history import settings_of
from support.places import TESTS

NEWER = {"keep_models": 10, "trainer_threads": 1, "takes_warnings": True}  # what later versions add
RECORDED = TESTS / "unit" / "common" / "recorded" / "planned_specs.json"
HOSTS = ["10.0.0.0", "10.0.0.1", "10.0.0.2"]
ADDRESSES = {0: "10.1.0.0", 1: "10.1.0.1", 2: "10.1.0.2"}
# : By name, a plan of three hosts, and the spec of its last node as it was before there was a `RunSpec`.
PLANNED: dict[str, Any] = json.loads(RECORDED.read_text())


def planned(case: dict[str, Any]) -> RunSpec:
    loss = "wait" if case["conf"].get("ON_TRAINER_LOSS") == "wait" else "fail"
    settings = from_values({"HOSTS": HOSTS, "ON_NODE_LOSS": loss, **case["conf"]})
    launch = plan(settings, build(settings), case.get("args", ()))
    launch = launch.among(case["among"]) if "among" in case else launch
    return launch.spec(
        launch.nodes[-1],
        job="JOB20261121-081530",
        run="0002",
        addresses=ADDRESSES,
        lead=LeadAddress.from_json(case["lead"]) if "lead" in case else None,
        left_out=[LeftOut.from_json(node) for node in case.get("left_out", ())],
        resume=ResumePoint.from_json(case["resume"]) if "resume" in case else None,
    )


@pytest.mark.parametrize(
    ("every", "recorded"),
    [
        ("5 passes", {"unit": "pass", "n": 5}),
        (500, {"unit": "step", "n": 500}),
        ("600 s", {"unit": "s", "n": 600}),
        (None, {"unit": "end", "n": 0}),
    ],
)
def test_a_spec_has_the_schedule_of_models_unless_it_is_the_end_of_every_pass(
    every: object, recorded: dict[str, Any] | None
) -> None:
    spec = planned({"conf": {"SAVE_MODEL_EVERY": every}}).to_json()
    assert spec.get("save_model_every") == recorded
    assert ("save_model_every" in spec) == (recorded is not None)


def test_the_settings_in_a_spec_are_shown_as_conf_py_spells_them() -> None:
    conf = {"MODE": "ssp(4)", "SAVE_EVERY": "500 steps", "KEEP_BEST": "auc:max", "KEEP": 5, "KEY_CACHE": True}
    shown = settings_of(planned({"conf": conf}))
    assert {name: shown[name] for name in conf} == {name: str(value) for name, value in conf.items()}
    assert (shown["TRAINERS"], shown["RESTARTS"]) == ("3", "pserver 3, trainer 3")
    assert not {"MODE", "KEEP_BEST", "TIME_LIMIT_S"} & settings_of(planned({"conf": {"ENGINE": "none"}})).keys()


def test_a_spec_has_the_directory_in_which_processes_begin_unless_it_is_that_of_the_job() -> None:
    settings = from_values({"HOSTS": HOSTS})
    launch = plan(settings, build(settings), cwd="/work").with_arguments(["x"]).among([0, 1])
    spec = launch.spec(launch.nodes[1], job="JOB20261121-081530", run="0001", addresses=ADDRESSES, lead=None)
    assert spec.to_json()["cwd"] == "/work"
    assert {process["cwd"] for process in launch.describe("JOB20261121-081530")} == {"/work"}
    assert "cwd" not in planned({"conf": {}}).to_json()


@pytest.mark.parametrize(
    ("conf", "cuts"),
    [
        ({"MODE": "async"}, True),
        ({"MODE": "ssp(2)"}, True),
        ({"MODE": "sync"}, None),
        ({"MODE": "async", "PSERVER_COMMAND": "./server"}, None),
        ({"ENGINE": "torch", "PSERVERS": 0}, None),
    ],
)
def test_outside_sync_a_spec_says_that_pservers_cut_on_the_word_of_the_lead(
    conf: dict[str, Any], cuts: bool | None
) -> None:
    spec = planned({"conf": conf})
    assert spec.to_json().get("server_cuts") is cuts
    assert ("server_cuts" in spec.to_json()) == (cuts is not None)


@pytest.mark.parametrize("case", PLANNED.values(), ids=PLANNED)
def test_a_plan_produces_the_recorded_specs(case: dict[str, Any]) -> None:
    cuts = {"server_cuts": True} if case["spec"]["mode"] != "sync" else {}
    spec, expected = planned(case), {**case["spec"], **NEWER, **cuts}
    assert spec.to_json() == expected
    assert RunSpec.from_json(expected) == spec


def test_the_name_of_a_run_is_in_every_spec_of_its_plan() -> None:
    settings = from_values({"HOSTS": HOSTS})
    launch = plan(settings, build(settings), name="lr-0.1")
    for one in (launch, launch.among([0, 2]), launch.with_arguments(["--x"])):
        spec = one.spec(one.nodes[-1], job="JOB20261121-081530", run="0001", addresses=ADDRESSES, lead=None)
        assert spec.to_json()["name"] == "lr-0.1"
        assert RunSpec.from_json(spec.to_json()).name == "lr-0.1"
    assert "name" not in planned({"conf": {}}).to_json()
