"""Files that nodes send back are written only below the requested directory, and are limited in size and number."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterctl.agent.operations import collect as agent
from clusterctl.collect import receive as receiving
from clusterctl.common.schema import fits
from clusterctl.common.wheels import Wheel
from clusterctl.errors import NodeError
from clusterctl.launch.saved import saves_in
from clusterctl.runtime import merge_model
from clusterctl.runtime.errors import ModelError
from contract.security.liars import EVIL, JOB, Liars, is_harmless, lines, status

PATHS: list[Any] = [
    "../evil",
    "/etc/evil",
    "log//evil",
    "log",
    "evil/file",
    "node-1/log/evil",
    "log/a\0b",
    f"log/{EVIL}",
    "log/line\nbreak",
    "log/\u202egnp.exe",
    "log/" + "x" * 5000,
    "log/\ud900",
    7,
    None,
]
SIZES: list[Any] = [-1, 10**18, 1e999, "5"]


def offer(name: Any, size: Any = 4, data: bytes = b"evil") -> list[Any]:
    return [{"file": name, "bytes": size}, data, {"sha256": sha256(data).hexdigest()}]


def collected(liars: Liars, *messages: Any, options: tuple[str, ...] = ("-o", "home")) -> tuple[int, str, str]:
    """Run `collect` with one node that offers these messages and one honest node."""

    def answer(node: int, request: dict[str, Any]) -> Iterator[bytes]:
        if request["op"] == "status":
            return lines({"done": status(node)})
        offers = messages if node else offer("log/train.log", data=b"good")
        return lines({"models": []}, *offers, {"done": {}})

    for node in (0, 1):
        liars.answers[f"node{node}"] = lambda request, node=node: answer(node, request)
    return liars.run("collect", JOB, *options)


def below(directory: Path) -> list[str]:
    """Return the files below a directory without the cache for completion, whose names no node chooses."""
    files = [path for path in directory.rglob("*") if not path.is_dir() and path.parent.name != "completion"]
    return sorted(str(path.relative_to(directory)) for path in files)


def test_a_file_is_written_only_below_its_nodes_directory_whatever_its_name(liars: Liars, tmp_path: Path) -> None:
    before = below(tmp_path)
    for name in PATHS:
        code, out, err = collected(liars, *offer(name))
        assert code == 3, name
        assert "node1" in err
        assert "Traceback" not in err
        assert is_harmless(out + err)
    assert set(below(tmp_path)) - set(before) - {"home/job", "home/node-0/log/train.log", "home/report.html"} <= {
        path for path in below(tmp_path) if path.startswith("cache/")
    }
    assert not Path("/etc/evil").exists()
    assert (tmp_path / "home/node-0/log/train.log").read_text() == "good"  # from the honest node


def test_sizes_that_are_invalid_or_too_large_are_refused_before_a_byte_is_written(liars: Liars, tmp_path: Path) -> None:
    for size in SIZES:
        code, _, err = collected(liars, *offer("log/evil", size))
        assert code == 3, size
        assert "refused a file of" in err
    assert "home/node-1/log/evil" not in below(tmp_path)


def test_an_invalid_total_is_refused(liars: Liars) -> None:
    for total in SIZES:
        code, _, err = collected(liars, {"total": total}, *offer("log/evil"))
        assert code == (0 if total == 10**18 else 3), total
        assert ("refused files of" in err) is bool(code)


def test_a_node_that_announces_endless_totals_is_cut_off(liars: Liars, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "MOST_FILES", 50)
    assert collected(liars, *({"total": 1} for _ in range(10_000)))[0] == 3


def test_a_node_that_offers_endless_files_is_cut_off(liars: Liars, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "MOST_FILES", 50)
    code, _, err = collected(liars, *(part for n in range(10_000) for part in offer(f"log/{n}")))
    assert code == 3
    assert "more than 50 files" in err
    assert len(list(Path("home/node-1/log").iterdir())) == 50


def test_an_existing_link_is_not_followed(liars: Liars, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert collected(liars, *offer("output/model"))[0] == 0
    (tmp_path / "home/node-1/log").symlink_to(elsewhere)
    (tmp_path / "home/node-1/output/model").unlink()
    (tmp_path / "home/node-1/output/model").symlink_to(tmp_path / "conf.py")
    conf = (tmp_path / "conf.py").read_text()
    code, _, err = collected(liars, *offer("output/model"), *offer("log/evil"))
    assert code == 3
    assert "is a symbolic link" in err
    assert below(elsewhere) == []
    assert (tmp_path / "conf.py").read_text() == conf
    assert (tmp_path / "home/node-1/output/model").read_bytes() == b"evil"  # instead of the link


def test_a_node_cannot_choose_the_directory_by_the_name_of_its_job(liars: Liars, tmp_path: Path) -> None:
    before = below(tmp_path)
    for name in ("../evil", "/tmp/evil", "cache", EVIL, f"{JOB}/../../evil", f"{JOB}-{'1' * 500}"):
        status_reply = {"done": status(0, job=name)}
        liars.answers["node0"] = liars.answers["node1"] = lambda request, status_reply=status_reply: lines(status_reply)
        code, out, err = liars.run("collect")
        assert code == (2 if name == "cache" else 3), name  # which a directory deployed by hand may have
        assert is_harmless(out + err)
    assert [path for path in below(tmp_path) if path not in before and "/failed/" not in path] == []


def test_a_file_with_other_bytes_than_announced_is_not_kept(liars: Liars, tmp_path: Path) -> None:
    for message in ({"sha256": "0" * 64}, {"sha256": None}, {}, [], {"error": {"message": "no"}}):
        code, _, _ = collected(liars, {"file": "log/evil", "bytes": 4}, b"evil", message)
        assert code == 3
        assert [path for path in below(tmp_path) if "node-1" in path] == []


@pytest.mark.parametrize("about", [{"mode": "7", "mtime_ns": 1}, {"mode": 7}, {"mode": 7, "mtime_ns": 1 << 80}])
def test_a_file_with_malformed_attributes_is_refused(liars: Liars, about: dict[str, Any]) -> None:
    code, _, err = collected(liars, {"file": "log/evil", "bytes": 4, **about}, b"evil", {"sha256": "0"})
    assert code == 3
    assert "refused a file of malformed attributes" in err


def test_attributes_of_a_file_cannot_make_it_run_as_its_owner(liars: Liars, tmp_path: Path) -> None:
    good = {"sha256": sha256(b"evil").hexdigest()}
    code, _, _ = collected(liars, {"file": "log/evil", "bytes": 4, "mode": 0o7777, "mtime_ns": 0}, b"evil", good)
    assert code == 0
    assert (tmp_path / "home/node-1/log/evil").stat().st_mode & 0o7022 == 0


def test_a_malformed_list_of_what_was_left_is_refused_and_a_hostile_one_is_harmless(liars: Liars) -> None:
    for left in ("x", [["a", 7]], [["a", "evil"]], [[EVIL]], [7]):
        code, out, err = collected(liars, {"done": {"left": left}})
        assert code == 3
        assert "refused a malformed list of files" in err
        assert is_harmless(out + err)
    code, out, err = collected(liars, {"done": {"left": [[EVIL, "link"]] * 1000, "more": 10**9}})
    assert code == 0
    assert is_harmless(out + err)
    assert len(err) < 3000


class Recorder:
    """Stands in for the control machine, as an agent sees it."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.total = 0
        self._name = ""

    def receive(self) -> dict[str, Any]:
        return {"bring": None}

    def send(self, message: dict[str, Any]) -> None:
        self.total = message.get("total", self.total)
        if "file" in message:
            self._name = message["file"]
            self.files[self._name] = b""

    def send_bytes(self, data: bytes) -> None:
        self.files[self._name] += data

    def heartbeat(self) -> None:
        pass


