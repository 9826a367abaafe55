"""Limits on the size of files and functions."""

from __future__ import annotations

import ast

from house.source import modules, paths, tree

MOST_LINES_OF_A_FILE = 500
MOST_LINES_OF_A_FUNCTION = 60


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
