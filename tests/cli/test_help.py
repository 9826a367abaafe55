"""The help of every command, what it costs to show it, and how the program ends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from clusterctl import __version__
from clusterctl.cli.app import app, run

HEAVY = ("paramiko", "rich", "numpy", "zmq", "cryptography", "asyncssh", "fabric")


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in (group or typer.main.get_command(app)).commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


def finish(*argv: str) -> int:
    return run(list(argv))


def test_all_commands_are_looked_at() -> None:
    assert {("start",), ("status",), ("collect",), ("fake", "up")} <= set(commands())


@pytest.mark.parametrize("command", list(commands()), ids=" ".join)
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_the_help_of_a_command_has_a_sentence_an_example_and_the_global_options(
    command: tuple[str, ...], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert finish(*command, option) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert f"Usage: clusterctl {' '.join(command)}" in out
    assert f"Example: clusterctl {' '.join(command)}" in out
    assert "--conf PATH" in out
    description = next(line for line in out.splitlines()[1:] if line.strip())
    assert description.strip().endswith((".", ";"))


def loaded_by(*argv: str) -> set[str]:
    code = (
        "import sys\nfrom clusterctl.cli import main\n"
        f"sys.argv = ['clusterctl', *{list(argv)!r}]\n"
        "try: main()\nexcept SystemExit: pass\nprint('\\nLOADED', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.rpartition("LOADED")[2].split()}


@pytest.mark.parametrize("argv", [["--help"], ["start", "--help"], ["--version"], ["nonsense"]], ids=str)
def test_help_and_plain_mistakes_load_nothing_heavy(argv: list[str], tmp_path: Path) -> None:
    assert not set(HEAVY) & loaded_by(*argv)


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert finish("--version") == 0
    assert capsys.readouterr().out == f"clusterctl {__version__}\n"


@pytest.mark.parametrize(
    "argv",
    [
        ["nonsense"],
        ["status", "--bogus"],
        ["status", "one", "two"],
        ["start", "stray"],
        ["logs", "--rank", "many"],
        ["logs", "--tail=-1"],
        ["fake", "up", "-n", "0"],
        ["status", "--conf"],
        ["start"],
        ["exec"],
    ],
    ids=" ".join,
)
def test_wrong_use_is_exit_code_2_and_never_a_traceback(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert finish(*argv, *([] if argv[-1] == "--conf" else ["--json"])) == 2
    out, err = capsys.readouterr()
    assert err.strip()
    assert "Traceback" not in err
    if argv[-1] != "--conf":
        assert json.loads(out)["error"]["kind"] == "usage"


def test_json_for_the_program_is_not_json_for_us(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert finish("exec", "--conf", str(tmp_path / "missing.py"), "--", "tool", "--json") == 2
    assert capsys.readouterr().out == ""


def test_a_conf_py_that_is_not_there_is_exit_code_2_with_a_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert finish("status", "--json", "--conf", str(tmp_path / "missing.py")) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["kind"] == "config"
    assert "init" in error["hint"]
