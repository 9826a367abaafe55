"""One rank, from its first look at the shared directory to its exit code."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterctl.common.procfs import Identity, is_alive, wait_until
from clusterctl.ranks.calls import CallServer
from clusterctl.ranks.errors import LINGER_S, say
from clusterctl.ranks.lifeline import Lifeline
from clusterctl.ranks.meeting import POLL_S, SEEN_S, Meeting, Plan, RankProcess, World
from clusterctl.ranks.node_run import BY_SIGNAL, FAILED_CODE, NodeRun, exit_code, is_cause, outcome
from clusterctl.ranks.output import LogForwarder

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Orders:
    """The orders to end that this process gets from now on. It is made once, in the main thread."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._number = 0
        self._woken, wake = os.pipe()
        for end in (self._woken, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in NUMBERS:
            signal.signal(number, self._note)

    def _note(self, number: int, frame: object) -> None:
        self._number = self._number or number

    @property
    def number(self) -> int:
        """The first signal that arrived; 0 if none has."""
        if not self._number and os.getppid() != self._parent:
            self._number = signal.SIGTERM
        return self._number

    def pause(self, seconds: float) -> None:
        """Sleep, but not past a signal."""
        if select.select([self._woken], [], [], seconds)[0]:
            os.read(self._woken, 512)

    @staticmethod
    def forget() -> None:
        """Give signals their usual meaning again, in a child."""
        signal.set_wakeup_fd(-1)
        for number in NUMBERS:
            signal.signal(number, signal.SIG_DFL)


IDLE_S = 0.25  # between looks while the run is under way
SETTLED_S = 60.0  # for the last processes of this node to end
OTHERS_S = 10.0  # for the other nodes to write down the end
READ_S = 2.0  # for the other ranks to read why the run did not start
REST_S = 30.0  # for calls that are under way at the end, such as that of `clusterctl stop`
PR_SET_PDEATHSIG = 1


class Starter:
    """The child of rank 0 that starts the run: it loads the rest of the program, which nobody needs for long."""

    def __init__(self, work: Callable[[], int]) -> None:
        self._code: int | None = None
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            code = FAILED_CODE
            try:
                Orders.forget()
                _die_with(parent)
                code = work()
            except BaseException:  # noqa: BLE001 - there is nobody else to print it
                traceback.print_exc()
            finally:
                os._exit(code)

    def code(self) -> int | None:
        """Return its exit code; None while it is at work."""
        if self._code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                self._code = code if code >= 0 else BY_SIGNAL - code
        return self._code

    def end(self) -> None:
        if self.code() is None:
            os.kill(self._pid, signal.SIGTERM)
            wait_until(lambda: self.code() is not None, 1.0)


def _die_with(parent: int) -> None:
    """Get TERM when the parent dies: mpirun waits for whoever has its output open."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


class _RankExit(Exception):  # noqa: N818 - an ordinary end
    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code


class Rank:
    """The rank of this process. `environ` is what mpirun gave it."""

    def __init__(self, world: World, meeting: Meeting, environ: Mapping[str, str]) -> None:
        self._world = world
        self._meeting = meeting
        self._environ = {name: value for name, value in environ.items() if not name.startswith("SSH_")}
        self._orders = Orders()
        self._mine = RankProcess.mine(world)
        self._starter: Starter | None = None
        self._calls: CallServer | None = None

    def run(self, command: Sequence[str], conf: Path | None) -> int:
        """Take part in the run, and return the exit code. Raises RankError."""
        if self._world.rank == 0:
            self._meeting.make()
            self._starter = Starter(lambda: self._start(command, conf))
        plan: Plan | None = None
        try:
            plan = self._await_plan()
            number = plan.node_of(self._world.rank)
            node = NodeRun(Path(plan.nodes[number].dir))
            if self._world.local_rank > 0:
                state = self._see_through(node, Identity(*plan.nodes[number].front))
            else:
                state = self._lead_node(plan, number, node)
        except _RankExit as over:
            if self._starter is not None:
                self._starter.end()
                wait_until(lambda: bool(self._orders.number), READ_S)
                if plan is None:  # else the lifeline does it
                    self._meeting.remove()
            return over.code
        finally:
            if self._starter is not None:
                self._starter.end()
        return self._leave(state)

    def _start(self, command: Sequence[str], conf: Path | None) -> int:
        from clusterctl.ranks.control import control  # noqa: PLC0415 - only this child of rank 0 needs all that

        return control(self._world, self._meeting, command, conf, self._environ)

    def _await_plan(self) -> Plan:
        deadline = time.monotonic() + SEEN_S
        while not self._meeting.is_seen():
            self._check()
            if time.monotonic() > deadline:
                raise self._meeting.unseen()
            self._orders.pause(POLL_S)
        while True:
            self._meeting.enter(self._mine)
            if plan := self._meeting.plan(self._mine):
                return plan
            self._check()
            self._orders.pause(POLL_S)

    def _check(self) -> None:
        """Raise _RankExit if the run cannot start, or is not to."""
        if self._orders.number:
            raise _RankExit(BY_SIGNAL + self._orders.number)
        self._starter_failed()
        code = self._meeting.failure(self._mine)
        if code is not None:
            raise _RankExit(code)

    def _starter_failed(self) -> bool:
        """Return True if the run did not start. A starter that was killed could not tell the other ranks."""
        code = self._starter.code() if self._starter else None
        if code and self._meeting.failure(self._mine) is None and not self._meeting.is_gone():
            self._meeting.fail(code, list(self._meeting.entries()))
        return bool(code)

    def _lead_node(self, plan: Plan, number: int, node: NodeRun) -> dict[str, Any]:
        """Do what the first rank of a node does: run its calls, and see that nothing is left of the run here."""
        os.sched_setaffinity(0, plan.nodes[number].cpus)  # mpirun may have bound this process to a single one
        lifeline = Lifeline(Path(plan.nodes[number].dir), self._meeting if number == 0 else None)
        self._calls = CallServer(self._meeting.calls(number), self._environ)
        try:
            state = self._see_through(node, None)
            wait_until(self._is_at_rest, REST_S)
        finally:
            self._calls.close()
        if number == 0:
            self._report(plan, state)
        wait_until(node.is_over, SETTLED_S)
        if number == 0:
            others = [NodeRun(Path(other.dir)) for other in plan.nodes[1:]]
            wait_until(lambda: all(other.ended() for other in others), OTHERS_S)
            self._meeting.remove()
        lifeline.let_go()
        return state

    def _is_at_rest(self) -> bool:
        """Return True once no call is under way, nor the start of the run, which may take longer than the run."""
        is_busy = self._calls is not None and self._calls.serve()
        return not is_busy and (self._starter is None or self._starter.code() is not None)

    def _see_through(self, node: NodeRun, front: Identity | None) -> dict[str, Any]:
        """Wait for the end of the run on this node, and return its last state. `front` is the node's first rank."""
        output = LogForwarder(node.log_of_trainer(self._world.local_rank))
        is_stopping = False
        while True:
            is_busy = self._calls is not None and self._calls.serve()
            state = node.ended()
            output.pass_on(final=state is not None)
            if state is not None:
                return state
            has_begun = node.supervisor() is not None
            if not has_begun:
                self._check()
                if self._meeting.is_gone() or (front is not None and not is_alive(front)):
                    raise _RankExit(FAILED_CODE)
            elif node.is_lost():
                raise _RankExit(FAILED_CODE)
            elif not is_stopping and (self._orders.number or self._starter_failed()):
                is_stopping = True
                node.stop()
            self._orders.pause(IDLE_S if has_begun and not is_busy else POLL_S)

    def _report(self, plan: Plan, state: Mapping[str, Any]) -> None:
        if exit_code(state, self._world.rank):
            say(f"{plan.job} {outcome(state)}", f"clusterctl --conf {self._meeting.conf} why")
        else:
            say(f"{plan.job} {outcome(state)}", f"outputs: {self._meeting.home}/node*/{plan.job}/output")

    def _leave(self, state: Mapping[str, Any]) -> int:
        """Return the exit code. Mpirun reports that of the rank that ends first: let it be the one that failed."""
        code = (self._starter.code() if self._starter else 0) or exit_code(state, self._world.rank)
        failed_elsewhere = (state["ended"].get("cause") or {}).get("role") == "trainer"
        if code and failed_elsewhere and not is_cause(state, self._world.rank):
            wait_until(lambda: bool(self._orders.number), LINGER_S)
        return code
