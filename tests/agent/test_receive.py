"""Dispatch, the node's side, through a real agent's pipes: a whole job directory, or no trace of one."""

from __future__ import annotations

import hashlib
import json
import random
import signal
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.nodes import agent, ask, asked
from clusterctl.agent.tree import DIRECTORY, FILE, Entry, encode
from clusterctl.cluster import AgentCall
from clusterctl.errors import ClusterctlError, NodeError, RefusedError
from support.processes import wait_until

JOB = "JOB20261121-081530"
DATA = random.Random(1).randbytes(100_000)  # cannot be compressed: half of the stream is half of the file
TREE = [
    Entry("data", DIRECTORY, 0o755, 10**18),
    Entry("train.py", FILE, 0o644, 10**18, len(DATA), hashlib.sha256(DATA).hexdigest()),
]


def request(nonce: str = "a", node: int = 0) -> dict[str, Any]:
    return {"op": "dispatch", "nonce": nonce, "node": node, "nodes": 2, "workspace": "mine", "content": "c0"}


@contextmanager
def reserving(home: Path, job: str = JOB, **more: Any) -> Iterator[tuple[AgentCall, dict[str, Any]]]:
    with asked(home, request(**more)) as call:
        call.send({"job": job})
        yield call, call.receive()


def stream(entries: list[Entry] = TREE, data: bytes = DATA) -> tuple[dict[str, Any], bytes]:
    manifest = json.dumps(encode(entries)).encode()
    return {"go": True, "manifest_bytes": len(manifest)}, zlib.compress(manifest + data)


def send(call: AgentCall, entries: list[Entry] = TREE, data: bytes = DATA) -> dict[str, Any]:
    go, sent = stream(entries, data)
    call.send(go)
    call.write(sent)
    return call.result(20)


def traces(home: Path) -> list[str]:
    """What is below ROOT_DIR, the agent itself apart."""
    root = home / "root"
    found = [path.relative_to(root).as_posix() for path in root.rglob("*")] if root.exists() else []
    return [name for name in found if not name.startswith(".clusterctl/lib") and name not in KEPT]


KEPT = (".clusterctl", ".clusterctl/incoming")


