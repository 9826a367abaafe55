"""Habits that few modules or none may have, the sizes of files and functions, and the docstrings of packages."""

from __future__ import annotations

import ast
import re
import subprocess

import pytest

from house.source import PACKAGE, ROOT, calls, imports, modules, paths, tree, within
from test_house import INSIDE_AGENT, INSIDE_RUNTIME, MAY_IMPORT

MOST_LINES_OF_A_FILE = 500
MOST_LINES_OF_A_FUNCTION = 60
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
    "agent.supervisor.trainer_in_view": "the beginning of a trainer's process",
    "fake.server": "a program of its own",
    "runtime.pserver": "a program of its own: python -m clusterctl.runtime.pserver",
    "runtime.checkpoint.merge": "a program of its own: python -m clusterctl.runtime.checkpoint.merge",
}
MAY_READ_ENVIRONMENT = {
    "runtime.environment": "what a started process finds, parsed once",
    "cli.call": "hands it to the config loader",
    "cli.invocation": "the same",
    "api.cluster": "hands it to the config loader",
    "fabric.groups": "hands it to the config loader",
    "cli": "in it a shell asks for completions",
    "cli.completion": "the same; the cache and the conf.py of the user",
    "cli.typer_adapter": "the same",
    "cli.console": "NO_COLOR, FORCE_COLOR and TERM",
    "agent.node.addresses": "SSH_CONNECTION: the address at which this node was reached",
    "agent.gpus.usage": "CUDA_VISIBLE_DEVICES: the GPUs that this account or its scheduler allows",
    "agent.packages.interpreter": "what decides where an interpreter finds its packages",
    "common.pip": "what uv inherits",
    "agent.supervisor.launcher": "what its processes inherit",
    "agent.replication.merger": "what the merging process inherits",
    "fake.programs": "what they inherit",
    "transport.carrier.carriers": "what a carrier inherits",
    "ranks.main": "what mpirun says about a rank, and what the agent on its node inherits",
}
MAY_NAME_JOBS = {
    "common.paths": "find_jobs finds those that are this account's own",
    "agent.node.jobs": "find_job checks the owner of the one that it finds",
    "agent.node.job_processes": "processes of a directory that may be gone; those of other jobs check the owner",
    "agent.node.facts": "the same; it checks the owner",
    "agent.node.pieces": "it checks the owner",
    "agent.operations.stop": "the same; it checks the owner",
    "agent.operations.prune": "those of find_jobs, by their paths",
    "agent.dispatch.adopt": "the one that it is told to record, if it is this account's own",
    "agent.dispatch.edit": "the one that it changes",
    "agent.dispatch.in_place": "those that it makes, and one that find_jobs found",
    "agent.dispatch.staging": "the one that it makes",
    "agent.supervisor.supervisor": "the one that `start` found",
    "agent.supervisor.guardian": "the one that `start` found",
    "agent.supervisor.trainer_in_view": "the one of its supervisor",
    "runtime.environment": "its own",
    "runtime.checkpoint.remote": "one with pieces, of which it checks the owner",
    "agent.replication.process": "the one that `start` found",
    "ranks.node_run": "the one that the first rank has just made",
}
MAY_PARSE_JSON = {
    "common.safe_json": "it has the bounds for text of others",
    "export.directory": "what an earlier export wrote into the directory that the user names",
    "dispatch.node_trees": "a cache of this account, which may have more values",
    "observe.record.points": "a temporary file of this process",
    "runtime.state.files": "its text has the bound of a header, and any depth that a program keeps",
    "fake": "nodes on this machine, of this account",
}


def test_only_the_command_line_prints() -> None:
    assert {m for m in modules() if {"print", "sys.stdout.write"} & set(calls(m))} <= {
        module for module in modules() if within(module, MAY_PRINT)
    }


def test_only_programs_exit_the_process() -> None:
    enders = {"sys.exit", "exit", "quit", "SystemExit"}
    assert {m for m in modules() if enders & set(calls(m))} <= {m for m in modules() if within(m, MAY_EXIT)}


def test_json_of_others_is_parsed_with_bounds() -> None:
    parsers = {"json.loads", "json.load", "json.JSONDecoder"}
    users = {m for m in modules() if parsers & set(calls(m))}
    assert users == {m for m in users if within(m, MAY_PARSE_JSON)}
    assert {name for name in MAY_PARSE_JSON if not any(within(m, [name]) for m in users)} == set()


