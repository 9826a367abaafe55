"""conf.py as a program: read it, run it in its own namespace, and map names to lines."""

from __future__ import annotations

import ast
import builtins
import contextlib
import difflib
import re
import shlex
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import CodeType

from clusterctl.config.findings import ConfMistake, config_error
from clusterctl.config.host_sources import kubernetes, openmpi, slurm
from clusterctl.config.hosts import Host
from clusterctl.errors import ConfigError

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class ConfFile:
    """The result of running a conf.py to its end.

    `values` holds its public upper-case names; `lines` the line of the last assignment of each name that the file
    itself assigns; `host_lines` the line of each entry of HOSTS, where HOSTS is written as list literals; `imported`
    the names bound by its import statements, including `*`.
    """

    file: str
    values: Mapping[str, object]
    lines: Mapping[str, int] = field(default_factory=dict)
    host_lines: tuple[int, ...] = ()
    imported: frozenset[str] = frozenset()


def run(path: Path) -> ConfFile:
    """Read and run `path`. Raises ConfigError if it is missing, unreadable, not Python, or raises.

    Its output goes to stderr, since stdout belongs to the command (`--json`).
    """
    text = _read(path)
    try:
        tree = ast.parse(text, filename=str(path))
        code = compile(tree, str(path), "exec", dont_inherit=True)
    except SyntaxError as exc:
        raise _failure(path, exc.lineno, f"SyntaxError: {exc.msg}") from exc
    except (ValueError, RecursionError, MemoryError) as exc:  # NUL bytes, excessive nesting
        raise _failure(path, None, f"is not Python: {exc}") from exc
    names = _execute(path, code)
    return ConfFile(
        file=str(path),
        values={name: value for name, value in names.items() if name.isupper() and name[0] != "_"},
        lines=_lines(tree),
        host_lines=_host_lines(tree),
        imported=frozenset(_imported(tree)),
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as exc:
        hint = "create one with clusterctl init, or name another with --conf PATH or CLUSTERCTL_CONF"
        if path.parent.name:  # `fake down` removes its conf.py, and leaves no trace of the cluster
            hint += (
                f"; if it was of a fake cluster, that is down: clusterctl fake up --dir {shlex.quote(str(path.parent))}"
            )
        raise ConfigError(f"{path}: no such file", hint=hint) from exc
    except OSError as exc:
        hint = "choose another file with --conf PATH"
        raise ConfigError(f"{path}: cannot be read: {exc.strerror}", hint=hint) from exc


def _execute(path: Path, code: CodeType) -> dict[str, object]:
    names: dict[str, object] = {
        "__name__": "conf",
        "__file__": str(path.absolute()),
        "__builtins__": builtins,
        "Host": Host,
        "openmpi": openmpi,
        "slurm": slurm,
        "kubernetes": kubernetes,
    }
    try:
        with contextlib.redirect_stdout(sys.stderr):
            exec(code, names)
    except (Exception, SystemExit) as exc:  # conf.py may raise anything
        trace = traceback.walk_tb(exc.__traceback__)
        lines = [line for frame, line in trace if frame.f_code.co_filename == str(path)]
        raise _failure(path, lines[-1] if lines else None, _described(exc)) from exc
    return names


def _described(exc: BaseException) -> str:
    """Describe the exception in one line, with a suggestion for a misspelt argument of Host."""
    text = " ".join(f"{type(exc).__name__}: {exc}".split()).removesuffix(":")
    unknown = re.search(r"Host\.__init__\(\) got an unexpected keyword argument '(\w+)'", str(exc))
    if unknown is None:
        return text
    near = difflib.get_close_matches(unknown[1], [f.name for f in fields(Host)], n=1)
    return f"Host(...) has no {unknown[1]}" + (f"; did you mean {near[0]}?" if near else "")


def _failure(path: Path, line: int | None, message: str) -> ConfigError:
    return config_error([ConfMistake(str(path), line, "", message)])


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run in the file's own namespace, including those inside if, for, with and try."""
    for statement in body:
        yield statement
        if isinstance(statement, _SCOPES):
            continue
        for name in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(statement, name, []))
        for part in [*getattr(statement, "handlers", []), *getattr(statement, "cases", [])]:
            yield from _statements(part.body)


def _lines(tree: ast.Module) -> dict[str, int]:
    lines = {}
    for statement in _statements(tree.body):
        if not isinstance(statement, _SCOPES):
            for node in _own_nodes(statement):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    lines[node.id] = node.lineno
    return lines


def _own_nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield the nodes of a statement, excluding nested statements."""
    pending: list[ast.AST] = [statement]
    while pending:
        node = pending.pop()
        yield node
        pending += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)]


def _imported(tree: ast.Module) -> Iterator[str]:
    for statement in _statements(tree.body):
        if isinstance(statement, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in statement.names)


def _host_lines(tree: ast.Module) -> tuple[int, ...]:
    """Return the line of each entry of `HOSTS = [...]` and of any later `HOSTS += [...]`."""
    lines: list[int] = []
    for statement in _statements(tree.body):
        if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
            continue
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        if any(isinstance(target, ast.Name) and target.id == "HOSTS" for target in targets):
            value = statement.value
            listed = value.elts if isinstance(value, ast.List | ast.Tuple) else []
            added = [element.lineno for element in listed]
            lines = lines + added if isinstance(statement, ast.AugAssign) else added
    return tuple(lines)
