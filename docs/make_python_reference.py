"""The reference pages of the public Python packages, from their source text.

Nothing is imported, so no package has to be installed: `clusterctl.torch` is documented without torch. Docstrings are
Markdown. Printed by

    python docs/make_python_reference.py
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: The documented packages: what is said about each, and classes that users get objects of without importing them.
PACKAGES = {
    "clusterctl": ("The names of the Python API: see [its page](../../api.md) for examples.", ()),
    "clusterctl.runtime": (
        "Training programs import it: [The runtime](../../runtime.md) explains it, with examples.",
        ("trainer.session.Session", "trainer.handles.Dense", "trainer.handles.Embedding", "table.schedules.Schedule"),
    ),
    "clusterctl.torch": ("Torch models on the parameter servers: see [Torch models](../../torch.md).", ()),
    "clusterctl.fabric": (
        "Fabric over clusterctl's connections: see [tasks](../../commands.md#in-programs-of-your-own).",
        (),
    ),
}
#: Methods for other modules of clusterctl, which share the class with the user's program.
INTERNAL = {
    *("checked", "create_session", "id_batch", "leave_at_exit", "load_rows", "load_wire_state", "packed", "pair"),
    *("pull_distinct", "refresh", "shared_out", "slot_shares", "to_json", "wire_state"),
}
#: Classes that only `connect` makes.
RETURNED = {"Cluster", "Job", "Run", "Session"}
Definition = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


def pages() -> dict[str, str]:
    """Return each page by its path on the site, without the ending."""
    return {f"reference/python/{name.rpartition('.')[2]}": page(name) for name in PACKAGES}


def page(package: str) -> str:
    about, more = PACKAGES[package]
    parts = [f"# {package}", f"This page is generated from the code. {about}", f"```{{py:module}} {package}\n```"]
    parts += [f"## {name}\n\n{described(*find(package, name), package)}" for name in exported(package)]
    for path in more:
        module, _, name = f"{package}.{path}".rpartition(".")
        parts.append(f"## {name}\n\n{described(*find(module, name), package, is_made=False)}")
    return "\n\n".join(parts) + "\n"


def source(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(source(module).read_text(encoding="utf-8"))


def exported(package: str) -> list[str]:
    """Return the names in `__all__`. Raises LookupError if the package has none."""
    for node in tree(package).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    raise LookupError(f"{package} has no __all__")


def find(module: str, name: str) -> tuple[str, Definition]:
    """Return the definition that a module has or imports, and its module. Raises LookupError if there is none."""
    for node in ast.walk(tree(module)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            return module, node
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and name in assigned(node):
            return module, node
        if isinstance(node, ast.ImportFrom) and node.module and name in [alias.name for alias in node.names]:
            return find(node.module, name)
    raise LookupError(f"{module} neither defines nor imports {name}")


def assigned(node: ast.Assign | ast.AnnAssign) -> list[str]:
    return [ast.unparse(one) for one in (node.targets if isinstance(node, ast.Assign) else [node.target])]


@dataclass(frozen=True)
class Entry:
    """One object of a page: the kind of its directive, its signature, its docstring and its members."""

    kind: str
    signature: str
    text: str
    members: tuple[Entry, ...] = ()
    option: str = ""

    def lines(self, package: str = "") -> list[str]:
        fence = "`" * (5 if self.members else 4)
        inside = [line for member in self.members for line in ("", *member.lines())]
        options = [*([f":module: {package}"] if package else []), *([self.option] if self.option else [])]
        return [f"{fence}{{py:{self.kind}}} {self.signature}", *options, "", self.text, *inside, fence]


def described(module: str, node: Definition, package: str, *, is_made: bool = True) -> str:
    """Return the directive of a definition. Without `is_made`, users get objects of the class but do not make them."""
    if isinstance(node, ast.ClassDef):
        entry = class_entry(module, node, is_made)
    elif isinstance(node, ast.FunctionDef):
        entry = function_entry(node, "function")
    else:
        entry = Entry("data", assigned(node)[0], f"`{ast.unparse(node)}`")
    return "\n".join(entry.lines(package))


def function_entry(node: ast.FunctionDef, kind: str) -> Entry:
    text = ast.get_docstring(node) or ""
    if is_property(node):
        return Entry("property", f"{node.name}{returned(node)}", text)
    option = next((f":{word}:" for word in decorators(node) if word in ("classmethod", "staticmethod")), "")
    return Entry(kind, f"{node.name}({parameters(node, kind == 'method')}){returned(node)}", text, option=option)


def class_entry(module: str, node: ast.ClassDef, is_made: bool) -> Entry:
    given = constructor(module, node) if is_made and node.name not in RETURNED else ""
    public = [one for one in methods(node) if not one.name.startswith("_") and one.name not in INTERNAL]
    shown = [function_entry(one, "method") for one in public if ast.get_docstring(one) and not sets(one)]
    signature = f"{node.name}({given})" if given else node.name
    return Entry("class", signature, ast.get_docstring(node) or "", tuple(shown))


def constructor(module: str, node: ast.ClassDef) -> str:
    """Return the parameters of `__init__`, or the fields of a dataclass."""
    for one in methods(node):
        if one.name == "__init__":
            return parameters(one, True)
    return ", ".join(declared(module, node).values()) if is_data(node) else ""


def methods(node: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    return (one for one in node.body if isinstance(one, ast.FunctionDef))


def declared(module: str, node: ast.ClassDef) -> dict[str, str]:
    """Return the public fields of a dataclass as written, those that it inherits first."""
    found: dict[str, str] = {}
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in [one.name for one in classes(module)]:
            found |= declared(*find(module, base.id))
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and "ClassVar" not in ast.unparse(one.annotation):
            found[ast.unparse(one.target)] = ast.unparse(one)
    return {name: field for name, field in found.items() if not name.startswith("_")}


def classes(module: str) -> Iterator[ast.ClassDef]:
    return (one for one in tree(module).body if isinstance(one, ast.ClassDef))


def is_data(node: ast.ClassDef) -> bool:
    return any("dataclass" in word for word in decorators(node))


def is_property(node: ast.FunctionDef) -> bool:
    return any(word.endswith("property") for word in decorators(node))


def sets(node: ast.FunctionDef) -> bool:
    return any(word.endswith(".setter") for word in decorators(node))


def decorators(node: ast.FunctionDef | ast.ClassDef) -> list[str]:
    return [ast.unparse(one) for one in node.decorator_list]


def parameters(node: ast.FunctionDef, bound: bool) -> str:
    """Return the parameters as written, without self."""
    arguments = copy.deepcopy(node.args)
    if bound and "staticmethod" not in decorators(node):
        del (arguments.posonlyargs or arguments.args)[0]
    return ast.unparse(arguments)


def returned(node: ast.FunctionDef) -> str:
    kind = ast.unparse(node.returns) if node.returns else "None"
    return "" if kind == "None" else f"{': ' if is_property(node) else ' -> '}{kind}"


if __name__ == "__main__":
    import sys

    sys.stdout.write("\n".join(pages().values()))
