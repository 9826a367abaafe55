"""Endless output of a node is cut off in bounded memory, tested with the real program over real SSH."""

from __future__ import annotations

import itertools
import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from clusterctl.agent.node import log_files
from clusterctl.agent.node.checkpoint_files import piece_header
from clusterctl.agent.operations import logs
from clusterctl.cluster.agent_call import MAX_LINE
from clusterctl.common.file_transfer import TransferError
from clusterctl.common.manifest import read_manifest
from clusterctl.common.paths import JobPaths
from clusterctl.common.safe_json import loads, parse, parse_event
from clusterctl.launch.adopt import AdoptedFiles
from clusterctl.runtime.checkpoint.model import read_tables
from clusterctl.runtime.checkpoint.safetensors import TensorFile, write_tensors
from clusterctl.runtime.errors import ModelError
from clusterctl.runtime.shm import region
from clusterctl.runtime.wire.messages import JSON, Message, Part, WireError, parsed
from clusterctl.transfer.protocol import answer_of, request_of
from contract.security.liars import EVIL, Liars, is_harmless, lines
from support.site import Site
from unit.agent.specs import spec_json

MOST_MB = 400  # of which Python, paramiko and so on take 60
ENDLESS = {  # instead of an answer
    "a line": "exec cat /dev/zero",
    "nested": "yes '[' | tr -d '\\n'",
}


def program(directory: Path, script: str) -> Path:
    """Create the program that runs on the node in place of Python."""
    path = directory / "evil-python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


# A process's peak memory starts with that of its parent, so a small process starts it.
MEASURE = """
import resource, subprocess, sys
code = subprocess.call([sys.executable, "-m", "clusterctl", *sys.argv[1:]])
sys.stderr.write(f"{chr(10)}{resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss}")
sys.exit(code)
"""


def run_measured(site: Site, *arguments: str) -> tuple[int, str, int]:
    """Return the exit code, the output, and the peak memory in MB."""
    result = site.run(*arguments, program=(sys.executable, "-c", MEASURE))
    output, _, kilobytes = (result.out + result.err).rpartition("\n")
    return result.code, output, int(kilobytes) >> 10


@pytest.mark.parametrize("kind", list(ENDLESS))
def test_an_endless_answer_is_cut_off_and_reported(site: Site, kind: str) -> None:
    site.conf(HOSTS=site.hosts[:1], PYTHON=program(site.directory, ENDLESS[kind]))
    code, output, memory = run_measured(site, "status")
    assert code == 3
    assert "node0: the agent answered with" in output
    assert is_harmless(output)
    assert memory < MOST_MB


def test_endless_output_of_exec_is_shown_in_bounded_memory(site: Site) -> None:
    site.conf(HOSTS=site.hosts[:1])
    code, output, memory = run_measured(
        site, "exec", "--fold", "--", "head -c 50000000 /dev/zero; printf '\\033]0;owned\\007'"
    )
    assert code == 0
    assert is_harmless(output)
    assert memory < MOST_MB


@pytest.mark.parametrize("arguments", [("exec",), ("exec", "--json")])
def test_the_output_of_a_command_does_not_harm_a_terminal(site: Site, arguments: tuple[str, ...]) -> None:
    site.conf(HOSTS=site.hosts[:1])
    result = site.run(
        *arguments, "--", "printf '\\033]0;owned\\007 \\033[2J \\302\\233 \\177 \\342\\200\\256 \\377'; exit 3"
    )
    assert result.code == 3
    assert "owned" in result.out
    assert is_harmless(result.out + result.err)


