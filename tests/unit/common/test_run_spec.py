"""The spec of a run: parsed from JSON and written back, including specs of older and newer versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusterctl.agent.node.runs import need_spec, read_summary
from clusterctl.agent.operations.start import _checked
from clusterctl.common.errors import AgentError
from clusterctl.common.files import read_json, write_json
from clusterctl.common.paths import JobPaths
from clusterctl.common.run_spec import LeadAddress, LeftOut, Recovery, RunSpec, RunSummary, Timing
from clusterctl.common.schema import SchemaError
from unit.agent.specs import make_spec, spec_json

RECORDED = Path(__file__).parent / "recorded"
# : By name, a plan of three hosts, and the spec of its last node as it was before there was a `RunSpec`.
PLANNED: dict[str, Any] = json.loads((RECORDED / "planned_specs.json").read_text())
# : As on that node's disk: in a Python environment, and rolled back once.
OLD: dict[str, Any] = json.loads((RECORDED / "spec.json").read_text())


@pytest.mark.parametrize("value", [OLD, *(case["spec"] for case in PLANNED.values())], ids=["old", *PLANNED])
def test_a_spec_is_written_back_exactly_as_it_was_read(value: dict[str, Any]) -> None:
    written = RunSpec.from_json(value).to_json()
    assert json.dumps(written, sort_keys=True) == json.dumps(value, sort_keys=True)


def test_a_spec_on_a_nodes_disk_is_read_with_its_original_meaning() -> None:
    spec = RunSpec.from_json(OLD)
    assert (spec.job, spec.run, spec.node, spec.members) == ("JOB20261121-081530", "0002", 2, (1, 2))
    assert (spec.lead_node, spec.leads, spec.lead) == (1, False, LeadAddress(host="10.1.0.1", port=8001))
    assert spec.left_out == (LeftOut(node=0, message="cannot be reached"),)
    assert (spec.training.mode, spec.training.trainers, spec.training.pservers) == ("ssp(4)", 4, 2)
    assert (spec.ports.port, spec.ports.ports_num, spec.ports.ports_num_for_sparse) == (8000, 2, 3)
    assert spec.timing == Timing(heartbeat_s=0.5, node_grace_s=12.5, grace_s=3.0)
    assert spec.saving.save_every is not None
    assert (spec.saving.save_every.unit, spec.saving.save_every.n) == ("step", 500)
    assert spec.saving.resume is not None
    assert (spec.saving.resume.step, spec.saving.resume.pass_) == (100, 2)
    assert (spec.limits.memory_limit_mb, spec.limits.open_files) == (4000, 256)
    assert (spec.failures.restarts, spec.failures.on_trainer_loss) == ({"pserver": 1, "trainer": 5}, "wait")
    assert [process.name for process in spec.processes] == ["pserver1", "trainer2", "trainer3"]
    assert spec.processes[2].argv == (f"{spec.venv}/bin/python", "train.py", "--num_passes=2")
    assert (spec.processes[0].ours, spec.processes[2].index) == (True, 1)
    assert (spec.epoch, spec.recover) == (2, Recovery(tag="step-000000500", step=500, left={"2": 480}))
    assert spec.t == 1795336530.25


def test_missing_keys_have_the_meaning_of_versions_without_them() -> None:
    spec = make_spec()
    assert (spec.members, spec.left_out, spec.saving.resume, spec.recover) == ((), (), None, None)
    assert (spec.training.mode, spec.training.security, spec.failures.on_nan) == ("sync", "curve", "warn")
    assert (spec.timing.node_grace_s, spec.timing.grace_s, spec.failures.stall_s) == (30, 10, 600)
    assert (spec.ports.port, spec.ports.ports_num, spec.ports.ports_num_for_sparse) == (7164, 1, 0)
    assert (spec.saving.keep, spec.saving.checkpoints, spec.epoch) == (3, False, 0)
    assert (spec.failures.restarts, spec.failures.on_trainer_loss, spec.failures.whole) == ({}, "fail", False)
    assert (spec.failures.time_limit_s, spec.limits.memory_limit_mb, spec.limits.open_files) == (None, None, None)


def test_keys_of_newer_versions_are_kept_at_every_level() -> None:
    value = {**OLD, "later": [1], "lead": {**OLD["lead"], "name": "x"}}
    spec = RunSpec.from_json(value).replace(epoch=3)
    assert spec.to_json() == {**value, "epoch": 3}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"port": "7164"}, "`port` must be a whole number, not '7164'"),
        ({"job": None}, "`job` must be a string, not None"),
        ({"members": [0, "1"]}, "`members[1]` must be a whole number, not '1'"),
        ({"env": {"A": 1}}, "`env.A` must be a string, not 1"),
        ({"lead": {"host": "10.0.0.1"}}, "`lead.port` is missing"),
        ({"processes": [{"role": "trainer", "rank": 0, "index": 0, "argv": [1]}]}, "`processes[0].argv[0]` must be"),
        ({"seed": "x" * 1000}, f"`seed` must be a whole number, not '{'x' * 59}..."),
    ],
)
def test_a_wrong_type_is_an_error_that_names_the_key_and_what_was_expected(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SchemaError) as raised:
        RunSpec.from_json(spec_json(**changes))
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize("key", ["job", "run", "node"])
def test_the_keys_that_identify_a_run_are_required(key: str) -> None:
    with pytest.raises(SchemaError, match=f"`{key}` is missing"):
        RunSpec.from_json({name: value for name, value in OLD.items() if name != key})


def test_a_spec_in_a_message_must_be_valid() -> None:
    assert _checked(OLD) == RunSpec.from_json(OLD)
    with pytest.raises(AgentError, match="malformed spec of the run: `port` must be a whole number"):
        _checked({**OLD, "port": None})


def test_a_spec_on_disk_is_read_or_missing_or_an_error_naming_the_file(tmp_path: Path) -> None:
    run = JobPaths(tmp_path).run("0001")
    run.dir.mkdir(parents=True)
    assert read_summary(run) is None
    run.spec.write_text("")  # as after a power cut
    assert read_summary(run) is None
    with pytest.raises(AgentError, match="missing or damaged"):
        need_spec(run)
    write_json(run.spec, OLD)
    assert need_spec(run) == RunSpec.from_json(read_json(run.spec))
    assert read_summary(run) == RunSummary.from_json(read_json(run.spec))
    write_json(run.spec, {**OLD, "members": None})
    with pytest.raises(AgentError, match=r"spec\.json is not the spec of a run: `members` must be an array"):
        need_spec(run)
    assert read_summary(run) is None
    write_json(run.spec, {**OLD, "port": "damaged"})
    with pytest.raises(AgentError, match="`port` must be a whole number"):
        need_spec(run)
    assert read_summary(run) == RunSummary.from_json(read_json(run.spec))


def test_processes_that_move_here_are_started_as_their_role_says_and_are_counted_on() -> None:
    values = {
        "node": 2,
        "members": [0, 1, 2],
        "hosts": ["h0", "h1", "h2"],
        "pserver_hosts": ["h0", "h1"],
        "processes": [{"role": "trainer", "rank": 2, "index": 0}],
        "all_processes": [
            {"role": "pserver", "rank": 0, "node": 0},
            {"role": "pserver", "rank": 1, "node": 1},
            {"role": "trainer", "rank": 1, "node": 1},
            {"role": "trainer", "rank": 2, "node": 2},
        ],
        "programs": {"pserver": {"argv": ["serve"], "ours": True}, "trainer": {"argv": ["train"], "ours": False}},
    }
    spec = make_spec(**values).with_moved({"pserver1": 2, "trainer1": 2})
    started = [(one.name, one.index, one.argv, one.ours) for one in spec.processes if one.name != "trainer2"]
    assert started == [("pserver1", 0, ("serve",), True), ("trainer1", 1, ("train",), False)]
    assert spec.pserver_hosts == ("h0", "h2")
    assert [one.node for one in spec.all_processes] == [0, 2, 2, 2]
    assert spec.with_moved({"pserver1": 2, "trainer1": 2}) == spec
    away = spec.with_moved({"pserver1": 0, "trainer1": 2})
    assert [one.name for one in away.processes] == ["trainer2", "trainer1"]
    assert away.pserver_hosts == ("h0", "h0")
