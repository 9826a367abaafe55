"""The allowed imports between modules. Other conventions are tested in `tests/house`.

The tables say what may be imported: an import that no row allows fails here.
docs/architecture.svg is drawn from them; after a change, run `python docs/make_architecture.py`.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from typing import Literal, get_args

import pytest

from clusterctl import runtime
from clusterctl.agent.main import OPERATIONS
from clusterctl.common.requests import REQUESTS, AgentRequest
from clusterctl.common.schema import types_of
from clusterctl.fake import backend
from clusterctl.launch.plan import GENERIC_PSERVER
from house.source import arrows, imported, imports, modules, programs, tree, within

Table = Mapping[str, tuple[str, ...]]

# The parts of clusterctl, lowest first: each one may import itself and what its row names.
# The control machine and the nodes share `common`. Nothing imports `agent`, and only `collect` imports `runtime`: it
# merges models with the code that wrote them.
MAY_IMPORT: Table = {
    "common": (),
    "transfer": ("common",),
    "agent": ("common", "transfer"),
    "runtime": ("common", "transfer"),
    "torch": ("runtime",),
    "errors": ("common",),
    "escape": (),
    "templates": (),
    "config": ("common", "errors"),
    "schedulers": ("common", "config", "errors"),
    "certificates": (),
    "inventory": ("common", "config", "errors"),
    "transport": ("common", "errors"),
    "cluster": ("common", "config", "errors", "inventory", "transport"),
    "observe": ("cluster", "common", "config", "errors", "inventory"),
    "prune": ("cluster", "common", "errors", "inventory"),
    "documents": ("cluster", "common", "errors", "observe", "prune", "schedulers"),
    "check": ("cluster", "common", "documents", "errors", "inventory"),
    "dispatch": ("certificates", "cluster", "common", "errors", "escape", "inventory"),
    "launch": ("certificates", "check", "cluster", "common", "config", "documents", "errors", "inventory"),
    "setup": ("cluster", "common", "config", "dispatch", "errors", "inventory", "transport"),
    "report": ("common", "escape", "observe"),
    "collect": ("cluster", "common", "documents", "errors", "inventory", "runtime"),
    "export": ("cluster", "common", "documents", "errors", "escape", "inventory", "observe"),
    "fabric": ("cluster", "config", "errors", "inventory", "schedulers", "transport"),
    "ranks": ("cluster", "common", "config", "errors", "inventory", "launch"),
    "fake": ("common", "errors", "templates"),
    "api": (
        *(
            "check",
            "cluster",
            "collect",
            "common",
            "config",
            "dispatch",
            "documents",
            "errors",
            "escape",
            "export",
            "fabric",
            "fake",
        ),
        *("inventory", "launch", "observe", "prune", "report", "schedulers", "setup", "transport"),
    ),
    "cli": (
        *("api", "check", "cluster", "collect", "common", "config", "dispatch", "errors", "escape", "export", "fabric"),
        *(
            "documents",
            "fake",
            "inventory",
            "launch",
            "observe",
            "prune",
            "report",
            "schedulers",
            "setup",
            "templates",
            "transport",
        ),
    ),
    "__main__": ("cli",),
}

# The folders of the agent, and the modules beside them. All may import `common`.
INSIDE_AGENT: Table = {
    "event_loop": (),
    "tls": ("event_loop",),
    "gpus": (),
    "node": ("event_loop", "gpus"),
    "packages": (),
    "peer": (),
    "lead": ("event_loop", "tls"),
    "supervisor": ("event_loop", "lead", "node"),
    "replication": ("node",),
    "relay": ("event_loop", "node", "peer", "tls"),
    "dispatch": ("node", "peer", "relay"),
    "operations": ("gpus", "node", "packages", "peer", "relay", "supervisor"),
    "main": ("dispatch", "operations", "peer"),
    "boot": ("main",),
    "entry": ("lead", "replication", "supervisor"),
}

# The folders of the runtime, and the modules beside them. All may import `arrays` and `errors`.
INSIDE_RUNTIME: Table = {
    "errors": (),
    "arrays": (),
    "environment": (),
    "modes": (),
    "supervisor_socket": (),
    "table": (),
    "wire": (),
    "shm": ("wire",),
    "stream": ("wire",),
    "store": ("table",),
    "checkpoint": ("environment", "table"),
    "state": ("checkpoint", "environment", "modes", "supervisor_socket"),
    "pserver": (
        *("checkpoint", "environment", "modes", "shm", "store", "stream", "supervisor_socket", "table", "wire"),
    ),
    "trainer": (
        *(
            "checkpoint",
            "environment",
            "modes",
            "shm",
            "state",
            "store",
            "stream",
            "supervisor_socket",
            "table",
            "wire",
        ),
    ),
    "local": ("checkpoint", "environment", "pserver", "store", "table", "trainer", "wire"),
    "main_guard": ("environment",),
    "connector": ("environment", "local", "main_guard", "supervisor_socket", "trainer"),
}

# What shows a run reads its record, and streams of events that records are made of.
VIEWS = ("cli.attached", "cli.screen", "cli.commands.status", "cli.commands.report", "export", "report")
FOR_VIEWS = ("observe.record", "observe.follow")

# The only modules that may import these packages. All other packages outside the standard library are forbidden.
THIRD_PARTY = {
    "paramiko": ("transport", "fabric.connection"),
    "fabric": ("fabric",),
    "invoke": ("fabric",),
    "asyncssh": ("fake",),
    "rich": ("cli",),
    "typer": ("cli",),
    "numpy": ("runtime", "torch", "api.metrics"),
    "pandas": ("api.metrics",),  # in one method, for those who have it
    "torch": ("torch",),
    "zmq": ("runtime",),
    "cryptography": ("certificates", "launch.keys", "runtime.stream.sealed"),
    "packaging": ("setup.locks",),
    "tomli": ("setup.locks.lock_file",),
    "tensorboardX": ("export.tensorboard",),
    "prometheus_client": ("export.families", "export.scraped"),
    "typing_extensions": ("common.schema",),  # of the type checker, which alone imports it
}


# Class names that stand in several modules, with the reason.
SHARED_NAMES = {
    "Cluster": "the API's is the public face of the one in `cluster`, on which all stages work",
    "Connection": "Fabric's name for what a task gets, over the one in `transport`",
    "Embedding": "both are public: the table of `ps.embedding`, and the torch module over it",
    "Node": "the API's is what a user sees of the one in `inventory`",
    "RefusedError": "both are public: of commands, and of pservers, in separate trees of errors",
    "Session": "both are public: what `connect` of `clusterctl.runtime` and of `clusterctl.torch` returns",
    "UnreachableError": "both are public: of a node, and of a pserver, in separate trees of errors",
}


def allowed(table: Table) -> list[tuple[str, str]]:
    return sorted((part, target) for part, targets in table.items() for target in targets)


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_a_part_imports_only_the_parts_in_its_row(part: str) -> None:
    used = {
        target.partition(".")[0]: f"{m} imports {target}"
        for m in modules()
        if within(m, [part])
        for target in imported(m)
    }
    strange = [example for target, example in used.items() if target not in (part, *MAY_IMPORT[part])]
    assert strange == []


def test_the_folders_of_the_agent_import_only_what_the_table_allows() -> None:
    assert sorted(arrows("agent") - set(allowed(INSIDE_AGENT))) == []


def test_the_folders_of_the_runtime_import_only_what_the_table_allows() -> None:
    used = {(part, target) for part, target in arrows("runtime") if target not in ("arrays", "errors")}
    assert sorted(used - set(allowed(INSIDE_RUNTIME))) == []


def test_the_tables_contain_every_part() -> None:
    assert {module.partition(".")[0] for module in modules()} == {*MAY_IMPORT, "__init__"}
    assert {module.split(".")[1] for module in modules() if module.startswith("agent.")} == set(INSIDE_AGENT)
    assert {module.split(".")[1] for module in modules() if module.startswith("runtime.")} == set(INSIDE_RUNTIME)


@pytest.mark.parametrize("table", [MAY_IMPORT, INSIDE_AGENT, INSIDE_RUNTIME], ids=["package", "agent", "runtime"])
def test_the_arrows_point_down(table: Table) -> None:
    parts = list(table)
    assert [(part, target) for part, target in allowed(table) if parts.index(target) > parts.index(part)] == []


def test_a_class_name_stands_in_one_module() -> None:
    """An underscore does not make a name unique."""
    places: dict[str, set[str]] = {}
    for module in modules():
        for node in tree(module).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name.lstrip("_"), set()).add(module)
    shared = {name for name, found in places.items() if len(found) > 1}
    assert sorted(shared) == sorted(SHARED_NAMES)


def test_views_of_a_run_read_its_record_and_nothing_else() -> None:
    views = [module for module in modules() if within(module, VIEWS)]
    used = {(module, name) for module in views for name in imported(module) if within(name, ["observe"])}
    assert {within(module, [view]) for view in VIEWS for module, _ in used} == {True, False}
    assert [(module, name) for module, name in sorted(used) if not within(name, FOR_VIEWS)] == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions and under TYPE_CHECKING count: the module still depends on the other one."""
    known = {module: imported(module) for module in modules()}
    assert list(circles(known)) == []


