"""The rules of the house: who may import whom, who prints, who reads the environment, and what is shipped."""

from __future__ import annotations

import ast
import subprocess
import sys
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from agent.nodes import PYTHONS
from clusterctl.cluster.bundle import Bundle

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "clusterctl"

# Who may import what of clusterctl: for each part, the modules (with all below them) that it may know besides itself.
# Data flows through the stages in this order, and only cli knows all of them.
MAY_IMPORT = {
    "common": (),
    "agent": ("common",),
    "runtime": ("common",),
    "errors": (),
    "clock": (),
    "templates": (),
    "config": ("errors",),
    "certificates": ("clock",),
    "inventory": ("config", "errors"),
    "transport": ("errors",),
    "cluster": ("common", "config", "errors", "inventory", "transport"),
    "check": ("cluster", "common", "errors", "inventory"),
    "dispatch": ("certificates", "cluster", "common", "errors", "inventory"),
    "launch": ("certificates", "check", "clock", "cluster", "common", "config", "errors", "inventory"),
    "setup": ("cluster", "common", "config", "dispatch", "errors", "inventory", "transport"),
    "observe": ("cluster", "common", "errors", "inventory"),
    "collect": ("cluster", "common", "errors", "inventory", "runtime"),
    "prune": ("cluster", "common", "errors", "inventory"),
    "fake": ("common", "errors", "templates"),
    "cli": ("",),
    "__main__": ("cli",),
    "__init__": (),
}

# Who may import these; everything else that is not of the standard library is imported nowhere.
THIRD_PARTY = {
    "paramiko": ("transport",),
    "asyncssh": ("fake",),
    "rich": ("cli",),
    "typer": ("cli",),
    "numpy": ("runtime",),
    "zmq": ("runtime", "launch.keys"),  # keys: makes CURVE key pairs, on the control machine
    "cryptography": ("certificates",),
}

MAY_PRINT = {
    "cli": "people read it",
    "agent.boot": "a program of its own, on a node where nothing is installed yet; it answers the control machine",
    "fake.server": "a program of its own; `fake up` waits for its one line",
    "fake.keeper": "the same",
    "runtime.supervisor_socket": "runs in the user's program, whose log it is",
}
MAY_EXIT = {
    "cli": "its exit codes are the contract",
    "agent.boot": "a program of its own",
    "fake.server": "a program of its own",
    "runtime.pserver": "a program of its own: python -m clusterctl.runtime.pserver",
}
MAY_READ_ENVIRONMENT = {
    "runtime.environment": "what a started process finds, parsed once",
    "cli.invocation": "hands it to the config loader",
    "cli.commands.demo": "hands it to the config loader",
    "cli.console": "NO_COLOR",
    "agent.node.addresses": "SSH_CONNECTION: the address at which this node was reached",
    "agent.packages.interpreter": "what decides where an interpreter finds its packages",
    "common.pip": "what uv inherits",
    "agent.supervisor.launcher": "what its processes inherit",
    "fake.programs": "what they inherit",
}


def modules() -> list[str]:
    """The names of all modules, without `clusterctl.`."""
    paths = (path.relative_to(PACKAGE).with_suffix("") for path in sorted(PACKAGE.rglob("*.py")))
    return [".".join(path.parts).removesuffix(".__init__") for path in paths if path.parts[0] != "_data"]


@cache
def tree(module: str) -> ast.Module:
    place = PACKAGE.joinpath(*module.split("."))
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return ast.parse(path.read_text(), str(path))


def within(module: str, parts: tuple[str, ...] | dict[str, str]) -> bool:
    return any(part in ("", module) or module.startswith(f"{part}.") for part in parts)


def imports(module: str) -> Iterator[str]:
    """Full names of what a module imports, wherever in it; of `from a.b import c` both a.b and a.b.c."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            assert node.module is not None
            yield from (name(node.module, alias.name) for alias in node.names)


def name(module: str, attribute: str) -> str:
    """`from clusterctl.transport import failures` may mean a module."""
    return f"{module}.{attribute}" if module.startswith("clusterctl") else module


def ours(module: str) -> Iterator[str]:
    for imported in imports(module):
        if imported.partition(".")[0] == "clusterctl":
            found = imported.removeprefix("clusterctl").removeprefix(".")
            if found != "__version__":
                yield found


def calls(module: str) -> Iterator[str]:
    """`print`, `sys.exit`: the names of what is called, as they are written."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)


