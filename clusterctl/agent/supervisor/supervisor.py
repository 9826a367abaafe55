"""The supervisor: owns one node's processes of one run, from the lead's first order to the last process's exit.

It runs in a separate session and depends on neither the SSH command that started it nor the control machine.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

from clusterctl.agent.event_loop import EventLoop
from clusterctl.agent.lead.client import LeadClient
from clusterctl.agent.lead.messages import (
    AgainOrder,
    EndOrder,
    FailureReport,
    HelloReport,
    Order,
    Report,
    RespawnOrder,
    lead_lost,
    stop_wanted,
)
from clusterctl.agent.lead.process_table import name_of
from clusterctl.agent.lead.server import LeadServer
from clusterctl.agent.node.checkpoint_files import remove_half_written
from clusterctl.agent.node.jobs import reason_to_stop
from clusterctl.agent.node.ports import kind_of, take_top
from clusterctl.agent.node.runs import need_spec
from clusterctl.agent.supervisor.checkpoints import CheckpointKeeper
from clusterctl.agent.supervisor.child import Child, process_of
from clusterctl.agent.supervisor.child_messages import ChildMessages
from clusterctl.agent.supervisor.event_log import SNAPSHOT_S, EventLog
from clusterctl.agent.supervisor.exits import TIMED_OUT, ExitClassifier, signal_from_outside, system_error
from clusterctl.agent.supervisor.fence import Fence
from clusterctl.agent.supervisor.launcher import Launcher, allow_open_files
from clusterctl.agent.supervisor.orphans import OrphanCleaner, reap_orphans
from clusterctl.agent.supervisor.piece_server import PieceServerProcess
from clusterctl.agent.supervisor.process_keys import ProcessKeys
from clusterctl.agent.supervisor.restart import Restart, recovery
from clusterctl.agent.supervisor.run_context import RunContext
from clusterctl.agent.supervisor.watchdog import LockWatch, Watchdog
from clusterctl.common.curve_keys import peer_keys
from clusterctl.common.events import FailureFacts
from clusterctl.common.files import write_json
from clusterctl.common.paths import JobPaths, RunPaths
from clusterctl.common.procfs import LIVE_STATES, adopt_orphans
from clusterctl.common.run_spec import ProcessSpec, RunSpec
from clusterctl.common.schema import typed

FINISH_LIMIT_S = 300.0
LAST_SAVE_LIMIT_S = 3600.0  # if a trainer did not wait for the last save itself
END_POLL_S = 0.05
LEASE_POLL_S = 0.2
SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
STOPPED: EndOrder = {"do": "end", "state": "stopped", "cause": None}  # as the lead would say
NOT_OVER = ("waiting", "restarting", *LIVE_STATES)


class Supervisor:
    """`spec` is the contents of runs/RUN/spec.json; `lock_fd` holds the lock of the job directory.

    `new` is true if it replaces a supervisor that is gone, in a run that continues.
    """

    def __init__(self, run: RunPaths, spec: RunSpec, lock_fd: int, loop: EventLoop, *, new: bool = False) -> None:
        self.run = run
        self.spec = spec
        self.loop = loop
        self.stopping = False
        self._idle = False
        self._cleared = False
        self._finish_limit_s = FINISH_LIMIT_S
        self._epoch = spec.epoch
        self._entered: int | None = None  # the newest epoch that an order began here
        self._new = new
        self._is_away: Callable[[], bool] = lambda: False
        self.children = [self._new_child(plan, 1) for plan in spec.processes]
        self.event_log = EventLog(run, spec.node, lambda: self.children, loop.now, self._is_lost)
        self._record = self.event_log.record
        forward = self.event_log.forward
        context = RunContext(run, spec, loop, self._record, forward, self._send, self._fail_node, lambda: self.stopping)
        self._context = context
        self._launcher = Launcher(context)
        self._pieces = PieceServerProcess(context)
        self._checkpoints = CheckpointKeeper(context)
        self._watchdog = Watchdog(context, lambda: self.children)
        self._child_messages = ChildMessages(
            context, self._launcher, self._checkpoints, ExitClassifier(context), self._watchdog
        )
        self._orphans = OrphanCleaner(context, self.event_log.count_killed, self._is_helper)
        self._fence = Fence(run, spec, lock_fd)
        self._keys = ProcessKeys(run) if self._fence.leased and spec.training.security == "curve" else None
        if new:
            self.event_log.take_over()
        loop.on_signals(SIGNALS, self._on_signal)
        loop.every(SNAPSHOT_S, LockWatch(run, lock_fd, self._record).look)
        loop.every(SNAPSHOT_S, self.event_log.heartbeat)

    def _new_child(self, plan: ProcessSpec, attempt: int) -> Child:
        return Child(plan, self.loop, self._on_message, self._on_log_error, attempt)

    def _is_helper(self, pid: int) -> bool:
        return pid in (self._fence.pid, self._pieces.pid)

    def begin(self, listener: socket.socket | None) -> None:
        """Join the run. On the lead's node, `listener` is the listening socket."""
        self.lead: LeadServer | LeadClient
        if listener is not None:
            hooks = (self._on_order, self._record, self._checkpoints.change_manifests, self._fence.answered)
            known = (self._checkpoints.complete_models(), self.event_log.warnings)
            self.lead = LeadServer(self.loop, self.run, self.spec, listener, *hooks, *known)
        else:
            assert self.spec.lead is not None
            on = (self._on_order, self._on_lead_lost, self._on_lead_away, self._fence.answered, self._on_moved)
            self.lead = client = LeadClient(self.loop, self.run, self.spec, self.spec.lead, *on)
            self._is_away = lambda: client.is_away
        self._send_hello()

    def _send(self, report: Report) -> None:
        self.lead.send(report)

    def _send_hello(self) -> None:
        self.lead.send(self._hello())

    def _hello(self, *, spare: bool = False) -> HelloReport:
        hello: HelloReport = {"do": "hello", "epoch": self._epoch, "endpoints": self._launcher.endpoints()}
        if self._pieces.port is not None:
            hello["pieces"] = self._launcher.endpoint(self._pieces.port)
        if self._keys is not None:
            hello["keys"] = self._keys.known(child.name for child in self.children)
        if self._new:
            hello["new"], self._new = True, False
        if spare:
            hello["new"], hello["spare"], hello["endpoints"] = True, True, {}
        return hello

    # Orders of the lead.

    def _on_order(self, order: Order) -> None:
        if order["do"] == "respawn" or order["do"] == "finish":
            self._enter(order.get("epoch", self._epoch))
        if order["do"] == "spawn" and not self.stopping:
            self._launcher.update_endpoints(order)
            self._learn_keys(order.get("keys", {}))
            self._spawn(order["role"])
        elif order["do"] == "again" and not self.stopping:
            self._roll_back(order)
        elif order["do"] == "respawn" and not self.stopping:
            self._respawn(order)
        elif order["do"] == "keys":
            self._learn_keys(order["keys"])
        elif order["do"] == "shrink":
            self._send_to_pservers({"cmd": "lost", "ranks": order["ranks"]})
        elif order["do"] == "left":
            self._finish_limit_s = LAST_SAVE_LIMIT_S
            self._send_to_pservers({"cmd": "left", "ranks": order["ranks"]})
        elif order["do"] == "finish":
            self._finish()
        elif order["do"] == "cut":
            self._send_to_pservers({**order, "cmd": "cut"})
        elif order["do"] == "stop":
            self.stop()
        elif order["do"] == "end":
            self._end(order)
        else:
            self._pass_on(order)

    def _pass_on(self, order: Order) -> None:
        """Let the part of the supervisor whose matter it is carry out an order."""
        if order["do"] == "keep" or order["do"] == "drop_models":
            self._checkpoints.carry_out(order)
        elif order["do"] == "copy" or order["do"] == "merge":
            self._pieces.carry_out(order)
        elif order["do"] == "stacks" or order["do"] == "awaited":
            self._watchdog.carry_out(order)

    def _spawn(self, role: str) -> None:
        for child in self.children:
            if child.serves == (role != "trainer") and child.state == "waiting" and not self.stopping:
                self._start(child)

    def _start(self, child: Child) -> None:
        """Start a process, as soon as the lead answers: until then the guardian would kill it."""
        if self._fence.is_open:
            self._launcher.start(child)
            return

        def start() -> None:
            if child in self.children and child.state == "waiting" and not self.stopping:
                self._start(child)

        self.loop.after(LEASE_POLL_S, start)

    def _finish(self) -> None:
        """After all trainers have finished, ask our pservers to exit and end foreign ones, which counts as success."""
        for child in self.children:
            if child.serves and child.alive:
                if child.plan.ours:
                    child.send({"cmd": "finish"})
                else:
                    child.state = "stopped"
                    child.signal(signal.SIGTERM)
        children = list(self.children)
        self.loop.after(self._finish_limit_s, lambda: self._finish_took_too_long(children))
        self._settle()

    def _finish_took_too_long(self, children: list[Child]) -> None:
        for child in children:
            if child.alive and not self.stopping:
                message = f"did not end within {self._finish_limit_s:.0f} s after the last trainer"
                self._fail_node(message, child, TIMED_OUT)

    def stop(self) -> None:
        """Send TERM to all processes, and KILL after the grace."""
        if self.stopping:
            return
        self.stopping = True
        self._terminate(self.children)
        self._settle()

    def _terminate(self, children: Sequence[Child]) -> None:
        children = list(children)
        for child in children:
            if child.alive:
                child.signal(signal.SIGTERM)
            elif child.state in ("waiting", "restarting"):
                child.state = "stopped" if self.stopping else child.state
        self.loop.after(self.spec.timing.grace_s, lambda: self._kill(children))

    # Restarts.

    def _enter(self, epoch: int) -> None:
        """Adopt an epoch that began while this node was away: the lead ignores reports from earlier ones."""
        if epoch > self._epoch:
            self._epoch = epoch
            if self._cleared:
                self._report_idle(stopping=self.stopping)

    def _roll_back(self, order: AgainOrder) -> None:
        """Enter a new epoch: some processes end here, and restart when every node is ready.

        A new supervisor may get the order twice: with all others, and as the answer to its hello.
        """
        if order["epoch"] == self._entered:
            return
        self._epoch = self._entered = order["epoch"]
        self._idle = self._cleared = False
        spec = self.spec.replace(epoch=self._epoch, recover=recovery(self.spec, order["recover"]))
        if not self._adopt(spec.with_moved(order.get("moved", {})), order["attempts"]):
            return
        for child in self.children:
            if child.name not in order["attempts"]:
                child.send({"cmd": "epoch", "epoch": self._epoch})
        self._restart(order["attempts"], order["in_s"], self._restarted)

    def _adopt(self, spec: RunSpec, attempts: Mapping[str, int]) -> bool:
        """Write a changed spec, and expect the processes that have moved here. Return False if that fails."""
        self.spec = spec
        self._launcher.adopt(spec)
        new = attempts.keys() - {child.name for child in self.children}  # not those that are done, or given up
        self.children += [self._new_child(plan, attempts[plan.name] - 1) for plan in spec.processes if plan.name in new]
        try:
            write_json(self.run.spec, spec.to_json())
            if self._keys is not None:
                self._keys.renew(child.name for child in self.children if child.name in attempts)
        except OSError as exc:
            self._fail_node(f"cannot write {self.run.spec}: {exc.strerror}", facts=system_error(exc))
            return False
        return True

    def _learn_keys(self, publics: Mapping[str, str]) -> None:
        """Give the processes of this node the public keys of the others."""
        if self._keys is None or not publics:
            return
        publics = {**publics, **self._keys.known(child.name for child in self.children)}
        try:
            for child in self.children:
                self._keys.complete(child.name, publics)
        except OSError as exc:
            self._fail_node(f"cannot write to {self.run.keys}: {exc.strerror}", facts=system_error(exc))
        self._send_to_pservers({"cmd": "keys", **peer_keys("pserver", publics)})

    def _restarted(self) -> None:
        try:
            self._launcher.choose_ports_again(self._epoch)
        except OSError as exc:
            self._fail_node(str(exc))
            return
        self._send_hello()

    def _respawn(self, order: RespawnOrder) -> None:
        """Restart one process; the others do not notice."""
        self._launcher.update_endpoints(order)
        name = name_of((order["role"], order["rank"]))
        if all(child.name != name for child in self.children):
            spec = self.spec.with_moved({name: self.spec.node})
            if not self._adopt(spec, {name: order["attempt"]}):
                return
            if self._keys is not None:
                self._send({"do": "keys", "keys": self._keys.known([name])})
        self._learn_keys(order.get("keys", {}))
        self._restart({name: order["attempt"]}, order["in_s"], lambda: self._start(self._child(name)))

    def _child(self, name: str) -> Child:
        return next(child for child in self.children if child.name == name)

    def _restart(self, attempts: Mapping[str, int], in_s: float, then: Callable[[], None]) -> None:
        """Replace these processes by new ones, and call `then`."""
        self._idle = self._cleared = False
        old, epoch = [child for child in self.children if child.name in attempts], self._epoch

        def put(ended: Sequence[Child]) -> None:
            renewed = {child.name: self._new_child(child.plan, child.next_attempt) for child in ended}
            self.children = [renewed.get(child.name, child) for child in self.children]
            then()

        restart = Restart(self._context, self._orphans, old, attempts, in_s, lambda: self._epoch != epoch)
        self._terminate(old)
        restart.begin(put)

    def _kill(self, children: list[Child]) -> None:
        for child in children:
            if child.alive:
                self.event_log.count_killed()
                self._record({"event": "log", "message": f"{child.name} ignored TERM; sending KILL"}, child)
                child.signal(signal.SIGKILL)

    # Messages, exits and signals.

    def _on_message(self, child: Child, message: dict[str, Any]) -> None:
        self._child_messages.receive(child, message)

    def _on_log_error(self, child: Child, exc: OSError) -> None:
        self._fail_node(f"cannot write its log: {exc.strerror}", child, system_error(exc))

    def _fail_node(self, message: str, child: Child | None = None, facts: FailureFacts | None = None) -> None:
        """Report a failure other than a process's exit; it ends the run."""
        facts = facts or system_error(None)
        self._record({"event": "log", "level": "error", "message": message, **facts}, child)
        process = {**process_of(child), **child.last_lines()} if child else {}
        self.lead.send(typed(FailureReport, {"do": "failed", "message": message, "t": time.time(), **facts, **process}))

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGCHLD:
            self._reap()
        elif number == signal.SIGUSR1:
            self.lead.send({"do": "rejoin"})
        elif number != signal.SIGHUP:
            self.lead.send(stop_wanted(reason_to_stop(self.run), signal_from_outside(self.run, number)))
            self.stop()
            if self._is_away():
                self._end_when_idle(STOPPED)

    def _reap(self) -> None:
        if not self._idle:
            self._fence.replace_dead()
        for child in self.children:
            if child.poll():
                child.fenced = child.exit_code == -signal.SIGKILL and self._fence.was_closed
                self._child_messages.ended(child, self._settle)
        self._pieces.poll()
        reap_orphans({self._fence.pid, self._pieces.pid or 0, *(child.pid for child in self.children if child.pid)})
        self._settle()

    # Endings.

    def _settle(self) -> None:
        """Clean up leftover processes after the last process has ended."""
        waiting = any(child.alive or child.state in NOT_OVER for child in self.children)
        if not waiting and not self._idle:
            self._idle = True
            self._orphans.clear(self._clear)

    def _clear(self) -> None:
        """Report that no process of the run, and nothing that it was writing, is left on this node."""
        for child in self.children:
            child.close()
        self._launcher.release_ports()
        remove_half_written(self.run)
        self._cleared = True
        self._report_idle(stopping=self.stopping)

    def _report_idle(self, *, stopping: bool) -> None:
        attempts = {child.name: child.attempt for child in self.children}
        self.lead.send({"do": "idle", "epoch": self._epoch, "attempts": attempts, "stopping": stopping})

    def _send_to_pservers(self, command: Mapping[str, Any]) -> None:
        for child in self.children:
            if child.role == "pserver":
                child.send(command)

    def _on_lead_lost(self, why: str, silent_s: float | None, closed_s: float | None) -> None:
        event, cause = lead_lost(self.spec.node, self.spec.lead_node, why, silent_s, closed_s)
        if not self._is_lost():  # else this was recorded
            self._record(event)
        self.stop()
        self._end_when_idle({"do": "end", "state": "failed", "cause": cause})

    def _on_lead_away(self, why: str, silent_s: float) -> None:
        """End all processes: the lead will order restarts if we come back in time, here or on other nodes."""
        if self._fence.leased:
            self._record(lead_lost(self.spec.node, self.spec.lead_node, why, silent_s)[0])
            self._report_idle(stopping=True)  # our messages may get through, though no answer does
        else:
            words = f"{why}; waiting for it to come back"
            self._record({"event": "suspect", "node": self.spec.lead_node, "message": words})
        for child in self.children:
            child.state = "stopped" if child.alive else child.state
        self._terminate(self.children)
        if self.stopping:
            self._end_when_idle(STOPPED)

    def _is_lost(self) -> bool:
        """True if this node cannot reach the lead, and may become a spare at best."""
        return self._fence.leased and self._is_away()

    def _on_moved(self) -> None:
        """End all processes, which run elsewhere now, and join the run as a spare."""
        self._record({"event": "log", "message": "the processes of this node run elsewhere now; it becomes a spare"})
        if self.stopping:
            self._end_when_idle(STOPPED)
        else:
            self._restart({child.name: child.next_attempt + 1 for child in self.children}, 0.0, self._become_spare)

    def _become_spare(self) -> None:
        assert isinstance(self.lead, LeadClient)
        self.children = []
        if self._adopt(self.spec.replace(processes=()), {}):
            self.lead.join_anew(self._hello(spare=True))
            self._settle()

    def _end_when_idle(self, message: EndOrder) -> None:
        if self._cleared:
            self._end(message)
        else:
            self.loop.after(END_POLL_S, lambda: self._end_when_idle(message))

    def _end(self, message: EndOrder) -> None:
        self.lead.let_go()
        if self.spec.leads:  # the lead has recorded the end itself, and waits until all nodes have received it
            self._leave_when_quiet(self.loop.now() + 3.0)
            return
        self._record({"event": "ended", "state": message["state"], "cause": message["cause"]})
        self.loop.after(END_POLL_S, self._leave)

    def _leave_when_quiet(self, deadline: float) -> None:
        assert not isinstance(self.lead, LeadClient)
        if self.lead.quiet() or self.loop.now() > deadline:
            self._leave()
        else:
            self.loop.after(END_POLL_S, lambda: self._leave_when_quiet(deadline))

    def _leave(self) -> None:
        self._pieces.close()
        self.event_log.write_state()
        shutil.rmtree(self.run.keys, ignore_errors=True)
        if self._cleared:  # else the guardian ends the rest
            self._fence.let_go()
        self.loop.stop()


def main(argv: list[str]) -> None:
    """Run a supervisor until the run ends. Arguments: `JOB_DIR RUN LOCK_FD REPORT_FD`, and `new` to join a live run.

    It reports `{"up": {...}}` or `{"error": ..., "kind": ...}`.
    """
    job_dir, run_name, lock_fd, report_fd, *new = argv
    run = JobPaths(Path(job_dir)).run(run_name)
    report = os.fdopen(int(report_fd), "w")
    os.set_inheritable(int(lock_fd), False)
    os.set_inheritable(report.fileno(), False)
    try:
        spec = need_spec(run)
        listener = take_top(spec.address, spec.ports.port) if spec.leads else None
        loop = EventLoop()
        adopt_orphans()
        allow_open_files()
        supervisor = Supervisor(run, spec, int(lock_fd), loop, new=bool(new))
        supervisor.event_log.write_state()  # before the run is reported as started
        port = listener.getsockname()[1] if listener else None
        json.dump({"up": {"pid": os.getpid(), "port": port}}, report)
        report.close()
        supervisor.begin(listener)
        loop.run()
    except BaseException as exc:
        if not report.closed:
            json.dump({"error": str(exc), "kind": kind_of(exc)}, report)
            report.close()
        raise
