"""The SSH connections of a helper, and the idle agents on them: opened, checked again before use, and let go."""

from __future__ import annotations

import contextlib
import resource
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.errors import RefusedError
from clusterctl.transport import paramiko_loader
from clusterctl.transport.channels import OPEN_CHANNEL_S, close_channel, speaking
from clusterctl.transport.dial import Dialer
from clusterctl.transport.pool import Pool
from clusterctl.transport.secrets import Ask
from clusterctl.transport.target import Target

if TYPE_CHECKING:
    from paramiko.channel import Channel

    from clusterctl.transport.connection import Connection
    from clusterctl.transport.keep.relay import Kept

MAX_HANDSHAKES = 16
FILES_EACH = 2  # a connection, and the socket of a command that uses it
OTHER_FILES = 64
ALIVE_S = 5.0  # within which a connection that was idle has to show that it is alive
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # the first also goes on while this machine is suspended


class IdleAgent(NamedTuple):
    """An agent that waits for the next command, on the connection over which it was started."""

    connection: Connection
    channel: Channel
    kept: Kept
    turn: threading.Lock  # held while it is tended, so that nothing comes between the bytes of a command


class Lease:
    """The use of a connection by one client."""

    def __init__(self, pool: Pool, target: Target, connection: Connection, was_open: bool) -> None:
        self._pool, self._target, self._was_open = pool, target, was_open
        self.connection = connection

    def replace(self) -> None:
        """Open another connection in place of this one, which ends with its other users."""
        self._pool.retire(self._target, self.connection)
        self.connection, self._was_open = self._pool.connection(self._target), False

    def channel(self) -> Channel:
        """Open a channel. A connection that was idle, and on which none opens soon, is replaced.

        Raises ChannelException if the server refuses, or another error of paramiko.
        """
        if self._was_open:
            from paramiko.ssh_exception import ChannelException

            try:
                return self.connection.open_session(timeout=ALIVE_S)
            except ChannelException:
                raise
            except paramiko_loader.errors():
                self.replace()
        return self.connection.open_session(timeout=OPEN_CHANNEL_S)