def test_the_table_knows_every_part_of_the_package() -> None:
    assert {module.partition(".")[0] for module in modules()} == set(MAY_IMPORT)


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_a_part_imports_only_what_the_design_lets_it_know(part: str) -> None:
    strange = [
        f"{module} imports {imported}"
        for module in modules()
        if within(module, (part,))
        for imported in ours(module)
        if not within(imported, (part, *MAY_IMPORT[part]))
    ]
    assert strange == []


def test_nothing_but_the_program_itself_imports_the_command_line() -> None:
    knowing = {module for module in modules() if any(within(found, ("cli",)) for found in ours(module))}
    assert {module for module in knowing if not within(module, ("cli",))} == {"__main__"}


def test_other_peoples_packages_are_imported_where_they_belong() -> None:
    strange = [
        f"{module} imports {imported}"
        for module in modules()
        for imported in imports(module)
        if (top := imported.partition(".")[0]) not in sys.stdlib_module_names
        and top != "clusterctl"
        and not within(module, THIRD_PARTY.get(top, ()))
    ]
    assert strange == []


def test_common_and_the_agent_need_only_the_standard_library() -> None:
    assert {
        imported.partition(".")[0]
        for module in modules()
        if within(module, ("common", "agent"))
        for imported in imports(module)
    } <= {*sys.stdlib_module_names, "clusterctl"}


def test_only_the_command_line_prints() -> None:
    assert {m for m in modules() if {"print", "sys.stdout.write"} & set(calls(m))} <= {
        module for module in modules() if within(module, MAY_PRINT)
    }


def test_only_programs_end_the_process() -> None:
    enders = {"sys.exit", "exit", "quit", "SystemExit"}
    assert {m for m in modules() if enders & set(calls(m))} <= {m for m in modules() if within(m, MAY_EXIT)}


def reads_environment(module: str) -> bool:
    words = ("os.environ", "os.environb", "os.getenv")
    return any(isinstance(node, ast.Attribute) and ast.unparse(node) in words for node in ast.walk(tree(module)))


def test_the_environment_is_read_in_few_places_each_with_its_reason() -> None:
    assert {module for module in modules() if reads_environment(module)} == set(MAY_READ_ENVIRONMENT)


def test_nobody_uses_pickle() -> None:
    assert not [m for m in modules() if {"pickle", "marshal", "shelve"} & {i.partition(".")[0] for i in imports(m)}]


def test_only_a_proxy_command_is_given_to_a_shell_as_ssh_does() -> None:
    shells = [
        module
        for module in modules()
        for node in ast.walk(tree(module))
        if isinstance(node, ast.keyword) and node.arg == "shell" and ast.unparse(node.value) != "False"
    ]
    assert shells == ["transport.dial"]


# What is shipped.

SHIPPED = ("common", "agent", "runtime")


