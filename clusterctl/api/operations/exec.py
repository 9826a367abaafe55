"""Run a command on the nodes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from clusterctl.api.operations.references import job_of
from clusterctl.cluster import Cluster, NodeOutcome, combined
from clusterctl.cluster.remote_command import run_command
from clusterctl.errors import ClusterctlError, NodeError
from clusterctl.inventory import Node
from clusterctl.observe.record.status import find_directories
from clusterctl.transport import Raw, RemoteCommand, RemotePath

AT_ONCE = 256  # nodes: commands may run long, and the last node should not wait for the first
LINE_BYTES = 64 << 10


def run(
    cluster: Cluster,
    commands: Callable[[Node], RemoteCommand],
    take: Callable[[Node, bytes, bool], None],
    end: Callable[[Node, int], None],
) -> list[NodeOutcome[int]]:
    """Run a command on every node, to its end. Outcomes are exit codes.

    `take(node, piece, is_error)` receives the output, and `end(node, code)` follows it, in the thread of the node.
    """

    def work(node: Node) -> int:
        code = run_command(cluster, node, commands(node), lambda piece, is_error: take(node, piece, is_error))
        end(node, code)
        return code

    return cluster.map(work, at_once=AT_ONCE)


def same_on_all(command: RemoteCommand) -> Callable[[Node], RemoteCommand]:
    """Return a function that returns the command for any node."""
    return lambda node: command


def in_directory_of(
    cluster: Cluster, job: str | None, command: RemoteCommand
) -> tuple[str, Callable[[Node], RemoteCommand]]:
    """Return the id of a job, and a function that returns the command in its directory on a node.

    It raises for a node that does not have the job.
    """
    by_node = find_directories(cluster, job_of(cluster, job))
    found = next(outcome.get()["job"] for outcome in by_node.values() if outcome.ok)
    return found, lambda node: in_directory(by_node[node.id].get()["dir"], command)


def in_directory(directory: str, command: RemoteCommand) -> RemoteCommand:
    """Return the command to run in a directory; it does not run if there is no such directory."""
    is_shell_text = any(isinstance(argument, Raw) for argument in command.argv)
    enter = (Raw("cd"), RemotePath(directory), Raw("|| exit;"), *(() if is_shell_text else (Raw("exec"),)))
    return RemoteCommand((*enter, *command.argv))


def remote_command(words: list[str]) -> RemoteCommand:
    """Build the command: one argument is a shell command line, several are a program and its arguments."""
    return RemoteCommand((Raw(words[0]),)) if len(words) == 1 else RemoteCommand(tuple(words))


def problem(outcomes: list[NodeOutcome[int]]) -> ClusterctlError | None:
    errors = [
        outcome.error or NodeError(f"the command exited with code {outcome.value}", node=outcome.node.label)
        for outcome in outcomes
        if outcome.error or outcome.value
    ]
    return combined(errors, len(outcomes), "exec") if errors else None


class NodeOutput:
    """The output of one node. The first bytes of each stream are kept, the rest only counted."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._streams = (bytearray(), bytearray())
        self._partial = [b"", b""]
        self.dropped = 0
        self.code: int | None = None
        self.ending = ""  # how the command ended, if not well
        self.shown = False  # True once the node is on the screen

    def keep(self, piece: bytes, is_error: bool) -> None:
        stream = self._streams[is_error]
        room = self._limit - len(stream)
        stream += piece[:room]
        self.dropped += max(0, len(piece) - room)

    def take_lines(self, piece: bytes, is_error: bool) -> list[bytes]:
        """Return the lines that this piece completes; an incomplete last line is held until its end arrives."""
        *lines, rest = (self._partial[is_error] + piece).split(b"\n")
        if len(rest) > LINE_BYTES:
            lines, rest = [*lines, rest], b""
        self._partial[is_error] = rest
        return lines

    def take_rest(self) -> list[bytes]:
        """Return the incomplete last lines, once no more output will come."""
        rest = [line for line in self._partial if line]
        self._partial = [b"", b""]
        return rest

    def give_up(self) -> tuple[bytes, bytes]:
        """Return everything that was kept, and release it."""
        kept = (bytes(self._streams[0]), bytes(self._streams[1]))
        self._streams = (bytearray(), bytearray())
        return kept

    def text(self, is_error: bool) -> str:
        return self._streams[is_error].decode(errors="replace")

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(repr((self.ending, self.dropped, self._streams)).encode()).digest()
