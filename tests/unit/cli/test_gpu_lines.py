"""GPUs on the screens of `check` and `status`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterctl.cli.commands.check import _gpus
from clusterctl.cli.screen.gpu_lines import cells, user_lines

GB = 10**9
USER = {"gpu": 1, "pid": 812, "name": "python", "account": "alice", "memory": 3 * GB, "job": None}


def report(*gpus: tuple[str, int | None, int | None], devices: list[str] | None = None) -> dict[str, Any]:
    found = [{"name": name, "total": total, "used": used} for name, total, used in gpus]
    return {"gpus": found, "devices": [str(at) for at in range(len(gpus))] if devices is None else devices}


def lines(*reports: Any) -> list[str]:
    shown: Any = SimpleNamespace(facts={node: {"gpus": found} for node, found in enumerate(reports)})
    return _gpus(shown)


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (report(*[("A100", 42 * GB, 0)] * 4), "4 x A100, 42.0 GB free each"),
        (report(("A100", 42 * GB, 2 * GB), ("A100", 42 * GB, 0)), "2 x A100, at least 40.0 GB free"),
        (report(("A100", 42 * GB, 0)), "1 x A100, 42.0 GB free"),
        (report(("GB10", None, None)), "1 x GB10, memory unknown"),
        (report(("H100", GB, 0), devices=["MIG-a", "MIG-b"]), "1 x H100, 1.0 GB free, divided into 2 instances"),
        (report(*[("A100", GB, 0)] * 2, devices=["1"]), "2 x A100, 1.0 GB free each; trainers may use 1"),
        (report(("A100", GB, 0), devices=[]), "1 x A100, 1.0 GB free; trainers may use none"),
    ],
)
def test_check_describes_the_gpus_of_a_node(found: dict[str, Any], line: str) -> None:
    assert lines(found) == [f"node 0        {line}"]


def test_nodes_with_the_same_gpus_share_a_line_and_nodes_without_have_none() -> None:
    a100 = ("A100", 42 * GB, 0)
    assert lines(report(a100), None, report(a100, ("T4", 16 * GB, 0)), report(), report(a100)) == [
        "nodes 0,2,4   1 x A100, 42.0 GB free each",
        "node 2        1 x T4, 16.0 GB free",
    ]


def test_status_shows_the_devices_of_a_trainer_and_its_memory() -> None:
    assert cells({"gpus": ["0", "1"], "gpu_memory": 2 * GB}) == {"gpus": "0,1", "gpu mem": "2.0 GB"}
    assert cells({"gpus": ["MIG-3b1c8e52-7f04-5a9d"]}) == {"gpus": "MIG-3b1c8e52...", "gpu mem": ""}
    assert cells({}) == {"gpus": "", "gpu mem": ""}


def test_status_names_who_else_uses_the_gpus() -> None:
    broken = {"problem": "nvidia-smi did not answer within 5 s", "users": []}
    nodes = [{"node": 0, "gpus": {"problem": None, "users": [USER] * 9}}, {"node": 1, "gpus": broken}, {"node": 2}]
    first, *_, more, problem = user_lines(nodes)
    assert first == "node0: GPU 1 is also in use by pid 812 (python) of alice, 3.0 GB"
    assert (more, problem) == ("node0: more uses of its GPUs: 1", f"node1: {broken['problem']}")
