"""The node's side of a dispatch, through a real agent's pipes: a complete job directory, or nothing."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from clusterctl.agent.dispatch.staging import LARGE
from clusterctl.cluster import AgentCall
from clusterctl.common.tree import DIRECTORY, END, FILE, HEADER, Entry, content_of
from clusterctl.errors import ClusterctlError, NodeError, RefusedError
from support.processes import wait_until
from unit.agent.nodes import agent, ask, asked

JOB = "JOB20261121-081530"
DATA = random.Random(1).randbytes(100_000)  # incompressible: half of the stream is half of the file
TREE = [
    Entry("data", DIRECTORY, 0o755, 10**18),
    Entry("train.py", FILE, 0o644, 10**18, len(DATA), hashlib.sha256(DATA).hexdigest()),
]


def request(entries: list[Entry] = TREE, **more: Any) -> dict[str, Any]:
    fields = {"op": "dispatch", "nonce": "a", "node": 0, "nodes": 2, "by": "me@here", "workspace": "mine"}
    fields.update(source="s0", content="c0", tree=content_of(entries), base=None, complete=None)
    return {**fields, "rehash": False, "plan": False, "address": None, "nic": None, **more}


@contextmanager
def asking(home: Path, entries: list[Entry] = TREE, **more: Any) -> Iterator[tuple[AgentCall, dict[str, Any]]]:
    packed = zlib.compress(json.dumps({"rows": entries, "gone": []}).encode())
    with asked(home, request(entries, manifest_bytes=len(packed), **more)) as call:
        call.write(packed)
        yield call, call.receive()


def stream(data: bytes = DATA, digest: str = TREE[1].digest) -> bytes:
    return HEADER.pack(bytes.fromhex(digest), len(data)) + data + HEADER.pack(bytes(32), END)


def go(call: AgentCall, job: str = JOB, supersede: str | None = None) -> None:
    call.send({"go": job, "supersede": supersede, "blobs": 1, "compressed": False, "resume": {}})


def send(call: AgentCall, data: bytes = DATA, job: str = JOB) -> dict[str, Any]:
    go(call, job)
    call.write(stream(data))
    return call.result(180)


def traces(home: Path) -> list[str]:
    """Return the paths below ROOT_DIR, except those of the agent itself."""
    root = home / "root"
    paths = [path.relative_to(root).as_posix() for path in root.rglob("*")] if root.exists() else []
    return [name for name in paths if not name.startswith(".clusterctl/lib") and name not in KEPT]


KEPT = (".clusterctl", ".clusterctl/incoming")


def test_a_workspace_becomes_a_job_directory(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with asking(home) as (call, answer):
        room = answer.pop("room")
        assert (room["path"], room["new"] >= len(DATA), room["in_place"]) == (str(home / "root"), True, None)
        assert answer == {"jobs": [], "newest": None, "holds": False, "missing": [[1, 2]], "torn": {}}
        done = send(call)
    job = home / "root" / JOB
    assert done["dir"] == str(job)
    assert (done["files_received"], done["bytes_received"], done["bytes_copied"]) == (1, len(DATA), 0)
    assert (job / "train.py").read_bytes() == DATA
    assert (job / "nodefile").read_text() == "0\n"
    record = json.loads((job / ".clusterctl/job.json").read_text())
    assert {key: record[key] for key in ("job", "node", "nodes", "workspace", "files", "bytes", "tree")} == {
        "job": JOB,
        "node": 0,
        "nodes": 2,
        "workspace": "mine",
        "files": 1,
        "bytes": len(DATA),
        "tree": content_of(TREE),
    }
    assert job.stat().st_mode & 0o777 == 0o700
    assert list((home / "root/.clusterctl/incoming").iterdir()) == []
    assert [entry["job"] for entry in ask(home, {"op": "jobs"})["jobs"]] == [JOB]


@pytest.mark.parametrize("damage", ["same size and time", "gone", "mode"])
def test_a_modified_job_directory_does_not_count_as_the_one_that_was_sent(tmp_path: Path, damage: str) -> None:
    home = tmp_path / "home"
    with asking(home) as (call, _):
        send(call)
    file = home / "root" / JOB / "train.py"
    if damage == "same size and time":
        before = file.stat()
        file.write_bytes(DATA[::-1])
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif damage == "gone":
        file.unlink()
    else:
        (file.parent / "data").chmod(0o700)
    with asked(home, request(base=content_of(TREE), manifest_bytes=0)) as call:
        answer = call.receive()
        assert not answer["newest"]["exact"]
        assert answer["missing"] == ([] if damage == "mode" else [[1, 2]])


def test_a_second_dispatch_is_refused_and_names_the_one_under_way(tmp_path: Path) -> None:
    with asking(tmp_path / "home"):
        with pytest.raises(NodeError, match="by me@here") as raised, asking(tmp_path / "home", nonce="b") as _:
            pass
        assert raised.value.details["reason"] == "busy"
        assert (raised.value.details["holder"]["nonce"], raised.value.details["holder"]["node"]) == ("a", 0)
    with asking(tmp_path / "home", nonce="b") as (call, _):
        send(call)


TROUBLE = {
    "other contents": (TREE, DATA[:-1] + b"x", NodeError, "does not have the announced contents"),
    "bytes of nobody": (TREE, DATA[:-1], NodeError, "not requested"),
    "our own names": ([Entry("log", FILE, 0o644, 0, 0, hashlib.sha256().hexdigest())], b"", RefusedError, "log"),
    "a name that is too long": ([Entry("x" * 300, DIRECTORY, 0o755, 0)], b"", NodeError, "too long"),
}


@pytest.mark.parametrize(("entries", "data", "kind", "expected"), TROUBLE.values(), ids=TROUBLE)
def test_a_failed_dispatch_is_reported_and_leaves_nothing(
    tmp_path: Path, entries: list[Entry], data: bytes, kind: type[ClusterctlError], expected: str
) -> None:
    with pytest.raises(kind) as raised, asking(tmp_path / "home", entries) as (call, _):
        send(call, data)
    assert expected in str(raised.value)
    assert traces(tmp_path / "home") == []


@pytest.mark.parametrize("garbage", [b"\xff" * 100, zlib.compress(b"[7]")])
def test_garbage_in_place_of_the_list_is_reported_and_leaves_nothing(tmp_path: Path, garbage: bytes) -> None:
    with asked(tmp_path / "home", request(manifest_bytes=len(garbage))) as call:
        call.write(garbage)
        with pytest.raises(NodeError):
            call.receive()
    assert traces(tmp_path / "home") == []


@pytest.mark.parametrize("tampered", [False, True])
def test_a_large_file_resumes_where_it_broke_off_after_the_agent_was_killed(tmp_path: Path, tampered: bool) -> None:
    home = tmp_path / "home"
    data = random.Random(2).randbytes(LARGE + 1)
    entry = Entry("large", FILE, 0o644, 10**18, len(data), hashlib.sha256(data).hexdigest())
    with asking(home, [entry]) as (call, answer):
        assert (answer["missing"], answer["torn"]) == ([[0, 1]], {})
        go(call)
        call.write(stream(data, entry.digest)[: LARGE // 2])
        incoming = home / "root/.clusterctl/incoming"
        assert wait_until(lambda: [path.stat().st_size for path in incoming.glob("*/torn-*")] > [LARGE // 4])
        call._process.popen.send_signal(signal.SIGKILL)  # type: ignore[attr-defined]
        call._process.popen.wait()  # type: ignore[attr-defined]
    if tampered:
        (torn,) = incoming.glob("*/torn-*")
        with torn.open("r+b") as f:
            f.write(bytes([data[0] ^ 1]))
    with asking(home, [entry]) as (call, answer):
        (offset,) = answer["torn"].values()
        assert LARGE // 4 < offset < LARGE
        call.send({"go": JOB, "supersede": None, "blobs": 1, "compressed": False, "resume": answer["torn"]})
        call.write(HEADER.pack(bytes.fromhex(entry.digest), len(data) - offset) + data[offset:])
        call.write(HEADER.pack(bytes(32), END))
        if tampered:
            assert call.receive(180) == {"missing": [[0, 1]], "torn": {}}
            call.send({"blobs": 1, "compressed": False, "resume": {}})
            call.write(stream(data, entry.digest))
        done = call.result(180)
        assert (done["files_received"], done["bytes_received"]) == (1, len(data) - (0 if tampered else offset))
        assert (home / "root" / JOB / "large").read_bytes() == data
    assert list(incoming.glob("*/torn-*")) == []
    with asking(home, [entry]) as (call, answer):
        assert answer["torn"] == {}


def test_a_request_that_is_not_json_is_an_error_and_does_not_hang(tmp_path: Path) -> None:
    with asked(tmp_path / "home", request(base="b", manifest_bytes=0)) as call:
        assert call.receive()["missing"] is None
        call.write(b"what?\n")
        with pytest.raises(NodeError, match="JSONDecodeError"):
            call.receive()
    process = agent(tmp_path / "home")
    process.close_input()
    assert process.wait() != 0
    process.close()
