"""Specs of runs for tests: the JSON of a node, of which a test names only what matters to it."""

from __future__ import annotations

from typing import Any

from clusterctl.common.run_spec import ProcessSpec, RunSpec

NAMES = {"job": "JOB20261121-081530", "run": "0001", "node": 0}


def spec_json(**values: Any) -> dict[str, Any]:
    return {**NAMES, **values}


def make_spec(**values: Any) -> RunSpec:
    return RunSpec.from_json(spec_json(**values))


def make_process(role: str, rank: int, **values: Any) -> ProcessSpec:
    return ProcessSpec.from_json({"role": role, "rank": rank, "index": 0, **values})
