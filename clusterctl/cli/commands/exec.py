"""`clusterctl exec`."""

from __future__ import annotations

import fcntl
import os
import shlex
import stat
import sys
import termios
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

from clusterctl.api.exec import (
    LINE_BYTES,
    NodeOutput,
    exec_problem,
    in_directory_of,
    output_of,
    remote_command,
    run_on_nodes,
    same_on_all,
)
from clusterctl.cli import style
from clusterctl.cli.console import Console, human_bytes
from clusterctl.cli.invocation import Invocation
from clusterctl.cluster import Cluster, NodeOutcome
from clusterctl.documents.nodes import ExecDocument
from clusterctl.errors import InterruptedRun, UsageError
from clusterctl.escape import clean
from clusterctl.inventory import Node, nodeset
from clusterctl.transport import RemoteCommand

HOLD_S = 2.0
HOLD_BYTES = 1 << 20
KEPT_BYTES = 64 << 20
STREAM_BYTES = 1 << 20


def exec_(invocation: Invocation, job: str | None, in_job: bool, fold: bool | None) -> None:
    """Run a command. `fold`: True waits for the end, False shows lines as they arrive, None decides by duration.

    With `in_job` it runs in the directory of `job`, by default of the job that is meant.
    """
    words = invocation.program_args or []
    if job is not None and not in_job:
        _refuse_job(job, words)
    command = remote_command(words)
    refuse_input()
    job_id: str | None = None
    with invocation.cluster() as cluster:
        commands = same_on_all(command)
        if in_job:
            job_id, commands = in_directory_of(cluster, job, command)
        screen = OutputDisplay(invocation.console, cluster.nodes, True if invocation.console.json else fold)
        with invocation.progress.operation("", plain=False):  # the output of a pipe is that of the commands alone
            outcomes = _run(cluster, commands, screen)
    screen.close()
    document = ExecDocument(
        job=job_id, nodes=tuple(output_of(one, screen.outputs[one.node.id], one.error) for one in outcomes)
    )
    invocation.console.finish(document.to_json(), exec_problem(outcomes))


def _refuse_job(job: str, words: Sequence[str]) -> NoReturn:
    hint = f"to run it in the directory of a job: clusterctl exec --in-job {shlex.quote(job)} -- {shlex.join(words)}"
    raise UsageError(f"exec: {job!r} is neither an option nor part of the command after --", hint=hint)


def refuse_input() -> None:
    """Raise UsageError if there is data on our standard input, which would be lost silently."""
    if _input_bytes():
        raise UsageError(
            "exec does not forward standard input, but received data on it",
            hint="dispatch sends files; if the data is not meant for the nodes, add </dev/null",
        )


def _input_bytes() -> int:
    try:
        fd = sys.stdin.fileno()
        kind = os.fstat(fd)
        if stat.S_ISREG(kind.st_mode):
            return max(0, kind.st_size - os.lseek(fd, 0, os.SEEK_CUR))
        if not stat.S_ISFIFO(kind.st_mode):
            return 0
        return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder)
    except (AttributeError, OSError, ValueError):  # no standard input at all
        return 0


def _run(cluster: Cluster, commands: Callable[[Node], RemoteCommand], screen: OutputDisplay) -> list[NodeOutcome[int]]:
    def guarded(step: Callable[[], None]) -> None:
        try:
            step()
        except BrokenPipeError:
            cluster.transport.abort()
            raise

    def take(node: Node, piece: bytes, is_error: bool) -> None:
        guarded(lambda: screen.take(node.id, piece, is_error))

    def end(node: Node, code: int) -> None:
        guarded(lambda: screen.end(node.id, code))

    try:
        outcomes = run_on_nodes(cluster, commands, take, end)
    except KeyboardInterrupt:
        screen.show_held()
        raise InterruptedRun(
            f"interrupted; the command was still running on {nodeset(screen.not_ended())}",
            hint="as with ssh, it may keep running there",
        ) from None
    if screen.reader_is_gone:
        raise BrokenPipeError
    return outcomes


