"""Findings about GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.check.findings import WARNS, Finding
from clusterctl.check.gpus import gpus
from clusterctl.cluster.answers import GpuReport, check
from clusterctl.common.schema import SchemaError, reader
from clusterctl.config import Host, from_values
from clusterctl.inventory import build

GB = 10**9
USER = {"gpu": 1, "pid": 812, "name": "python", "account": "alice", "memory": 3_200_000_000, "job": None}


def report(count: int = 4, **changes: Any) -> dict[str, Any]:
    gpu = {"uuid": "GPU-1", "name": "NVIDIA A100-SXM4-40GB", "total": 42 * GB, "used": 0, "utilization": 0}
    found = [{"index": at, **gpu} for at in range(count)]
    return {"devices": [str(at) for at in range(count)], "gpus": found, "users": [], "problem": None, **changes}


def findings(found: dict[str, Any] | None, trainers: int = 1, wanted: int | None = None) -> list[Finding]:
    nodes = build(from_values({"HOSTS": [Host("h", gpus=wanted)], "TRAINERS_PER_NODE": trainers})).nodes
    facts: Any = {0: {"gpus": found}}
    return list(gpus(facts, nodes))


def messages(found: dict[str, Any] | None, **job: Any) -> list[str]:
    return [finding.message for finding in findings(found, **job)]


@pytest.mark.parametrize(
    "changes",
    [
        {"devices": None},
        {"gpus": [{"index": -1, "uuid": "GPU-1", "name": "A100"}]},
        {"users": [USER] * 257},
    ],
)
def test_a_malformed_report_is_refused_by_check_and_status(changes: dict[str, Any]) -> None:
    with pytest.raises(SchemaError):
        reader(GpuReport)(report(**changes))
    status = {"job": "JOB20261121-081530", "dir": "/d", "state": "running", "processes": [], "gpus": report(**changes)}
    with pytest.raises(ValueError, match="status: `gpus"):
        check("status", status)
    check("status", {**status, "gpus": report(users=[USER])})


def test_free_gpus_that_are_enough_and_no_gpus_give_no_finding() -> None:
    assert messages(report(), trainers=4, wanted=4) == []
    assert messages(None) == messages(None, wanted=0) == messages(report(0)) == []


def test_a_process_on_a_gpu_is_named_with_its_account_or_job_and_memory() -> None:
    (finding,) = findings(report(users=[USER]))
    assert finding.blocks == WARNS
    assert finding.message == "GPU 1 is in use by pid 812 (python) of alice, 3.2 GB"
    job = {**USER, "job": "JOB20261120-101010", "memory": 24_000_000}
    assert messages(report(users=[job])) == ["GPU 1 is in use by pid 812 (python) of JOB20261120-101010, 24 MB"]
    assert messages(report(users=[USER] * 9))[4:] == ["more uses of its GPUs: 5; --json lists them"]
    hidden = {"gpu": None, "pid": 7, "name": None, "account": None, "memory": None, "job": None}
    assert messages(report(users=[hidden])) == ["a GPU is in use by pid 7"]


@pytest.mark.parametrize(
    ("found", "wanted", "message"),
    [
        (report(2), 4, "conf.py says gpus=4, but nvidia-smi shows 2"),
        (report(0), 1, "conf.py says gpus=1, but nvidia-smi shows none"),
        (None, 2, "conf.py says gpus=2, but nvidia-smi was not found in PATH"),
    ],
)
def test_fewer_gpus_than_conf_py_says_are_reported(found: Any, wanted: int, message: str) -> None:
    assert messages(found, wanted=wanted) == [message]


def test_a_broken_driver_is_reported_once_with_the_way_out() -> None:
    (finding,) = findings(report(0, problem="nvidia-smi exited with code 9"), wanted=4)
    assert (finding.message, "gpus=0" in str(finding.hint)) == ("nvidia-smi exited with code 9", True)


def test_trainers_that_share_gpus_are_reported() -> None:
    assert messages(report(1), trainers=3) == ["3 trainers share 1 GPU"]
    assert messages(report(2), trainers=4) == ["4 trainers share 2 GPUs"]
