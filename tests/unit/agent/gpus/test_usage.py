"""The devices that trainers may use, and whose processes use them."""

from __future__ import annotations

import getpass
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.agent.gpus.usage import add_gpus, choose, find_devices, inspect_gpus
from clusterctl.agent.operations.start import _renew
from clusterctl.cluster.answers import FoundDevices, GpuReport
from clusterctl.common.files import read_json
from clusterctl.common.paths import JobPaths
from clusterctl.common.run_spec import RunSpec, RunSummary
from clusterctl.common.schema import reader
from support import nvidia_smi as recorded
from support.processes import wait_for_environment, wait_until
from unit.agent.specs import make_spec

VISIBLE = "CUDA_VISIBLE_DEVICES"
MIB = 1 << 20
JOB = "JOB20261121-081530"
OTHER = {"CLUSTERCTL_JOB_DIR": "/elsewhere/JOB20261120-101010", "CLUSTERCTL_RUN": "0001"}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory of PATH with an nvidia-smi."""
    monkeypatch.delenv(VISIBLE, raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    return tmp_path / "bin"


@pytest.fixture
def started() -> Iterator[Any]:
    children = []

    def start(program: str = "input()", **environment: str) -> int:
        child = subprocess.Popen(
            [sys.executable, "-S", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        children.append(child)
        wait_for_environment(child.pid)
        return child.pid

    yield start
    for child in children:
        child.kill()
        child.communicate()


@pytest.mark.parametrize(
    ("found", "allowed", "limit", "chosen"),
    [
        (None, None, None, None),
        (("0", "1"), None, None, ("0", "1")),
        (("0", "1"), None, 1, ("0",)),
        (("0", "1"), None, 0, ()),
        (None, None, 2, ("0", "1")),
        (("0", "1"), ("1",), None, ("1",)),
        (None, ("4", "6"), None, ("4", "6")),
        (None, ("4", "6"), 1, ("4",)),
        (("0", "1"), (), None, None),
        (("0", "1"), (), 2, ()),
    ],
)
def test_conf_py_overrides_nvidia_smi_and_the_account_limits_both(
    found: Any, allowed: Any, limit: int | None, chosen: Any
) -> None:
    assert choose(found, allowed, limit) == chosen


def test_nvidia_smi_is_asked_only_if_the_answer_counts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reader(FoundDevices)(find_devices(None))["devices"] is None
    recorded.A100.install(path)
    assert find_devices(0)["devices"] == []
    assert inspect_gpus(0) is None
    assert recorded.calls(path) == []
    assert find_devices(None)["devices"] == ["0", "1", "2", "3"]
    monkeypatch.setenv(VISIBLE, "2,3")
    assert find_devices(None)["devices"] == ["2", "3"]
    assert recorded.calls(path) == ["-L"]


def test_nodes_that_see_the_same_gpus_agree_on_their_pool(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded.A100.install(path)
    pool = find_devices(None)["pool"]
    assert find_devices(None)["pool"] == pool
    recorded.H100.install(path)
    assert find_devices(None)["pool"] != pool
    monkeypatch.setenv(VISIBLE, "2,3")
    assert find_devices(None)["pool"] not in (pool, None)


def test_a_broken_driver_is_reported_and_conf_py_counts(path: Path) -> None:
    recorded.NO_DRIVER.install(path)
    assert find_devices(None)["devices"] is None
    assert "couldn't communicate" in find_devices(2)["problem"]
    assert find_devices(2)["devices"] == ["0", "1"]
    found = reader(GpuReport)(inspect_gpus(None))
    assert found is not None
    assert (found["gpus"], "couldn't communicate" in str(found["problem"])) == ([], True)


def test_users_have_their_name_account_and_job(path: Path, started: Any) -> None:
    ours = started(CLUSTERCTL_ROLE="trainer", CLUSTERCTL_RANK="0", **OTHER)
    plain = started(HOME="/")
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    recorded.A100.with_users((0, ours, 100), (1, plain, 200), (3, int(gone.stdout), 1)).install(path)
    found = inspect_gpus(None)
    assert found is not None
    assert [gpu["index"] for gpu in found["gpus"]] == [0, 1, 2, 3]
    whose = {"name": Path(sys.executable).name[:15], "account": getpass.getuser()}
    assert found["users"] == [
        {"gpu": 0, "pid": ours, "memory": 100 * MIB, "job": "JOB20261120-101010", **whose},
        {"gpu": 1, "pid": plain, "memory": 200 * MIB, "job": None, **whose},
        {"gpu": 3, "pid": int(gone.stdout), "memory": MIB, "job": None, "name": None, "account": None},
    ]


def test_a_process_of_another_account_is_of_no_job_whatever_its_environment_says(
    path: Path, started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = started(CLUSTERCTL_ROLE="trainer", CLUSTERCTL_RANK="0", **OTHER)
    recorded.A100.with_users((0, pid, 100)).install(path)
    monkeypatch.setattr("os.getuid", lambda: 12_345)
    found = reader(GpuReport)(inspect_gpus(None))
    assert found is not None
    assert found["users"][0]["job"] is None


def test_a_node_that_rejoins_on_another_machine_deals_the_gpus_of_that_one(path: Path, tmp_path: Path) -> None:
    recorded.H100_MIG.install(path)
    run = JobPaths(tmp_path / JOB).run("0001")
    run.dir.mkdir(parents=True)
    gone = make_spec(address="127.0.0.1", gpus={"first": 1, "shares": 2, "devices": ["MIG-of-the-other"]})
    _renew(run, gone, {})
    written = RunSpec.from_json(read_json(run.spec)).gpus
    assert written is not None
    assert (written.first, written.shares) == (1, 2)
    assert written.devices == tuple(f"{recorded.MIG}{at:02}" for at in range(3))


def describe(tmp_path: Path, *, live: bool = True, **spec: Any) -> dict[str, Any]:
    answer: dict[str, Any] = {"processes": [{"role": "trainer", "rank": 4 + at, "index": at} for at in range(2)]}
    run = JobPaths(tmp_path / JOB).run("0001")
    summary = RunSummary.from_json({"node": 0, "gpus": {"devices": ["0", "1", "2", "3"]}, **spec})
    add_gpus(run, summary, answer, live=live)
    return answer


def test_a_runs_trainers_have_their_memory_and_others_are_listed(path: Path, tmp_path: Path, started: Any) -> None:
    ours = {
        "CLUSTERCTL_JOB_DIR": str(tmp_path / JOB),
        "CLUSTERCTL_RUN": "0001",
        "CLUSTERCTL_ROLE": "trainer",
        "CLUSTERCTL_RANK": "5",
    }
    parent = started("import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', 'input()'], env={})", **ours)
    children = Path(f"/proc/{parent}/task/{parent}/children")
    assert wait_until(lambda: bool(children.read_text()))
    child = int(children.read_text().split()[0])
    older = started(**{**ours, "CLUSTERCTL_RUN": "0000"})
    recorded.A100.with_users((2, parent, 1000), (3, child, 24), (0, older, 5)).install(path)
    answer = describe(tmp_path)
    assert [process["gpus"] for process in answer["processes"]] == [["0", "1"], ["2", "3"]]
    assert [process.get("gpu_memory") for process in answer["processes"]] == [None, 1024 * MIB]
    assert [(user["pid"], user["job"]) for user in answer["gpus"]["users"]] == [(older, JOB)]
    assert answer["gpus"]["devices"] == ["0", "1", "2", "3"]


def test_a_run_that_is_over_or_has_no_gpus_does_not_ask(path: Path, tmp_path: Path) -> None:
    recorded.A100.install(path)
    over = describe(tmp_path, live=False)
    assert ([process["gpus"] for process in over["processes"]], "gpus" in over) == ([["0", "1"], ["2", "3"]], False)
    hidden = describe(tmp_path, gpus={"limit": 0, "devices": []})
    assert ([process["gpus"] for process in hidden["processes"]], "gpus" in hidden) == ([[], []], False)
    assert recorded.calls(path) == []
