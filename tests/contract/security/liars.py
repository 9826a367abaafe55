"""Nodes that lie: a transport whose agents answer with whatever a test makes up."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.cli.app import run
from clusterctl.cluster.agent_call import STOP_SHELL
from clusterctl.transport import Transport

JOB = "JOB20261121-081530"
#: A title change, a cleared screen, C1 controls, text that runs backwards, DEL, a lone surrogate, characters without
#: a width, a line separator, a tag.
EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202edetrever\x7f\ud800\u200b\u2028\ufeff\U000e0041"
HOST = "127.0.0.1"
Answer = Callable[[dict[str, Any]], Iterator[bytes]]


class Agent:
    """Stands in for a command on a node: its output is what `answer` returns for the request."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._heard = b""
        self._said: Iterator[bytes] = iter(())
        self._buffer = b'{"have": "it"}\n'

    def write(self, data: bytes, **_: object) -> None:
        if not self._heard:
            size, _, rest = data.partition(b"\n")
            self._heard = rest[int(size.removeprefix(STOP_SHELL)) :]  # behind the program
            self._said = self._answer(json.loads(self._heard))

    def readline(self, limit: int, **_: object) -> bytes:
        while b"\n" not in self._buffer and len(self._buffer) < limit and self._more():
            pass
        end = self._buffer.find(b"\n", 0, limit) + 1 or min(limit, len(self._buffer))
        line, self._buffer = self._buffer[:end], self._buffer[end:]
        return line

    def read(self, count: int, **_: object) -> bytes:
        if not self._buffer:
            self._more()
        piece, self._buffer = self._buffer[:count], self._buffer[count:]
        return piece

    def _more(self) -> bool:
        piece = next(self._said, b"")
        self._buffer += piece
        return bool(piece)

    def stderr_tail(self) -> bytes:
        return EVIL.encode(errors="surrogatepass")

    def wait(self, _: float | None = None) -> int:
        return 1

    def close(self) -> None:
        """Nothing to close."""


class Liars:
    """`answers` are by node label; `run` runs the program in this process."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.answers: dict[str, Answer] = {}
        self._capsys = capsys
        self.conf = directory / "conf.py"
        self.conf.write_text(f"HOSTS = ['{HOST}:1', '{HOST}:2']\n")
        monkeypatch.setenv("CLUSTERCTL_CONF", str(self.conf))
        monkeypatch.setenv("XDG_CACHE_HOME", str(directory / "cache"))
        monkeypatch.setenv("COLUMNS", "200")
        liars = self

        class LyingTransport(Transport):
            def open(self, node: Any, command: Any) -> Any:
                return Agent(liars.answers[node.label])

        monkeypatch.setattr("clusterctl.cluster.cluster.Transport", LyingTransport)

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Return the exit code, standard output and standard error."""
        code = run(list(arguments))
        captured = self._capsys.readouterr()
        return code, captured.out, captured.err


def lines(*messages: Any) -> Iterator[bytes]:
    for message in messages:
        yield message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n"


def process(role: str, rank: int, **more: Any) -> dict[str, Any]:
    return {"role": role, "rank": rank, "state": "running", "pid": 7, "step": 35, "loss": 0.5, **more}


def status(node: int, **more: Any) -> dict[str, Any]:
    """Return an honest agent's status of a job on two nodes."""
    return {
        "job": JOB,
        "dir": f"/home/u/clusterctl/{JOB}",
        "run": "0001",
        "state": "running",
        "started": 1.7e9,
        "members": [0, 1],
        "left_out": [],
        "mode": "sync",
        "resumed": None,
        "ended": None,
        "last_event": {"event": "phase", "t": 1.7e9},
        "cut_dropped": {"t": 1.7e9, "message": "no model this time", "trainers": [0], "saves": ["model"]},
        "now": 1.7e9 + 60,
        "processes": [
            process("pserver", node, awaits=[0], awaited=1, waiting=1, awaits_s=4.5),
            process("trainer", node),
        ],
        **more,
    }


def is_harmless(text: str) -> bool:
    """Return True if all characters are printable according to Unicode."""
    return text.replace("\n", "").replace("\t", "").isprintable()
