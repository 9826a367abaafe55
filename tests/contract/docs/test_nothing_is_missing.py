"""Every command, option, variable, state and exit code is documented."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from clusterctl import errors
from clusterctl.cli.arguments import FLAGS, VALUE_OPTIONS
from clusterctl.cli.declarations import app
from clusterctl.common.engines import ENGINES
from clusterctl.common.process_environment import LaunchFacts, environment
from clusterctl.observe.record.status import WORST_FIRST
from clusterctl.observe.why.errno_and_signals import ERRNOS, SHELL_CODES, SIGNALS
from support.places import ROOT
from unit.agent.specs import make_process, make_spec

DOCS = ROOT / "docs"


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def commands(command: Any = None, name: str = "") -> Iterator[tuple[str, Any]]:
    command = command or typer.main.get_command(app)
    below = getattr(command, "commands", {})
    if not below:
        yield name, command
    for word, subcommand in below.items():
        if not subcommand.hidden:
            yield from commands(subcommand, f"{name} {word}".strip())


@pytest.mark.parametrize(("name", "command"), [pytest.param(*case, id=case[0]) for case in commands()])
def test_every_command_has_a_section_with_all_its_options(name: str, command: Any) -> None:
    page = read("docs/commands.md")
    section = re.search(rf"^## {name}$(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert section, f"docs/commands.md has no section '## {name}'"
    options = [
        word for option in command.params for word in (*option.opts, *option.secondary_opts) if word.startswith("-")
    ]
    assert [word for word in options if not re.search(rf"(?<![\w-]){word}(?![\w-])", section[1])] == []
    assert f"`{name}" in read("README.md")


def test_every_global_option_is_described() -> None:
    page = read("docs/commands.md")
    of_the_program = [word for option in typer.main.get_command(app).params for word in option.opts]
    words = [*FLAGS, *VALUE_OPTIONS, *of_the_program]
    assert [word for word in words if not re.search(rf"`(clusterctl )?{word}\b", page)] == []


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("role", ["pserver", "trainer"])
def test_every_variable_of_a_started_process_is_described(engine: str, role: str) -> None:
    process = make_process(role, 0)
    facts = {"processes": [process.to_json()], "ld_library_path": "/lib"}
    spec = make_spec(engine=engine, trainers=1, pservers=1, address="10.0.0.1", **facts)
    endpoints = dict.fromkeys(("scheduler0", "pserver0", "trainer0"), "10.0.0.1:7164")
    given = environment(spec, process, LaunchFacts("/job", "/lib", 1, (), "3", {}, endpoints))
    page = read("docs/runtime.md") + (read("docs/engines.md") if engine not in ("clusterctl", "none") else "")
    assert [name for name in given if f"`{name}`" not in page] == []


def test_every_reason_of_why_is_described() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "clusterctl/observe/why").glob("*.py"))
    written = re.findall(r'Diagnosis\(\s*"(\w+)"|kind="(\w+)"', sources)
    reasons = {word for pair in written for word in pair if word} | {error.kind for error in ERRNOS.values()}
    reasons |= {kind for _, kind, _, _ in SIGNALS.values()} | {signal_kind.kind for signal_kind in SHELL_CODES.values()}
    assert len(reasons) > 30
    assert [reason for reason in sorted(reasons) if f"`{reason}`" not in read("docs/why.md")] == []


def test_every_state_and_exit_code_is_described() -> None:
    page = read("docs/commands.md")
    codes = {kind.exit_code for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "exit_code")}
    assert [state for state in WORST_FIRST if f"`{state}`" not in page] == []
    assert [code for code in sorted(codes) if f"| {code} |" not in page] == []
    assert [code for code in sorted(codes) if f"| {code} |" not in read("README.md")] == []
    kinds = {kind.kind for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "kind")}
    assert [kind for kind in sorted(kinds - {"error"}) if f"`{kind}`" not in page] == []
