"""Commands over `local` and over a carrier of one's own, a clean shell in another home and working directory."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.errors import NodeError, UnreachableError
from clusterctl.transport import Raw, RemoteCommand, RemotePath, Transport, command
from clusterctl.transport.carrier import carriers
from clusterctl.transport.carrier.process import CarrierProcess
from support.nodes import TestNode, TestSettings
from support.processes import is_alive, wait_until

MB = 1024 * 1024
CLEAN = """#!/bin/sh
home="$(dirname "$0")/$1"
shift
cd /
exec env -i HOME="$home" PATH=/usr/bin:/bin LANG=C.UTF-8 "$@"
"""


def sh(script: str) -> RemoteCommand:
    return command("sh", "-c", script)


def script(directory: Path, text: str) -> str:
    """Write a carrier."""
    path = directory / "carrier"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def by(directory: Path, text: str) -> TestNode:
    return TestNode("node0", None, "box", via=(script(directory, text), "{host}"))


@pytest.fixture
def transport() -> Iterator[Transport]:
    with Transport(TestSettings(None, None, None)) as made:
        yield made
    assert wait_until(lambda: not any(thread.name == "end-of-a-carrier" for thread in threading.enumerate()), 10)


@pytest.fixture(params=["local", "clean"])
def node(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TestNode:
    (tmp_path / "box").mkdir()
    if request.param == "clean":
        return by(tmp_path, CLEAN)
    monkeypatch.setenv("HOME", str(tmp_path / "box"))
    return TestNode("node0", None, "box", via="local")


@pytest.mark.parametrize("code", [0, 255])
def test_the_exit_code_of_a_command_is_returned(transport: Transport, node: TestNode, code: int) -> None:
    assert transport.run(node, sh(f"exit {code}")).exit_code == code
    assert transport.run(node, RemoteCommand((Raw(f"exit {code}"),))).exit_code == code


def test_a_signalled_command_of_this_machine_exits_with_128_and_the_signal(transport: Transport) -> None:
    here = TestNode("node0", None, "box", via="local")
    assert transport.run(here, sh("kill -KILL $$")).exit_code == 137


def test_a_carrier_that_a_signal_ended_is_a_lost_connection(transport: Transport, tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="lost the connection to box over carrier"):
        transport.run(by(tmp_path, '#!/bin/sh\nshift\nexec "$@"'), sh("kill -KILL $$"))


def test_output_and_errors_arrive_separately_and_byte_for_byte(transport: Transport, node: TestNode) -> None:
    done = transport.run(node, sh(r"printf 'a\0\377\r\n'; printf 'b\0\376' >&2"))
    assert (done.stdout, done.stderr) == (b"a\0\xff\r\n", b"b\0\xfe")


def test_errors_that_arrive_with_the_begin_are_passed_on_once(transport: Transport, node: TestNode) -> None:
    for _ in range(5):
        assert transport.run(node, sh("echo early >&2; echo out")).stderr == b"early\n"


def test_nasty_arguments_arrive_unchanged(transport: Transport, node: TestNode) -> None:
    nasty = ["", " ", "a'b\"c", "$HOME `id`", "a\nb\r\n", "-n", "*?[a]", "~", "!!", "ü 🦉", "\\n\\\\", "\udcff"]
    expected = b"".join(argument.encode("utf-8", "surrogateescape") + b"\0" for argument in nasty)
    assert transport.run(node, command("printf", "%s\\0", *nasty)).stdout == expected


def test_a_command_begins_in_the_home_of_the_node(transport: Transport, node: TestNode, tmp_path: Path) -> None:
    home = str((tmp_path / "box").resolve())
    assert transport.run(node, command("pwd", "-P")).stdout.decode() == home + "\n"
    assert transport.run(node, RemoteCommand((Raw("pwd -P"),))).stdout.decode() == home + "\n"
    assert transport.run(node, command("ls", "-d", RemotePath("~/"))).stdout.decode().rstrip("/\n").endswith("/box")


def test_one_thread_reads_while_another_writes(transport: Transport, node: TestNode) -> None:
    block = os.urandom(MB)
    with transport.open(node, sh("cat; head -c 3000000 /dev/zero >&2")) as process:

        def write() -> None:
            for _ in range(5):
                process.write(memoryview(block))
            process.close_stdin()

        writer = threading.Thread(target=write)
        writer.start()
        digest = hashlib.sha256()
        while piece := process.read(deadline_s=30):
            digest.update(piece)
        writer.join(10)
        assert process.wait(10) == 0
    assert digest.digest() == hashlib.sha256(block * 5).digest()


def test_a_flood_of_errors_blocks_neither_side_and_its_end_is_kept(transport: Transport, node: TestNode) -> None:
    with transport.open(node, sh("head -c 5000000 /dev/zero >&2; echo last >&2; echo out")) as process:
        assert process.readline(deadline_s=30) == b"out\n"
        assert process.wait(10) == 0
        assert process.stderr_tail().endswith(b"last\n")
        assert len(process.stderr_tail()) == 64 * 1024


def test_every_wait_has_a_deadline(transport: Transport, node: TestNode) -> None:
    with transport.open(node, sh("cat >/dev/null; sleep 30")) as process:
        with pytest.raises(NodeError, match="timed out after"):
            process.read(deadline_s=0.3)
        with pytest.raises(NodeError, match="timed out after"):
            process.wait(0.1)
    with transport.open(node, command("sleep", "30")) as process:
        with pytest.raises(NodeError, match="timed out after"):
            process.write(bytes(MB), stall_s=0.3)
        with pytest.raises(NodeError, match="timed out after"):
            process.write(bytes(MB), deadline_s=0.3)
    with pytest.raises(NodeError, match="timed out after") as caught:
        transport.run(node, command("sleep", "30"), deadline_s=0.5)
    assert caught.value.node == "node0"


def test_a_daemon_that_keeps_only_standard_error_does_not_block_us(transport: Transport, node: TestNode) -> None:
    """Such as the master of ControlPersist."""
    began = time.monotonic()
    done = transport.run(node, sh("setsid sleep 30 </dev/null >/dev/null & echo $!"))
    assert time.monotonic() - began < 15
    os.kill(int(done.stdout), signal.SIGKILL)


def test_a_carrier_leads_a_process_group_and_a_session_of_its_own(transport: Transport, node: TestNode) -> None:
    fields = transport.run(node, sh("cat /proc/self/stat")).stdout.rpartition(b")")[2].split()
    group, session, terminal = int(fields[2]), int(fields[3]), int(fields[4])
    assert group == session != os.getsid(0)
    assert terminal == 0


def test_after_closing_the_command_sees_the_end_of_its_input(
    transport: Transport, node: TestNode, tmp_path: Path
) -> None:
    process = transport.open(node, sh("echo $$; cat; echo over >$HOME/over"))
    process.readline(deadline_s=10)
    process.close()
    assert wait_until((tmp_path / "box/over").exists)


def test_a_closed_carrier_that_does_not_end_is_killed_with_its_group(
    transport: Transport, node: TestNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    with transport.open(node, sh("trap '' TERM HUP; sleep 50 & echo $$ $!; while :; do sleep 50; done")) as process:
        assert isinstance(process, CarrierProcess)
        pids = [int(word) for word in process.readline(deadline_s=10).split()]
    assert wait_until(lambda: not any(is_alive(pid) for pid in pids), 10)
    assert wait_until(lambda: process._popen.returncode is not None)


def test_a_carrier_that_has_done_its_work_ends_by_itself(node: TestNode, tmp_path: Path) -> None:
    with Transport(TestSettings(None, None, None)) as transport:
        script = "echo done; exec >/dev/null; trap 'touch $HOME/terminated' TERM; sleep 0.5; touch $HOME/over"
        with transport.open(node, sh(script)) as process:
            assert process.readline(deadline_s=10) == b"done\n"
    assert (tmp_path / "box/over").exists()
    assert not (tmp_path / "box/terminated").exists()


def test_abort_ends_every_wait(transport: Transport, node: TestNode) -> None:
    process = transport.open(node, sh("trap '' TERM; echo $$; sleep 50; sleep 50"))
    pid = int(process.readline(deadline_s=10))
    threading.Timer(0.2, transport.abort).start()
    with pytest.raises(UnreachableError, match="lost the connection"):
        process.read()
    assert wait_until(lambda: not is_alive(pid), 10)
    assert transport.run(node, command("true")).exit_code == 0


def test_an_interrupted_map_ends_the_carriers(node: TestNode) -> None:
    """In a program of its own: the interrupt goes to all of its process group, as Ctrl-C does."""
    program = f"""
