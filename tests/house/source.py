"""The package as text: its modules, their syntax trees, and the modules that each one imports."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path

from support.places import ROOT

PACKAGE = ROOT / "clusterctl"
SHIPPED = (
    "common",
    "transfer",
    "agent",
    "runtime",
    "torch",
)  # sent to the nodes, with the package's __init__


@cache
def paths() -> dict[str, Path]:
    """Return the file of each module; names lack `clusterctl.`, and a package has the name of its folder."""
    files = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[0] != "_data":
            files[".".join(parts).removesuffix(".__init__")] = path
    return files


def modules() -> list[str]:
    return list(paths())


@cache
def tree(module: str) -> ast.Module:
    path = paths()[module]
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def within(module: str, parts: Collection[str]) -> bool:
    """Return True if a module is one of these parts or below one; the part "" is the whole package."""
    return any(part in ("", module) or module.startswith(f"{part}.") for part in parts)


def imports(module: str) -> Iterator[str]:
    """Return the full names of everything a module imports, also in functions and under TYPE_CHECKING.

    `from clusterctl.a import b` is reported as clusterctl.a.b, since b may be a module.
    """
    yield from imports_of(ast.walk(tree(module)))


def imports_of(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Return the full names that these nodes import."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"a relative import of {node.module}"
            assert node.module is not None
            ours = node.module.partition(".")[0] == "clusterctl"
            yield from (f"{node.module}.{alias.name}" if ours else node.module for alias in node.names)


@cache
def imported(module: str) -> frozenset[str]:
    """Return the modules of clusterctl that a module imports anywhere, except the package's root."""
    known = paths()
    names = {name.partition(".")[2] for name in imports(module) if name.partition(".")[0] == "clusterctl"}
    return frozenset({name if name in known else name.rpartition(".")[0] for name in names} - {module, ""})


@cache
def calls(module: str) -> list[str]:
    """Return the functions that a module calls, as written: `print`, `sys.exit`."""
    return [ast.unparse(node.func) for node in ast.walk(tree(module)) if isinstance(node, ast.Call)]


def arrows(package: str) -> set[tuple[str, str]]:
    """Return pairs of entries of a package (folders, or modules beside them), of which the first imports the second."""
    below = f"{package}."
    return {
        (source, target)
        for module in modules()
        if module.startswith(below)
        for name in imported(module)
        if name.startswith(below)
        if (source := module.split(".")[1]) != (target := name.split(".")[1])
    }


def programs() -> set[str]:
    """Return the modules that the fake cluster starts as separate programs: `stay("clusterctl.fake.server", ...)`."""
    return {
        ast.literal_eval(node.args[0])
        for module in modules()
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "stay"
    }
