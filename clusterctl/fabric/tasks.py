"""The tasks of the tasks.py or fabfile.py beside conf.py: find the file, run it, and look tasks up in it."""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import fabric
import invoke
from invoke.parser import Parser, ParserContext

from clusterctl.cluster import Cluster, NodeOutcome
from clusterctl.config.findings import ConfMistake, config_error
from clusterctl.errors import ClusterctlError, ConfigError, UsageError
from clusterctl.fabric.connection import Connection, make_config
from clusterctl.fabric.execution import Call, Show, exit_code, here, line_in, on_node
from clusterctl.inventory import Node

VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
NAMES = ("tasks.py", "fabfile.py")
LIST = "clusterctl task --list"
EXAMPLE = "from fabric import task, then @task above def NAME(c): c.run('uname')"


@dataclass(frozen=True)
class TaskSummary:
    """A task as a list shows it."""

    name: str
    aliases: tuple[str, ...]
    summary: str


class TaskFile:
    """The tasks of one file, which has run to its end."""

    def __init__(self, path: Path, module: ModuleType) -> None:
        self.path = path
        self._module = module
        try:
            self._tasks = invoke.Collection.from_module(module)
            self._contexts = {context.name: context for context in self._tasks.to_contexts()}
        except ValueError as exc:  # names that collide, help for arguments that do not exist
            raise _finding(path, None, str(exc)) from exc

    def listed(self) -> list[TaskSummary]:
        """Return all tasks, in the order of their names."""
        return [
            TaskSummary(name, tuple(aliases), (self._tasks[name].__doc__ or "").strip().partition("\n")[0])
            for name, aliases in sorted(self._tasks.task_names.items())
        ]

    def settings_of(self, name: str) -> dict[str, Any]:
        """Return the settings of the collections that a task is in, for the configuration of its contexts."""
        return dict(self._tasks.configuration(name))

    def call(self, name: str, arguments: Sequence[str] = ()) -> Call:
        """Return the call of a task with its arguments, as parsed by invoke. Raises UsageError."""
        task = self._find(name)
        if not isinstance(task, fabric.Task):
            raise UsageError(
                f"{self.path.name}: {name} is a task of invoke, which gets no connection",
                hint="import its decorator from fabric: from fabric import task",
            )
        self._check_hosts(task)
        return Call(task, called_as=name, kwargs=self._parsed(name, arguments))

    def hook(self, name: str, values: Mapping[str, object]) -> Call:
        """Return the call of a task on this machine, with those of the values that it takes.

        Raises UsageError if it has an argument that is not among them and has no default.
        """
        task = self._find(name)
        self._check_hosts(task)
        parameters = list(inspect.signature(task.body).parameters.values())[1:]
        needed = [one.name for one in parameters if one.default is one.empty and one.kind not in VARIADIC]
        if missing := [word for word in needed if word not in values]:
            raise UsageError(
                f"{self.path.name}: the task {name} needs {', '.join(missing)}",
                hint=f"it gets {', '.join(values)}" if values else "it gets no arguments: give them defaults",
            )
        takes_all = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)
        names = values if takes_all else [one.name for one in parameters]
        return Call(task, called_as=name, kwargs={word: values[word] for word in names if word in values})

    def _check_hosts(self, task: invoke.Task[Any]) -> None:
        for one in [task, *(call.task for call in (*calls_of(task.pre), *calls_of(task.post)))]:
            if getattr(one, "hosts", None) is not None:
                raise UsageError(
                    f"{self.path.name}: the task {one.name} has hosts=, but clusterctl runs it on the nodes of conf.py",
                    hint="remove hosts=, and choose nodes with --only",
                )

    def run_here(self, name: str, tasks: Sequence[Any], show: Show) -> None:
        """Run tasks, or calls of them, on this machine, with the settings of the task `name`.

        `show` prints the result of a task with autoprint. Raises ClusterctlError for the first failure.
        """
        here(calls_of(tasks), make_config(self.settings_of(name)), self.path, show)

    def run_on_nodes(
        self,
        cluster: Cluster,
        call: Call,
        show: Show,
        output: Callable[[Node], AbstractContextManager[None]],
        end: Callable[[Node, int | None, ClusterctlError | None], None],
    ) -> list[NodeOutcome[ClusterctlError | None]]:
        """Call a task for every node. Its failure is the value of an outcome.

        In the thread of a node, `output(node)` is entered around the call, and `end(node, code, failure)` follows it;
        the code is None if the connection failed.
        """
        assert call.called_as is not None
        config = make_config(self.settings_of(call.called_as))

        def work(node: Node) -> ClusterctlError | None:
            with Connection(node, cluster.transport, config.clone()) as connection, output(node):
                failure = on_node(call, connection, self.path, show)
            end(node, exit_code(failure), failure)
            return failure

        return cluster.map(work)

    def usage(self, name: str) -> str:
        """Return the arguments of a task, one a line, with their help."""
        self._find(name)
        rows = self._context(name).help_tuples()
        width = max((len(flags) for flags, _ in rows), default=0)
        return "\n".join(f"  {flags.ljust(width)}  {text}".rstrip() for flags, text in rows)

    def takes(self, name: str, flag: str) -> bool:
        """Return True if a task has an argument with this flag."""
        self._find(name)
        return flag in self._context(name).flags

    def _find(self, name: str) -> invoke.Task[Any]:
        try:
            task: invoke.Task[Any] = self._tasks[name]
        except (KeyError, ValueError):  # ValueError: a collection without a default task
            raise self._unknown(name) from None
        return task

    def _unknown(self, name: str) -> UsageError:
        plain = getattr(self._module, name.replace("-", "_"), None)
        if callable(plain):
            return UsageError(
                f"{self.path.name}: {name} is not a task, but a function without @task",
                hint="write @task above it, after: from fabric import task",
            )
        known = [word for one in self.listed() for word in (one.name, *one.aliases)]
        near = difflib.get_close_matches(name, known, n=3)
        suggestion = f"; did you mean {' or '.join(near)}?" if near else ""
        return UsageError(f"{self.path.name} has no task {name!r}{suggestion}", hint=LIST)

    def _context(self, name: str) -> ParserContext:
        task = self._tasks[name]
        return next(context for one, context in self._contexts.items() if self._tasks[one] is task)

    def _parsed(self, name: str, arguments: Sequence[str]) -> dict[str, Any]:
        context = self._context(name)
        try:
            if "--" in arguments:
                raise invoke.ParseError("-- stands only before the arguments")
            parsed = Parser(contexts=[context]).parse_argv([str(context.name), *arguments])
            if len(parsed) > 1:
                raise invoke.ParseError(f"unexpected argument {parsed[1].name!r}")
            return dict(parsed[0].as_kwargs)
        except (invoke.ParseError, ValueError) as exc:
            raise UsageError(f"task {name}: {exc}", hint=f"clusterctl task {name} -- --help") from exc


