"""Calls of tasks: the body with a connection, `pre`, `post` and hooks with a context on this machine."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import invoke

from clusterctl.errors import (
    ClusterctlError,
    ConfigError,
    InterruptedRun,
    NodeError,
    RefusedError,
    UnreachableError,
    UsageError,
)
from clusterctl.fabric.connection import Connection
from clusterctl.fabric.runner import titled
from clusterctl.inventory import Node

Call: TypeAlias = invoke.Call
# Prints the result of a task with autoprint.
Show = Callable[[str], None]


def on_node(call: Call, connection: Connection, path: Path, show: Show) -> ClusterctlError | None:
    """Call a task of the file `path` with the connection to a node. Return its failure instead of raising it."""
    try:
        _call(call, connection, show)
    except (Exception, SystemExit) as exc:  # noqa: BLE001 - a task may raise anything
        return _failure(exc, path, connection.node)
    return None


def here(calls: Iterable[Call], config: Any, path: Path, show: Show) -> None:
    """Call tasks one after the other on this machine. Raises ClusterctlError for the first that fails."""
    for call in calls:
        local = config.clone()
        local.run.in_stream = None  # a person may answer
        try:
            _call(call, invoke.Context(local), show)
        except (Exception, SystemExit) as exc:
            failure = _failure(exc, path, None)
            failure.message = f"the task {call.task.name} failed on this machine: {failure.message}"
            raise failure from exc


def _call(call: Call, context: invoke.Context, show: Show) -> None:
    result = call.task(context, *call.args, **call.kwargs)
    if call.task.autoprint:
        show(str(result))


def exit_code(failure: ClusterctlError | None) -> int | None:
    """Return 0 without a failure, the exit code of the command that failed, 1 for other failures of a task.

    None if the connection to the node failed.
    """
    if failure is None:
        return 0
    if isinstance(failure, UnreachableError | RefusedError | InterruptedRun):
        return None
    return int(failure.details.get("exit_code", 1))


def line_in(path: Path, exc: BaseException) -> int | None:
    """Return the line of a file at which an exception passed through it last; None if it did not."""
    lines = [line for frame, line in traceback.walk_tb(exc.__traceback__) if frame.f_code.co_filename == str(path)]
    return lines[-1] if lines else None


def _failure(exc: BaseException, path: Path, node: Node | None) -> ClusterctlError:
    label = None if node is None else node.label
    kind = ClusterctlError if node is None else NodeError
    if isinstance(exc, ClusterctlError):
        return kind(exc.message, node=label, hint=exc.hint) if isinstance(exc, UsageError | ConfigError) else exc
    line = line_in(path, exc)
    place = "" if line is None else f" ({path.name}:{line})"
    made = kind(_description(exc) + place, node=label, details={"exit_code": _code(exc)})
    made.__cause__ = exc
    return made


def _code(exc: BaseException) -> int:
    return int(exc.result.exited) if isinstance(exc, invoke.UnexpectedExit) else 1


def _description(exc: BaseException) -> str:
    if isinstance(exc, invoke.CommandTimedOut):
        return f"timed out after {exc.timeout:g} s: {titled(exc.result.command)}"
    if isinstance(exc, invoke.UnexpectedExit):
        result = exc.result
        said = result.stderr.strip().splitlines() if "stderr" in result.hide else []
        last = f": {titled(said[-1])}" if said else ""
        return f"exit code {result.exited} of: {titled(result.command)}{last}"
    text = " ".join(str(exc).split())
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__
