"""The supervisor: owns one node's processes of one run, from the lead's first word to the last process's end.

It is a session of its own and needs nobody: not the SSH command that started it, not the control machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from clusterctl.agent import guardian
from clusterctl.agent.child import Child, describe_exit
from clusterctl.agent.chronicle import Chronicle
from clusterctl.agent.engines import ENGINES, Endpoints, has_port, name_of
from clusterctl.agent.environment import NodeFacts, environment
from clusterctl.agent.files import read_json
from clusterctl.agent.leading import LocalLead, RemoteLead, lead_node
from clusterctl.agent.leftovers import Leftovers
from clusterctl.agent.paths import JobPaths, RunPaths
from clusterctl.agent.ports import Held, is_listening, take_top
from clusterctl.agent.processes import LIVE_STATES
from clusterctl.agent.reactor import Reactor
from clusterctl.agent.saves import Saves

SNAPSHOT_S = 1.0
RUNNING_AFTER_S = 1.0  # a program that never speaks to us counts as running when it has lived this long
READY_LIMIT_S = 60.0
LISTENS_LIMIT_S = 180.0  # programs of others may take long to load
FINISH_LIMIT_S = 300.0
LISTEN_POLL_S = 0.1
END_POLL_S = 0.05
NOT_OURS = ("SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY", "SSH_AUTH_SOCK", "PWD", "OLDPWD", "SHLVL", "_")
#: What pservers count: pushes by staleness, and of each sparse table rows, look-ups and so on.
COUNTS = ("staleness", "tables")
FROM_PROCESSES = ("ready", "step", "pass", "log", "saved", "nan")
OURS_IN_EVENTS = ("v", "t", "node", "seq", "role", "rank", "attempt", "do", "complete")
PORT_TAKEN = re.compile(r"address (is )?already in use|EADDRINUSE|errno\W+98\b", re.IGNORECASE)
Message = dict[str, Any]


class Supervisor:
    """`spec` is the contents of runs/RUN/spec.json; `lock_fd` holds the lock of the job directory."""

    def __init__(self, run: RunPaths, spec: Message, lock_fd: int, reactor: Reactor) -> None:
        self.run = run
        self.spec = spec
        self.reactor = reactor
        self.stopping = False
        self._lock_fd = lock_fd
        self._idle = False
        self._cleared = False
        self._pservers: tuple[str, ...] = ()
        self._endpoints: Endpoints = {}
        self._cores = len(os.sched_getaffinity(0))
        self._attempt = self._next_attempt = 1
        self._engine = ENGINES[spec["engine"]]
        self._ports = self._choose_ports()
        self.children = self._new_children()
        self.chronicle = Chronicle(run, spec["node"], lambda: self.children, reactor.now)
        self._note = self.chronicle.note
        self._saves = Saves(run, spec, self._note, self._fail_node, self._say)
        self._leftovers = Leftovers(run, float(spec["grace_s"]), reactor, self.chronicle)
        self._guardian, self._lifeline = self._new_guardian()
        reactor.on_signals((signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP), self._on_signal)
        reactor.every(SNAPSHOT_S, self.chronicle.write_state)

    def _choose_ports(self) -> Held:
        """Raises OSError when there are none."""
        names = [name_of(process) for process in self.spec["processes"] if has_port(self.spec["engine"], process)]
        return Held(self.spec["address"], self.spec["port"], names, shared=self._attempt == 1)

    def _new_children(self) -> list[Child]:
        plans = self.spec["processes"]
        return [Child(plan, self.reactor, self._on_message, self._on_log_error, self._attempt) for plan in plans]

    def _new_guardian(self) -> tuple[Any, int]:
        grace_s = float(self.spec["grace_s"])
        return guardian.spawn(self.run.job.dir, self.run.run, grace_s, self._lock_fd)

    def begin(self, listener: socket.socket | None) -> None:
        """Joins the run. The lead's node gives its listening socket."""
        self.lead: LocalLead | RemoteLead
        if listener is not None:
            self.lead = LocalLead(
                self.reactor,
                self.run,
                self.spec,
                listener,
                self._on_order,
                self._note,
                self._saves.write_manifest,
                self._saves.drop_manifests,
            )
        else:
            self.lead = RemoteLead(self.reactor, self.run, self.spec, self._on_order, self._on_lead_lost)
        self._say_hello()

    def _say(self, word: Message) -> None:
        self.lead.say(word)

    def _say_hello(self) -> None:
        endpoints = {name: self._endpoint(port) for name, port in self._ports.ports.items()}
        self.lead.say({"do": "hello", "attempt": self._attempt, "endpoints": endpoints})

    def _endpoint(self, port: int) -> str:
        host = self.spec["address"]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    # What the lead orders.

    def _on_order(self, message: Message) -> None:
        order = message["do"]
        if order == "spawn" and not self.stopping:
            self._pservers, self._endpoints = tuple(message["pservers"]), message["endpoints"]
            self._spawn(message["role"])
        elif order == "again" and not self.stopping:
            self._try_again(message["attempt"])
        elif order == "finish":
            self._finish()
        elif order == "keep":
            self._saves.keep(message)
        elif order == "stop":
            self.stop()
        elif order == "end":
            self._end(message)

    def _spawn(self, role: str) -> None:
        for child in self.children:
            if child.serves == (role != "trainer") and not self.stopping:
                self._start(child)

    def _start(self, child: Child) -> None:
        if child.attempt > 1:  # it seems that the program does not share the port with us
            self._ports.release(child.name)
        try:
            child.start(self.run.job.dir, self.run.job.log, lambda fd: self._environment(child, fd), time.time())
        except OSError as exc:
            child.state = "failed"
            command = child.plan["argv"][0]
            self._fail_node(f"cannot start {command!r}: {exc.strerror or exc}", child)
            return
        self._note({"event": "spawned", "pid": child.identity.pid if child.identity else None}, child)
        if child.role == "pserver" and child.plan["ours"]:
            self.reactor.after(READY_LIMIT_S, lambda: self._expect_ready(child))
        elif child.role == "pserver" and self._engine.listens:
            self._await_listening(child, self.reactor.now() + LISTENS_LIMIT_S)
        elif child.role == "pserver":
            self._ready(child, self._ports.ports[child.name])
        else:
            self.reactor.after(RUNNING_AFTER_S, lambda: self._running(child))

    def _environment(self, child: Child, control_fd: str) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if key not in NOT_OURS}
        facts = NodeFacts(
            str(self.run.job.dir),
            str(Path(__file__).parents[2]),
            self._cores,
            self._pservers,
            control_fd,
            inherited,
            self._endpoints,
            child.attempt,
        )
        return environment(self.spec, child.plan, facts)

    def _expect_ready(self, child: Child) -> None:
        if child.state == "starting" and child.alive and not self.stopping:
            self._fail_node(f"did not become ready within {READY_LIMIT_S:.0f} s", child)

    def _await_listening(self, child: Child, deadline: float) -> None:
        """A program that does not speak to us is ready when it listens."""
        port = self._ports.ports[child.name]
        if child.state != "starting" or not child.alive or self.stopping:
            return
        if is_listening(port):
            self._ready(child, port)
        elif self.reactor.now() > deadline:
            self._fail_node(f"does not listen on {self._endpoint(port)} after {LISTENS_LIMIT_S:.0f} s", child)
        else:
            self.reactor.after(LISTEN_POLL_S, lambda: self._await_listening(child, deadline))

    def _ready(self, child: Child, port: int) -> None:
        endpoint = self._endpoint(port)
        child.state = "ready"
        child.progress["port"] = port
        self._note({"event": "ready", "endpoint": endpoint}, child)
        self.lead.say({"do": "ready", "attempt": child.attempt, "rank": child.rank, "endpoint": endpoint})

    def _running(self, child: Child) -> None:
        if child.state == "starting" and child.exit_code in (None, 0):
            child.state = "running"
            self.lead.say({"do": "running", "attempt": child.attempt, "role": child.role, "rank": child.rank})

    def _finish(self) -> None:
        """All trainers are done: our pservers are asked to end, others are ended, and that is success."""
        for child in self.children:
            if child.serves and child.alive:
                if child.plan["ours"]:
                    child.tell({"cmd": "finish"})
                else:
                    child.state = "stopped"
                    child.signal(signal.SIGTERM)
        self.reactor.after(FINISH_LIMIT_S, self._finish_took_too_long)
        self._settle()

    def _finish_took_too_long(self) -> None:
        for child in self.children:
            if child.alive and not self.stopping:
                self._fail_node(f"did not end within {FINISH_LIMIT_S:.0f} s after the last trainer", child)

    def stop(self) -> None:
        """TERM to everything, KILL after the grace."""
        if self.stopping:
            return
        self.stopping = True
        self._terminate()

    def _try_again(self, attempt: int) -> None:
        """Ends what runs here, and begins anew with other ports."""
        self._next_attempt = attempt
        if self._cleared:
            self._begin_again()
        else:
            self._terminate()

    def _terminate(self) -> None:
        children = self.children
        for child in children:
            if child.alive:
                child.signal(signal.SIGTERM)
                child.state = "stopped" if self._next_attempt > self._attempt else child.state
            elif child.state == "waiting":
                child.state = "stopped"
        self.reactor.after(float(self.spec["grace_s"]), lambda: self._kill(children))
        self._settle()

    def _kill(self, children: list[Child]) -> None:
        for child in children:
            if child.alive:
                self.chronicle.count_killed()
                self._note({"event": "log", "message": f"{child.name} ignored TERM: KILL"}, child)
                child.signal(signal.SIGKILL)

    # What processes do.

    def _on_message(self, child: Child, message: Message) -> None:
        """What a process says is its own word: nothing that it says may end us, or pass for ours."""
        if message["event"] not in FROM_PROCESSES:
            return
        said = {key: value for key, value in message.items() if key not in OURS_IN_EVENTS}
        try:
            self._take(child, said)
        except (KeyError, IndexError, TypeError, ValueError) as exc:
            self._note({"event": "log", "level": "error", "message": f"a malformed {said['event']}: {exc!r}"}, child)

    def _take(self, child: Child, said: Message) -> None:
        event = said["event"]
        if child.role == "trainer":
            self._running(child)
        if event == "ready":
            if child.role == "pserver" and child.state == "starting":
                self._ready(child, int(said["ports"][0]))
            return
        if event in ("step", "pass"):
            numbers = ("pass", "step", "loss", "samples_per_s", "compute", "wait", "wire")
            said = {name: value for name, value in said.items() if name not in numbers or is_number(value)}
            child.progress.update({name: said[name] for name in (*numbers, *COUNTS) if name in said})
        elif event == "log":
            said["values"] = {str(name): value for name, value in dict(said["values"]).items() if is_number(value)}
            child.progress["values"] = said["values"]
            self._saves.log(child, said)
        elif event == "saved" and child.role == "pserver":
            order = {"do": "saved", "tag": str(said["tag"]), "rank": child.rank, "node": self.spec["node"]}
            self.lead.say({**said, **order})
        self._note(said, child)

    def _on_log_error(self, child: Child, exc: OSError) -> None:
        self._fail_node(f"cannot write its log: {exc.strerror}", child)

    def _fail_node(self, message: str, child: Child | None = None) -> None:
        """Something other than a process's exit that ends the run."""
        who = {"role": child.role, "rank": child.rank, "tail": child.tail()} if child else {}
        self._note({"event": "log", "level": "error", "message": message}, child)
        self.lead.say({"do": "failed", "message": message, "t": time.time(), **who})

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGCHLD:
            self._reap()
        elif number != signal.SIGHUP:
            self.lead.say({"do": "stop_wanted"})
            self.stop()

    def _reap(self) -> None:
        if self._guardian.poll() is not None and not self._idle:
            os.close(self._lifeline)
            self._guardian, self._lifeline = self._new_guardian()
        for child in self.children:
            if child.poll():
                self._ended(child)
        self._settle()

    def _ended(self, child: Child) -> None:
        assert child.exit_code is not None
        if child.role == "trainer" and child.exit_code == 0:
            self._running(child)
        expected = self.stopping or child.state == "stopped"
        child.state = "stopped" if expected else ("failed" if child.exit_code else "succeeded")
        news: Message = {
            "exit_code": child.exit_code,
            "stopping": expected,
            "message": describe_exit(child.exit_code),
            "tail": child.tail() if child.exit_code and not expected else [],
        }
        if child.exit_code and not expected and child.name in self._ports.ports and found_port_taken(news["tail"]):
            news["port_taken"] = True
        self._note({"event": "exited", **news}, child)
        who = {"attempt": child.attempt, "role": child.role, "rank": child.rank}
        self.lead.say({"do": "exited", **who, "t": time.time(), **news})

    # Endings.

    def _settle(self) -> None:
        """When the last process has ended, see to what it may have left behind."""
        waiting = any(child.alive or child.state in ("waiting", *LIVE_STATES) for child in self.children)
        if not waiting and not self._idle:
            self._idle = True
            self._leftovers.clear(self._clear)

    def _clear(self) -> None:
        """Nothing of the run is left here that could be ended."""
        for child in self.children:
            child.close()
        self._ports.close()
        if self._next_attempt > self._attempt and not self.stopping:
            self._begin_again()
            return
        self._cleared = True
        self.lead.say({"do": "idle", "attempt": self._attempt, "stopping": self.stopping})

    def _begin_again(self) -> None:
        self._attempt = self._next_attempt
        self._idle = self._cleared = False
        self.children = self._new_children()
        try:
            self._ports = self._choose_ports()
        except OSError as exc:
            self._fail_node(str(exc))
            return
        self._say_hello()

    def _on_lead_lost(self, why: str) -> None:
        lead = lead_node(self.spec)
        message = f"the lead on node{lead} is lost: {why}"
        cause = {"kind": "node_lost", "node": lead, "message": message}
        self._note({"event": "lost", "node": self.spec["node"], "lost_node": lead, "message": message})
        self.stop()
        self._end_when_idle({"do": "end", "state": "failed", "cause": cause})

    def _end_when_idle(self, message: Message) -> None:
        if self._cleared:
            self._end(message)
        else:
            self.reactor.after(END_POLL_S, lambda: self._end_when_idle(message))

    def _end(self, message: Message) -> None:
        self.lead.let_go()
        if isinstance(self.lead, LocalLead):  # which has noted the end itself, and waits until all have heard it
            self._leave_when_quiet(self.reactor.now() + 3.0)
            return
        self._note({"event": "ended", "state": message["state"], "cause": message["cause"]})
        self.reactor.after(END_POLL_S, self._leave)

    def _leave_when_quiet(self, deadline: float) -> None:
        assert isinstance(self.lead, LocalLead)
        if self.lead.quiet() or self.reactor.now() > deadline:
            self._leave()
        else:
            self.reactor.after(END_POLL_S, lambda: self._leave_when_quiet(deadline))

    def _leave(self) -> None:
        self.chronicle.write_state()
        shutil.rmtree(self.run.keys, ignore_errors=True)
        with contextlib.suppress(OSError):  # the guardian may have been killed this instant
            os.write(self._lifeline, guardian.GOODBYE)
        self.reactor.stop()


