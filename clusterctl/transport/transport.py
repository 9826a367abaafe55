"""The transport itself: commands on nodes, one node at a time or all at once."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from clusterctl.errors import ClusterctlError, RefusedError
from clusterctl.transport import failures
from clusterctl.transport.command import Command, quote
from clusterctl.transport.fanout import Cancellation, N, Outcome, fan_out
from clusterctl.transport.known_hosts import HostKey, Verdict, judge, known_keys, record
from clusterctl.transport.target import Node, Resolver, SshSettings

if TYPE_CHECKING:
    from clusterctl.transport.pool import Pool
    from clusterctl.transport.remote_process import Completed, RemoteProcess, Take
    from clusterctl.transport.secrets import Ask

T = TypeVar("T")
MESSAGE_COMMAND_CHARS = 80
MAX_LINKS = 256
WHOLE_STDERR_BYTES = 64 * 1024 * 1024


class Transport:
    """Runs commands on nodes over SSH. A context manager; every method may be called from any thread.

    It is built on paramiko rather than on fabric's Connection, which cannot choose the host key algorithm
    before the handshake, hides which known_hosts line a key contradicts, has text streams only, and waits
    without deadlines. Connections are made at first use and kept until `close`.
    """

    def __init__(
        self,
        settings: SshSettings,
        *,
        max_handshakes: int = 16,
        max_links: int | None = None,
        connect_timeout_s: float = 10.0,
        ask: Ask | None = None,
    ) -> None:
        """At most `max_handshakes` connections are being made at a time, and `max_links` are kept that nobody uses;
        by default 256, or half as many as this process may have files open.

        `ask` asks a person for a passphrase or a password; by default on the terminal.
        """
        self._settings = settings
        self._max_handshakes = max_handshakes
        self._max_links = max_links or min(MAX_LINKS, _open_files() // 2)
        self._connect_timeout_s = connect_timeout_s
        self._ask = ask
        self._resolver = Resolver(settings)
        self._lock = threading.Lock()
        self._made_pool: Pool | None = None
        self._cancellation = Cancellation()
        self._stop_warming = threading.Event()

    def run(self, node: Node, command: Command, stdin: bytes = b"", *, deadline_s: float | None = 30) -> Completed:
        """Run a command to its end: its exit code, output and errors (the last 64 MiB of these).

        The deadline counts from the open connection. Raises NodeError when it has passed, UnreachableError
        when the node cannot be reached or is lost meanwhile, RefusedError for its host key. A non-zero exit
        code is no error here.
        """
        with self._start(node, command, stderr_limit=WHOLE_STDERR_BYTES) as process:
            return process.finish(stdin, deadline_s)

    def open(self, node: Node, command: Command) -> RemoteProcess:
        """Start a command and hand over its streams. The caller closes it. Raises as `run` does."""
        return self._start(node, command, drain_stderr=True)

    def stream(self, node: Node, command: Command, take: Take) -> int:
        """Run a command to its end, however long that takes; its exit code.

        `take(piece, is_error)` gets the output as it comes, in the calling thread. Raises as `run` does.
        """
        with self._start(node, command) as process:
            return process.stream(take)

    def map(self, nodes: Sequence[N], fn: Callable[[N], T], *, max_workers: int = 64) -> list[Outcome[N, T]]:
        """Call `fn` for every node from up to `max_workers` threads; every node's outcome, in node order.

        Ctrl-C closes all connections, which ends what is running, and is raised in the caller's thread;
        the transport remains usable.
        """
        return fan_out(nodes, fn, max_workers=max_workers, cancellation=self._cancellation, on_interrupt=self.abort)

    def warm_up(self, nodes: Sequence[Node]) -> None:
        """Begin to connect to these nodes in the background, while the caller gets ready.

        Harmless: whoever needs a connection shares the attempt that is under way, and meets its failure.
        """
        todo: queue.SimpleQueue[Node] = queue.SimpleQueue()
        for node in nodes[: self._max_links]:
            todo.put(node)
        stop = self._stop_warming

        def connect() -> None:
            with contextlib.suppress(queue.Empty):
                while not stop.is_set():
                    node = todo.get_nowait()
                    with contextlib.suppress(Exception):  # it is for the call that needs the connection
                        self._pool().link(self._resolver.resolve(node))

        for number in range(min(self._max_handshakes, len(nodes))):
            threading.Thread(target=connect, daemon=True, name=f"warm-up-{number}").start()

    def scan_host_key(self, node: Node) -> HostKey:
        """The host key that the node shows, unchecked. Raises UnreachableError."""
        return self._pool().host_key(self._resolver.resolve(node))

    def host_key_verdict(self, node: Node, key: HostKey) -> Verdict:
        """What the known_hosts files say of a key of this node: known, unknown, changed or revoked."""
        target = self._resolver.resolve(node)
        return judge(known_keys(target.known_hosts, target.key_name), key)

    def host_key_refusal(self, node: Node, key: HostKey, verdict: Verdict) -> RefusedError:
        """Why this key is refused: what it contradicts, where that stands, and what to do."""
        return failures.untrusted(self._resolver.resolve(node), key, verdict)

    def record_host_key(self, node: Node, key: HostKey, *, hashed: bool = False) -> bool:
        """Add a key to the node's known_hosts file; False if it was there already."""
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
        """Close every connection and end every attempt now; whoever waits on one gets an error."""
        with self._lock:
            pool = self._made_pool
            self._stop_warming.set()
            self._stop_warming = threading.Event()
        if pool is not None:
            pool.close()

    def close(self) -> None:
        """Close every connection. Commands that still run lose their streams."""
        self.abort()

    def __enter__(self) -> Transport:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(
        self, node: Node, command: Command, *, stderr_limit: int | None = None, drain_stderr: bool = False
    ) -> RemoteProcess:
        from clusterctl.transport.remote_process import STDERR_TAIL_BYTES, start

        self._cancellation.check(node.label)
        text = quote(command)
        target = self._resolver.resolve(node)
        with self._pool().lease(target) as link:
            return start(
                link,
                text.encode("utf-8", "surrogateescape"),
                label=node.label,
                where=target.where,
                what=command.title or _short(str(command)),
                stderr_limit=stderr_limit or STDERR_TAIL_BYTES,
                drain_stderr=drain_stderr,
            )

    def _pool(self) -> Pool:
        with self._lock:
            if self._made_pool is None:
                from clusterctl.transport.dial import Dialer
                from clusterctl.transport.pool import Pool

                self._made_pool = Pool(
                    Dialer(
                        strict=self._settings.strict_host_keys,
                        max_handshakes=self._max_handshakes,
                        timeout_s=self._connect_timeout_s,
                        ask=self._ask,
                    ),
                    self._max_links,
                )
            return self._made_pool


def _open_files() -> int:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2 * MAX_LINKS if soft == resource.RLIM_INFINITY else max(2, soft)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MESSAGE_COMMAND_CHARS else line[: MESSAGE_COMMAND_CHARS - 1] + "…"
