"""The part of a supervisor that its helpers share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Protocol

from clusterctl.agent.event_loop import EventLoop
from clusterctl.agent.supervisor.child import Child
from clusterctl.common.paths import RunPaths
from clusterctl.common.run_spec import RunSpec

Message = dict[str, Any]


class Record(Protocol):
    def __call__(self, event: Message, child: Child | None = None, /) -> None: ...


class Fail(Protocol):
    def __call__(self, message: str, child: Child | None = None, about: Message | None = None, /) -> None: ...


@dataclass(frozen=True)
class RunContext:
    """One run on this node: its files, its spec, the supervisor's event loop, and ways to report.

    `record` appends to the event log, of the node or of a process; `send` sends a message to the lead; `fail` tells
    the lead that the run has to end, and why. `is_over` is true once all processes are being ended. `spec` is the one
    that the supervisor was started with: its epoch and recovery may be older than those of the run.
    """

    run: RunPaths
    spec: RunSpec
    loop: EventLoop
    record: Record
    send: Callable[[Message], None]
    fail: Fail
    is_over: Callable[[], bool]
