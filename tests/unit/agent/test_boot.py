"""The first program on a node, in every Python of this machine; and whole runs in the oldest one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterctl.cluster import AgentCall
from clusterctl.cluster.agent_call import boot_program
from clusterctl.cluster.heartbeats import AgentInput
from clusterctl.common.paths import PACKAGE_ROOT
from clusterctl.dispatch import Progress, dispatch, scan
from clusterctl.errors import NodeError, RefusedError, UnreachableError
from clusterctl.inventory import Node
from clusterctl.launch import Launch, plan, start
from clusterctl.observe.record.status import status
from support.processes import wait_until
from unit.agent.nodes import BUNDLE, NODE, OLDEST, PYTHONS, PipeCluster, Pipes, agent, ask, needs

WORKING = [version for version in PYTHONS if int(version[2:]) >= 9]
TOO_OLD = [version for version in PYTHONS if int(version[2:]) < 9]
JOBS = {"op": "jobs"}


@pytest.mark.parametrize("version", WORKING)
def test_the_agent_installs_itself_once_and_answers(version: str, tmp_path: Path) -> None:
    assert ask(tmp_path / "home", JOBS, python=PYTHONS[version]) == {"jobs": []}
    lib = tmp_path / "home/root/.clusterctl/lib" / BUNDLE.digest
    before = lib.stat().st_ino
    assert ask(tmp_path / "home", JOBS, python=PYTHONS[version]) == {"jobs": []}
    assert lib.stat().st_ino == before
    assert [path.name for path in lib.parent.iterdir()] == [BUNDLE.digest]
    assert (tmp_path / "home/root/.clusterctl").stat().st_mode & 0o077 == 0


def test_the_second_call_compiles_nothing(tmp_path: Path) -> None:
    assert ask(tmp_path / "home", JOBS) == {"jobs": []}
    package = tmp_path / "home/root/.clusterctl/lib" / BUNDLE.digest / "clusterctl"
    compiled = {path.stem.partition(".")[0]: path for path in package.rglob("*.pyc")}
    assert set(compiled) >= {"main", "jobs"}
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in compiled.values()}
    assert ask(tmp_path / "home", JOBS) == {"jobs": []}
    assert {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in compiled.values()} == before


def test_a_python_with_an_incomplete_standard_library_is_named(tmp_path: Path) -> None:
    """Like Debian's python3-minimal."""
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'json'\" >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(NodeError, match="incomplete: it has no module json") as caught:
        ask(tmp_path / "home", JOBS, python=str(python))
    assert "python3-minimal" in str(caught.value.hint)


@pytest.mark.skipif(not TOO_OLD, reason="no python3 before 3.9 on this machine")
@pytest.mark.parametrize("version", TOO_OLD)
def test_an_error_about_an_old_python_says_what_to_do(version: str, tmp_path: Path) -> None:
    with pytest.raises(NodeError, match=f"python is {version}") as raised:
        ask(tmp_path / "home", JOBS, python=PYTHONS[version])
    assert raised.value.hint == "set PYTHON in conf.py to a python3 of version 3.9 or later"
    assert not (tmp_path / "home/root").exists()


WITH_THREAD = """
import socket, sys, threading
sys.path.insert(0, sys.argv[1])
from clusterctl.agent import main
from clusterctl.agent.event_loop import EventLoop
WAITS = {
    "lock": lambda lock=threading.Lock(): (lock.acquire(), lock.acquire()),
    "socket": lambda pair=socket.socketpair(): pair[0].recv(1),
    "loop": EventLoop().run,
    "work": lambda: all(iter(int, 1)),
}
def serve(*given):
    threading.Thread(target=WAITS[sys.argv[2]], daemon=True).start()
    return {}
main._answer = serve
sys.exit(main.main("/", b'{"op": "jobs"}', 0o022))
"""


@pytest.mark.parametrize("waits", ["lock", "socket", "loop", "work"])
def test_an_agent_ends_when_it_has_answered_whatever_its_threads_do(waits: str) -> None:
    command = [PYTHONS[WORKING[0]], "-I", "-S", "-c", WITH_THREAD, PACKAGE_ROOT, waits]
    done = subprocess.run(command, input=b"\n", capture_output=True, timeout=180, check=False)
    assert (done.returncode, done.stderr, json.loads(done.stdout)) == (0, b"", {"done": {}})


def test_a_directory_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(NodeError, match="cannot install the agent") as raised:
        ask(tmp_path / "home", JOBS, root=str(tmp_path / "file/root"))
    assert str(tmp_path / "file/root") in str(raised.value.hint)


