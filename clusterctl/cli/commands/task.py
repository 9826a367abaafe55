"""`clusterctl task`: a task of Fabric on every node."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from clusterctl.api.exec import load_tasks, output_of, task_problem
from clusterctl.cli.commands.exec import OutputDisplay
from clusterctl.cli.console import Console
from clusterctl.cli.invocation import Invocation
from clusterctl.cli.task_output import NodeStream, PerThread
from clusterctl.cluster import Cluster, NodeOutcome
from clusterctl.documents.nodes import TaskDocument, TaskListDocument
from clusterctl.errors import ClusterctlError, InterruptedRun, UsageError
from clusterctl.inventory import Node, nodeset

if TYPE_CHECKING:
    from clusterctl.fabric.execution import Call
    from clusterctl.fabric.tasks import TaskFile

HELP = ("--help", "-h")


def task(invocation: Invocation, name: str | None, *, listing: bool, fold: bool | None) -> None:
    """List the tasks, or run one: `pre` on this machine, its body for every node, `post` on this machine."""
    arguments = invocation.program_args or []
    if name is None and not listing:
        raise UsageError("task needs NAME", hint="clusterctl task --list")
    settings = invocation.settings()
    file = load_tasks(settings)
    if name is None or listing:
        _list(invocation.console, file)
        return
    if len(arguments) == 1 and arguments[0] in HELP and not file.takes(name, arguments[0]):
        _help(invocation.console, file, name)
        return
    call = file.call(name, arguments)
    with invocation.cluster(settings) as cluster:
        _around(invocation.console, file, name, call.task.pre)
        screen = OutputDisplay(invocation.console, cluster.nodes, True if invocation.console.json else fold)
        with invocation.progress.operation("", plain=False):  # the output of a pipe is that of the tasks alone
            outcomes = _run(cluster, file, call, screen, invocation.console)
    screen.close()
    error = task_problem(outcomes, name)
    if error is None:
        try:
            _around(invocation.console, file, name, call.task.post)
        except ClusterctlError as exc:
            error = exc
    nodes = tuple(output_of(one, screen.outputs[one.node.id], one.error or one.value) for one in outcomes)
    invocation.console.finish(TaskDocument(name, nodes).to_json(), error)


def _list(console: Console, file: TaskFile) -> None:
    tasks = file.listed()
    document: TaskListDocument = {
        "file": str(file.path),
        "tasks": [{"name": one.name, "aliases": list(one.aliases), "summary": one.summary} for one in tasks],
    }
    console.document(document)
    if console.json:
        return
    if not tasks:
        console.say(f"{file.path} has no tasks")
    rows = [(", ".join((one.name, *one.aliases)), one.summary) for one in tasks]
    width = max((len(names) for names, _ in rows), default=0)
    for names, summary in rows:
        console.output(f"{names.ljust(width)}  {summary}".rstrip())


def _help(console: Console, file: TaskFile, name: str) -> None:
    console.output(f"clusterctl task {name} -- ARGUMENTS\n\n{file.usage(name) or '  none'}")


def _around(console: Console, file: TaskFile, name: str, tasks: Sequence[Any]) -> None:
    """Run the `pre` or the `post` of a task on this machine."""
    with for_people(console):
        file.run_here(name, tasks, print)


@contextlib.contextmanager
def for_people(console: Console) -> Iterator[None]:
    """Keep output of Python code out of JSON documents, and with `--quiet` off the screen."""
    with contextlib.redirect_stdout(io.StringIO() if console.quiet else console.people):
        yield


def _run(
    cluster: Cluster, file: TaskFile, call: Call, screen: OutputDisplay, console: Console
) -> list[NodeOutcome[ClusterctlError | None]]:
    """Call a task for every node. Its failure is the value of an outcome."""
    stdout, stderr = PerThread(sys.stdout), PerThread(sys.stderr)

    @contextlib.contextmanager
    def output(node: Node) -> Iterator[None]:
        streams = [NodeStream(_taker(cluster, screen, node, is_error)) for is_error in (False, True)]
        with stdout.to(streams[0]), stderr.to(streams[1]):
            yield

    def end(node: Node, code: int | None, failure: ClusterctlError | None) -> None:
        if code is not None:
            screen.end(node.id, code, "(failed)" if failure else "")
        if failure is not None and console.verbose and failure.__cause__ is not None:
            console.traceback(failure.__cause__)

    try:
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            outcomes = file.run_on_nodes(cluster, call, print, output, end)
    except KeyboardInterrupt:
        screen.show_held()
        raise InterruptedRun(
            f"interrupted; the task was still running on {nodeset(screen.not_ended())}",
            hint="as with ssh, a command of it may keep running there",
        ) from None
    if screen.reader_is_gone:
        raise BrokenPipeError
    return outcomes


def _taker(cluster: Cluster, screen: OutputDisplay, node: Node, is_error: bool) -> Callable[[str], None]:
    def take(text: str) -> None:
        try:
            screen.take(node.id, text.encode("utf-8", "replace"), is_error)
        except BrokenPipeError:
            cluster.transport.abort()
            raise

    return take
