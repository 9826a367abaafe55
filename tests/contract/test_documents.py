"""Each command declares its JSON documents, and a document with anything else is noticed.

`test_structure.py` compares the documents of whole runs with their declarations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from clusterctl.cli.declarations import app
from clusterctl.common.schema import types_of
from clusterctl.documents.commands import COMMANDS
from contract.documents import problems

FAILED = {"node": 1, "host": "b", "ok": False, "error": {"kind": "node", "message": "m", "node": "node1", "hint": None}}
STOPPED = {
    **{"node": 0, "host": "a", "ok": True, "dir": "/d", "run": "0001", "was": "running", "killed": 0, "leftovers": 0},
    **{"survivors": 1, "left": [{"pid": 5, "command": "c"}], "ports_busy": [7164]},
    "holders": [{"port": 7164, "pid": None, "uid": 0, "name": None}],
}
STOP = {
    **{"schema": "clusterctl/1", "job": "JOB20261121-081530", "survivors": 1, "members": [0, 1], "left_out": []},
    "nodes": [STOPPED, FAILED],
}


def names(command: Any, path: str = "") -> Iterator[str]:
    for word, one in command.commands.items():
        name = f"{path} {word}".strip()
        yield from names(one, name) if hasattr(one, "commands") else [name]


def test_every_command_declares_its_documents() -> None:
    assert set(names(typer.main.get_command(app))) == COMMANDS.keys()


def test_every_declaration_can_be_read() -> None:
    assert [one for kinds in COMMANDS.values() for one in kinds if not types_of(one)] == []
    assert [
        one for name in COMMANDS for one in problems(name, {"schema": "clusterctl/1"}) if "missing" not in one
    ] == []


def test_a_document_as_declared_has_no_problem() -> None:
    assert problems("stop", STOP) == []
    assert problems("stop", {**STOP, "error": FAILED["error"]}) == []
    assert problems("stop", {"schema": "clusterctl/1", "error": FAILED["error"]}) == []
    assert problems("stop", {"schema": "clusterctl/1", "deleted": ["service/a"]}) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"extra": 1}, "`extra` is not declared"),
        ({"nodes": [{**STOPPED, "extra": 1}]}, "`nodes[0].extra` is not declared"),
        (
            {"nodes": [{**STOPPED, "left": [{"pid": 5, "command": "c", "x": 1}]}]},
            "`nodes[0].left[0].x` is not declared",
        ),
        ({"nodes": [{**FAILED, "dir": "/d"}]}, "`nodes[0].dir` is not declared"),
        ({"survivors": "1"}, "`survivors` must be a whole number, not '1'"),
        ({"members": [-1]}, "`members[0]` must be a count, not -1"),
        ({"nodes": [{key: STOPPED[key] for key in STOPPED if key != "dir"}]}, "`nodes[0].error` is missing"),
        ({"error": {**FAILED["error"], "code": 3}}, "`error.code` is not declared"),  # type: ignore[dict-item]
        ({"schema": "clusterctl/2"}, "`schema` is 'clusterctl/2'"),
    ],
)
def test_a_document_that_is_not_as_declared_is_noticed(change: dict[str, Any], problem: str) -> None:
    assert problems("stop", {**STOP, **change}) == [problem]


def test_a_missing_key_is_noticed() -> None:
    assert problems("stop", {key: STOP[key] for key in STOP if key != "survivors"}) == ["`survivors` is missing"]
