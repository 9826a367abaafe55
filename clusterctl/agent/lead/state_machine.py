"""The lead's decisions for the whole run. A pure state machine: reports and the time go in, actions come out.

    gathering -> pservers -> trainers -> running -> finishing -> ended
         any of them -> stopping -> ended
         any of them -> gathering, in a new epoch: some or all processes restart

Failures within the RESTARTS limit lead to restarts. A trainer restarts alone, and its step waits for it. A pserver
restarts with all processes, from the newest checkpoint, if pushes are applied together (sync), else with the trainers.
The first failure beyond the limit stops all processes; processes that end because of that are not causes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from clusterctl.agent.lead import messages
from clusterctl.agent.lead.actions import (
    Action,
    Finish,
    Policy,
    RecordEvent,
    RunWarnings,
    SendOrder,
    run_warning,
    warning,
)
from clusterctl.agent.lead.deadlock import DeadlockDetector
from clusterctl.agent.lead.failure_detector import FailureDetector, suspect_s
from clusterctl.agent.lead.moves import CannotMoveError, Moves, give_up
from clusterctl.agent.lead.process_table import ProcessTable, name_of
from clusterctl.agent.lead.restart_policy import Key, RestartPolicy
from clusterctl.agent.lead.saving.checkpoints import CheckpointRetention, ModelRetention
from clusterctl.agent.lead.saving.copies import CopyPolicy
from clusterctl.agent.lead.saving.saves import SAVE_REPORTS, SaveTracker
from clusterctl.common.events import EndCause, EndedEvent, LostEvent, RunWarning

STOP_MARGIN_S = 20.0
MOST_ATTEMPTS = 4  # to find ports that no other program takes


def some_serve(keys: Collection[Key]) -> bool:
    return any(role != "trainer" for role, _ in keys)


class Lead:
    """`processes` are all (role, rank, node) of the run, `members` the ids of all its nodes, the lead's first.

    `pservers_leave` is true if pservers exit on their own when the trainers do.
    """

    def __init__(
        self,
        processes: Iterable[tuple[str, int, int]],
        members: Sequence[int],
        *,
        now: float,
        node_grace_s: float,
        grace_s: float,
        heartbeat_s: float = 1.0,
        pservers_leave: bool = False,
        retention: CheckpointRetention | None = None,
        models: ModelRetention | None = None,
        copies: CopyPolicy | None = None,
        policy: Policy | None = None,
        warnings: Sequence[RunWarning] = (),
    ) -> None:
        self.phase = "gathering"
        self.epoch = 0
        self._policy = policy or Policy()
        self._table = ProcessTable(processes)
        self._detector = FailureDetector(members, now, suspect_s(heartbeat_s), node_grace_s)
        self._gathered: set[int] = set()  # in this epoch
        self._pservers_leave = pservers_leave
        self._restart_policy = RestartPolicy(self._policy.restarts)
        self._port_trials = 1
        self._deadlocks = DeadlockDetector()
        serving = [self._table.node_of[key] for key in self._table.of_role("pserver")]
        self._saves = SaveTracker(serving, members[0], retention, models, copies, together=self._policy.together)
        self._moves = Moves(self._policy, self._table, self._detector, self._saves, copies)
        self._recover: messages.RecoveryPoint = {"tag": None, "step": 0}
        self._warnings = RunWarnings(warnings)
        self._cause: EndCause | None = None
        self._outcome = "succeeded"
        self._stop_limit_s = grace_s + STOP_MARGIN_S
        self._stop_deadline: float | None = None
        limit_s = self._policy.time_limit_s
        self._time_limit = None if limit_s is None else now + limit_s

    def alive(self, node: int, now: float) -> list[Action]:
        """Note a sign of life of a node's supervisor."""
        if self._detector.receive(node, now) and self.phase != "ended":
            self._saves.copies.back(node)
            return [RecordEvent({"event": "rejoined", "node": node})]
        return []

    def handle(self, node: int, message: messages.Report, now: float) -> list[Action]:
        """Handle a report of a supervisor."""
        if self.phase == "ended" or self._is_late(message) or self._is_refused(node, message):
            return []
        if message["do"] in SAVE_REPORTS:
            did = self._saves.handle(node, message, now, self.phase)
            return self._warnings.take([*did, *self._end_if_idle(now)])
        handler = getattr(self, f"_on_{message['do']}", None)
        return self._warnings.take(handler(node, message, now) if handler is not None else [])

    def processes_on(self, node: int) -> set[Key]:
        """The processes that a node has now."""
        return self._table.on(node)

    def is_moved_from(self, node: int) -> bool:
        """True if the processes of a lost node run elsewhere, or will: it is not listened to any more."""
        return self._policy.on_node_loss == "move" and node in self._detector.lost

    def is_moving(self, node: int) -> bool:
        """True if the processes of a lost node have yet to move."""
        return self._moves.is_pending(node)

    def _is_refused(self, node: int, message: messages.Report) -> bool:
        back = message["do"] == "hello" and message.get("spare") and not self.is_moving(node)
        return self.is_moved_from(node) and not back

    @property
    def _needs_idle(self) -> bool:
        """True if processes may move to nodes that have none any more."""
        return self._policy.on_node_loss == "move" and self.phase not in ("finishing", "stopping")

    def _is_late(self, message: messages.Report) -> bool:
        """Return True if a report is from an earlier epoch or about an earlier attempt."""
        if message.get("stopping") or message.get("new"):
            return False
        return self._table.is_old(message) or message.get("epoch", self.epoch) != self.epoch

    def tick(self, now: float) -> list[Action]:
        """Handle the passing of time: silence, limits, deadlocks."""
        actions: list[Action] = []
        looked = self._detector.look(now, idle_too=self._needs_idle)
        for node, silent_s, over in list(looked) if self.phase != "ended" else ():
            if over:
                why = f"no message from it for {silent_s:.0f} s"
                actions += self._lose(node, why, now, silent_s=round(silent_s, 1))
            else:
                actions.append(RecordEvent({"event": "suspect", "node": node, "silent_s": round(silent_s, 1)}))
        if self._time_limit is not None and now > self._time_limit:
            self._time_limit = None
            message = f"the time limit of {self._policy.time_limit_s:g} s was exceeded"
            actions += self._fail({"kind": "time_limit", "message": message}, now)
        actions += self._move_if_fenced(now)
        if self.phase == "running":
            actions += self._detect_deadlock(now)
        if self._stop_deadline is not None and now > self._stop_deadline:
            actions += self._end()
        return self._warnings.take([*actions, *self._saves.tick(now), *self._end_if_idle(now)])

    def _detect_deadlock(self, now: float) -> list[Action]:
        """Detect a deadlock. Waiting for trainers that are held for a rejoin is not one."""
        over = {("trainer", rank) for rank in {*self._table.ended_well, *self._table.gone}}
        attempts = {key: attempt for key, attempt in self._table.attempts.items() if key not in over}
        actions = self._deadlocks.look({} if self._table.held else attempts, now, self._table.node_of)
        cause = self._deadlocks.cause(now) if self._policy.standstill_fails else None
        return actions if cause is None else [*actions, *self._fail(cause, now)]

    def lose(self, node: int, why: str, now: float, closed_s: float = 0.0) -> list[Action]:
        """Handle the loss of a supervisor whose connection closed `closed_s` ago: for good, or for now if the run waits
        for it.
        """
        return self._warnings.take(self._lose(node, why, now, closed_s=round(closed_s, 3)))

    def _lose(
        self, node: int, why: str, now: float, silent_s: float | None = None, closed_s: float | None = None
    ) -> list[Action]:
        if node in self._detector.absent or self.phase == "ended":
            return []
        if node in self._detector.idle and not self._needs_idle:
            return [*self._saves.copies.leave(node, now), *self._end_if_idle(now)]
        event: LostEvent = {"event": "lost", "node": node, "message": why, "why": why}
        event["silent_s"], event["closed_s"] = silent_s, closed_s
        notes: list[Action] = [RecordEvent(event), *self._saves.copies.leave(node, now)]
        cause: EndCause = {"kind": "node_lost", "node": node, "message": f"node{node} is lost: {why}", "why": why}
        if self.phase not in ("stopping", "finishing") and node in self._detector.here:
            keys = self._table.on(node)
            serves = some_serve(keys)
            if self._policy.on_node_loss == "wait":
                self._detector.wait_for(node)
                return [RecordEvent({**event, "waits": True}), *notes[1:], *self._restart_lost(keys)]
            if self._policy.on_trainer_loss == "shrink" and not serves:
                self._detector.lost.add(node)
                if not self._moves.too_few:
                    return [*notes, *self._shrink(keys, cause, now)]
        if self._policy.on_node_loss == "move" and self.phase != "stopping":
            self._moves.lose(node, cause)
            return notes
        self._detector.lost.add(node)
        return [*notes, *self._fail(cause, now), *self._end_if_idle(now)]

    def _move_if_fenced(self, now: float) -> list[Action]:
        """Move the processes of lost nodes on which none can be left: the guardian there has ended them by then."""
        if self.phase in ("stopping", "ended"):
            self._moves.forget()
        due = self._moves.due(now)
        if not due:
            return []
        keys = {key for node in due for key in self._table.on(node)}
        again = self._restart_together and some_serve(keys)  # also trainers that are done
        keys -= {("trainer", rank) for rank in {*self._table.gone, *(() if again else self._table.ended_well)}}
        cause = next(iter(due.values()))
        stay = self._moves.stranded(keys)
        keys -= stay.keys()
        try:
            left = self._moves.leave(stay, due) if stay else []
            moved = self._moves.move(keys, due, now, back=self._go_back_for(keys))
        except CannotMoveError as exc:
            return self._fail({**cause, "message": f"{cause['message']}; {exc}"}, now)
        rest = self._restart_lost(keys) if keys else [*self._go_on(), *self._end_if_idle(now)]
        return [*left, *moved, *rest]

    # Reports of supervisors.

    def _on_hello(self, node: int, message: messages.HelloReport, now: float) -> list[Action]:
        self._detector.here.add(node)
        actions = self._saves.copies.come(node, message.get("pieces"), now)
        if message.get("spare") and node in self._detector.lost:
            actions += self._moves.take_back(node, now)
        if message.get("new"):
            return [*actions, *self._brief(node)]
        self._gathered.add(node)
        self._table.endpoints.update(message.get("endpoints", {}))
        self._table.keys.update(message.get("keys", {}))
        return [*actions, *self._spawn_if_all_are_here()]

    def _on_keys(self, node: int, message: messages.KeysReport, now: float) -> list[Action]:
        self._table.keys.update(message["keys"])
        order: messages.KeysOrder = {"do": "keys", "keys": dict(self._table.keys)}
        serving = sorted({self._table.node_of[key] for key in self._table.of_role("pserver")})
        return [SendOrder(order, server) for server in serving]

    def _spawn_if_all_are_here(self) -> list[Action]:
        if self.phase != "gathering" or not self._gathered >= self._detector.nodes - self._detector.lost:
            return []
        return self._spawn("pserver")

    def _spawn(self, role: str) -> list[Action]:
        """Start the fresh processes of a role, or of the next role that has any."""
        self._table.waiting = self._table.fresh & self._table.of_role(role)
        if not self._table.waiting:
            return self._spawn("trainer") if role == "pserver" else self._run()
        self.phase = f"{role}s"
        order: messages.SpawnOrder = {"do": "spawn", "epoch": self.epoch, "role": role, **self._table.whereabouts()}
        if role == "pserver" and (places := self._saves.copies.places):
            order["pieces"] = places
        return [self._phase_note(), SendOrder(order)]

    def _phase_note(self) -> RecordEvent:
        return RecordEvent({"event": "phase", "phase": self.phase})

    def _on_ready(self, node: int, message: messages.ReadyReport, now: float) -> list[Action]:
        self._table.endpoints[f"pserver{message['rank']}"] = message["endpoint"]
        self._table.is_up(("pserver", message["rank"]))
        if self.phase != "pservers" or self._table.waiting:
            return []
        return self._spawn("trainer")

    def _on_running(self, node: int, message: messages.RunningReport, now: float) -> list[Action]:
        self._table.is_up((message["role"], message["rank"]))
        return self._run_if_all_do()

    def _run_if_all_do(self) -> list[Action]:
        return self._run() if self.phase == "trainers" and not self._table.waiting else []

    def _run(self) -> list[Action]:
        self.phase = "running"
        self._table.fresh.clear()
        return [self._phase_note(), *self._finish_if_trained()]

    def _on_exited(self, node: int, message: messages.ExitReport, now: float) -> list[Action]:
        key = (message["role"], message["rank"])
        if self.phase in ("stopping", "ended") or message["stopping"]:
            return []
        if message.get("port_taken") and self._port_trials < MOST_ATTEMPTS:
            self._port_trials += 1
            why = f"{name_of(key)} found its port taken; restarting all processes with other ports"
            return [warning(node, why), *self._roll_back(self._table.node_of)]
        well = message["exit_code"] == 0 and not message.get("unfinished")
        if well and key[0] == "trainer":
            self._table.end_well(message)
            left = [SendOrder({"do": "left", "ranks": [key[1]]})] if message.get("unsaid") else []
            return [*left, *self._saves.leave([key[1]]), *self._finish_if_trained()]
        if well and (self.phase == "finishing" or self._pservers_leave):
            return []
        return self._forgive(key, messages.cause_of(message, "exit", node), now)

    def _finish_if_trained(self) -> list[Action]:
        if self.phase != "running" or not self._table.are_trained():
            return []
        self.phase = "finishing"
        return [self._phase_note(), *self._saves.finish(), SendOrder({"do": "finish", "epoch": self.epoch})]

    def _on_failed(self, node: int, message: messages.FailureReport, now: float) -> list[Action]:
        return self._fail(messages.cause_of(message, "node", node), now)

    def _on_stop_wanted(self, node: int, message: messages.StopWantedReport, now: float) -> list[Action]:
        if self.phase == "stopping":
            return []
        return self._stop("stopped", messages.cause_of_stop(message, node), now)

    def _on_rejoin(self, node: int, message: messages.RejoinReport, now: float) -> list[Action]:
        """Restart the trainers of a node that were given up: the user has fixed it."""
        keys = {key for key in self._table.held if self._table.node_of[key] == node}
        self._table.held -= keys
        for key in keys:
            self._restart_policy.forget(key)
        back = {key: RecordEvent(self._table.rejoined(key)) for key in sorted(keys)}
        return [action for key, note in back.items() for action in (note, self._respawn(key, 0.0))]

    def _on_pace(self, node: int, message: messages.PaceReport, now: float) -> list[Action]:
        self._deadlocks.receive((message["role"], message["rank"]), message)
        return []

    def _on_idle(self, node: int, message: messages.IdleReport, now: float) -> list[Action]:
        """Handle a node without processes. If it stopped without an order, it had lost contact with the lead."""
        astray = message.get("stopping") and self.phase != "stopping"
        actions = self._lose(node, "it had lost contact with the lead", now) if astray else []
        if node not in self._detector.awaited:
            self._detector.idle.add(node)
            self._table.served |= self._table.on(node) if not message.get("stopping") else set()
        return [*actions, *self._end_if_idle(now)]

    # Failures that a restart may fix.

    def _forgive(self, key: Key, cause: EndCause, now: float) -> list[Action]:
        """Restart a failed process if RESTARTS allows it and the program has ever worked."""
        if key[0] == "pserver" and self.phase == "pservers" and self._recover.get("tag") and cause["exit_code"] > 0:
            return self._distrust(key, cause, now)
        if cause.get("hopeless"):  # ON_NAN = "fail"
            return self._fail(cause, now)
        if cause.get("fenced"):
            delay_s, count = 0.0, "not counted under RESTARTS"
        else:
            granted_s = None if self._is_hopeless(key, cause) else self._restart_policy.grant(key, now)
            if granted_s is None:
                return self._give_up(key, cause, now)
            delay_s, count = granted_s, self._restart_policy.describe(key)
        note = RecordEvent(self._table.restarting(key, cause, delay_s, count))
        if key[0] == "trainer" and self.phase in ("trainers", "running") and not self._policy.whole:
            return [note, self._respawn(key, delay_s)]
        return [note, *self._roll_back(self._with_others({key}), delay_s)]

    def _is_hopeless(self, key: Key, cause: EndCause) -> bool:
        """True if a program exited on its first attempt before it did anything."""
        began = self._table.attempts[key] > 1 or cause.get("worked", True) or self._policy.whole
        return not began and (cause["exit_code"] > 0 or cause.get("unfinished") == "not_connected")

    def _distrust(self, key: Key, cause: EndCause, now: float) -> list[Action]:
        """Discard a checkpoint that a pserver cannot load, and restart from the one before. A resumed run needs one."""
        tag = self._recover["tag"]
        if tag is not None and not self._saves.checkpoints.discard(tag):
            return self._fail(cause, now)
        words = cause.get("tail") or [cause["message"]]
        note = warning(cause["node"], f"checkpoint {tag} cannot be used by {name_of(key)}: {words[-1]}")
        return [note, *self._roll_back(self._table.node_of)]

    def _on_warning(self, node: int, message: messages.WarningReport, now: float) -> list[Action]:
        return [run_warning(message["kind"], message["message"], node)]

    def _on_state_lost(self, node: int, message: messages.StateLostReport, now: float) -> list[Action]:
        """Roll back for a trainer that has lost its state. If it began from a checkpoint, that one is unusable."""
        key = (message["role"], message["rank"])
        lost = RecordEvent({"event": "state_lost", **self._table.on_node(key), "message": message["message"]})
        if self.phase not in ("trainers", "running"):
            return []
        if self._table.began[key] == message["attempt"] and not self._saves.checkpoints.discard_newest():
            return [lost, *self._fail(messages.cause_of(message, "node", node), now)]
        return [lost, *self._roll_back(self._with_others({key}))]

    def _give_up(self, key: Key, cause: EndCause, now: float) -> list[Action]:
        self._restart_policy.explain(cause, key, now)
        if key[0] == "trainer" and self.phase in ("trainers", "running") and not self._policy.whole:
            if self._policy.on_trainer_loss == "shrink":
                return self._shrink({key}, cause, now)
            if self._policy.on_trainer_loss == "wait":
                self._table.held.add(key)
                message = f"{cause['message']}; the run is waiting for start --rejoin"
                held = RecordEvent({"event": "held", **self._table.on_node(key), "message": message})
                return [held, *self._saves.leave([key[1]])]
        return self._fail(cause, now)

    def _shrink(self, keys: Collection[Key], cause: EndCause, now: float) -> list[Action]:
        """Continue without these trainers."""
        left = give_up(keys, self._table, self._saves, lambda key: cause["message"])
        return [*left, *self._go_on()] if self._table.of_role("trainer") else self._fail(cause, now)

    def _go_on(self) -> list[Action]:
        """Enter the next phase if nothing is missing for it any more."""
        return [*self._spawn_if_all_are_here(), *self._run_if_all_do(), *self._finish_if_trained()]

    def _restart_lost(self, keys: Collection[Key]) -> list[Action]:
        """Restart the processes of a lost node: where they are now, or when it returns; the orders are kept for it."""
        if self._go_back_for(keys):
            return self._roll_back(self._with_others(keys))
        return self._respawn_trainers(keys)

    def _go_back_for(self, keys: Collection[Key]) -> bool:
        """True if the loss of these processes leads to a roll back."""
        return bool(keys) and (self._policy.whole or self.phase != "running" or some_serve(keys))

    def _respawn_trainers(self, keys: Collection[Key]) -> list[Action]:
        """Restart the trainers among `keys` that are neither done nor given up."""
        trainers = sorted(self._table.of_role("trainer") & set(keys))
        return [self._respawn(key, 0.0) for key in trainers if key[1] not in self._table.ended_well]

    def _respawn(self, key: Key, delay_s: float) -> SendOrder:
        self._detector.idle.discard(self._table.node_of[key])
        self._saves.come_back(key)
        return SendOrder(self._table.respawn(key, delay_s, self.epoch), self._table.node_of[key])

    @property
    def _restart_together(self) -> bool:
        return self._policy.together or self._policy.whole

    def _with_others(self, keys: Collection[Key]) -> Collection[Key]:
        """The processes to restart with these: all, or the trainers and those that are not up yet."""
        if self._restart_together:
            return self._table.node_of
        return {*keys, *self._table.fresh, *self._table.of_role("trainer")}

    def _roll_back(self, keys: Collection[Key], delay_s: float = 0.0) -> list[Action]:
        """Enter a new epoch: restart these processes from the newest checkpoint."""
        self.epoch += 1
        self.phase = "gathering"
        self._table.roll_back(keys, but_done=not self._restart_together)
        for known in (self._gathered, self._detector.idle):
            known.clear()
        newest = self._saves.go_back(forget_logs=self._policy.together)
        self._recover = {**newest, "left": self._table.left()}
        if self._table.moved and newest["tag"]:
            pieces = self._saves.checkpoints.files(newest["tag"], self._detector.lost)
            if pieces:
                self._recover["pieces"] = [piece.to_json() for piece in pieces]
        event = self._table.rolled_back(self.epoch, self._recover)
        return [self._phase_note(), RecordEvent(event), SendOrder(self._again(delay_s))]

    def _again(self, delay_s: float) -> messages.AgainOrder:
        attempts = {name_of(key): self._table.attempts[key] for key in sorted(self._table.fresh)}
        order: messages.AgainOrder = {
            "do": "again",
            "epoch": self.epoch,
            "attempts": attempts,
            "in_s": delay_s,
            "recover": self._recover,
        }
        if self._table.moved:
            order["moved"] = {name_of(key): node for key, node in sorted(self._table.moved.items())}
        return order

    def _brief(self, node: int) -> list[Action]:
        """Give a supervisor that replaces one its orders."""
        if self.phase == "stopping":
            return [SendOrder({"do": "stop", "cause": self._cause}, node)]
        if self.phase == "gathering":
            return [SendOrder(self._again(0.0), node)]
        return self._respawn_trainers(self._table.on(node))

    # Endings.

    def _fail(self, cause: EndCause, now: float) -> list[Action]:
        return [] if self.phase in ("stopping", "ended") else self._stop("failed", cause, now)

    def _stop(self, outcome: str, cause: EndCause, now: float) -> list[Action]:
        if self.phase == "finishing" and self._are_idle():  # only copies are missing
            return self._end()
        self.phase, self._outcome, self._cause = "stopping", outcome, cause
        self._stop_deadline = now + self._stop_limit_s
        self._detector.give_up_waiting()  # nodes that join later are ordered to stop
        note = RecordEvent({"event": "phase", "phase": "stopping", "cause": cause})
        return [note, SendOrder({"do": "stop", "cause": cause}), *self._end_if_idle(now)]

    def _end_if_idle(self, now: float) -> list[Action]:
        if self.phase not in ("stopping", "finishing") or not self._are_idle():
            return []
        if self.phase == "finishing" and self._saves.copies.waits(now):
            return self._saves.copies.tell(now)
        return self._end()

    def _are_idle(self) -> bool:
        """True if no node has anything to do. A pserver of a node that was lost has perhaps not saved the model."""
        unsaved = self._table.of_role("pserver") - self._table.served if not self._policy.whole else ()
        return self._detector.all_idle() and not (unsaved and self.phase == "finishing")

    def _end(self) -> list[Action]:
        self.phase, self._stop_deadline = "ended", None
        missing = sorted(self._detector.nodes - self._detector.idle)
        ended: EndedEvent = {"event": "ended", "state": self._outcome, "cause": self._cause, "not_heard_of": missing}
        if self._outcome == "succeeded":
            ended["warnings"] = self._saves.doubts(self._table.last_words.values())
        return [
            *self._saves.copies.unfinished(),
            RecordEvent(ended),
            SendOrder({"do": "end", "state": self._outcome, "cause": self._cause}),
            Finish(self._outcome),
        ]
