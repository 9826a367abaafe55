"""JSON documents, events, files and messages of runs have exactly the keys and types of values that were recorded.

`python -m contract.record DIRECTORY --learn`, in `tests/`, learns a difference that is wanted; its diff belongs to
the change.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from contract.messages import declared
from contract.record import KNOWN, misdeclared, record, structures, unknown
from contract.shapes import merged, misfits, structure

RUNS = ("sync", "failed", "killed", "stopped", "outer", "none", "paddle")


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_run_shows_and_writes_what_was_recorded(name: str, tmp_path: Path) -> None:
    values = record([name], tmp_path / "recorded")
    found = structures(values)
    assert unknown(found, json.loads(KNOWN.read_text())) == []
    assert misdeclared(values) == []
    if name == "sync":
        assert {"lead report exited", "lead order end", "wire CCPS 2 PUSH", "wire CCPS 2 OK to PULL"} <= found.keys()


def test_messages_between_supervisors_are_declared_as_recorded() -> None:
    assert unknown(declared(), json.loads(KNOWN.read_text())) == []


def test_a_structure_names_what_is_new_missing_or_of_another_type() -> None:
    known = structure([{"a": 1, "list": [{"x": 1}, {"x": 2, "y": None}]}, {"a": 1, "list": [], "b": {"node3": "text"}}])
    fine = [{"a": 5, "list": [{"x": 7}]}, {"a": 5, "list": [], "b": {"node0": ""}}]
    assert [line for one in fine for line in misfits(structure([one]), known, "")] == []
    wrong = {"a": 1.5, "list": [{"y": None, "z": 1}], "c": True}
    assert list(misfits(structure([wrong]), known, "doc")) == [
        "doc.a: float, not int",
        "doc.c: new",
        "doc.list[].z: new",
        "doc.list[].x: missing",
    ]


def test_merging_structures_gives_that_of_all_values() -> None:
    values = [{"a": 1}, {"a": None, "b": [1]}, {"b": ["x"]}, [{"c": 1}], "text"]
    for cut in range(1, len(values)):
        assert merged(structure(values[:cut]), structure(values[cut:])) == structure(values)
