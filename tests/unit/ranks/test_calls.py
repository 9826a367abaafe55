"""Commands for a node by files in a shared directory: real processes on both sides."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.ranks.calls import MOST_UNREAD, CallServer, IncomingPieces, OutgoingPieces
from clusterctl.ranks.private import PrivateDirectory, open_shared
from support.places import ROOT
from support.processes import wait_until

MAIN = ROOT / "clusterctl" / "ranks" / "__main__.py"
EVERY_BYTE = bytes(range(256)) * 8_000


def words(calls: Path, script: str) -> list[str]:
    """The carrier, with what every carrier gets."""
    return [sys.executable, "-I", "-S", str(MAIN), "--reach", str(calls), "a-host", "/bin/sh", "-c", script]


@pytest.fixture
def calls(tmp_path: Path) -> Iterator[Path]:
    """The calls of a node, which a thread serves."""
    directory = tmp_path / "node-0"
    directory.mkdir()
    server = CallServer(directory, {**os.environ, "MARK": "of the node"})
    is_over = threading.Event()

    def serve() -> None:
        while not is_over.wait(0.005):
            server.serve()
        server.close()

    thread = threading.Thread(target=serve)
    thread.start()
    yield directory
    is_over.set()
    thread.join()


def run(calls: Path, script: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(words(calls, script), input=stdin, capture_output=True, timeout=60, check=False)


def test_a_script_gets_its_input_and_its_streams_and_exit_code_come_back(calls: Path) -> None:
    done = run(calls, 'read -r line; echo "got $line from $MARK"; echo oops >&2; exit 7', b"this\n")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"got this from of the node\n", b"oops\n")


@pytest.mark.parametrize(("script", "code"), [("true", 0), ("kill -9 $$", 137), ("no-such-program-here", 127)])
def test_exit_codes_are_those_of_a_shell(calls: Path, script: str, code: int) -> None:
    assert run(calls, script).returncode == code


def test_every_byte_passes_both_ways(calls: Path) -> None:
    done = run(calls, "cat", EVERY_BYTE)
    assert (done.returncode, done.stdout == EVERY_BYTE) == (0, True)


def test_bytes_are_exchanged_before_a_line_ends(calls: Path) -> None:
    command = words(calls, "printf a; read -r x; printf $x")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as popen:
        assert popen.stdin is not None
        assert popen.stdout is not None
        assert os.read(popen.stdout.fileno(), 10) == b"a"
        popen.stdin.write(b"b\n")
        popen.stdin.flush()
        assert os.read(popen.stdout.fileno(), 10) == b"b"
        assert popen.wait(timeout=60) == 0


def test_a_script_sees_the_end_of_its_input_when_its_caller_is_ended(calls: Path) -> None:
    seen = calls.parent / "seen"
    with subprocess.Popen(words(calls, f"echo up; cat; echo gone >{seen}"), stdin=subprocess.PIPE, stdout=-1) as popen:
        assert popen.stdout is not None
        assert popen.stdout.readline() == b"up\n"
        popen.terminate()
        assert popen.wait(timeout=60) == 143
    assert wait_until(seen.exists)


def test_a_caller_whose_reader_is_gone_ends_the_input(calls: Path) -> None:
    seen = calls.parent / "seen"
    script = f"echo x; read -r line; echo y; cat; echo gone >{seen}"
    with subprocess.Popen(words(calls, script), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as popen:
        assert popen.stdin is not None
        assert popen.stdout is not None
        assert popen.stdout.readline() == b"x\n"
        popen.stdout.close()
        popen.stdin.write(b"go on\n")
        popen.stdin.flush()
        assert popen.wait(timeout=60) == 143
    assert wait_until(seen.exists)


def test_without_ranks_the_error_says_that_they_have_ended(tmp_path: Path) -> None:
    done = run(tmp_path / "absent", "true")
    assert (done.returncode, done.stderr) == (3, b"the run is not under way: its ranks have ended\n")


def test_the_end_of_the_run_ends_its_calls(tmp_path: Path) -> None:
    """The first rank removes the directory."""
    calls = tmp_path / "node-0"
    calls.mkdir()
    with subprocess.Popen(words(calls, "true"), stdin=subprocess.PIPE, stderr=subprocess.PIPE) as popen:
        assert wait_until(lambda: any(calls.iterdir()))
        subprocess.run(["rm", "-r", str(calls)], check=True)
        assert popen.communicate(timeout=60)[1] == b"the run is not under way: its ranks have ended\n"
    assert popen.returncode == 3


def test_a_reader_that_is_slow_stops_the_writer(tmp_path: Path) -> None:
    with open_shared(tmp_path.parent) as above, above.open(tmp_path.name) as call:
        check_that_a_slow_reader_stops_the_writer(call)


def check_that_a_slow_reader_stops_the_writer(call: PrivateDirectory) -> None:
    outgoing, incoming = OutgoingPieces(call, "out"), IncomingPieces(call, "out")
    for number in range(MOST_UNREAD):
        outgoing.put(b"%d" % number)
    names = call.names()
    assert not outgoing.has_room(names)
    assert list(incoming.take(names)) == [b"%d" % number for number in range(MOST_UNREAD)]
    assert outgoing.has_room(call.names())
