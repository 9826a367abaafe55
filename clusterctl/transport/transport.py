"""The transport: run commands on one node, or on many at once."""

from __future__ import annotations

import contextlib
import math
import queue
import resource
import secrets
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from clusterctl.errors import ClusterctlError, NodeError, RefusedError
from clusterctl.transport import failures, paramiko_loader
from clusterctl.transport.carrier.carriers import Carriers
from clusterctl.transport.command import RemoteCommand, quote
from clusterctl.transport.dial import Dialer
from clusterctl.transport.fanout import Cancellation, N, WorkOutcome, fan_out
from clusterctl.transport.known_hosts import HostKey, Verdict, judge, known_keys, record
from clusterctl.transport.pool import Pool
from clusterctl.transport.remote_process import STDERR_TAIL_BYTES, Completed, RemoteProcess, Take
from clusterctl.transport.secrets import Ask
from clusterctl.transport.target import Destination, Resolver, SshSettings, Target

if TYPE_CHECKING:
    from clusterctl.transport.link import ConnectionLease

T = TypeVar("T")
MESSAGE_COMMAND_CHARS = 80
MAX_CONNECTIONS = 256
LOGIN_SHELL_S = 15.0
SAID_CHARS = 400
WHOLE_STDERR_BYTES = 64 * 1024 * 1024


