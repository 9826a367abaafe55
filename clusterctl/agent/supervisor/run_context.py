"""The part of a supervisor that its helpers share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable, NamedTuple, Protocol

from clusterctl.agent.event_loop import EventLoop
from clusterctl.agent.lead.messages import Report
from clusterctl.agent.supervisor.child import Child
from clusterctl.common.events import Event, FailureFacts
from clusterctl.common.paths import RunPaths
from clusterctl.common.run_spec import RunSpec


class EventRecorder(Protocol):
    def __call__(self, event: Event, child: Child | None = None, /) -> None: ...


class Fail(Protocol):
    def __call__(self, message: str, child: Child | None = None, facts: FailureFacts | None = None, /) -> None: ...


class RunContext(NamedTuple):
    """One run on this node: its files, its spec, the supervisor's event loop, and ways to report.

    `record` appends to the event log, about the node or a process; `forward` appends an event that a process reported.
    `send` sends a report to the lead; `fail` reports a failure that ends the run. `is_over` is true once all processes
    are being ended. `spec` is the one that the supervisor was started with: its epoch and recovery may be older than
    those of the run.
    """

    run: RunPaths
    spec: RunSpec
    loop: EventLoop
    record: EventRecorder
    forward: Callable[[Mapping[str, Any], Child], None]
    send: Callable[[Report], None]
    fail: Fail
    is_over: Callable[[], bool]
