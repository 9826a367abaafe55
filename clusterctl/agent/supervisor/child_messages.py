"""The messages and exits of this node's processes: checked, recorded, and passed on to the lead."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Mapping
from typing import Any, Callable

from clusterctl.agent.lead.saving.messages import SavedReport
from clusterctl.agent.supervisor.checkpoints import CheckpointKeeper
from clusterctl.agent.supervisor.child import Child, process_of
from clusterctl.agent.supervisor.exits import (
    NOT_CONNECTED,
    NOT_LEFT,
    ExitClassifier,
    describe_exit,
    found_port_taken,
)
from clusterctl.agent.supervisor.launcher import Launcher
from clusterctl.agent.supervisor.run_context import RunContext
from clusterctl.agent.supervisor.watchdog import Watchdog
from clusterctl.common.events import Exit
from clusterctl.common.manifest import check_receipt, check_state_receipt
from clusterctl.common.safe_json import is_whole
from clusterctl.common.schema import typed

MOST_METRICS = 200  # of a process; each is in every state that the supervisor writes
MOST_NAME = 200  # characters
Metrics = dict[str, "list[float | None]"]  # [last, lowest, highest]: the last may be NaN or infinite, the others not


def add_values(metrics: Metrics, values: Mapping[str, float]) -> None:
    """Add the numbers that a process logged. Integers beyond the range of floats are left out."""
    for name, value in values.items():
        if len(name) > MOST_NAME or (name not in metrics and len(metrics) >= MOST_METRICS):
            continue
        try:
            last = float(value)
        except OverflowError:
            continue
        _, low, high = metrics.get(name, (None, None, None))
        if math.isfinite(last):
            low, high = last if low is None else min(low, last), last if high is None else max(high, last)
        metrics[name] = [last, low, high]


WORKED_S = 60.0  # a program that ran for so long has done something, even if it never sent a message
BY_TERM = (-signal.SIGTERM, 128 + signal.SIGTERM)  # exit codes
TERM_FOR_ALL_S = 0.5
FROM_PROCESSES = ("ready", "step", "pass", "log", "saved", "cut", "nan", "state_lost", "warning")
REPORTED_BY = {"cut": "pserver", "state_lost": "trainer"}  # to the lead
LONGEST_NAME = 200  # of an exception
GOODBYES = ("done", "leaving")
OURS_IN_EVENTS = ("v", "t", "node", "seq", "role", "rank", "attempt", "do", "complete")
FIGURES = ("pass", "passes", "step", "loss", "samples_per_s", "compute", "wait", "wire", "apply_s", "send_s")
#: Counts that pservers report: pushes by staleness, and for each sparse table rows, look-ups and so on.
COUNTS = ("staleness", "tables", "lost")
#: What a pserver reports only while trainers wait for others.
PASSING = ("awaits", "awaited", "waiting", "awaits_s")


class ChildMessages:
    """A process's messages are untrusted: they cannot end the supervisor or pass for an event of clusterctl."""

    def __init__(
        self,
        context: RunContext,
        launcher: Launcher,
        checkpoints: CheckpointKeeper,
        classifier: ExitClassifier,
        watchdog: Watchdog,
    ) -> None:
        self._context = context
        self._launcher = launcher
        self._checkpoints = checkpoints
        self._classifier = classifier
        self._watchdog = watchdog

    def receive(self, child: Child, message: Mapping[str, Any]) -> None:
        """Handle one message of a process."""
        self._watchdog.receive(child, message)
        self._classifier.receive(child, message)
        if message["event"] == "connected":
            child.connected = True
        elif message["event"] == "uncaught":
            child.uncaught = str(message.get("kind"))[:LONGEST_NAME]
        elif message["event"] in GOODBYES and is_whole(message.get("pushes")):
            child.goodbye, child.pushes = message["event"], message["pushes"]
            losses = message.get("losses")
            child.pushed = message["pushed"] if isinstance(message.get("pushed"), bool) else None
            child.losses = (
                losses if isinstance(losses, list) and len(losses) == 2 and all(map(is_whole, losses)) else []
            )
        if message["event"] not in FROM_PROCESSES:
            return
        event = {key: value for key, value in message.items() if key not in OURS_IN_EVENTS}
        try:
            self._take(child, event)
        except (AttributeError, KeyError, IndexError, OverflowError, TypeError, ValueError) as exc:
            problem = f"malformed {event['event']} event: {exc!r}"
            self._context.record({"event": "log", "level": "error", "message": problem}, child)

    def _take(self, child: Child, event: dict[str, Any]) -> None:
        kind = event["event"]
        if isinstance(event.get("line"), str):
            child.printed(event["line"])
        if child.role == "trainer":
            self._launcher.running(child)
        if kind == "ready":
            if child.role == "pserver" and child.state == "starting":
                self._launcher.ready(child, [int(port) for port in event["ports"]])
            return
        if kind in ("cut", "state_lost"):
            if child.role == REPORTED_BY[kind]:
                self._checkpoints.report(child, event)
            return
        if kind == "warning":
            self._warn(child, str(event["kind"]), str(event["message"]))
            return
        child.worked = True
        if kind == "step":
            for name in PASSING:
                child.progress.pop(name, None)
        if kind in ("step", "pass"):
            event = {name: value for name, value in event.items() if name not in FIGURES or is_number(value)}
            child.progress.update({name: event[name] for name in (*FIGURES, *COUNTS, *PASSING) if name in event})
        elif kind == "log" and "values" in event:
            event["values"] = {str(name): value for name, value in dict(event["values"]).items() if is_number(value)}
            child.progress["values"] = event["values"]
            add_values(child.progress.setdefault("metrics", {}), event["values"])
            self._checkpoints.log(child, event)
        elif kind == "saved":
            checked = check_state_receipt if child.role == "trainer" else check_receipt
            about = {"do": "saved", **process_of(child), "node": self._context.spec.node}
            self._context.send(typed(SavedReport, {**checked(event, child.rank), **about}))
        self._context.forward(event, child)

    def _warn(self, child: Child, kind: str, message: str) -> None:
        """Pass a warning of the run on to the lead; under a lead that does not know such a thing, record it here."""
        if self._context.spec.failures.takes_warnings:
            self._context.send({"do": "warning", "kind": kind, "message": message})
        else:
            self._context.record({"event": "log", "level": "warning", "message": message}, child)

    def ended(self, child: Child, then: Callable[[], None]) -> None:
        """Report the exit of a process, and call `then`.

        If TERM ended it and we did not send it, this takes a moment. A scheduler or a shutdown that ends everything on
        a machine sends us TERM, too; then the run is stopped rather than failed.
        """

        def report() -> None:
            self.exited(child)
            then()

        unasked = child.state != "stopped" and child.next_attempt == child.attempt and not self._context.is_over()
        if unasked and child.exit_code in BY_TERM:
            self._context.loop.after(TERM_FOR_ALL_S, report)
        else:
            report()

    def exited(self, child: Child) -> None:
        """Record the exit of a process and report it to the lead."""
        assert child.exit_code is not None
        if child.role == "trainer" and child.exit_code == 0:
            self._launcher.running(child)
        is_over, replaced = self._context.is_over(), child.next_attempt > child.attempt
        expected = is_over or child.state == "stopped" or replaced
        unfinished = None if expected else self._unfinished(child)
        ending = "failed" if child.exit_code or unfinished else "succeeded"
        if is_over or not replaced:  # a process that is replaced stays "restarting", unless the run stops meanwhile
            child.state = "stopped" if expected else ending
        news = self._describe(child, child.exit_code, expected, unfinished)
        self._context.record({"event": "exited", **news}, child)
        self._context.send({"do": "exited", **process_of(child), "t": time.time(), **news})

    def _unfinished(self, child: Child) -> str | None:
        """The reason why a trainer's exit with code 0 is a failure: the others would wait for it forever."""
        if child.role != "trainer" or child.exit_code != 0 or not self._context.spec.trains_with_ours or child.goodbye:
            return None
        return NOT_LEFT if child.connected else NOT_CONNECTED

    def _describe(self, child: Child, exit_code: int, expected: bool, unfinished: str | None) -> Exit:
        failed = (exit_code != 0 or unfinished is not None) and not expected
        news: Exit = {
            "exit_code": exit_code,
            "stopping": expected,
            "message": describe_exit(exit_code),
            "tail": [],
            "worked": child.worked or child.lived_s(time.time()) > WORKED_S,
            "pushes": child.pushes,
        }
        if failed:
            lines = child.last_lines()
            news = typed(Exit, {**news, **lines, **self._classifier.explain(child, lines["tail"], unfinished)})
        if failed and child.connected:
            news["uncaught"] = child.uncaught
        if failed and self._launcher.has_port(child) and found_port_taken(news["tail"]):
            news["port_taken"] = True
        if child.goodbye:
            news["pushed"], news["losses"] = child.pushed, child.losses
        if exit_code == 0 and child.goodbye == "leaving":
            news["unsaid"] = True
        return news


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