def test_an_agent_that_arrives_damaged_is_not_installed(tmp_path: Path) -> None:
    process = agent(tmp_path / "home")
    code, parcel = boot_program(), BUNDLE.parcel
    process.write(b"%s%s\n" % (code, json.dumps(JOBS).encode()))
    assert json.loads(process.readline(1000)) == {"need": BUNDLE.digest}
    middle = len(parcel) // 2
    process.write(parcel[:middle] + bytes([parcel[middle] ^ 1]) + parcel[middle + 1 :])
    assert "cannot install the agent" in json.loads(process.readline(1000))["error"]["message"]
    assert process.wait() == 1
    process.close()
    assert not (tmp_path / "home/root/.clusterctl/lib" / BUNDLE.digest).exists()


def test_an_agent_that_is_cut_off_in_transit_leaves_nothing(tmp_path: Path) -> None:
    process = agent(tmp_path / "home")
    code, parcel = boot_program(), BUNDLE.parcel
    process.write(b"%s%s\n" % (code, json.dumps(JOBS).encode()))
    process.readline(1000)
    process.write(parcel[: len(parcel) // 2])
    process.close_input()
    assert process.wait() == 1
    process.close()
    assert list((tmp_path / "home").rglob("*.py")) == []


def test_after_a_reboot_a_damaged_agent_is_replaced(tmp_path: Path) -> None:
    """A power cut leaves files empty, compiled ones too. Without a reboot the agent does not look, to save time."""
    ask(tmp_path / "home", JOBS)
    lib = tmp_path / "home/root/.clusterctl/lib" / BUNDLE.digest
    (mark,) = lib.glob("verified-*")
    damaged = lib / "clusterctl/agent/lead/state_machine.py"
    damaged.write_text("")
    assert ask(tmp_path / "home", JOBS) == {"jobs": []}
    assert damaged.read_text() == ""
    mark.unlink()
    assert ask(tmp_path / "home", JOBS) == {"jobs": []}
    assert damaged.read_text() != ""
    assert list(lib.parent.iterdir()) == [lib]
    mark.unlink()
    compiled = next(lib.rglob("*.pyc"))
    compiled.write_bytes(bytes(1000))
    assert ask(tmp_path / "home", JOBS) == {"jobs": []}
    assert not compiled.exists() or compiled.read_bytes() != bytes(1000)
    assert mark.exists()


def test_an_agent_on_a_read_only_disk_answers_after_a_reboot(tmp_path: Path) -> None:
    """A power cut may leave the disk read-only. Here the mark cannot be made for another reason."""
    ask(tmp_path / "home", JOBS)
    lib = tmp_path / "home/root/.clusterctl/lib" / BUNDLE.digest
    (mark,) = lib.glob("verified-*")
    mark.unlink()
    mark.symlink_to(tmp_path / "missing/mark")
    assert ask(tmp_path / "home", JOBS) == {"jobs": []}


def test_many_agents_may_install_themselves_at_once(tmp_path: Path) -> None:
    code, parcel = boot_program(), BUNDLE.parcel
    processes = [agent(tmp_path / "home") for _ in range(4)]
    for process in processes:
        process.write(b"%s%s\n" % (code, json.dumps(JOBS).encode()))
    needed = [json.loads(process.readline(1000)) for process in processes]
    for process, reply in zip(processes, needed, strict=True):
        if "need" in reply:
            process.write(parcel)
    answers = [json.loads(process.readline(1000)) for process in processes]
    for process in processes:
        process.close()
    assert answers == [{"done": {"jobs": []}}] * 4
    assert len(list((tmp_path / "home/root/.clusterctl/lib").iterdir())) == 1


# Whole runs: dispatch, start, status and stop on two nodes, without SSH; the processes are plain programs.

SERVER = "import time\nwhile True: time.sleep(60)\n"
WORKS = "import os\nprint('trainer', os.environ['CLUSTERCTL_RANK'], os.environ['CLUSTERCTL_PSERVERS'])\n"


def cluster_of(tmp_path: Path, python: str) -> PipeCluster:
    """Start plain processes instead of our pservers, so that nodes need no numpy."""
    return PipeCluster(tmp_path, python, PSERVER_COMMAND="python server.py", ENGINE="clusterctl")


def begin(
    cluster: PipeCluster,
    workspace: Path,
    train: str,
    monkeypatch: pytest.MonkeyPatch,
    on_go: Callable[[Launch], object] = lambda run: None,
) -> str:
    workspace.mkdir()
    (workspace / "train.py").write_text(train)
    (workspace / "server.py").write_text(SERVER)
    sent = dispatch(cluster, scan(workspace), Progress(), "JOB20261121-081530")
    assert all(outcome.ok for outcome in sent.outcomes), sent.outcomes
    launch = plan(cluster.settings, cluster.inventory)
    monkeypatch.setattr(type(launch), "needs_runtime", False)
    return start(cluster, launch, sent.job, on_go).job


def test_a_run_succeeds_in_the_oldest_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_of(tmp_path, needs(OLDEST))
    job = begin(cluster, tmp_path / "workspace", WORKS, monkeypatch)
    assert wait_until(lambda: status(cluster, job).state == "succeeded"), status(cluster, job)
    for node in range(2):
        directory = cluster.home(node) / "clusterctl" / job
        output = (directory / "log/train.log").read_text()
        ports = re.fullmatch(rf"trainer {node} 127\.0\.0\.1:(\d+),127\.0\.0\.1:(\d+)\n", output)
        assert ports
        assert ports[1] != ports[2]  # both nodes are on this machine
        assert (directory / "nodefile").read_text() == f"{node}\n"
        assert crash(cluster, node, job) == ""
    assert wait_until(lambda: not cluster.left()), cluster.left()


def nodes_of(cluster: PipeCluster, job: str) -> list[dict[str, Any]]:
    return [outcome.get() for outcome in cluster.ask({"op": "status", "ref": job})]


def crash(cluster: PipeCluster, node: int, job: str) -> str:
    return (cluster.home(node) / "clusterctl" / job / "log/supervisor.log").read_text()


@pytest.mark.slow
def test_a_run_is_stopped_in_the_oldest_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_of(tmp_path, needs(OLDEST))
    job = begin(cluster, tmp_path / "workspace", SERVER, monkeypatch)
    assert wait_until(lambda: status(cluster, job).state == "running")
    with pytest.raises(RefusedError, match="already running"):
        start(cluster, plan(cluster.settings, cluster.inventory), job, lambda job: None)
    stopped = [outcome.get() for outcome in cluster.ask({"op": "stop", "ref": job})]
    assert stopped[0]["was"] == "running"
    assert [answer["survivors"] for answer in stopped] == [0, 0]
    assert wait_until(lambda: [n["state"] for n in nodes_of(cluster, job)] == ["stopped", "stopped"])
    assert [crash(cluster, node, job) for node in range(2)] == ["", ""]
    assert wait_until(lambda: not cluster.left()), cluster.left()


def test_a_lead_whose_answer_was_lost_is_not_left_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_of(tmp_path, sys.executable)
    real = AgentCall.result

    def lost(call: AgentCall, *deadline: Any) -> Any:
        if "port" in (answer := real(call, *deadline)):
            raise NodeError("the connection broke", node=call.node.label)
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(AgentCall, "result", lost)
        with pytest.raises(NodeError, match="the connection broke"):
            begin(cluster, tmp_path / "workspace", SERVER, monkeypatch)
    assert [node["state"] for node in nodes_of(cluster, "JOB20261121-081530")] == ["stopped", "dispatched"]
    assert wait_until(lambda: not cluster.left()), cluster.left()


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "ksh", "zsh", "fish", "csh", "tcsh"])
def test_a_shell_in_the_place_of_python_runs_nothing_of_the_program(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    program = boot_program() + b"\ntouch ran\n"
    done = subprocess.run([shell], input=program, cwd=tmp_path, capture_output=True, timeout=180, check=False)
    assert done.returncode == 97 or (shell == "fish" and done.returncode)  # fish does not take it for a program
    assert done.stdout == b""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("reason", ["lost", "login_shell"])
def test_the_error_of_an_agent_is_kept_unless_the_login_shell_explains_it(reason: str, tmp_path: Path) -> None:
    def need_login_shell(node: Node) -> None:
        kind = UnreachableError if reason == "lost" else NodeError
        raise kind("of the test", node=node.label, details={"reason": reason})

    process = Pipes(["sh", "-c", "echo no space left >&2; exit 5"], tmp_path)
    call = AgentCall(NODE, AgentInput(process), BUNDLE, need_login_shell=need_login_shell)  # type: ignore[arg-type]
    try:
        with pytest.raises(NodeError, match="of the test" if reason == "login_shell" else "code 5: no space left"):
            call.begin(JOBS)
    finally:
        call.close()