def reads_environment(module: str) -> bool:
    names = ("os.environ", "os.environb", "os.getenv")
    return any(isinstance(node, ast.Attribute) and ast.unparse(node) in names for node in ast.walk(tree(module)))


def test_the_environment_is_read_in_few_places_each_with_a_reason() -> None:
    assert {module for module in modules() if reads_environment(module)} == set(MAY_READ_ENVIRONMENT)


def test_job_directories_are_found_in_few_places_each_with_a_reason() -> None:
    """Others may have put one into a shared ROOT_DIR; nothing in it is to be believed."""
    assert {module for module in modules() if "JobPaths" in calls(module)} == set(MAY_NAME_JOBS)


def test_private_modules_of_python_have_no_users() -> None:
    users = {m for m in modules() if any(i.startswith("_") and i != "__future__" for i in imports(m))}
    assert users <= {"common.records"}, "they differ between versions of Python"


def test_no_module_uses_pickle() -> None:
    imported = {name: {one.partition(".")[0] for one in imports(name)} for name in modules()}
    assert [name for name, found in imported.items() if found & {"pickle", "marshal", "shelve"}] == []


def test_only_a_proxy_command_is_run_by_a_shell_as_in_ssh() -> None:
    shells = [
        module
        for module in modules()
        for node in ast.walk(tree(module))
        if isinstance(node, ast.keyword) and node.arg == "shell" and ast.unparse(node.value) != "False"
        if module != "cli.commands.completion"  # the name of a shell, whose script typer has
    ]
    assert shells == ["transport.dial"]


def test_messages_are_typed() -> None:
    loose = [
        module for module, path in paths().items() if "Message = dict[str, Any]" in path.read_text(encoding="utf-8")
    ]
    assert loose == []


def test_a_spec_is_read_without_casts_and_defaults() -> None:
    """`RunSpec.from_json` checks types and fills in defaults, once; code that reads a spec does neither."""
    users = [module for module in modules() if "clusterctl.common.run_spec.RunSpec" in imports(module)]
    assert len(users) > 10
    assert [module for module in users if {"cast", "typing.cast"} & set(calls(module))] == []
    assert [
        f"{module}: {ast.unparse(node)}" for module in modules() for node in ast.walk(tree(module)) if loose(node)
    ] == []


def loose(node: ast.AST) -> bool:
    """Return True for `spec.get(...)` and `spec["..."]`, which treat a spec as a dict."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
        owner: ast.expr = node.func.value
    elif isinstance(node, ast.Subscript):
        owner = node.value
    else:
        return False
    return ast.unparse(owner).rpartition(".")[2] in ("spec", "run_spec", "_spec")


def packages() -> list[str]:
    return [module for module, path in paths().items() if path.name == "__init__.py" and path.parent != PACKAGE]


@pytest.mark.parametrize("package", packages())
def test_a_package_says_what_it_is_for_and_where_to_start_reading(package: str) -> None:
    docstring = ast.get_docstring(tree(package)) or ""
    words = " ".join(docstring.split())
    assert "mport" in words, "a package says what it may import"
    assert "Start reading at `" in words
    first = words.partition("Start reading at `")[2].partition("`")[0]
    assert (PACKAGE.joinpath(*package.split(".")) / first).is_file()
    whole, _, folder = package.rpartition(".")
    row = {"": MAY_IMPORT, "agent": INSIDE_AGENT, "runtime": INSIDE_RUNTIME}.get(whole, {}).get(folder, ())
    left_out = [part for part in row if f"`{part}`" not in words]
    assert left_out == [] or "May import every part" in words or "the modules of `runtime`" in words


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
    """Return the path of this checkout, and its top directory if other machines do not have that directory.

    A relative path that contains a directory of that name does not count.
    """
    places = {f"{ROOT}/"}
    if len(ROOT.parts) > 2 and ROOT.parts[1] not in EVERYWHERE:
        places.add(f"/{ROOT.parts[1]}/")
    return places


def test_no_tracked_file_contains_a_path_of_this_machine() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    named = [
        f"{path}: {place}"
        for path in filter(None, listed.stdout.split("\0"))
        if (ROOT / path).is_file()
        for place in machine_paths()
        if re.search(rb"(?<![\w.*~})-])" + re.escape(place.encode()), (ROOT / path).read_bytes())
    ]
    assert named == []


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
