"""Limits on the size of folders, files and functions."""

from __future__ import annotations

import ast
from collections import Counter

from house.source import PACKAGE, modules, paths, tree

MOST_MODULES = {"cli/commands": 30, "api/operations": 30, "runtime/trainer": 19}  # commands: one for each
MOST_MODULES_ELSEWHERE = 18
MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_A_FUNCTION = 60


def test_no_folder_has_too_many_modules() -> None:
    folders = Counter(
        path.parent.relative_to(PACKAGE).as_posix() for path in paths().values() if path.name != "__init__.py"
    )
    most = {folder: MOST_MODULES.get(folder, MOST_MODULES_ELSEWHERE) for folder in folders}
    assert {folder: count for folder, count in folders.items() if count > most[folder]} == {}


def test_no_file_is_too_long() -> None:
    lines = {module: path.read_text(encoding="utf-8").count("\n") for module, path in paths().items()}
    assert {module: count for module, count in lines.items() if count > MOST_LINES_OF_A_FILE} == {}


def test_no_function_is_too_long() -> None:
    lengths = {
        f"{module}.{node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for module in modules()
        for node in ast.walk(tree(module))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    assert {name: length for name, length in lengths.items() if length > MOST_LINES_OF_A_FUNCTION} == {}
