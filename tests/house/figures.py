"""Count the package: `python -m house.figures [TREE ...]`, in `tests/`, prints a column for each tree.

Data types are dataclasses, named tuples, typed dicts, records and enumerations; lines are those of Python files.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from support.places import ROOT

BASES = {"NamedTuple", "TypedDict", "Record", "FieldGroup", "Enum", "IntEnum", "StrEnum", "Protocol"}
SMALL = 60


def figures(tree: Path) -> dict[str, int]:
    """Return the figures of a tree of the project, by what they count."""
    sources = {path: path.read_text() for path in sorted((tree / "clusterctl").rglob("*.py"))}
    parsed = {path: ast.parse(source) for path, source in sources.items()}
    lines = {path: source.count("\n") for path, source in sources.items()}
    classes = [node for one in parsed.values() for node in ast.walk(one) if isinstance(node, ast.ClassDef)]
    places = Counter(name for one in parsed.values() for name in {node.name for node in _classes(one)})
    inits = [one for path, one in parsed.items() if path.name == "__init__.py"]
    tests = [path.read_text().count("\n") for path in (tree / "tests").rglob("*.py")]
    return {
        "files": len(sources),
        "lines of the package": sum(lines.values()),
        "lines of the tests": sum(tests),
        "data types": sum(map(_is_data, classes)) + sum(map(_functional, parsed.values())),
        "class names in several modules": sum(count > 1 for count in places.values()),
        "imports inside functions": sum(map(_late_imports, parsed.values())),
        "lines below TYPE_CHECKING": sum(map(_type_checking, parsed.values())),
        "noqa": sum(source.count("# noqa") for source in sources.values()),
        f"files under {SMALL} lines": sum(count < SMALL for count in lines.values()),
        "__init__ with code": sum(any(not isinstance(node, ast.Expr) for node in one.body) for one in inits),
    }


def _classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    return (node for node in tree.body if isinstance(node, ast.ClassDef))


def _is_data(node: ast.ClassDef) -> bool:
    decorators = [one.func if isinstance(one, ast.Call) else one for one in node.decorator_list]
    bases = {_name(base.value if isinstance(base, ast.Subscript) else base) for base in node.bases}
    return "dataclass" in map(_name, decorators) or bool(bases & BASES)


def _functional(tree: ast.Module) -> int:
    """Return the number of types such as `Figures = TypedDict("Figures", ...)`."""
    values = [node.value for node in tree.body if isinstance(node, ast.Assign)]
    return sum(isinstance(value, ast.Call) and _name(value.func) in BASES for value in values)


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _late_imports(tree: ast.Module) -> int:
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return len(
        {id(one) for node in functions for one in ast.walk(node) if isinstance(one, (ast.Import, ast.ImportFrom))}
    )


def _type_checking(tree: ast.Module) -> int:
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.If) and _name(node.test) == "TYPE_CHECKING"]
    return sum((block.body[-1].end_lineno or 0) - block.lineno for block in blocks)


def main(trees: list[str]) -> None:
    columns = [figures(Path(tree)) for tree in trees or [str(ROOT)]]
    for name in columns[0]:
        print(f"{name:32}", *(f"{column[name]:>8,}" for column in columns))


if __name__ == "__main__":
    main(sys.argv[1:])
