"""Specs of runs, and the context that supervisors share with their helpers; a test passes only the values it needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from clusterctl.agent.event_loop import EventLoop
from clusterctl.agent.supervisor.child import Child
from clusterctl.agent.supervisor.run_context import RunContext
from clusterctl.common.paths import JobPaths, RunPaths
from clusterctl.common.run_spec import ProcessSpec, RunSpec

NAMES = {"job": "JOB20261121-081530", "run": "0001", "node": 0}


def spec_json(**values: Any) -> dict[str, Any]:
    return {**NAMES, **values}


def make_spec(**values: Any) -> RunSpec:
    return RunSpec.from_json(spec_json(**values))


def make_process(role: str, rank: int, **values: Any) -> ProcessSpec:
    return ProcessSpec.from_json({"role": role, "rank": rank, "index": 0, **values})


def make_context(
    run: RunPaths | None = None,
    *,
    loop: EventLoop | None = None,
    record: Callable[[Any, Child | None], None] = lambda event, child: None,
    send: Callable[[Any], None] = lambda message: None,
    fail: Callable[[str, Child | None, Any], None] = lambda message, child, facts: None,
    is_over: Callable[[], bool] = lambda: False,
    **values: Any,
) -> RunContext:
    """Return a context; `values` override those of the spec."""
    return RunContext(
        run or JobPaths(Path("JOB")).run("0001"),
        make_spec(**values),
        loop or EventLoop(),
        lambda event, child=None: record(event, child),
        record,
        send,
        lambda message, child=None, facts=None: fail(message, child, facts or {}),
        is_over,
    )
