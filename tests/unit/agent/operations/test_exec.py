"""A command of the user, run by the agent: its output byte for byte, its exit code, and what it finds around it."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

import pytest

from clusterctl.cluster.remote_command import run_command
from clusterctl.errors import NodeError, UsageError
from clusterctl.inventory import Node
from clusterctl.transport import Raw, RemoteCommand, command
from unit.agent.nodes import PYTHONS, VARIABLES, LocalTransport, PipeCluster, Pipes


def run(tmp_path: Path, asked: RemoteCommand, python: str = sys.executable) -> tuple[int, bytes, bytes]:
    """Return the exit code, the output and the errors of a command on one node."""
    cluster = PipeCluster(tmp_path, python, nodes=1)
    streams: list[list[bytes]] = [[], []]
    code = run_command(cluster, cluster.nodes[0], asked, lambda piece, is_error: streams[is_error].append(piece))
    return code, b"".join(streams[0]), b"".join(streams[1])


def shell(script: str) -> RemoteCommand:
    return RemoteCommand((Raw(script),))


@pytest.mark.parametrize("version", [version for version in PYTHONS if int(version[2:]) >= 9])
def test_large_binary_output_arrives_whole_in_every_python(tmp_path: Path, version: str) -> None:
    data = random.Random(3).randbytes(1 << 20) + b'\n\n{"done":{"exit_code":7}}\n'
    (tmp_path / "data").write_bytes(data)
    assert run(tmp_path, shell(f"cat {tmp_path}/data; cat {tmp_path}/data >&2"), PYTHONS[version]) == (0, data, data)


@pytest.mark.parametrize(
    ("script", "code"), [("exit 7", 7), ("kill -9 $$", 137), ("nosuchcommand", 127), ("exec >&- 2>&-; sleep 0.1", 0)]
)
def test_the_exit_code_is_that_of_a_shell(tmp_path: Path, script: str, code: int) -> None:
    assert run(tmp_path, shell(script))[0] == code


def test_arguments_arrive_byte_for_byte(tmp_path: Path) -> None:
    words = ("a  b", "$HOME", "'", "\udcff", "é", "two\nlines", "")
    code, out, _ = run(tmp_path, command("printf", "%s|", *words))
    assert (code, out) == (0, b"".join(os.fsencode(word) + b"|" for word in words))


def test_a_command_finds_what_it_finds_over_ssh(tmp_path: Path) -> None:
    """Its home as the directory, the variables of the login, no input, and the umask of the account."""
    before = os.umask(0o027)
    try:
        _, out, _ = run(tmp_path, shell("umask; pwd; cat; ps -o sid= -p $$ | tr -d ' '; echo $$; env"))
    finally:
        os.umask(before)
    umask, directory, session, pid, *variables = out.decode().splitlines()
    assert int(umask, 8) == 0o027
    assert directory == str(tmp_path / "home0")
    assert session == pid
    names = {line.partition("=")[0] for line in variables}
    assert names - {"PWD", "OLDPWD", "SHLVL", "_"} == {*VARIABLES, "HOME"}


def test_a_command_that_cannot_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="cannot run the command: Argument list too long"):
        run(tmp_path, command("true", "x" * 200_000))
    with pytest.raises(UsageError, match="empty"):
        run(tmp_path, RemoteCommand(()))
    with pytest.raises(UsageError, match="NUL"):
        run(tmp_path, command("echo", "a\0b"))


@pytest.mark.parametrize(
    "message",
    [{}, {"stdout": -1}, {"stdout": True}, {"stdout": 1 << 40}, {"else": 3}, {"done": 3}, {"done": {"exit_code": "7"}}],
)
def test_a_malformed_answer_is_an_error_of_its_node(tmp_path: Path, message: object) -> None:
    class Liar(LocalTransport):
        def open(self, node: Node, command: RemoteCommand) -> Pipes:
            return Pipes(["sh", "-c", 'echo "{\\"have\\":1}"; echo "$1"; cat', "sh", json.dumps(message)], tmp_path)

    cluster = PipeCluster(tmp_path, sys.executable, nodes=1)
    cluster.transport = Liar(tmp_path)  # type: ignore[assignment]
    (outcome,) = cluster.map(lambda node: run_command(cluster, node, command("true"), lambda *_: None))
    assert "its answer is malformed" in str(outcome.error)