def calls_of(tasks: Sequence[Any]) -> Iterator[Call]:
    """Yield the calls that the `pre` or `post` of a task stand for, with their own around them, in order."""
    for one in tasks:
        call = one if isinstance(one, Call) else Call(one)
        yield from calls_of(call.task.pre)
        yield call
        yield from calls_of(call.task.post)


def load(directory: Path) -> TaskFile:
    """Run the file of tasks in a directory. Raises ConfigError if there is none or two, and for errors in it.

    Its output goes to standard error. As with fabric, the file may import modules beside it.
    """
    path = _find_file(directory)
    name = path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with contextlib.redirect_stdout(sys.stderr):
            spec.loader.exec_module(module)
    except SyntaxError as exc:
        raise _finding(Path(exc.filename or path), exc.lineno, f"SyntaxError: {exc.msg}") from exc
    except (Exception, SystemExit) as exc:
        text = " ".join(f"{type(exc).__name__}: {exc}".split()).removesuffix(":")
        raise _finding(path, line_in(path, exc), text) from exc
    return TaskFile(path, module)


def _find_file(directory: Path) -> Path:
    found = [directory / name for name in NAMES if (directory / name).is_file()]
    if not found:
        raise ConfigError(
            f"there is no tasks.py or fabfile.py in {directory}, beside conf.py", hint=f"create tasks.py: {EXAMPLE}"
        )
    if len(found) > 1:
        raise ConfigError(
            f"there are both tasks.py and fabfile.py in {directory}",
            hint="keep one of them, or import the tasks of one in the other under another name",
        )
    return found[0]


def _finding(path: Path, line: int | None, message: str) -> ConfigError:
    return config_error([ConfMistake(str(path), line, "", message)])
