"""`clusterctl task`: a task of Fabric on every node."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from clusterctl.cli.commands.exec import Screen
from clusterctl.cli.invocation import Invocation
from clusterctl.cli.task_output import NodeStream, PerThread
from clusterctl.errors import ClusterctlError, InterruptedRun, UsageError

if TYPE_CHECKING:
    from clusterctl.cli.console import Console
    from clusterctl.cluster import Cluster, NodeOutcome
    from clusterctl.config import Settings
    from clusterctl.fabric.tasks import Call, TaskFile
    from clusterctl.inventory import Node

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
        screen = Screen(invocation.console, cluster.nodes, True if invocation.console.json else fold)
        with invocation.progress.operation("", plain=False):  # the output of a pipe is that of the tasks alone
            outcomes = _run(cluster, file, call, screen, invocation.console)
    screen.close()
    problem = _problem(outcomes, name)
    if problem is None:
        try:
            _around(invocation.console, file, name, call.task.post)
        except ClusterctlError as exc:
            problem = exc
    invocation.console.finish({"task": name, "nodes": [_view(one, screen) for one in outcomes]}, problem)


def load_tasks(settings: Settings) -> TaskFile:
    """Run the file of tasks beside conf.py."""
    import clusterctl.fabric.tasks

    assert settings.source is not None
    return clusterctl.fabric.tasks.load(settings.source.absolute().parent)


def _list(console: Console, file: TaskFile) -> None:
    tasks = file.listed()
    console.document(
        {
            "file": str(file.path),
            "tasks": [{"name": one.name, "aliases": list(one.aliases), "summary": one.summary} for one in tasks],
        }
    )
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
    from clusterctl.fabric.tasks import calls_of

    run_here(console, file, name, calls_of(tasks))


def run_here(console: Console, file: TaskFile, name: str, calls: Iterable[Call]) -> None:
    """Run calls on this machine, with the settings of the task `name`. Raises ClusterctlError for the first failure."""
    from clusterctl.fabric.connection import make_config
    from clusterctl.fabric.execution import here

    with _for_people(console):
        here(calls, make_config(file.settings_of(name)), file.path, print)


@contextlib.contextmanager
def _for_people(console: Console) -> Iterator[None]:
    """Keep output of Python code out of JSON documents, and with `--quiet` off the screen."""
    with contextlib.redirect_stdout(io.StringIO() if console.quiet else console.people):
        yield


def _run(
    cluster: Cluster, file: TaskFile, call: Call, screen: Screen, console: Console
) -> list[NodeOutcome[ClusterctlError | None]]:
    """Call a task for every node. Its failure is the value of an outcome."""
    from clusterctl.fabric.connection import Connection, make_config
    from clusterctl.fabric.execution import exit_code, on_node
    from clusterctl.inventory import nodeset

    assert call.called_as is not None
    config = make_config(file.settings_of(call.called_as))
    stdout, stderr = PerThread(sys.stdout), PerThread(sys.stderr)

    def work(node: Node) -> ClusterctlError | None:
        streams = [NodeStream(_taker(cluster, screen, node, is_error)) for is_error in (False, True)]
        own = Connection(node, cluster.transport, config.clone())
        with own as connection, stdout.to(streams[0]), stderr.to(streams[1]):
            failure = on_node(call, connection, file.path, print)
        code = exit_code(failure)
        if code is not None:
            screen.end(node.id, code, "(failed)" if failure else "")
        if failure is not None and console.verbose and failure.__cause__ is not None:
            console.traceback(failure.__cause__)
        return failure

    try:
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            outcomes = cluster.map(work)
    except KeyboardInterrupt:
        screen.show_held()
        raise InterruptedRun(
            f"interrupted; the task was still running on {nodeset(screen.not_ended())}",
            hint="as with ssh, a command of it may keep running there",
        ) from None
    if screen.reader_is_gone:
        raise BrokenPipeError
    return outcomes


def _taker(cluster: Cluster, screen: Screen, node: Node, is_error: bool) -> Callable[[str], None]:
    def take(text: str) -> None:
        try:
            screen.take(node.id, text.encode("utf-8", "replace"), is_error)
        except BrokenPipeError:
            cluster.transport.abort()
            raise

    return take


def _view(outcome: NodeOutcome[ClusterctlError | None], screen: Screen) -> dict[str, Any]:
    node, output = outcome.node, screen.outputs[outcome.node.id]
    view: dict[str, Any] = {"node": node.id, "host": node.where, "seconds": outcome.seconds, "exit_code": output.code}
    failure = outcome.error or outcome.value
    if failure is not None:
        view["error"] = failure.to_json()
    return {**view, **output.view()}


def _problem(outcomes: Sequence[NodeOutcome[ClusterctlError | None]], name: str) -> ClusterctlError | None:
    from clusterctl.cluster import combined

    errors = [failure for outcome in outcomes if (failure := outcome.error or outcome.value)]
    return combined(errors, len(outcomes), f"task {name}") if errors else None