@pytest.mark.skipif("3.9" not in PYTHONS, reason="no python3.9 on this machine")
def test_what_goes_to_the_nodes_compiles_under_python_3_9() -> None:
    program = (
        "import sys\n"
        "for path in sys.argv[1:]:\n"
        "    with open(path, encoding='utf-8') as f: compile(f.read(), path, 'exec', dont_inherit=True)\n"
    )
    paths = [str(path) for part in SHIPPED for path in (PACKAGE / part).rglob("*.py")]
    paths.append(str(PACKAGE / "__init__.py"))
    done = subprocess.run([PYTHONS["3.9"], "-I", "-c", program, *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif("3.6" not in PYTHONS, reason="no python3.6 on this machine")
def test_the_boot_program_compiles_under_pythons_that_it_must_refuse() -> None:
    source = str(PACKAGE / "agent" / "boot.py")
    program = "import sys; compile(open(sys.argv[1]).read(), 'boot', 'exec')"
    subprocess.run([PYTHONS["3.6"], "-I", "-c", program, source], check=True)


def test_the_bundle_holds_all_that_is_shipped_and_nothing_else() -> None:
    whole, names = zlib.decompress(Bundle().data), []
    while whole:
        name, size, rest = whole.split(b"\0", 2)
        names.append(name.decode())
        whole = rest[int(size) :]
    expected = [PACKAGE / "__init__.py", *(p for part in SHIPPED for p in (PACKAGE / part).rglob("*.py"))]
    assert sorted(names) == sorted(path.relative_to(ROOT).as_posix() for path in expected)
    assert Bundle().digest == Bundle().digest
    assert Bundle().data == Bundle().data


def test_the_wheel_takes_the_whole_package_and_what_init_copies() -> None:
    tomllib = pytest.importorskip("tomllib")
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert set(build) == {"targets"}, "nothing is excluded"
    wheel = build["targets"]["wheel"]
    assert wheel["packages"] == ["clusterctl"]
    assert set(wheel) == {"packages", "force-include"}
    for source in wheel["force-include"]:
        assert (ROOT / source).exists()
    for part in SHIPPED:
        assert (PACKAGE / part / "__init__.py").is_file()
    assert (PACKAGE / "py.typed").is_file()


# What is tracked.

EVERYWHERE = {
    "bin",
    "dev",
    "etc",
    "home",
    "lib",
    "mnt",
    "opt",
    "proc",
    "root",
    "run",
    "srv",
    "sys",
    "tmp",
    "usr",
    "var",
}


def machine_paths() -> set[str]:
    """Where this checkout lives, and the top of it when that is a place of this machine only."""
    found = {f"{ROOT}/"}
    if len(ROOT.parts) > 2 and ROOT.parts[1] not in EVERYWHERE:
        found.add(f"/{ROOT.parts[1]}/")
    return found


def test_no_tracked_file_names_a_place_of_this_machine() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    named = [
        f"{path}: {place}"
        for path in filter(None, listed.stdout.split("\0"))
        if (ROOT / path).is_file()
        for place in machine_paths()
        if place.encode() in (ROOT / path).read_bytes()
    ]
    assert named == []


# Inside of the runtime: who may import whom, arrays and errors apart, which everybody may.

INSIDE_RUNTIME = {
    "errors": (),
    "arrays": (),
    "environment": (),
    "modes": (),
    "supervisor_socket": (),
    "table": (),
    "wire": (),
    "shm": ("wire",),
    "store": ("modes", "table"),
    "checkpoint": ("environment", "table"),
    "pserver": ("checkpoint", "environment", "modes", "shm", "store", "supervisor_socket", "table", "wire"),
    "trainer": ("environment", "modes", "shm", "store", "supervisor_socket", "table", "wire"),
    "local": ("checkpoint", "environment", "pserver", "store", "table", "trainer", "wire"),
    "connector": ("environment", "local", "supervisor_socket", "trainer"),
}


def runtime_arrows() -> Iterator[tuple[str, str]]:
    """From which folder (or module beside them) to which other one something is imported."""
    for module in modules():
        if not module.startswith("runtime."):
            continue
        part = module.split(".")[1]
        targets = {found.split(".")[1] for found in ours(module) if found.startswith("runtime.")}
        yield from ((part, target) for target in targets - {part, "arrays", "errors"})


def test_the_table_knows_every_part_of_the_runtime() -> None:
    assert {module.split(".")[1] for module in modules() if module.startswith("runtime.")} == set(INSIDE_RUNTIME)


def test_the_parts_of_the_runtime_import_exactly_what_the_table_says() -> None:
    assert sorted(set(runtime_arrows())) == sorted((part, to) for part, tos in INSIDE_RUNTIME.items() for to in tos)


def test_the_arrows_of_the_runtime_point_down() -> None:
    parts = list(INSIDE_RUNTIME)
    assert all(parts.index(to) < parts.index(part) for part, tos in INSIDE_RUNTIME.items() for to in tos)


def test_every_public_name_of_the_runtime_is_found_where_it_says() -> None:
    from clusterctl import runtime

    assert {name for name in runtime.__all__ if getattr(runtime, name) is None} == set()
    assert set(runtime.__all__) == set(runtime._HOMES)
