"""Runs as their nodes' event logs record them, with the shapes of real ones from a fake cluster.

Their texts stay as they are here, whatever the messages of today say: `why` concludes nothing from them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from clusterctl.observe.why.first_cause import Explanation, explain
from clusterctl.observe.why.node_report import NodeReport
from unit.observe.rewording import assert_wording_does_not_matter

START_T = 1795314000.0
UP_S = 2.0  # until all processes run
GONE = "its supervisor is gone"
UNANSWERED = re.compile(r"UnreachableError: pserver (\d+)")

#: Fields of a process's end that are also in the cause of the run's.
OF_EXITS = (
    *("role", "rank", "attempt", "t", "exit_code", "stopping", "message", "tail", "worked", "node"),
    *("reason", "limit", "peers", "ours"),
)

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
        peers = [f"pserver{number}" for number in UNANSWERED.findall("\n".join(tail))]
        reason = "segfault" if code == -11 else "out_of_memory" if more.get("oom") else None
        facts = {"reason": reason, "limit": None, "peers": peers, "ours": []}
        about = {"role": role, "rank": rank, "attempt": attempt}
        return self.note(at, rank, "exited", **{**news, **facts, "step": None, **about, **more})

    def stalled(self, at: float, process: str, **more: Any) -> Message:
        """A process makes no step for 20 s; each process `x3` is on node 3."""
        about = {"role": process[:-1], "rank": int(process[-1]), "attempt": 1}
        facts = {"stalled_s": 20.0, "halted": False, "message": "has made no step for 20 s: stalled"}
        return self.note(at, about["rank"], "stalled", **about, **{**facts, **more})

    def output(self, at: float, process: str, lines: Sequence[str]) -> None:
        """A process writes lines, which its node will send; one process of a node has output."""
        rank = int(process[-1])
        empty = {"role": process[:-1], "rank": rank, "attempt": 1, "lines": [], "ours": []}
        outputs = self.answers[rank]["outputs"] = self.answers[rank]["outputs"] or [empty]
        outputs[0]["lines"] += [[START_T + at, line] for line in lines]

    def failure(self, at: float, node: int, message: str, **more: Any) -> Message:
        """Return the cause of a run that ends because a supervisor could not do its part."""
        facts = {"tail": [], "ours": [], "errno": None}
        return {"kind": "node", "message": message, "t": START_T + at, "node": node, **facts, **more}

    def lost(self, at: float, node: int, why: str = "", silent_s: float | None = None, **more: Any) -> Message:
        """The lead gives up a node, because of `why` or its silence. Return this as the cause of the run's end."""
        why = why or f"nothing heard of it for {silent_s:.0f} s"
        self.note(at, 0, "lost", message=why, why=why, silent_s=silent_s, **more)["node"] = node
        return {"kind": "node_lost", "node": node, "message": f"node{node} is lost: {why}", "why": why}

    def lost_lead(self, at: float, node: int, why: str = "", silent_s: float | None = 30.0) -> Message:
        """A node gives up the lead, in the same way."""
        why = why or f"nothing heard of the lead for {silent_s:.0f} s"
        message = f"the lead on node0 is lost: {why}"
        self.note(at, node, "lost", lost_node=0, message=message, why=why, silent_s=silent_s)
        return {"kind": "node_lost", "node": 0, "message": message, "why": why}

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
            cause = {"kind": "exit", **{name: cause[name] for name in OF_EXITS}}
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
                    facts = {"reason": None, "limit": None, "peers": [], "ours": []}
                    self.note(at, node, "exited", **news, **facts, step=None, role=role, rank=node, attempt=1)

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
            assert_wording_does_not_matter(reports, 0, silent, state or self.state, found)
        return found
