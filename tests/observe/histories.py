"""Runs as their nodes' event logs tell them, with the shapes of real ones that a fake cluster recorded.

They are runs of an older version: their texts stay as they are here, whatever the messages of today say, and the
fields that took the place of these texts are missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from clusterctl.observe.why.first_cause import Explanation, explain
from clusterctl.observe.why.node_report import NodeReport
from observe.rewording import as_written_now, assert_wording_does_not_matter

START_T = 1795314000.0
UP_S = 2.0  # until all processes run

Message = dict[str, Any]


def traceback(error: str, *frames: str) -> list[str]:
    """A program's last lines, in which it raised `error`."""
    files = frames or ("train.py",)
    shown = [line for file in files for line in (f'  File "/job/{file}", line 7, in main', "    f()")]
    return ["Traceback (most recent call last):", *shown, error]


class History:
    """A run of a pserver and a trainer on each node, of which the first leads; times are seconds since its start.

    `skew_s` says how far ahead a node's clock is; what `why` measures of it is right unless `measured_s` says else.
    """

    def __init__(
        self, nodes: int = 4, skew_s: Mapping[int, float] | None = None, measured_s: Mapping[int, float] | None = None
    ) -> None:
        self.nodes = range(nodes)
        self.skew_s = skew_s or {}
        self.measured_s = self.skew_s if measured_s is None else measured_s
        self.answers: dict[int, Message] = {}
        for node in self.nodes:
            self.answers[node] = {"state": "running", "events": [], "outputs": []}
        self.state = "running"
        self._began()

    def note(self, at: float, on: int, event: str, **more: Any) -> Message:
        """An event in the log of node `on`."""
        t = START_T + at + self.skew_s.get(on, 0.0)
        whole = {"v": 1, "t": t, "node": on, "event": event, **more}
        self.answers[on]["events"].append(whole)
        return whole

    def _began(self) -> None:
        self.note(0.0, 0, "phase", phase="pservers")
        for node in self.nodes:
            about = {"role": "pserver", "rank": node, "attempt": 1}
            self.note(0.02, node, "spawned", pid=100 + node, **about)
            self.note(0.6, node, "ready", endpoint=f"10.0.0.{node}:7164", **about)
        self.note(0.7, 0, "phase", phase="trainers")
        for node in self.nodes:
            self.note(0.72, node, "spawned", pid=200 + node, role="trainer", rank=node, attempt=1)
        self.note(UP_S, 0, "phase", phase="running")

    def step(self, at: float, step: int, **more: Any) -> None:
        """All trainers are there."""
        for node in self.nodes:
            self.note(at, node, "step", step=step, role="trainer", rank=node, attempt=1, **{"pass": 0}, **more)

    def saved(self, at: float, step: int) -> None:
        self.note(at, 0, "saved", tag=f"step-{step:09d}", step=step, complete=True, checkpoint=True)

    def exit(
        self, at: float, process: str, code: int, tail: Sequence[str] = (), *, attempt: int = 1, **more: Any
    ) -> Message:
        """A process ends by itself, or of a signal; each process `x3` is on node 3."""
        role, rank = process[:-1], int(process[-1])
        words = f"ended with exit code {code}" if code >= 0 else f"was ended by signal {-code}"
        words += " (segmentation fault)" if code == -11 else ""
        news = {"exit_code": code, "stopping": False, "message": words, "tail": list(tail)[-20:], "worked": at > UP_S}
        about = {"role": role, "rank": rank, "attempt": attempt}
        return self.note(at, rank, "exited", **{**news, "step": None, **about, **more})

    def restarting(self, at: float, exited: Message, in_s: float = 1.0) -> None:
        about = {name: exited[name] for name in ("role", "rank", "message", "exit_code")}
        attempt = exited["attempt"] + 1
        event = self.note(at, 0, "restarting", attempt=attempt, in_s=in_s, count="restart 1 of 3", **about)
        event["node"] = exited["node"]
        rest = {"role": exited["role"], "rank": exited["rank"], "attempt": attempt}
        self.note(at + in_s, exited["node"], "spawned", pid=300, **rest)

    def fail(self, at: float, cause: Message | None, state: str = "failed", silent: Sequence[int] = ()) -> History:
        """The lead stops everybody because of `cause`: an event of a process, or what else it had for one."""
        if cause and "exit_code" in cause:
            kept = ("role", "rank", "attempt", "t", "exit_code", "stopping", "message", "tail", "worked", "node")
            cause = {"kind": "exit", **{name: cause[name] for name in kept}}
        self.note(at, 0, "phase", phase="stopping", cause=cause)
        self.stop_all(at + 0.05, silent)
        self.end(at + 0.3, cause, state, silent)
        return self

    def stop_all(self, at: float, silent: Sequence[int] = ()) -> None:
        """Every process that lives is ended."""
        for node in self.nodes:
            gone = {(e["role"], e["rank"]) for e in self.answers[node]["events"] if e["event"] == "exited"}
            for role, code in (("trainer", -15), ("pserver", 143)):
                if node not in silent and (role, node) not in gone:
                    news = {"exit_code": code, "stopping": True, "message": "stopped", "tail": [], "worked": True}
                    self.note(at, node, "exited", **news, step=None, role=role, rank=node, attempt=1)

    def end(self, at: float, cause: Message | None, state: str, silent: Sequence[int] = ()) -> None:
        self.state = state
        for node in self.nodes:
            if node in silent:
                continue
            more = {"not_heard_of": sorted(silent)} if node == 0 else {}
            self.note(at, node, "ended", state=state, cause=cause, **more)
            self.answers[node]["state"] = state

    def killed(self, node: int, at: float, **more: Any) -> None:
        """The supervisor of a node dies without a last word."""
        self.answers[node].update(state="lost", seen=START_T + at + self.skew_s.get(node, 0.0), **more)

    def explain(
        self, state: str | None = None, silent: Mapping[int, str] | None = None, *, reword: bool = True
    ) -> Explanation:
        """What `why` concludes; of the run as it is, and of the same run with all of our texts reworded."""
        silent = silent or {}
        reports = [
            NodeReport(node, -self.measured_s.get(node, 0.0), 0.001, self.answers[node])
            for node in self.nodes
            if node not in silent
        ]
        found = explain(reports, 0, silent, state or self.state)
        if reword:
            now = [replace(report, answer=as_written_now(report.answer)) for report in reports]
            assert_wording_does_not_matter(now, 0, silent, state or self.state, found)
        return found
