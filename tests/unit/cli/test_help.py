"""The help of every command, the modules it loads, and the exit codes of the program."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from clusterctl import __version__
from clusterctl.cli.app import run
from clusterctl.cli.declarations import app

GROUP: Any = typer.main.get_command(app)
HEAVY = ("paramiko", "rich", "pydantic", "numpy", "zmq", "cryptography", "asyncssh", "fabric")


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in (group or GROUP).commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


def finish(*argv: str) -> int:
    return run(list(argv))


def test_all_commands_are_covered() -> None:
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
    code = f"import sys\nfrom clusterctl.cli.app import run\nrun({list(argv)!r})\nprint('\\nLOADED', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.rpartition("LOADED")[2].split()}


@pytest.mark.parametrize("argv", [["--help"], ["start", "--help"], ["--version"], ["nonsense"]], ids=str)
def test_help_and_usage_errors_load_no_heavy_modules(argv: list[str], tmp_path: Path) -> None:
    assert not set(HEAVY) & loaded_by(*argv)


@pytest.mark.parametrize(("redirect", "code"), [(">&-", 0), (">/dev/full", 1), ("2>&-", 0)])
def test_the_program_exits_cleanly_when_its_output_cannot_be_written(redirect: str, code: int) -> None:
    line = f"exec {sys.executable} -m clusterctl --version {redirect}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("argv", [["--version"], ["status", "--version"]], ids=" ".join)
def test_the_version_is_printed(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert finish(*argv) == 0
    assert capsys.readouterr().out == f"clusterctl {__version__}\n"


@pytest.mark.parametrize(
    "argv",
    [
        ["nonsense"],
        ["status", "--bogus"],
        ["status", "one", "two"],
        ["start", "one", "two"],
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
def test_a_usage_error_is_exit_code_2_and_never_a_traceback(
    argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("conf.py").write_text('HOSTS = ["a"]\n')
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
def test_options_are_accepted_joined_or_separate_and_before_or_after_an_argument(
    words: list[str], expected: dict[str, Any]
) -> None:
    assert given("logs", *words) == expected


def given(command: str, *words: str) -> dict[str, Any]:
    """Return the parameters of a command that these words set."""
    values = GROUP.commands[command].make_context(command, list(words)).params
    return {name: value for name, value in values.items() if value not in (None, False) or name in str(words)}


def test_a_flag_may_have_an_opposite_and_is_unset_by_default() -> None:
    assert [given("exec", *words) for words in ([], ["--fold"], ["--no-fold"])] == [{}, {"fold": True}, {"fold": False}]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["statsu"], "did you mean status?"),
        (["status", "--wacth"], "did you mean --watch?"),
        (["fake", "upp"], "upp is not a command of clusterctl fake"),
        (["--bogus", "status"], "--bogus is not an option of clusterctl"),
        (["status", "--watch=yes"], "--watch takes no value"),
        (["collect", "-o"], "-o needs a value"),
        (["status", "one", "two"], "clusterctl status: unexpected argument 'two'"),
        (["start", "one", "two"], "--job_workspace JOB starts a dispatched job"),
        (["logs", "--tail=-1"], "--tail must be at least 0, not -1"),
        (["logs", "--rank", "many"], "--rank must be a whole number, not 'many'"),
        (["fake", "up", "-n", "0"], "-n must be 1 to 1000, not 0"),
        (["split", "data.txt"], "clusterctl split needs --count"),
        (["split", "--count", "2"], "clusterctl split needs FILE"),
        ([], "Usage: clusterctl [OPTIONS]"),
        (["fake"], "Usage: clusterctl fake [OPTIONS]"),
    ],
    ids=str,
)
def test_a_usage_error_is_explained(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert finish(*argv) == 2
    assert message in capsys.readouterr().err


def test_json_for_the_program_is_not_json_for_us(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert finish("exec", "--conf", str(tmp_path / "missing.py"), "--", "tool", "--json") == 2
    assert capsys.readouterr().out == ""


def test_a_missing_conf_py_is_exit_code_2_with_a_hint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert finish("status", "--json", "--conf", str(tmp_path / "missing.py")) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["kind"] == "config"
    assert "init" in error["hint"]


def test_the_help_lists_every_command_once_in_four_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert finish("--help") == 0
    printed = capsys.readouterr().out
    groups = printed.split("Show this message and exit.")[1].split("\n\n")
    listed: dict[str, list[str]] = {}
    for lines in (group.strip("\n").splitlines() for group in groups if ":\n" in group):
        if not lines[0].startswith(" "):
            listed[lines[0]] = [line.split()[0] for line in lines[1:] if line[2] != " "]
    assert list(listed) == ["Prepare:", "Run:", "Look:", "More:"]
    assert listed["Run:"] == ["start", "keep", "submit", "save", "stop"]
    shown = [name for names in listed.values() for name in names]
    assert sorted(shown) == sorted(name for name, command in GROUP.commands.items() if not command.hidden)
    assert not {"metrics", "disconnect"} & set(shown)
    assert printed.count("...") == 1, "the usage has it, and no summary is cut"


@pytest.mark.parametrize("words", [(), ("start",), ("fake", "up"), ("metrics",)], ids=str)
def test_help_of_a_command_is_its_own_help(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert finish("help", *words) == 0
    shown = capsys.readouterr().out
    assert finish(*words, "--help") == 0
    assert shown == capsys.readouterr().out


def test_help_of_what_is_no_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert finish("help", "statsu") == 2
    assert "did you mean status?" in capsys.readouterr().err
    assert finish("help", "start", "now") == 2
    assert "unexpected argument 'now'" in capsys.readouterr().err


def test_an_argument_of_older_versions_is_in_no_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert finish("export", "--help") == 0
    assert "export [OPTIONS] [JOB]\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--to", "csv"], "export needs a directory: -o DIR"),
        (["--to", "excel"], "choose one of tensorboard, trace, csv, prometheus"),
        (["--to", "csv", "-o", "out", "one", "two"], "unexpected argument 'two'"),
        (["--to", "csv", "-o", "out", "--listen", ":1"], "--listen is for --to prometheus only"),
        (["--to", "prometheus", "-o", "out"], "writes no files"),
    ],
    ids=str,
)
def test_export_says_which_arguments_do_not_go_together(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = tmp_path / "conf.py"
    conf.write_text('HOSTS = ["a"]\n')
    assert finish("export", "--conf", str(conf), *words) == 2
    assert message in capsys.readouterr().err