def found_port_taken(tail: Iterable[str]) -> bool:
    """Whether the last words of a program are that it could not bind its port."""
    return any(PORT_TAKEN.search(line) for line in tail)


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def main(argv: list[str]) -> None:
    """`JOB_DIR RUN LOCK_FD REPORT_FD`: reports `{"up": {...}}` or `{"error": ...}` and lives until the run ends."""
    job_dir, run_name, lock_fd, report_fd = argv
    run = JobPaths(Path(job_dir)).run(run_name)
    spec = read_json(run.spec)
    report = os.fdopen(int(report_fd), "w")
    os.set_inheritable(int(lock_fd), False)
    os.set_inheritable(report.fileno(), False)
    try:
        listener = None
        if spec["node"] == lead_node(spec):
            listener = take_top(spec["address"], spec["port"])
        reactor = Reactor()
        supervisor = Supervisor(run, spec, int(lock_fd), reactor)
        supervisor.chronicle.write_state()  # before anybody is told that there is a run to look at
        port = listener.getsockname()[1] if listener else None
        json.dump({"up": {"pid": os.getpid(), "port": port}}, report)
        report.close()
        supervisor.begin(listener)
        reactor.run()
    except BaseException as exc:
        if not report.closed:
            json.dump({"error": str(exc)}, report)
            report.close()
        raise
