"""Setup of several nodes without SSH: uv is sent where that is worth it, and a lock file is completed by pip."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterctl.common.wheels import WheelStore, describe
from clusterctl.setup import Requirements, SetupOptions, SetupResult, prepare, read_requirements
from clusterctl.setup import setup as module
from clusterctl.setup.transfer import WheelRelay
from support.uv import real_uv, write_program
from support.wheels import make_wheel, tiny
from unit.agent import nodes
from unit.agent.nodes import PipeCluster


@pytest.fixture(autouse=True)
def no_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the uv of this machine from the nodes."""
    monkeypatch.setitem(nodes.VARIABLES, "PATH", "/usr/bin:/bin")


def run(
    tmp_path: Path, requirements: Requirements, options: SetupOptions, count: int = 1, where: str = "nodes"
) -> tuple[SetupResult, list[str]]:
    """Set up new nodes in the directory `where`; they share this machine's downloads."""
    said: list[str] = []
    (tmp_path / where).mkdir()
    cluster = PipeCluster(tmp_path / where, sys.executable, nodes=count)
    return prepare(cluster, requirements, options, said.append, tmp_path / "cache"), said


def builders(done: SetupResult) -> list[str | None]:
    return [outcome.get().builder for outcome in done.outcomes]


def index_with_uv(tmp_path: Path) -> Requirements:
    index = tmp_path / "index"
    tiny(index)
    make_wheel(index, "uv", "0.99", {"scripts/uv": f'#!/bin/sh\nexec {real_uv()} "$@"\n'})
    return Requirements("", ("--no-index", f"--find-links {index}", "tiny"))


@pytest.mark.slow
def test_uv_is_sent_if_the_packages_are_large_or_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requirements = index_with_uv(tmp_path)
    done, _ = run(tmp_path, requirements, SetupOptions(offline=True), where="small")
    assert builders(done) == ["clusterctl"]
    done, said = run(tmp_path, requirements, SetupOptions(offline=True, uv=True), 2, where="asked")
    assert [str(builder)[:3] for builder in builders(done)] == ["uv "] * 2, said
    monkeypatch.setattr(module, "WORTH_UV_BYTES", 1)
    done, _ = run(tmp_path, requirements, SetupOptions(), where="large")
    assert str(builders(done)[0]).startswith("uv ")
    done, _ = run(tmp_path, requirements, SetupOptions(offline=True, uv=False), where="never")
    assert builders(done) == ["clusterctl"]


def test_a_uv_that_cannot_be_fetched_is_reported(tmp_path: Path) -> None:
    tiny(tmp_path / "index")
    requirements = Requirements("", ("--no-index", f"--find-links {tmp_path / 'index'}", "tiny"))
    done, said = run(tmp_path, requirements, SetupOptions(offline=True, uv=True), 2)
    assert builders(done) == ["clusterctl"] * 2
    assert any(line.startswith("node[0,1]  building without uv: pip found no packages") for line in said)


def test_the_reason_why_a_nodes_own_uv_failed_is_known(tmp_path: Path) -> None:
    script = '[ "$1" = --version ] && echo "uv 0.9.1 (x)" || { echo "no luck" >&2; exit 2; }'
    cluster = PipeCluster(tmp_path, sys.executable, nodes=1)
    write_program(cluster.home(0) / ".local/bin/uv", script)
    tiny(tmp_path / "index")
    requirements = Requirements("", ("--no-index", f"--find-links {tmp_path / 'index'}", "tiny"))
    done = prepare(cluster, requirements, SetupOptions(offline=True), print, tmp_path / "cache")
    ready = done.outcomes[0].get()
    assert (ready.builder, ready.problem) == ("clusterctl", "no luck")


def test_what_the_runtime_needs_is_added_to_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace, index = tmp_path / "workspace", tmp_path / "index"
    wheel = describe(tiny(workspace))
    make_wheel(index, "numpy", "9.0", {"numpy.py": ""})
    make_wheel(index, "pyzmq", "9.1", {"zmq.py": ""})
    make_wheel(index, "cryptography", "9.2", {"cryptography.py": ""})
    text = f"""lock-version = "1.0"
created-by = "me"
[[packages]]
name = "tiny"
version = "1.0"
wheels = [{{ path = "{wheel.file}", hashes = {{ sha256 = "{wheel.digest}" }} }}]
"""
    (workspace / "pylock.toml").write_text(text)
    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(index)), ("PIP_CONFIG_FILE", "/dev/null")):
        monkeypatch.setenv(name, value)
    done, said = run(tmp_path, read_requirements(workspace, runtime=True), SetupOptions(offline=True))
    assert done.outcomes[0].get().built
    assert done.groups[0].packages == {"cryptography": "9.2", "numpy": "9.0", "pyzmq": "9.1", "tiny": "1.0"}
    assert "pylock.toml lacks numpy, pyzmq, cryptography, which the clusterctl runtime needs" in said
    assert done.groups[0].chosen_by == "pylock.toml"


def test_only_wheels_that_most_nodes_lack_are_relayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    relayed: list[list[str]] = []
    order = WheelRelay.order

    def watched(relay: WheelRelay, node: Any) -> None:
        relayed.append([wheel.name for wheel in relay.lacking[node.id]])
        order(relay, node)

    monkeypatch.setattr(WheelRelay, "order", watched)
    common, own = tiny(tmp_path / "index"), make_wheel(tmp_path / "index", "own", "1.0", {"own.py": ""})
    lines = ("--no-index", f"--find-links {tmp_path / 'index'}")
    (tmp_path / "nodes").mkdir()
    cluster = PipeCluster(tmp_path / "nodes", sys.executable, nodes=3, RELAY="always")
    for node in (0, 1):  # node 2 alone lacks this wheel
        store = WheelStore(cluster.home(node) / "clusterctl/.clusterctl/wheels")
        with store.workplace() as workplace:
            store.adopt(Path(shutil.copy(own, workplace)))
    done = prepare(
        cluster, Requirements("", (*lines, "tiny", "own")), SetupOptions(offline=True), print, tmp_path / "c"
    )
    assert relayed == [["tiny"]] * 3
    assert [outcome.get().built for outcome in done.outcomes] == [True] * 3
    assert done.outcomes[2].get().bytes_sent == own.stat().st_size
    assert done.outcomes[0].get().bytes_sent > common.stat().st_size, "the stream, with its headers"