def test_a_workspace_becomes_a_job_directory(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with reserving(home) as (call, answer):
        assert answer == {"reserved": True, "taken_by": None}
        assert traces(home) == [f".clusterctl/incoming/{JOB}", f".clusterctl/incoming/{JOB}/lock"]
        done = send(call)
    job = home / "root" / JOB
    assert done["dir"] == str(job)
    assert (job / "train.py").read_bytes() == DATA
    assert (job / "nodefile").read_text() == "0\n"
    record = json.loads((job / ".clusterctl/job.json").read_text())
    assert {key: record[key] for key in ("job", "node", "nodes", "workspace", "files", "bytes")} == {
        "job": JOB,
        "node": 0,
        "nodes": 2,
        "workspace": "mine",
        "files": 1,
        "bytes": len(DATA),
    }
    assert job.stat().st_mode & 0o777 == 0o700
    assert list((home / "root/.clusterctl/incoming").iterdir()) == []
    assert [found["job"] for found in ask(home, {"op": "jobs"})["jobs"]] == [JOB]


def test_an_id_that_is_there_already_is_not_given_out_and_the_next_one_is(tmp_path: Path) -> None:
    (tmp_path / "home/root" / JOB).mkdir(parents=True)
    with reserving(tmp_path / "home") as (call, answer):
        assert answer == {"reserved": False, "taken_by": {}}
        call.send({"job": f"{JOB}-2"})
        assert call.receive()["reserved"]
        assert send(call)["dir"].endswith(f"{JOB}-2")


def test_two_nodes_of_one_root_directory_are_told_of_each_other(tmp_path: Path) -> None:
    with (
        reserving(tmp_path / "home", nonce="same", node=0),
        reserving(tmp_path / "home", nonce="same", node=1) as (
            _,
            answer,
        ),
    ):
        assert answer == {"reserved": False, "taken_by": {"nonce": "same", "node": 0}}


def test_a_reservation_that_is_given_back_leaves_nothing(tmp_path: Path) -> None:
    with reserving(tmp_path / "home") as (call, _):
        call.send({"go": False})
        call.send({"job": f"{JOB}-2"})
        assert call.receive()["reserved"]
        assert not any(name.split("/")[-1] == JOB for name in traces(tmp_path / "home"))
    assert wait_until(lambda: traces(tmp_path / "home") == [])


TROUBLE = {
    "a file that is too short": (TREE, DATA[:-1], NodeError, "stream ended within 'train.py'"),
    "other contents": (TREE, DATA[:-1] + b"x", NodeError, "arrived with other contents"),
    "a path that goes up": ([Entry("../x", FILE, 0o644, 0)], b"", RefusedError, "not a path inside"),
    "a device": ([Entry("x", "c", 0o644, 0)], b"", RefusedError, "neither a plain file"),
    "our own names": ([Entry("log", FILE, 0o644, 0, 0, hashlib.sha256().hexdigest())], b"", NodeError, "log"),
    "our own directory": ([Entry(".clusterctl", DIRECTORY, 0o755, 0)], b"", NodeError, "clusterctl"),
    "a name that is too long": ([Entry("x" * 300, DIRECTORY, 0o755, 0)], b"", NodeError, "too long"),
    "a mode that is none": ([Entry("x", DIRECTORY, 0.5, 0)], b"", ClusterctlError, ""),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("entries", "data", "kind", "words"), TROUBLE.values(), ids=TROUBLE)
def test_trouble_leaves_nothing_and_is_told(
    tmp_path: Path, entries: list[Entry], data: bytes, kind: type[ClusterctlError], words: str
) -> None:
    with reserving(tmp_path / "home") as (call, _), pytest.raises(kind) as raised:
        send(call, entries, data)
    assert words in str(raised.value)
    assert traces(tmp_path / "home") == []


@pytest.mark.parametrize("garbage", [b"\xff" * 100, zlib.compress(b"{}"), zlib.compress(b"not json at all")])
def test_garbage_in_place_of_the_stream_leaves_nothing_and_is_told(tmp_path: Path, garbage: bytes) -> None:
    with reserving(tmp_path / "home") as (call, _):
        call.send({"go": True, "manifest_bytes": 15})
        call.write(garbage)
        call._process.close_input()  # type: ignore[attr-defined]
        with pytest.raises(NodeError):
            call.result(20)
    assert traces(tmp_path / "home") == []


@pytest.mark.parametrize("share", [0.0, 0.1, 0.6, 0.99])
def test_a_stream_that_breaks_off_leaves_nothing(tmp_path: Path, share: float) -> None:
    with reserving(tmp_path / "home") as (call, _):
        go, sent = stream()
        call.send(go)
        call.write(sent[: int(share * len(sent))])
    assert traces(tmp_path / "home") == []


def test_what_a_killed_agent_left_is_swept_by_the_next_one(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with reserving(home) as (call, _):
        go, sent = stream()
        call.send(go)
        call.write(sent[: len(sent) // 2])
        assert wait_until(lambda: any(name.endswith("train.py") for name in traces(home)))
        call._process.popen.send_signal(signal.SIGKILL)  # type: ignore[attr-defined]
        call._process.popen.wait()  # type: ignore[attr-defined]
    assert traces(home) != []
    with reserving(home) as (call, answer):
        assert answer["reserved"]
        send(call)
    assert sorted(name.split("/")[0] for name in traces(home) if "/" not in name) == [JOB]


def test_the_sweep_leaves_a_dispatch_under_way_alone(tmp_path: Path) -> None:
    with reserving(tmp_path / "home") as (first, _):
        with reserving(tmp_path / "home", job=f"{JOB}-2") as (second, answer):
            assert answer["reserved"]
            send(second)
        assert send(first)["dir"].endswith(JOB)


def test_a_request_that_is_no_json_is_an_error_and_not_a_hang(tmp_path: Path) -> None:
    with asked(tmp_path / "home", request()) as call:
        call.write(b"what?\n")
        with pytest.raises(NodeError, match="JSONDecodeError"):
            call.receive()
    process = agent(tmp_path / "home")
    process.close_input()
    assert process.wait() != 0
    process.close()