import os, signal, sys
from clusterctl.transport import Transport, command
from support.nodes import TestNode, TestSettings
node = TestNode("node0", None, "box", via={node.via!r})
def work(node):
    with transport.open(node, command("sh", "-c", "trap 'echo INT' INT; echo $$; sleep 50")) as process:
        print(int(process.readline()), flush=True)
        print(process.read(), flush=True)
with Transport(TestSettings(None, None, None)) as transport:
    try:
        transport.map([node], work)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""
    env = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    words = [sys.executable, "-c", program]
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, start_new_session=True, text=True) as popen:
        assert popen.stdout is not None
        pid = int(popen.stdout.readline())
        os.killpg(popen.pid, signal.SIGINT)
        assert popen.stdout.read() == "interrupted\n"
    assert wait_until(lambda: not is_alive(pid), 10)


def test_at_most_32_carriers_start_at_once(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carriers, "STARTS_AT_ONCE", 3)
    (tmp_path / "starting").mkdir()
    carrier = f"""#!/bin/sh
shift; touch {tmp_path}/starting/$$; ls {tmp_path}/starting | wc -l >>{tmp_path}/counts
until test -e {tmp_path}/go; do sleep 0.02; done
rm {tmp_path}/starting/$$; exec "$@"
"""
    node = by(tmp_path, carrier)
    nodes = [TestNode(f"node{number}", None, "box", via=node.via) for number in range(8)]
    with Transport(TestSettings(None, None, None)) as limited:
        done: list[int] = []
        thread = threading.Thread(
            target=lambda: done.extend(
                one.get() for one in limited.map(nodes, lambda n: limited.run(n, sh("sleep 1")).exit_code)
            )
        )
        thread.start()
        assert wait_until(lambda: len(list((tmp_path / "starting").iterdir())) == 3)
        (tmp_path / "go").touch()
        thread.join(60)
    assert done == [0] * 8
    assert max(int(word) for word in (tmp_path / "counts").read_text().split()) <= 3