def test_an_agent_sends_only_plain_files_and_does_not_block_on_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tmp_path / JOB
    (job / ".clusterctl").mkdir(parents=True)
    (job / ".clusterctl/job.json").write_text("{}")
    output = job / "output"
    (output / "deep").mkdir(parents=True)
    (output / "deep/good").write_bytes(b"good")
    (output / "link").symlink_to("/etc/passwd")
    (output / "directory").symlink_to("/etc")
    (output / "dangling").symlink_to("/nowhere")
    os.mkfifo(output / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(output)
        listener.bind("socket")  # the whole path may be too long for a socket
        if os.geteuid() == 0:
            os.mknod(output / "device", 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero
        recorder = Recorder()
        answer = agent.collect(tmp_path, {"ref": JOB}, recorder)  # type: ignore[arg-type]  # it only sends
    assert recorder.total == 4
    assert recorder.files == {"output/deep/good": b"good"}
    left = {name.removeprefix("output/"): kind for name, kind in answer["left"]}
    links, special = dict.fromkeys(("link", "directory", "dangling"), "link"), {"pipe": "special", "socket": "special"}
    assert left == {**links, **special, **({"device": "special"} if os.geteuid() == 0 else {})}


def tensors(path: Path, header: dict[str, Any], data: bytes) -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def test_a_small_model_file_does_not_expand_into_a_large_model(tmp_path: Path) -> None:
    """The file has ten thousand blocks that all refer to the same four bytes."""
    block = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    header: dict[str, Any] = {f"w/block/{n}": block for n in range(10_000)}
    tensors(tmp_path / "pserver-00000.safetensors", header, np.float32(1).tobytes())
    with pytest.raises(ModelError, match="overlap"):
        merge_model([tmp_path], tmp_path / "model.safetensors")


HEADERS: list[Any] = [
    b"",
    b"\xff" * 8,
    (1 << 62).to_bytes(8, "little"),
    b"\x10" + bytes(7) + b"[" * 16,
    (200_000).to_bytes(8, "little") + b"[" * 200_000,
]


def test_invalid_model_files_are_an_error_of_collect_and_not_a_crash(liars: Liars) -> None:
    manifest = {"v": 1, "step": 1, "files": [{"file": "pserver-00000.safetensors", "bytes": 0, "sha256": ""}]}
    wrong = [({**manifest, "step": 1e999}, b""), ({**manifest, "files": 7}, b""), ([[]] * 3, b"")]
    for document, piece in [*((manifest, piece) for piece in HEADERS), *wrong]:
        listed = json.dumps(document).encode()
        parts = offer("output/pass-1/manifest.json", len(listed), listed)
        parts += offer("output/pass-1/pserver-00000.safetensors", len(piece), piece)
        for node in (0, 1):
            liars.answers[f"node{node}"] = lambda request, node=node, parts=parts: (
                lines({"done": status(node)}) if request["op"] == "status" else lines(*parts, {"done": {}})
            )
        code, _, err = liars.run("collect", JOB, "-o", "home")
        assert code in (0, 3), err
        assert "Traceback" not in err


LOCKS: list[Any] = [
    [["../../../evil-1-py3-none-any.whl", "0" * 64, 4]],
    [["a-1-py3-none-any.whl", "0" * 64, -4]],
    [["a-1\n--index-url=http://evil-py3-none-any.whl", "0" * 64, 4]],
    [["--index-url=x-1-py3-none-any.whl", "0" * 64, 4]],
    [[EVIL, EVIL, EVIL]],
    7,
]


def test_names_of_packages_on_a_node_cannot_lead_out_of_the_store(liars: Liars, tmp_path: Path) -> None:
    """On this machine, the names become paths, and lines of a requirements file when another node needs the wheels."""
    good = ["a_b-1.0+cu121-1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", "0" * 64, 4]
    assert fits(list[Wheel], [good])
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace/requirements.txt").write_text("a\n")
    facts = {"implementation": "cp", "python": "3.11.2", "machine": "x86_64", "glibc": [2, 36], "pip": None}
    before = below(tmp_path)
    for lock in LOCKS:
        reply = {"facts": {**facts, "lock": lock}}
        liars.answers["node0"] = liars.answers["node1"] = lambda request, reply=reply: lines(reply, b"evil" * 100)
        code, out, err = liars.run("setup", "workspace")
        assert code == 3, (lock, out, err)
        assert "malformed package data" in err
        assert is_harmless(out + err)
    assert [path for path in below(tmp_path) if path not in before and "failed/" not in path] == []


@pytest.mark.parametrize(
    ("key", "junk"),
    [("tag", "../../x"), ("run", "../1"), ("file", "../../../.ssh/authorized_keys"), ("bytes", -5), ("file", None)],
)
def test_a_manifest_that_names_files_elsewhere_is_refused(key: str, junk: Any) -> None:
    """Files that a manifest names are linked and written on all nodes."""
    file = {"file": "pserver-00000.safetensors", "pserver": 0, "bytes": 5, "sha256": "0" * 64}
    manifest = {
        "v": 1,
        "checkpoint": True,
        "tag": "step-1",
        "mode": "sync",
        "step": 1,
        "pass": 0,
        "seed": 0,
        "pservers": 1,
    }
    row = {"run": "0001", "tag": "step-1", "reason": None, "manifest": {**manifest, "files": [file]}}
    assert [one.manifest for one in saves_in("checkpoint", [{"checkpoints": [row]}])] == [row["manifest"]]
    row["manifest"] = {**manifest, "files": [{**file, key: junk}]} if key in file else {**manifest, key: junk}
    row.update({key: junk} if key not in file else {})
    assert [one.manifest for one in saves_in("checkpoint", [{"checkpoints": [row]}])] in ([], [None])


@pytest.mark.parametrize(
    "junk",
    [
        *({"file": name} for name in ("../x", "pserver-00000.safetensors", "trainer-00001.safetensors", None)),
        *({"trainer": rank} for rank in (-1, "0", None, 1)),
        *({"bytes": size} for size in (-5, "5", None)),
        {"sha256": None},
    ],
)
def test_a_manifest_that_names_other_files_as_states_is_refused(junk: dict[str, Any]) -> None:
    file = {"file": "pserver-00000.safetensors", "pserver": 0, "bytes": 5, "sha256": "0" * 64}
    state = {"file": "trainer-00000.safetensors", "trainer": 0, "bytes": 5, "sha256": "0" * 64}
    numbers = {"step": 1, "pass": 0, "seed": 0, "pservers": 1, "checkpoint": True}
    manifest = {"v": 1, "tag": "step-1", "mode": "sync", **numbers, "files": [file]}

    def read(states: Any) -> list[Any]:
        row = {"run": "0001", "tag": "step-1", "reason": None, "manifest": {**manifest, "states": states}}
        return [one.manifest for one in saves_in("checkpoint", [{"checkpoints": [row]}])]

    assert read([state])[0]["states"] == [state]
    assert [read(states) for states in ([{**state, **junk}], [state, state], 5, [5])] == [[None]] * 4


def test_a_node_error_names_the_lying_node(liars: Liars) -> None:
    _, _, err = collected(liars, *offer("../x"))
    assert NodeError.exit_code == 3
    assert "check that the node has not been compromised" in err