class OutputDisplay:
    """Shows the output of many nodes: held back and folded, or live, line by line. Thread-safe.

    If `fold` is None it holds output back for up to `HOLD_S` and `HOLD_BYTES`, and is live from then on.
    """

    def __init__(self, console: Console, nodes: Sequence[Node], fold: bool | None) -> None:
        limit = min(STREAM_BYTES, max(LINE_BYTES // 4, KEPT_BYTES // (2 * max(1, len(nodes)))))
        self.outputs = {node.id: NodeOutput(limit) for node in nodes}
        self.reader_is_gone = False
        self._console = console
        self._lock = threading.RLock()
        self._live = fold is False
        self._held = 0
        self._may_go_live = fold is None
        self._clock = threading.Timer(HOLD_S, self._on_timeout)
        self._clock.daemon = True
        if self._may_go_live:
            self._clock.start()

    def take(self, node: int, piece: bytes, is_error: bool) -> None:
        """Take output of a node. Raises BrokenPipeError when the reader of our output is gone."""
        with self._lock:
            output = self.outputs[node]
            self._held += len(piece)
            if self._may_go_live and not self._live and self._held > HOLD_BYTES:
                self._go_live()
            if self._live:
                self._print_lines(node, output.take_lines(piece, is_error))
            else:
                output.keep(piece, is_error)

    def end(self, node: int, code: int, ending: str | None = None) -> None:
        """Take the exit code of a node's command; `ending` is how to show it, if not by its number."""
        with self._lock:
            output = self.outputs[node]
            output.code = code
            output.ending = (f"(exit code {code})" if code else "") if ending is None else ending
            if self._live:
                self._print_lines(node, output.take_rest() + ([output.ending.encode()] if output.ending else []))

    def close(self) -> None:
        """Show the held output, folded, and the nodes that ended without output. No more output may come.

        The output of a node that was lost is shown line by line.
        """
        self._clock.cancel()
        with self._lock:
            if self._console.json:
                return
            if not self._live:
                self._go_live()
            elif self._may_go_live:
                self._print_folded()
            for node, output in self.outputs.items():
                self._print_lines(node, output.take_rest())

    def show_held(self) -> None:
        """Show the held output of a command that was interrupted, also of nodes that are still running it."""
        self._clock.cancel()
        with self._lock:
            if not self._live and not self._console.json:
                self._go_live()

    def not_ended(self) -> list[int]:
        return [node for node, output in self.outputs.items() if output.code is None]

    def _on_timeout(self) -> None:
        with self._lock:
            if not self._live:
                try:
                    self._go_live()
                except BrokenPipeError:  # the thread with the next output gets the same error
                    return

    def _go_live(self) -> None:
        self._live = True
        self._print_folded()
        for node, output in self.outputs.items():
            if output.code is None:
                for is_error, kept in enumerate(output.give_up()):
                    self._print_lines(node, output.take_lines(kept, bool(is_error)))

    def _print_lines(self, node: int, lines: Iterable[bytes]) -> None:
        texts = (clean(line.removesuffix(b"\r").decode(errors="replace")) for line in lines)
        if text := "\n".join(f"node{node}: {line}" for line in texts):
            self.outputs[node].shown = True
            self._print(text)

    def _print_folded(self) -> None:
        """Show ended nodes that are not on the screen yet, those with identical output together."""
        groups: dict[bytes, list[int]] = {}
        for node, output in self.outputs.items():
            if output.code is not None and not output.shown:
                output.shown = True
                groups.setdefault(output.digest, []).append(node)
        for ids in groups.values():
            output = self.outputs[ids[0]]
            self._print(f"--- {nodeset(ids)}" + (" " + style.bad(output.ending) if output.ending else ""))
            for line in output.text(False).splitlines() + output.text(True).splitlines():
                self._print(clean(line))
            if output.dropped:
                self._print(f"... and {human_bytes(output.dropped)} more; --no-fold shows all of it")

    def _print(self, text: str) -> None:
        if self.reader_is_gone:
            raise BrokenPipeError
        try:
            self._console.output(text)
        except BrokenPipeError:
            self.reader_is_gone = True
            raise