def test_a_command_that_runs_long_takes_no_place_of_those_that_start(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carriers, "STARTS_AT_ONCE", 1)
    node = by(tmp_path, '#!/bin/sh\nshift\nexec "$@"')
    with transport.open(node, command("sleep", "50")), transport.open(node, command("sleep", "50")):
        assert transport.run(node, command("true")).exit_code == 0


#: Loses what its command prints within 0.3 s, unless the command waits for input.
LOSING = f"""#!{sys.executable}
import os, select, shutil, subprocess, sys
child = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
if select.select([child.stdout], [], [], 0.3)[0]:
    os.read(child.stdout.fileno(), 65536)
while data := os.read(0, 65536):
    child.stdin.write(data)
    if select.select([child.stdout], [], [], 10)[0]:
        os.write(1, os.read(child.stdout.fileno(), 65536))
child.stdin.close()
shutil.copyfileobj(child.stdout, sys.stdout.buffer)
sys.exit(child.wait())
"""


def test_over_kubectl_a_command_begins_once_its_output_is_read(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some versions discard the first messages of a WebSocket: "Unknown stream id 1, discarding message"."""
    monkeypatch.setattr(carriers, "START_S", 20.0)
    path = tmp_path / "kubectl"
    path.write_text(LOSING)
    path.chmod(0o755)
    node = TestNode("node0", None, "pod", via=(str(path), "{host}"))
    done = transport.run(node, sh("echo first; cat"), stdin=b"second\n")
    assert done.stdout == b"first\nsecond\n"