class Connections:
    """Thread-safe. `tend` is to be called now and then."""

    def __init__(self, *, strict: bool, timeout_s: float, ask: Ask) -> None:
        self._strict = strict
        self._dialer = Dialer(strict=strict, max_handshakes=MAX_HANDSHAKES, timeout_s=timeout_s, ask=ask)
        self._most = _most_connections()
        self._pool = Pool(self._dialer, self._most)
        self._lock = threading.Lock()
        self._until: dict[Target, float] = {}
        self._idle: dict[tuple[Target, str], IdleAgent] = {}
        self._beaten: dict[tuple[Target, str], float] = {}

    @contextlib.contextmanager
    def lease(self, target: Target, keep_s: float) -> Iterator[Lease]:
        """Yield a connection to a server, which stays open for so long after this. Raises as `Dialer.connect` does."""
        was_open = target in self._pool.targets()
        self._extend(target, keep_s)  # an agent may be kept before this lease ends
        try:
            with self._pool.lease(target) as connection:
                lease = Lease(self._pool, target, connection, was_open)
                if was_open and not self._are_trusted(target):
                    lease.replace()  # raises why, unless the host has another key now
                yield lease
        finally:
            self._extend(target, keep_s)

    def _extend(self, target: Target, keep_s: float) -> None:
        hop: Target | None = target
        with self._lock:
            while hop is not None:
                self._until[hop] = max(self._until.get(hop, 0.0), _now() + keep_s)
                hop = hop.via

    def _are_trusted(self, target: Target) -> bool:
        """Return True if the keys of a server and its jump hosts are known now. Use a jump host no more that is not."""
        current, trusted = self._pool.targets(), True
        hop: Target | None = target
        while self._strict and hop is not None:
            connection = current.get(hop)
            try:
                if connection is not None:
                    self._dialer.check_host_key(hop, connection)
            except RefusedError:
                trusted = False
                if connection is not None and hop is not target:
                    self._pool.retire(hop, connection)
            hop = hop.via
        return trusted

    def take(self, target: Target, agent: str, lease: Lease) -> IdleAgent | None:
        """Return the idle agent of a server, if its connection is alive. A dead connection is replaced."""
        with self._lock:
            idle = self._idle.pop((target, agent), None)
        if idle is None:
            return None
        if not idle.turn.acquire(timeout=ALIVE_S):  # a beat is stuck in a connection that is dead
            lease.replace()
            return None
        idle.turn.release()
        if _waits(idle) and idle.connection is lease.connection:
            if idle.connection.replies(ALIVE_S):
                return idle
            lease.replace()
        _close(idle)
        return None

    def keep(self, target: Target, agent: str, lease: Lease, channel: Channel, kept: Kept) -> None:
        """Let an agent wait for the next command. Of two on one server, the second one ends."""
        idle = IdleAgent(lease.connection, channel, kept, threading.Lock())
        with self._lock:
            is_kept = (target, agent) not in self._idle and len(self._idle) < self._most
            if is_kept:
                self._idle[target, agent] = idle
                self._beaten[target, agent] = _now()
        if not is_kept:
            _close(idle)

    def tend(self) -> None:
        """Send beats to idle agents, and close what has not been used for long enough, or is broken."""
        with self._lock:
            idle = dict(self._idle)
        current = self._pool.targets()  # asked last, so that it has the connections of all these agents
        for key, agent in idle.items():
            with agent.turn:
                self._tend_agent(key, agent, current.get(key[0]))
        self._pool.close_unused(self._due())

    def _tend_agent(self, key: tuple[Target, str], idle: IdleAgent, current: Connection | None) -> None:
        with self._lock:
            if self._idle.get(key) is not idle:
                return  # a command has taken it
            is_due = self._until.get(key[0], 0.0) <= _now()
        if is_due or current is not idle.connection or not _waits(idle):
            self._end(key, idle)
        elif _now() - self._beaten[key] >= idle.kept.every_s:
            self._beaten[key] = _now()
            self._beat(key, idle)

    def _due(self) -> set[Target]:
        current = self._pool.targets()
        with self._lock:
            return {target for target in current if self._until.get(target, 0.0) <= _now()}

    def names(self) -> list[str]:
        """Return the servers to which there are connections."""
        return sorted({target.where for target in self._pool.targets()})

    def unconnected(self, targets: Iterable[Target]) -> list[bool]:
        """Return for each server whether there is no open connection to it."""
        current = self._pool.targets()
        return [target not in current for target in targets]

    def forget_secrets(self) -> None:
        self._dialer.forget_secrets()

    def close(self) -> None:
        self._pool.close()

    def _beat(self, key: tuple[Target, str], idle: IdleAgent) -> None:
        try:
            with speaking(idle.channel):
                idle.channel.send(idle.kept.beat)
        except paramiko_loader.errors():  # also a timeout: an idle agent reads its input
            self._end(key, idle)

    def _end(self, key: tuple[Target, str], idle: IdleAgent) -> None:
        """Close an idle agent, unless a command has just taken it: that one finds out by itself."""
        with self._lock:
            if self._idle.get(key) is not idle:
                return
            del self._idle[key]
        _close(idle)


def _waits(idle: IdleAgent) -> bool:
    """Return True if the agent is there and has said nothing since."""
    channel = idle.channel
    spoke = channel.recv_ready() or channel.recv_stderr_ready()
    return idle.connection.is_active() and not (spoke or channel.closed or channel.eof_received)


def _close(idle: IdleAgent) -> None:
    with contextlib.suppress(*paramiko_loader.errors()):
        close_channel(idle.channel)


def _now() -> float:
    return time.clock_gettime(CLOCK)


def _most_connections() -> int:
    """Return how many connections may be open, with the limit of open files raised as far as it goes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    if soft == resource.RLIM_INFINITY:
        return 4096
    return max(1, min(4096, (soft - OTHER_FILES) // FILES_EACH))
