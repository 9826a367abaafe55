from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.errors import UsageError
from clusterctl.transport import Raw, RemotePath, command, quote

SHELLS = [shell for shell in ("sh", "dash", "bash", "zsh", "csh", "tcsh", "fish") if shutil.which(shell)]

NASTY = [
    "",
    " ",
    "two words",
    "it's",
    '"double"',
    "a'b\"c",
    "$HOME ${x} $(id) `id`",
    "back\\slash\\\\",
    "\\n \\0 \\c %s %b",
    "line\nbreak\n",
    "\r\n",
    "\n",
    "-n",
    "--",
    "~",
    "~root",
    "*",
    "?[a-z]*{a,b}",
    "!!",
    "wow!",
    "#comment",
    "a;b|c&d>e<f(g)",
    "tab\there",
    "größe 漢字 🦉",
    "\udcff\udc80 no utf-8",
    "x" * 50_000,
]


def run_in(shell: str, text: str, home: Path | None = None) -> bytes:
    environment = {**os.environ, **({"HOME": str(home)} if home else {})}
    return subprocess.run(
        [shell, "-c", text.encode("utf-8", "surrogateescape")],
        capture_output=True,
        check=True,
        env=environment,
    ).stdout


def printed(*arguments: str) -> bytes:
    return b"".join(argument.encode("utf-8", "surrogateescape") + b"\0" for argument in arguments)


@pytest.mark.parametrize("shell", SHELLS)
def test_every_login_shell_passes_nasty_arguments_unchanged(shell: str) -> None:
    assert run_in(shell, quote(command("printf", "%s\\0", *NASTY))) == printed(*NASTY)


@pytest.mark.parametrize("shell", SHELLS)
def test_every_login_shell_expands_the_tilde_of_a_path_and_nothing_else(shell: str, tmp_path: Path) -> None:
    home = tmp_path / "a home"
    home.mkdir()
    paths = ["~", "~/x y", "~/$x'`", "~/", "/abs/*", "rel ative", "-rf", "a~b"]
    expected = [f"{home}", f"{home}/x y", f"{home}/$x'`", f"{home}/", "/abs/*", "rel ative", "./-rf", "a~b"]
    text = quote(command("printf", "%s\\0", *(RemotePath(path) for path in paths)))
    assert run_in(shell, text, home) == printed(*expected)


@pytest.mark.parametrize("shell", SHELLS)
def test_raw_text_is_run_by_a_posix_shell_whatever_the_login_shell_is(shell: str) -> None:
    text = quote(command(Raw('x="a b"; for i in 1 2; do\n echo "$i $x"\ndone; echo'), "it's"))
    assert run_in(shell, text) == b"1 a b\n2 a b\nit's\n"


@settings(max_examples=25)
@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",))), min_size=1))
def test_any_text_survives_quoting(arguments: list[str]) -> None:
    assert run_in("sh", quote(command("printf", "%s\\0", *arguments))) == printed(*arguments)


@pytest.mark.parametrize("bad", [command(), command("echo", "a\0b")])
def test_text_that_cannot_be_an_argument_is_refused(bad: object) -> None:
    with pytest.raises(UsageError):
        quote(bad)  # type: ignore[arg-type]


def test_the_login_shell_never_sees_more_than_one_line() -> None:
    assert "\n" not in quote(command("echo", "a\nb", Raw("x\ny")))


def test_importing_the_transport_and_the_fake_cluster_is_cheap() -> None:
    script = "import sys, clusterctl.transport, clusterctl.fake; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    heavy = {"paramiko", "fabric", "asyncssh", "cryptography", "numpy", "zmq", "rich"}
    assert not heavy & set(modules.split())
