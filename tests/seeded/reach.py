"""The blocks of the package that each test file reaches: `python -m seeded.reach MAP TESTS...`, in `tests/`.

Every block of every function gets a call that appends its number to a file when a process first enters it. Agents,
supervisors and guardians, which run without site-packages and leave by `os._exit`, report so as all others do.

MAP gets one line of JSON for each test file: `reached` has for each module the blocks as `function+line`, the line
counted from the `def`. Files that have a line are not run again.
"""

from __future__ import annotations

import argparse
import ast
import json
import queue
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from seeded.trees import ROOT, Tree, add_options

PROBE = """\
import os as _os_
_reached_ = set()
def _reach_(number):
    if number not in _reached_:
        _reached_.add(number)
        try:
            file = _os_.open({path!r}, _os_.O_WRONLY | _os_.O_APPEND | _os_.O_CREAT, 0o666)
            _os_.write(file, b"%d\\n" % number)
            _os_.close(file)
        except OSError:
            pass
"""
Function = (ast.FunctionDef, ast.AsyncFunctionDef)
Place = tuple[str, int]  # the name of a block, and the line of its first statement


def blocks(source: str) -> list[Place]:
    """Return the blocks in the functions of a module, but those that are on the line of their head."""
    lines = source.splitlines()

    def within(node: ast.AST, name: str, start: int) -> Iterator[Place]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (*Function, ast.ClassDef)):
                inner = f"{name}.{child.name}" if name else child.name
                yield from within(child, inner, child.lineno if isinstance(child, Function) else 0)
            else:
                yield from within(child, name, start)
        if start and not isinstance(node, ast.Lambda):
            for body in (getattr(node, field, None) for field in ("body", "orelse", "finalbody")):
                if isinstance(body, list) and (line := _first_line(node, body, lines)):
                    yield f"{name}+{line - start}", line

    return sorted(within(ast.parse(source), "", 0), key=lambda place: place[1])


def _first_line(node: ast.AST, body: list[ast.stmt], lines: list[str]) -> int:
    if isinstance(node, Function) and ast.get_docstring(node) is not None:
        body = body[1:]
    if not body:
        return 0
    line = min([body[0].lineno, *(found.lineno for found in getattr(body[0], "decorator_list", []))])
    on_head = line == getattr(node, "lineno", 0) or lines[line - 1].lstrip().startswith("elif ")
    return 0 if on_head else line


def block_of(source: str, line: int) -> str | None:
    """Return the innermost block that has this line; None if no function has it."""
    best: tuple[int, str] | None = None
    names = {start: name for name, start in blocks(source)}
    for node in ast.walk(ast.parse(source)):
        for field in ("body", "orelse", "finalbody"):
            body = getattr(node, field, None)
            if isinstance(body, list) and body and body[0].lineno <= line <= (body[-1].end_lineno or 0):
                first = _first_line(node, body, source.splitlines())
                if first in names and (best is None or body[0].lineno >= best[0]):
                    best = body[0].lineno, names[first]
    return best[1] if best else None


def put_probes(tree: Tree, hits: Path) -> list[tuple[str, str]]:
    """Change all modules of a tree; return the module and the block of each number."""
    places: list[tuple[str, str]] = []
    for path in sorted((tree.directory / "clusterctl").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        module = path.relative_to(tree.directory).as_posix()
        lines = source.splitlines(keepends=True)
        numbered = []
        for name, line in blocks(source):
            numbered.append((line, len(places)))
            places.append((module, name))
        for line, number in reversed(numbered):
            indent = lines[line - 1][: len(lines[line - 1]) - len(lines[line - 1].lstrip())]
            lines.insert(line - 1, f"{indent}_reach_({number})\n")
        if numbered:
            lines.insert(_after_head(source), PROBE.format(path=str(hits)))
            path.write_text("".join(lines), encoding="utf-8")
    return places


def _after_head(source: str) -> int:
    """Return the number of lines up to the docstring and `from __future__`."""
    end = 0
    for node in ast.parse(source).body:
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and end == 0
        if not docstring and not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            break
        end = node.end_lineno or 0
    return end


class Prober:
    """A tree with probes, for one test file at a time."""

    def __init__(self, directory: Path, *, slow: bool) -> None:
        self._hits = directory.with_name(f"{directory.name}-hits")
        self._tree = Tree.copy(directory, slow=slow)
        self._places = put_probes(self._tree, self._hits)

    def run(self, test: str, limit_s: float) -> dict[str, Any]:
        self._hits.unlink(missing_ok=True)
        ran = self._tree.pytest(test, limit_s=limit_s)
        reached: dict[str, set[str]] = defaultdict(set)
        for number in self._hits.read_text().split() if self._hits.exists() else ():
            module, name = self._places[int(number)]
            reached[module].add(name)
        last = ran.output.splitlines()[-1:]
        found = {module: sorted(names) for module, names in sorted(reached.items())}
        return {"test": test, "code": ran.code, "seconds": ran.seconds, "last": last, "reached": found}


def read_map(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="seeded.reach", description=__doc__)
    parser.add_argument("map", type=Path)
    parser.add_argument("tests", nargs="+", help="files or folders, from the root of the tree")
    add_options(parser, limit_s=300)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    chosen = _parsed(arguments)
    done = {entry["test"] for entry in read_map(chosen.map)}
    paths = [path for test in chosen.tests for path in (sorted((ROOT / test).rglob("test_*.py")) or [ROOT / test])]
    names = dict.fromkeys(path.relative_to(ROOT).as_posix() for path in paths)
    tests = [name for name in names if name not in done]
    probers: queue.Queue[Prober] = queue.Queue()
    for number in range(min(chosen.jobs, len(tests))):
        probers.put(Prober(chosen.work / f"reach{number}", slow=chosen.slow))

    def run(test: str) -> None:
        prober = probers.get()
        entry = prober.run(test, chosen.limit)
        probers.put(prober)
        with chosen.map.open("a") as file:
            file.write(json.dumps(entry, separators=(",", ":")) + "\n")
        print(entry["test"], entry["code"], entry["seconds"], *entry["last"], flush=True)

    with ThreadPoolExecutor(chosen.jobs) as pool:
        list(pool.map(run, tests))


if __name__ == "__main__":
    main(sys.argv[1:])