class Transport:
    """Runs commands on nodes, over SSH or the carrier that `via` of a node names. A context manager. Thread-safe.

    SSH is built on paramiko rather than on fabric's Connection, which cannot choose the host key algorithm before the
    handshake, hides which known_hosts line a key contradicts, has only text streams, and waits without deadlines.
    `clusterctl.fabric` lends its connections to fabric instead.
    Connections are opened on first use and kept until `close`.
    """

    def __init__(
        self,
        settings: SshSettings,
        *,
        max_handshakes: int = 16,
        max_connections: int | None = None,
        connect_timeout_s: float = 10.0,
        ask: Ask | None = None,
    ) -> None:
        """Open at most `max_handshakes` connections at a time, and keep at most `max_connections` idle ones.

        `max_connections` defaults to 256, or to half the limit of open files of this process if that is less. `ask`
        prompts the user for a passphrase or a password; by default on the terminal.
        """
        self._settings = settings
        self._max_handshakes = max_handshakes
        self._max_connections = max_connections or min(MAX_CONNECTIONS, _open_files() // 2)
        self._connect_timeout_s = connect_timeout_s
        self._ask = ask
        self._resolver = Resolver(settings)
        self._lock = threading.Lock()
        self._made_pool: Pool | None = None
        self._made_carriers: Carriers | None = None
        self._cancellation = Cancellation()
        self._stop_warming = threading.Event()
        self._with_login_shell: set[str] = set()  # the labels of nodes that have shown it

    def run(
        self, node: Destination, command: RemoteCommand, stdin: bytes = b"", *, deadline_s: float | None = 30
    ) -> Completed:
        """Run a command to its end. Returns its exit code, output and standard error (the last 64 MiB).

        The deadline starts once the connection is open. Raises NodeError after the deadline, UnreachableError if the
        node cannot be reached or the connection is lost, RefusedError for an untrusted host key. A non-zero exit code
        is not an error here.
        """
        with self._start(node, command, stderr_limit=WHOLE_STDERR_BYTES) as process:
            return process.finish(stdin, deadline_s)

    def open(self, node: Destination, command: RemoteCommand) -> RemoteProcess:
        """Start a command and return it with open streams. The caller closes it. Raises as `run` does."""
        return self._start(node, command, drain_stderr=True)

    def stream(self, node: Destination, command: RemoteCommand, take: Take) -> int:
        """Run a command to its end, without a deadline. Returns its exit code.

        `take(piece, is_error)` receives the output as it arrives, in the calling thread. Raises as `run` does.
        """
        with self._start(node, command) as process:
            return process.stream(take)

    def need_login_shell(self, node: Destination) -> None:
        """Raise NodeError if the login shell of a node that SSH reaches ends, but does not run what it is given.

        A start-up file may replace it by another shell, which reads commands from its input and exits with 0. Raises as
        `run` does. One that has passed is not asked again.
        """
        if node.via != "ssh" or node.label in self._with_login_shell:
            return
        mark = f"clusterctl: {secrets.token_hex(8)}"
        try:
            done = self.run(
                node, RemoteCommand(("echo", mark), title="a test of the login shell"), deadline_s=LOGIN_SHELL_S
            )
        except NodeError as exc:
            if exc.details.get("reason") == "deadline":  # it may just be slow
                return
            raise
        if mark.encode() not in done.stdout:
            said = (done.stderr or done.stdout).decode(errors="replace").strip()[-SAID_CHARS:]
            raise failures.no_login_shell(node.label, self._resolver.resolve(node).where, said)
        self._with_login_shell.add(node.label)

    def link(self, node: Destination) -> ConnectionLease:
        """Borrow the open connection to a node, for a library that works on paramiko's objects.

        The caller closes the link, which gives the connection back. Raises as `run` does.
        """
        paramiko_loader.load()
        from clusterctl.transport.link import ConnectionLease

        self._cancellation.check(node.label)
        target = self.target(node)
        return ConnectionLease(self._pool(), target, node.label)

    def target(self, node: Destination) -> Target:
        """Return the server of a node: its host, port and user. Raises ConfigError if it is not reached by SSH."""
        if node.via != "ssh":
            raise failures.not_by_ssh(node)
        return self._resolver.resolve(node)

    def map(
        self, nodes: Sequence[N], fn: Callable[[N], T], *, max_workers: int = 64, limit_s: float = math.inf
    ) -> list[WorkOutcome[N, T]]:
        """Call `fn` for every node from up to `max_workers` threads. Returns the outcomes in node order.

        A node for which it takes longer than `limit_s` has an error; the call goes on until it ends by itself.

        Ctrl-C closes all connections, which ends all running work, and raises KeyboardInterrupt in the caller's
        thread. The transport remains usable.
        """
        return fan_out(
            nodes,
            fn,
            max_workers=max_workers,
            cancellation=self._cancellation,
            on_interrupt=self.abort,
            limit_s=limit_s,
        )

    def warm_up(self, nodes: Sequence[Destination]) -> None:
        """Start to connect to those of these nodes that are reached by SSH, in the background.

        Errors are not lost: a call that needs a connection shares the attempt in flight, and its failure.
        """
        todo: queue.SimpleQueue[Destination] = queue.SimpleQueue()
        nodes = [node for node in nodes if node.via == "ssh"][: self._max_connections]
        stop = self._stop_warming

        def connect() -> None:
            with contextlib.suppress(queue.Empty):
                while not stop.is_set():
                    node = todo.get_nowait()
                    with contextlib.suppress(Exception):  # reported by the call that needs the connection
                        self._pool().connection(self._resolver.resolve(node))

        for node in nodes:
            todo.put(node)
        for number in range(min(self._max_handshakes, len(nodes))):
            threading.Thread(target=connect, daemon=True, name=f"warm-up-{number}").start()

    def scan_host_key(self, node: Destination) -> HostKey:
        """Return the host key that the node presents, unchecked. Raises UnreachableError."""
        target = self.target(node)
        return self._pool().host_key(target)

    def host_key_verdict(self, node: Destination, key: HostKey) -> Verdict:
        """Check a key of this node against the known_hosts files: known, unknown, changed or revoked."""
        target = self._resolver.resolve(node)
        return judge(known_keys(target.known_hosts, target.key_name), key)

    def host_key_refusal(self, node: Destination, key: HostKey, verdict: Verdict) -> RefusedError:
        """Return the error that refuses this key: the entries it contradicts, their location, and a hint."""
        return failures.untrusted(self._resolver.resolve(node), key, verdict)

    def record_host_key(self, node: Destination, key: HostKey, *, hashed: bool = False) -> bool:
        """Add a key to the node's known_hosts file. Returns False if the file had it already."""
        file = self._resolver.resolve(node).known_hosts[0]
        try:
            return record(file, key, hashed=hashed)
        except OSError as exc:
            raise ClusterctlError(
                f"cannot record a host key in {file}: {exc.strerror}",
                node=node.label,
                hint="set KNOWN_HOSTS to a file that you can write",
            ) from exc

    def abort(self) -> None:
        """Close every connection, and end every carrier and every attempt now; all waiting calls raise an error."""
        with self._lock:
            pool, carriers = self._made_pool, self._made_carriers
            self._stop_warming.set()
            self._stop_warming = threading.Event()
        if pool is not None:
            pool.close()
        if carriers is not None:
            carriers.abort()

    def close(self) -> None:
        """Close every connection and end every carrier. Running commands lose their streams."""
        self.abort()
        if self._made_carriers is not None:
            self._made_carriers.close()

    def __enter__(self) -> Transport:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(
        self, node: Destination, command: RemoteCommand, *, stderr_limit: int | None = None, drain_stderr: bool = False
    ) -> RemoteProcess:
        self._cancellation.check(node.label)
        what, limit = command.title or _short(str(command)), stderr_limit or STDERR_TAIL_BYTES
        if node.via != "ssh":
            return self._carriers().start(node, command, what=what, stderr_limit=limit)
        target = self._resolver.resolve(node)
        with self._pool().lease(target) as connection:
            from clusterctl.transport.ssh_process import start  # paramiko has been loaded for the connection

            return start(
                connection,
                quote(command).encode("utf-8", "surrogateescape"),
                label=node.label,
                where=target.where,
                what=what,
                stderr_limit=limit,
                drain_stderr=drain_stderr,
            )

    def _carriers(self) -> Carriers:
        with self._lock:
            if self._made_carriers is None:
                self._made_carriers = Carriers(self._cancellation)
            return self._made_carriers

    def _pool(self) -> Pool:
        with self._lock:
            if self._made_pool is None:
                self._made_pool = Pool(
                    Dialer(
                        strict=self._settings.strict_host_keys,
                        max_handshakes=self._max_handshakes,
                        timeout_s=self._connect_timeout_s,
                        ask=self._ask,
                    ),
                    self._max_connections,
                )
            return self._made_pool


def _open_files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2 * MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(2, soft)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MESSAGE_COMMAND_CHARS else line[: MESSAGE_COMMAND_CHARS - 1] + "…"