def circles(known: dict[str, set[str]]) -> Iterator[list[str]]:
    """Return the groups of modules that import each other, directly or not."""
    reached = {module: reachable(module, known) for module in known}
    groups = {module: sorted(other for other in reached[module] if module in reached[other]) for module in known}
    yield from (group for module, group in groups.items() if group and group[0] == module)


def reachable(module: str, known: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = {module}
    while waiting:
        new = known[waiting.pop()] - found
        found |= new
        waiting |= new
    return found


def test_other_packages_are_imported_where_they_belong() -> None:
    strange = [
        f"{module} imports {name}"
        for module in modules()
        for name in imports(module)
        if (top := name.partition(".")[0]) not in sys.stdlib_module_names
        and top != "clusterctl"
        and not within(module, THIRD_PARTY.get(top, ()))
    ]
    assert strange == []


def test_common_and_the_agent_need_only_the_standard_library() -> None:
    shipped = [module for module in modules() if within(module, ["common", "agent"])]
    assert {name.partition(".")[0] for module in shipped for name in imports(module)} <= {
        *sys.stdlib_module_names,
        "clusterctl",
        "typing_extensions",  # see THIRD_PARTY
    }


# Modules named by strings, which no import shows.


@pytest.mark.parametrize("op", sorted({*OPERATIONS, *REQUESTS}))
def test_every_request_has_an_operation_of_the_agent_that_takes_it(op: str) -> None:
    module, name = OPERATIONS[op]
    operation = getattr(importlib.import_module(f"clusterctl.agent.{module}"), name)
    assert list(inspect.signature(operation).parameters) == ["root", "request", "peer"]
    assert operation.__annotations__["request"] == REQUESTS[op].__name__


def test_every_request_is_declared_under_its_name_and_can_be_sent() -> None:
    assert {op: types_of(kind)["op"] for op, kind in REQUESTS.items()} == {op: Literal[op] for op in REQUESTS}
    assert set(get_args(AgentRequest)) == set(REQUESTS.values())


def test_every_public_name_of_the_runtime_exists_in_the_named_module() -> None:
    assert set(runtime.__all__) == set(runtime._HOMES)
    for name, module in runtime._HOMES.items():
        assert getattr(runtime, name) is getattr(importlib.import_module(f"clusterctl.runtime.{module}"), name)


@pytest.mark.parametrize("name", backend._MODULES)
def test_every_backend_of_the_fake_cluster_exists_in_the_named_module(name: str) -> None:
    assert backend.backend_called(name).faults


def test_every_module_that_is_started_as_a_program_has_a_main() -> None:
    started = {GENERIC_PSERVER[-1]: "__main__", **dict.fromkeys(programs(), "")}
    assert set(started) == {"clusterctl.runtime.pserver", "clusterctl.fake.server", "clusterctl.fake.keeper"}
    for name, inside in started.items():
        assert callable(importlib.import_module(f"{name}.{inside}".rstrip(".")).main)
