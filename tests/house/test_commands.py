"""A command parses its arguments, calls one operation or one stage, and shows the result: it chains no stages."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from copy import copy

from house.source import imports_of, modules, tree, within
from test_house import FOR_VIEWS, VIEWS

STAGES = (
    *("config", "schedulers", "transport", "cluster", "check", "dispatch", "launch", "setup", "observe", "report"),
    *("collect", "prune", "export", "fabric"),
)
# The modules of `cli` that call a stage themselves, each one only. All else goes through `api`.
CALLS: Mapping[str, str] = {
    "cli.call": "config",
    "cli.causes": "observe.why.report",
    "cli.chosen_settings": "config",
    "cli.commands.diff": "report.formats",
    "cli.commands.export": "export",
    "cli.commands.kubernetes": "schedulers.kubernetes.submit",
    "cli.commands.logs": "observe.folding",
    "cli.commands.split": "dispatch.split",
    "cli.commands.start": "launch.adopt",
    "cli.commands.status": "observe.record.status",
    "cli.commands.submit": "schedulers.slurm.submit",
    "cli.commands.why": "observe.why.report",
    "cli.completion": "config",
    "cli.invocation": "config",
    "cli.screen.gpu_lines": "check.gpus",
}
# All modules of `cli` may use these: constants, value classes, errors, and functions that combine errors.
VALUES = (
    "cluster.NONSENSE",
    "cluster.SeveralRunningError",
    "cluster.cluster.unwatched",
    "cluster.combined",
    "cluster.fold_errors",
    "cluster.raise_failures",
    "launch.Resume",
    "observe.follow.is_passing",
    "observe.record.marks.by_our_clock",
    "observe.record.marks.warning_text",
    "observe.record.references.Reference",
    "observe.record.references.run_title",
    "observe.record.secrets.HIDDEN",
    "schedulers.NoRunError",
    "transport.ask_terminal",
)
# Screens read the record of a run themselves, as every view does.
SCREENS = tuple(view for view in VIEWS if within(view, ["cli"]) and not within(view, ["cli.commands"]))


def used(module: str) -> Iterator[str]:
    """Return the names of stages that a module uses, such as `launch.adopt`; those of types only are not among them."""
    names = {node.id for node in running(module) if isinstance(node, ast.Name)}
    imports = [copy(node) for node in ast.walk(tree(module)) if isinstance(node, ast.Import | ast.ImportFrom)]
    for one in imports:
        one.names = [alias for alias in one.names if (alias.asname or alias.name) in names]
    for full in imports_of(imports):
        name = full.removeprefix("clusterctl.")
        if within(name, STAGES) and not (within(module, SCREENS) and within(name, FOR_VIEWS)):
            yield name


def running(module: str) -> Iterator[ast.AST]:
    """Return the nodes of a module's syntax tree, except annotations."""
    waiting: list[ast.AST] = [tree(module)]
    while waiting:
        node = waiting.pop()
        yield node
        annotations = {getattr(node, name, None) for name in ("annotation", "returns")}
        waiting += [child for child in ast.iter_child_nodes(node) if child not in annotations]


def command_line() -> list[str]:
    return [module for module in modules() if within(module, ["cli"])]


def test_a_module_of_the_command_line_calls_at_most_one_stage_and_only_as_in_the_table() -> None:
    called = {(module, name) for module in command_line() for name in used(module) if name not in VALUES}
    assert [(module, name) for module, name in sorted(called) if not within(name, [CALLS.get(module, "nothing")])] == []
    assert {module for module, _ in called} == set(CALLS)


def test_the_values_of_stages_that_the_command_line_uses_are_those_of_the_list() -> None:
    assert {name for module in command_line() for name in used(module) if name in VALUES} == set(VALUES)


def test_a_document_is_built_as_its_declaration() -> None:
    """The type checker compares a dict with a declaration only where it is given the type."""
    prints = ("document", "finish", "record", "on_document")
    calls = [
        (module, node)
        for module in modules()
        if within(module, ["cli"]) and module != "cli.console"
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in prints
    ]
    assert len(calls) > 30
    assert [
        f"{module}:{node.lineno}" for module, node in calls if any(isinstance(one, ast.Dict) for one in node.args)
    ] == []
