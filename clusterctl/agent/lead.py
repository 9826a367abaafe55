"""The lead decides for the whole run. A pure state machine: what supervisors say and the time go in, actions come out.

    gathering -> pservers -> trainers -> running -> finishing -> ended
         any of them -> stopping -> ended
         any of them -> gathering, when a port that was chosen for a program was taken before it came to it

The first fatal failure stops everybody; a process that ends because of that is no cause of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Optional, Union

from clusterctl.agent.upkeep import Known, Logged, Upkeep

SUSPECT_S = 3.0
STOP_MARGIN_S = 20.0
MOST_ATTEMPTS = 4  # to find ports that nobody else takes
Message = dict[str, Any]


class Tell(NamedTuple):
    """Say `message` to a node's supervisor, or to all (None)."""

    message: Message
    node: Optional[int] = None  # noqa: UP045 - evaluated at run time on python 3.9


class Note(NamedTuple):
    """Record an event in the lead's log."""

    event: Message


class WriteManifest(NamedTuple):
    """Every pserver has written its pieces of `tag`: make it a whole. Of a checkpoint, say `kept` then."""

    tag: str
    receipts: list[Message]
    checkpoint: bool = False


class DropManifests(NamedTuple):
    """Checkpoints before `newest` are none any more, those that `stay` excepted: nodes will be told to remove them."""

    stay: list[str]
    newest: str


class Finish(NamedTuple):
    """The run has ended."""

    state: str


Action = Union[Tell, Note, WriteManifest, DropManifests, Finish]


