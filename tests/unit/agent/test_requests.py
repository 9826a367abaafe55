"""Requests are read before any operation meets them: a malformed one is refused by the name of its field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clusterctl.common.errors import AgentError
from clusterctl.common.requests import REQUESTS, read_request
from clusterctl.common.schema import required_keys
from clusterctl.errors import UsageError
from contract.verdicts import JOB, REQUESTED
from support.processes import processes_with_environment, wait_until
from unit.agent.nodes import ask

OF_NO_TYPE = {"x": [[]]}
HARMFUL: list[dict[str, Any]] = [
    {"op": "exec", "script": ["touch", "here"]},
    {"op": "stop", "ref": "a\0b"},
    {"op": "adopt", "job": "../other", "node": 0, "nodes": 1},
    {**REQUESTED["dispatch"], "op": "dispatch", "nonce": "../../x"},
    {**REQUESTED["verify_checkpoint"], "op": "verify_checkpoint", "tag": ".."},
]


@pytest.mark.parametrize("op", REQUESTS)
def test_a_wrong_value_or_a_missing_key_of_any_request_is_refused_by_its_name(op: str) -> None:
    request = {"op": op, **REQUESTED[op]}
    assert read_request({**request, "of_a_newer_version": OF_NO_TYPE}).keys() == {*request, "of_a_newer_version"}
    for field in {*request, "silence_s", "stay", "hold", "over"} - {"op"}:
        with pytest.raises(AgentError, match=f"the request {op} is malformed: `{field}[.`]") as caught:
            read_request({**request, field: OF_NO_TYPE})
        assert caught.value.kind == "usage"
    for field in required_keys(REQUESTS[op]) - {"op"}:
        with pytest.raises(AgentError, match=f"`{field}` is missing"):
            read_request({key: value for key, value in request.items() if key != field})


@pytest.mark.parametrize("message", [None, [], "status", {}, {"op": None}, {"op": ["status"]}, {"op": "x" * 1000}])
def test_what_is_no_request_is_refused(message: object) -> None:
    with pytest.raises(AgentError, match="the agent does not know") as caught:
        read_request(message)
    assert caught.value.kind == "usage"
    assert len(str(caught.value)) < 100


def files(home: Path) -> list[str]:
    return sorted(str(path) for path in home.rglob("*") if "/lib/" not in str(path))


def test_a_refused_request_leaves_nothing_behind(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / f"root/{JOB}").mkdir(parents=True)
    ask(home, {"op": "jobs"})
    before = files(home)
    for request in HARMFUL:
        with pytest.raises(UsageError, match=f"the request {request['op']} is malformed: `"):
            ask(home, request)
        assert files(home) == before
        assert wait_until(lambda: not processes_with_environment("HOME", str(home)))
