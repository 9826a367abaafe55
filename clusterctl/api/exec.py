"""Run a command, or a task of Fabric, on the nodes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterctl.api.opening import CallResult, Node, public
from clusterctl.cluster import Cluster, NodeOutcome, combined
from clusterctl.cluster.remote_command import run_command
from clusterctl.config import Settings
from clusterctl.documents.nodes import NodeOutputDocument
from clusterctl.errors import ClusterctlError, NodeError
from clusterctl.inventory import Node as InventoryNode
from clusterctl.observe.record.references import job_of
from clusterctl.observe.record.status import find_directories
from clusterctl.transport import Raw, RemoteCommand, RemotePath

if TYPE_CHECKING:
    from clusterctl.fabric.tasks import TaskFile

AT_ONCE = 256  # nodes: commands may run long, and the last node should not wait for the first
LINE_BYTES = 64 << 10


@dataclass(frozen=True)
class Executed(CallResult):
    """A command on one node. `exit_code` is 128 + N after signal N, and None if `error` says why it has none.

    Of `stdout` and `stderr`, the first 16 MiB are kept; `dropped_bytes` more were not.
    """

    node: Node
    exit_code: int | None
    stdout: str
    stderr: str
    dropped_bytes: int
    error: ClusterctlError | None
    seconds: float

    @property
    def ok(self) -> bool:
        """True if the command ran and its exit code is 0."""
        return self.error is None and self.exit_code == 0


def run_on_nodes(
    cluster: Cluster,
    commands: Callable[[InventoryNode], RemoteCommand],
    take: Callable[[InventoryNode, bytes, bool], None],
    end: Callable[[InventoryNode, int], None],
) -> list[NodeOutcome[int]]:
    """Run a command on every node, to its end. Outcomes are exit codes.

    `take(node, piece, is_error)` receives the output, and `end(node, code)` follows it, in the thread of the node.
    """

    def work(node: InventoryNode) -> int:
        code = run_command(cluster, node, commands(node), lambda piece, is_error: take(node, piece, is_error))
        end(node, code)
        return code

    return cluster.map(work, at_once=AT_ONCE)


def same_on_all(command: RemoteCommand) -> Callable[[InventoryNode], RemoteCommand]:
    """Return a function that returns the command for any node."""
    return lambda node: command


def in_directory_of(
    cluster: Cluster, job: str | None, command: RemoteCommand
) -> tuple[str, Callable[[InventoryNode], RemoteCommand]]:
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


def exec_problem(outcomes: list[NodeOutcome[int]]) -> ClusterctlError | None:
    errors = [
        outcome.error or NodeError(f"the command exited with code {outcome.value}", node=outcome.node.label)
        for outcome in outcomes
        if outcome.error or outcome.value
    ]
    return combined(errors, len(outcomes), "exec") if errors else None


def load_tasks(settings: Settings) -> TaskFile:
    """Run the file of tasks beside conf.py."""
    from clusterctl.fabric.tasks import load  # noqa: PLC0415 - it loads fabric

    assert settings.source is not None
    return load(settings.source.absolute().parent)


def task_problem(outcomes: Sequence[NodeOutcome[ClusterctlError | None]], name: str) -> ClusterctlError | None:
    """Return the error to report if the task failed on some nodes."""
    errors = [failure for outcome in outcomes if (failure := outcome.error or outcome.value)]
    return combined(errors, len(outcomes), f"task {name}") if errors else None


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


def output_of(outcome: NodeOutcome[Any], output: NodeOutput, failure: ClusterctlError | None) -> NodeOutputDocument:
    """Return the part of a document about the output of one node."""
    return NodeOutputDocument(
        node=outcome.node.id,
        host=outcome.node.where,
        seconds=outcome.seconds,
        exit_code=output.code,
        error=None if failure is None else failure.to_json(),
        stdout=output.text(False),
        stderr=output.text(True),
        dropped_bytes=output.dropped,
    )


def executed(outcome: NodeOutcome[int], output: NodeOutput) -> Executed:
    """Return what a command did on one node."""
    return Executed(
        public(outcome.node),
        outcome.value,
        output.text(False),
        output.text(True),
        output.dropped,
        outcome.error,
        outcome.seconds,
        document=output_of(outcome, output, outcome.error).to_json(),
    )