class Lead:
    """`processes` are all (role, rank, node) of the run, `members` the ids of all its nodes.

    `pservers_leave` says that pservers end by themselves when the trainers do.
    """

    def __init__(
        self,
        processes: Iterable[tuple[str, int, int]],
        members: Iterable[int],
        *,
        now: float,
        node_grace_s: float,
        grace_s: float,
        heartbeat_s: float = 1.0,
        pservers_leave: bool = False,
        upkeep: Upkeep | None = None,
    ) -> None:
        self.phase = "gathering"
        self._node_of = {(role, rank): node for role, rank, node in processes}
        self._waiting = set(self._node_of)  # for this phase's news of each
        self._heard = dict.fromkeys(members, now)
        self._here: set[int] = set()
        self._attempt = 1
        self._gathered: set[int] = set()  # in this attempt
        self._idle: set[int] = set()
        self._suspect: set[int] = set()
        self._lost: set[int] = set()
        self._ended_well: set[int] = set()
        self._endpoints: dict[str, str] = {}
        self._pservers_leave = pservers_leave
        self._receipts: dict[tuple[bool, str], dict[int, Message]] = {}
        self._upkeep = upkeep or Upkeep(3)
        self._cause: Message | None = None
        self._outcome = "succeeded"
        self._node_grace_s = node_grace_s
        self._suspect_s = max(SUSPECT_S, 3 * heartbeat_s)
        self._stop_limit_s = grace_s + STOP_MARGIN_S
        self._stop_deadline: float | None = None

    def _of_role(self, role: str) -> set[tuple[str, int]]:
        return {key for key in self._node_of if key[0] == role}

    def alive(self, node: int, now: float) -> list[Action]:
        """A sign of life of a node's supervisor."""
        self._heard[node] = now
        if node in self._suspect:
            self._suspect.discard(node)
            if node not in self._lost and self.phase != "ended":
                return [Note({"event": "rejoined", "node": node})]
        return []

    def handle(self, node: int, message: Message, now: float) -> list[Action]:
        """What a supervisor said."""
        handler = getattr(self, f"_on_{message['do']}", None)
        late = message.get("attempt", self._attempt) != self._attempt and not message.get("stopping")
        if handler is None or late or self.phase == "ended":
            return []
        actions: list[Action] = handler(node, message, now)
        return actions

    def tick(self, now: float) -> list[Action]:
        """What the passing of time means."""
        actions: list[Action] = []
        for node, heard in self._heard.items():
            if node in self._lost or node in self._idle or self.phase == "ended":
                continue
            if now - heard > self._node_grace_s:
                actions += self.lose(node, f"nothing heard of it for {now - heard:.0f} s", now)
            elif now - heard > self._suspect_s and node not in self._suspect and node in self._here:
                self._suspect.add(node)
                actions.append(Note({"event": "suspect", "node": node, "silent_s": round(now - heard, 1)}))
        if self._stop_deadline is not None and now > self._stop_deadline:
            actions += self._end()
        return actions

    def lose(self, node: int, why: str, now: float) -> list[Action]:
        """A supervisor is gone for good."""
        if node in self._lost or node in self._idle or self.phase == "ended":
            return []
        self._lost.add(node)
        actions: list[Action] = [Note({"event": "lost", "node": node, "message": why})]
        cause = {"kind": "node_lost", "node": node, "message": f"node{node} is lost: {why}"}
        return actions + self._fail(cause, now) + self._end_if_idle()

    # What supervisors say.

    def _on_hello(self, node: int, message: Message, now: float) -> list[Action]:
        self._here.add(node)
        self._gathered.add(node)
        self._endpoints.update(message.get("endpoints", {}))
        if self.phase != "gathering" or len(self._gathered) < len(self._heard):
            return []
        return self._spawn("pserver") if self._of_role("pserver") else self._spawn("trainer")

    def _spawn(self, role: str) -> list[Action]:
        self.phase = f"{role}s"
        self._waiting = self._of_role(role)
        names = [f"pserver{rank}" for _, rank in sorted(self._of_role("pserver"))]
        pservers = [self._endpoints[name] for name in names if name in self._endpoints]
        order = {"do": "spawn", "attempt": self._attempt, "role": role, "pservers": pservers}
        return [self._phase_note(), Tell({**order, "endpoints": dict(self._endpoints)})]

    def _phase_note(self) -> Note:
        return Note({"event": "phase", "phase": self.phase})

    def _on_ready(self, node: int, message: Message, now: float) -> list[Action]:
        self._endpoints[f"pserver{message['rank']}"] = message["endpoint"]
        self._waiting.discard(("pserver", message["rank"]))
        if self.phase != "pservers" or self._waiting:
            return []
        return self._spawn("trainer")

    def _on_running(self, node: int, message: Message, now: float) -> list[Action]:
        self._waiting.discard((message["role"], message["rank"]))
        if self.phase != "trainers" or self._waiting:
            return []
        self.phase = "running"
        return [self._phase_note(), *self._finish_if_trained()]

    def _on_exited(self, node: int, message: Message, now: float) -> list[Action]:
        key = (message["role"], message["rank"])
        if self.phase in ("stopping", "ended") or message["stopping"]:
            return []
        if message.get("port_taken") and self._attempt < MOST_ATTEMPTS:
            return self._try_again(node, f"{key[0]}{key[1]} found its port taken: all start again, with other ports")
        serves = key[0] != "trainer"
        if message["exit_code"] != 0 or (serves and self.phase != "finishing" and not self._pservers_leave):
            return self._fail({"kind": "exit", **_without_order(message), "node": node}, now)
        if key[0] == "trainer":
            self._ended_well.add(key[1])
            return self._finish_if_trained()
        return []

    def _try_again(self, node: int, why: str) -> list[Action]:
        self._attempt += 1
        self.phase = "gathering"
        for known in (self._gathered, self._endpoints, self._ended_well, self._idle):
            known.clear()
        note = Note({"event": "log", "level": "warning", "subject": node, "message": why})
        return [note, self._phase_note(), Tell({"do": "again", "attempt": self._attempt})]

    def _finish_if_trained(self) -> list[Action]:
        if self.phase != "running" or len(self._ended_well) < len(self._of_role("trainer")):
            return []
        self.phase = "finishing"
        return [self._phase_note(), Tell({"do": "finish"})]

    def _on_failed(self, node: int, message: Message, now: float) -> list[Action]:
        return self._fail({"kind": "node", **_without_order(message), "node": node}, now)

    def _on_stop_wanted(self, node: int, message: Message, now: float) -> list[Action]:
        if self.phase == "stopping":
            return []
        return self._stop("stopped", {"kind": "stopped", "message": "stopped by the user"}, now)

    def _on_saved(self, node: int, message: Message, now: float) -> list[Action]:
        tag, checkpoint = message["tag"], bool(message.get("checkpoint"))
        receipts = self._receipts.setdefault((checkpoint, tag), {})
        receipts[message["rank"]] = message
        if len(receipts) < len(self._of_role("pserver")):
            return []
        whole = [receipts[rank] for rank in sorted(receipts)]
        del self._receipts[checkpoint, tag]
        if checkpoint:
            return [WriteManifest(tag, whole, checkpoint)]
        return [WriteManifest(tag, whole), _saved_note(message)]

    def _on_kept(self, node: int, message: Message, now: float) -> list[Action]:
        """The manifest of a checkpoint is in place: older ones may go."""
        tag = message["tag"]
        stay = self._upkeep.add(Known(tag, message["step"], message["steps"]))
        order = {"do": "keep", "tags": stay, "newest": stay[-1], "alone": self._upkeep.full}
        return [_saved_note(message, checkpoint=True), DropManifests(stay, stay[-1]), Tell(order)]

    def _on_logged(self, node: int, message: Message, now: float) -> list[Action]:
        """A trainer logged what KEEP_BEST goes by."""
        self._upkeep.log(message["rank"], Logged(message["step"], message["value"], message["weight"]))
        return []

    def _on_idle(self, node: int, message: Message, now: float) -> list[Action]:
        self._idle.add(node)
        return self._end_if_idle()

    # Endings.

    def _fail(self, cause: Message, now: float) -> list[Action]:
        if self.phase in ("stopping", "ended"):
            return []
        return self._stop("failed", cause, now)

    def _stop(self, outcome: str, cause: Message, now: float) -> list[Action]:
        self.phase, self._outcome, self._cause = "stopping", outcome, cause
        self._stop_deadline = now + self._stop_limit_s
        self._lost |= set(self._heard) - self._here  # nothing was started there; who comes yet is told to end
        note = Note({"event": "phase", "phase": "stopping", "cause": cause})
        return [note, Tell({"do": "stop", "cause": cause}), *self._end_if_idle()]

    def _end_if_idle(self) -> list[Action]:
        if self.phase not in ("stopping", "finishing") or self._idle | self._lost < set(self._heard):
            return []
        return self._end()

    def _end(self) -> list[Action]:
        if self.phase == "ended":
            return []
        self.phase, self._stop_deadline = "ended", None
        missing = sorted(set(self._heard) - self._idle)
        ended = {"event": "ended", "state": self._outcome, "cause": self._cause, "not_heard_of": missing}
        return [Note(ended), Tell({"do": "end", "state": self._outcome, "cause": self._cause}), Finish(self._outcome)]


def _without_order(message: Message) -> Message:
    return {key: value for key, value in message.items() if key != "do"}


def _saved_note(message: Message, **more: bool) -> Note:
    return Note({"event": "saved", "tag": message["tag"], "step": message.get("step"), "complete": True, **more})
