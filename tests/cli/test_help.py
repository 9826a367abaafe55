"""The help of every command, what it costs to show it, and how the program ends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl import __version__
from clusterctl.cli.app import app, run
from clusterctl.cli.declare import Command

HEAVY = ("paramiko", "rich", "typer", "pydantic", "click", "numpy", "zmq", "cryptography", "asyncssh", "fabric")


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in (group or app).commands.items():
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
    description = out.split("\n\n")[1]
    assert description.endswith(".")


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
        ["split", "data.txt"],
        ["split", "--count", "2"],
        ["status", "--watch=yes"],
        ["collect", "-o"],
        ["logs", "-fx"],
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


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], {}),
        (["JOB1", "-fn5", "--rank=2"], {"job": "JOB1", "follow": True, "tail": 5, "rank": 2}),
        (["-n", "5", "--grep", "-x", "JOB1"], {"tail": 5, "grep": "-x", "job": "JOB1"}),
        (["--grep="], {"grep": ""}),
    ],
    ids=str,
)
def test_options_are_read_joined_or_apart_and_before_or_behind_an_argument(
    words: list[str], expected: dict[str, Any]
) -> None:
    logs = app.commands["logs"]
    assert isinstance(logs, Command)
    assert logs.parse(words, logs.params) == expected


def test_a_flag_may_have_an_opposite_and_is_not_given_by_itself() -> None:
    command = app.commands["exec"]
    assert isinstance(command, Command)
    assert [command.parse(words, command.params) for words in ([], ["--fold"], ["--no-fold"])] == [
        {},
        {"fold": True},
        {"fold": False},
    ]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["statsu"], "did you mean status?"),
        (["status", "--wacth"], "did you mean --watch?"),
        (["logs", "--rank", "many"], "--rank 'many' is not a whole number"),
        (["fake", "up", "-n", "0"], "-n 0 must be 1 to 1000"),
        (["split", "data.txt"], "clusterctl split needs --count"),
    ],
    ids=str,
)
def test_wrong_use_is_explained(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert finish(*argv) == 2
    assert said in capsys.readouterr().err


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