@pytest.mark.parametrize("line", [b"[" * 200_000, b'{"a":' * 90 + b"1" + b"}" * 90, b"9" * 5000, b"\xff"])
def test_deeply_nested_or_invalid_json_is_only_a_value_error(line: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of any kind, as long as it is one
        parse(line)
    assert parse_event(b'{"event": "log", "x": ' + line + b"}") is None


DEEP = "[" * 4000


def metadata_of(directory: Path, metadata: dict[str, str]) -> TensorFile:
    write_tensors(directory / "file", [], metadata)
    return TensorFile(directory / "file")


def header_of(path: Path, header: bytes) -> Path:
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    return path


def with_manifest(directory: Path) -> Path:
    (directory / "manifest.json").write_text(DEEP)
    return directory


READERS: dict[str, tuple[type[Exception], Callable[[Path], object]]] = {
    "the header of a tensor file": (ModelError, lambda path: TensorFile(header_of(path / "file", DEEP.encode()))),
    "the tables of a model": (
        ModelError,
        lambda path: read_tables(metadata_of(path, {"format": "x", "tables": f'{{"a": {DEEP}'}), "x"),
    ),
    "a manifest": (ValueError, lambda path: read_manifest(with_manifest(path))),
    "a part of a message": (WireError, lambda path: parsed(Part(JSON, np.frombuffer(DEEP.encode(), np.uint8)))),
    "a message": (
        WireError,
        lambda path: Message(0, parts=[Part(JSON, np.frombuffer(DEEP.encode(), np.uint8))]).json(),
    ),
    "an answer of a piece server": (TransferError, lambda path: answer_of(DEEP.encode())),
    "a request for a piece": (ValueError, lambda path: request_of(DEEP.encode())),
    "a file of this account": (ValueError, lambda path: loads(DEEP)),
    "whole JSON of any length": (ValueError, lambda path: parse(b'"' + b"x" * 100 + b'"', most_bytes=100)),
    "text of a program": (ValueError, lambda path: parse(DEEP)),
}


@pytest.mark.parametrize("reader", READERS)
def test_deep_nesting_is_an_error_that_each_reader_has_anyway(reader: str, tmp_path: Path) -> None:
    error, read = READERS[reader]
    with pytest.raises(error):
        read(tmp_path)


def test_deep_nesting_in_a_message_with_a_descriptor_is_an_error(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(len(DEEP).to_bytes(2, "little") + DEEP.encode())
        with pytest.raises(ValueError, match="nested too deeply"):
            region.receive(theirs)
    assert piece_header(header_of(tmp_path / "piece", b'{"__metadata__": ' + DEEP.encode())) == {}


def test_messages_that_are_collected_have_a_bound_in_bytes(liars: Liars, monkeypatch: pytest.MonkeyPatch) -> None:
    adopt = sys.modules[AdoptedFiles.__module__]
    monkeypatch.setattr(adopt, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(adopt, "MOST_ROWS", 10_000)
    rows = [[f"{number:0500}", "x"] for number in range(1000)]
    liars.answers["node0"] = lambda request: lines(*[{"rows": rows}] * 2, {"rows": [["y" * 1_100_000, ""]]})
    liars.answers["node1"] = lambda request: (line for _ in itertools.count() for line in lines({"rows": []}))
    code, _, err = liars.run("start", "--job_workspace", "model", "--adopt", "--detach")
    assert code == 3
    assert "its list of files and those of other nodes take over 1 MB of memory" in err
    assert "it lists more than 10,000 files" in err


# A pattern that retried every position from every position took minutes of CPU for one such line. All of them take 6 s
# on a quiet machine, and three times as much where others share its cores.
DIAGNOSE = """
import resource
from clusterctl.observe.why.exits import diagnose
resource.setrlimit(resource.RLIMIT_CPU, (120, 120))
for line in ("a" * 64_000, ".so.1" * 12_000, "'" * 64_000, "errno " * 10_000, "version '" * 7_000, "E" * 64_000,
    "python" * 10_000, "python: " * 8_000, "x: error" * 8_000, " at" * 20_000):
    diagnose(1, [line] * 4)
    diagnose(1, ["Traceback (most recent call last):", f'  File "{line}"', f"OSError: {line}"])
"""


@pytest.mark.slow
def test_long_lines_do_not_keep_why_busy() -> None:
    subprocess.run([sys.executable, "-c", DIAGNOSE], check=True, timeout=300)


FILL = """
from clusterctl.common.safe_json import parse
size = 16 << 20
for part in (b"[],", b"{},", b"1000,", b'"ab",', b'{"a":1},', b'{"a":"b"},'):
    try:
        parse(b'{"done":{"x":[' + part * (size // len(part)) + b"1]}}")
    except ValueError:
        continue
    raise SystemExit(f"{part} was taken")
with open("/proc/self/status") as status:
    (most,) = [line.split()[1] for line in status if line.startswith("VmHWM:")]
print(int(most) >> 10)
"""


def test_processing_a_line_does_not_take_a_multiple_of_its_size() -> None:
    result = subprocess.run([sys.executable, "-c", FILL], check=True, timeout=300, capture_output=True)
    assert int(result.stdout) < MOST_MB


def test_long_lines_within_the_limit_are_accepted() -> None:
    for value in ([[1.0, ",[{" * 20_000]] * 50, ['\\",' * 400_000], ["[\\", ",\\"] * 100_000, list(range(400_000))):
        assert parse(json.dumps(value).encode()) == value


def test_an_overlong_event_does_not_hide_those_after_it(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"event": "log", "message": "' + b"x" * (3 << 20) + b'"}\n{"event": "ended"}\n')
    reader = log_files.EventReader(path)
    events = [event["event"] for _ in range(3) for event in reader.read()]
    assert events == ["log", "ended"]


def test_lines_that_grow_when_encoded_still_arrive(tmp_path: Path) -> None:
    """A byte that is not text becomes six, so 500 of the longest lines exceed the limit of any message."""
    job = JobPaths(tmp_path / "JOB20261121-081530")
    run = job.run("0001")
    run.dir.mkdir(parents=True)
    job.log.mkdir()
    job.record.write_text("{}")
    run.spec.write_text(json.dumps(spec_json(processes=[{"role": "trainer", "rank": 0, "index": 0}])))
    (job.log / "train.log").write_bytes((b"\xff" * 60_000 + b"\n") * 600)
    sizes: list[int] = []
    count = 0

    class Peer:
        def send(self, message: dict[str, list[object]]) -> None:
            nonlocal count
            sizes.append(len(json.dumps(message)))
            count += len(message.get("lines", ()))

        def heartbeat(self) -> None:
            pass

    logs.logs(tmp_path, {"ref": job.dir.name}, Peer())  # type: ignore[arg-type]  # only these two are used
    assert count == 600
    assert max(sizes) < MAX_LINE // 2


def test_the_harm_that_these_tests_look_for_is_detected() -> None:
    assert not is_harmless(EVIL)
    assert not any(is_harmless(char) for char in "\x1b\x07\x9b\u202e\x7f\r\x00\ud800")
