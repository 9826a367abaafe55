"""Control machines that vanish without a sign: heartbeats, and agents that end without them."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.agent.peer import Peer
from clusterctl.cluster import FIRST_LINE, AgentCall, kept_agents
from clusterctl.cluster.agent_call import PACKAGE, boot_program
from clusterctl.cluster.heartbeats import AgentInput, Heartbeats
from clusterctl.cluster.kept_agents import KeptAgents
from clusterctl.cluster.remote_command import run_command
from clusterctl.common.errors import Gone
from clusterctl.errors import NodeError, UnreachableError
from clusterctl.inventory import Node
from clusterctl.launch import Launch, plan, start
from clusterctl.observe.record.status import status
from clusterctl.transport import RemoteCommand, command, quote
from support.processes import is_alive, wait_until
from unit.agent.dispatch.test_receive import JOB, TREE, asking, go, request, stream, traces
from unit.agent.frozen import Carrier, CarrierTransport, assert_ends
from unit.agent.nodes import BUNDLE, LocalTransport, PipeCluster, Pipes, agent
from unit.agent.test_boot import WORKS, begin

SILENCE_S = 1.0


class Input:
    """An agent's input that records what is written to it; a `broken` one fails."""

    def __init__(self, broken: bool = False) -> None:
        self.broken = broken
        self.written = b""
        self.heard = threading.Event()

    def write(self, data: bytes, stall_s: float | None = None) -> None:
        self.written += data
        self.heard.set()
        if self.broken:
            raise NodeError("gone")


def agents(*inputs: Input) -> list[AgentInput]:
    return [AgentInput(one) for one in inputs]  # type: ignore[arg-type]


def test_all_agents_get_heartbeats_from_one_thread_which_ends_with_the_last_of_them() -> None:
    inputs = [Input(), Input(broken=True), Input()]
    heartbeats = Heartbeats(0.01)
    for one_agent in agents(*inputs):
        heartbeats.add(one_agent)
    assert [thread.name for thread in threading.enumerate()].count("heartbeats") == 1
    for one in inputs:
        one.heard.clear()
        assert one.heard.wait(30)  # again and again
    for one_agent in list(heartbeats._inputs):
        heartbeats.remove(one_agent)
    assert wait_until(lambda: "heartbeats" not in [thread.name for thread in threading.enumerate()])
    assert set(inputs[0].written) == {ord("\n")}


def test_no_heartbeat_gets_into_bulk_data() -> None:
    served, other = Input(), Input()
    first, second = agents(served, other)
    heartbeats = Heartbeats(0.001)
    with first.turn:
        for one in (first, second):
            heartbeats.add(one)
        first.write(b"first")
        other.heard.clear()
        assert other.heard.wait(30)
        other.heard.clear()
        assert other.heard.wait(30)
        first.write(b"second")
        assert served.written == b"firstsecond"
    assert wait_until(lambda: served.written.endswith(b"\n"))
    for one in (first, second):
        heartbeats.remove(one)


@pytest.fixture
def pipes() -> Iterator[tuple[int, int, int, int]]:
    """The agent's input and output, and the control machine's ends of them."""
    incoming, to_agent = os.pipe()
    from_agent, outgoing = os.pipe()
    for fd in (incoming, outgoing):
        os.set_blocking(fd, False)
    yield incoming, outgoing, to_agent, from_agent
    for fd in (incoming, outgoing, to_agent, from_agent):
        os.close(fd)


def test_heartbeats_that_a_busy_agent_left_unread_count(pipes: tuple[int, int, int, int]) -> None:
    incoming, outgoing, to_agent, _ = pipes
    peer = Peer(incoming, outgoing, silence_s=0.05)
    os.write(to_agent, b"\n\n")
    busy_until = time.monotonic() + 0.2
    assert wait_until(lambda: time.monotonic() > busy_until)
    peer.look()
    assert not peer.is_gone()
    assert wait_until(peer.is_gone)
    with pytest.raises(Gone):
        peer.receive()


def test_heartbeats_are_no_messages_and_what_follows_them_is_bulk(pipes: tuple[int, int, int, int]) -> None:
    incoming, outgoing, to_agent, _ = pipes
    peer = Peer(incoming, outgoing, b'\n{"a":', 30)
    os.write(to_agent, b'1}\n\n\n{"bulk":3}\n\n\n\n\n{"b":2}\n')
    assert peer.receive() == {"a": 1}
    assert peer.receive() == {"bulk": 3}
    assert peer.read_some(3) == b"\n\n\n"
    assert peer.arrived() == {"b": 2}
    assert peer.arrived() is None


def test_an_agent_whose_output_nobody_reads_ends_without_heartbeats_only(pipes: tuple[int, int, int, int]) -> None:
    incoming, outgoing, to_agent, _ = pipes
    peer = Peer(incoming, outgoing, silence_s=0.3)
    ended = threading.Event()

    def send() -> None:
        try:
            peer.send_bytes(bytes(1 << 20))
        except Gone:
            ended.set()

    thread = threading.Thread(target=send)
    thread.start()
    for _ in range(5):
        os.write(to_agent, b"\n")
        assert not ended.wait(0.2)
    thread.join(30)
    assert ended.is_set()


def cluster_of(tmp_path: Path, silence_s: float = SILENCE_S) -> tuple[PipeCluster, CarrierTransport]:
    cluster = PipeCluster(
        tmp_path, sys.executable, nodes=1, silence_s=silence_s, PSERVER_COMMAND="python server.py", ENGINE="clusterctl"
    )
    cluster.local = transport = CarrierTransport(tmp_path)
    cluster.transport = transport  # type: ignore[assignment]
    return cluster, transport


class _VanishedError(Exception):
    pass


def test_a_start_whose_control_machine_vanishes_releases_the_job_and_leaves_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, transport = cluster_of(tmp_path)

    def vanish(run: Launch) -> None:
        carrier = transport.carriers[-1]
        pid = carrier.command()
        carrier.freeze()
        assert_ends(carrier, pid)
        raise _VanishedError

    with pytest.raises(_VanishedError):
        begin(cluster, tmp_path / "workspace", WORKS, monkeypatch, vanish)
    job = cluster.ask({"op": "jobs"})[0].get()["jobs"][0]
    assert job["runs"] == []
    launch = plan(cluster.settings, cluster.inventory)
    start(cluster, launch, job["job"], lambda run: None)  # else it is refused, since the job is locked
    assert wait_until(lambda: status(cluster, job["job"]).state == "succeeded")
    assert wait_until(lambda: not cluster.left())


def test_a_follow_whose_control_machine_vanishes_ends_and_the_run_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, transport = cluster_of(tmp_path)
    train = "import time\nprint('begun', flush=True)\ntime.sleep(600)\n"
    job = begin(cluster, tmp_path / "workspace", train, monkeypatch)
    call = cluster.call(cluster.nodes[0], {"op": "follow", "ref": job})
    while "caught_up" not in call.receive():
        pass
    carrier = transport.carriers[-1]
    pid = carrier.command()
    carrier.freeze()
    assert_ends(carrier, pid)
    call.close()
    assert status(cluster, job).state in ("starting", "running")
    assert cluster.ask({"op": "stop", "ref": job})[0].get()["survivors"] == 0
    assert wait_until(lambda: not cluster.left())


def the_carrier(transport: CarrierTransport) -> tuple[Carrier, int]:
    (carrier,) = transport.carriers
    return carrier, carrier.command()


def begin_dispatch(cluster: PipeCluster) -> AgentCall:
    packed = zlib.compress(json.dumps({"rows": TREE, "gone": []}).encode())
    call = cluster.call(cluster.nodes[0], request(manifest_bytes=len(packed)), data=packed)
    assert call.receive()["missing"] == [[1, 2]]
    return call


def test_a_dispatch_whose_control_machine_vanishes_ends_and_releases_its_lock(tmp_path: Path) -> None:
    """In the middle of a file."""
    cluster, transport = cluster_of(tmp_path)
    call = begin_dispatch(cluster)
    carrier, pid = the_carrier(transport)
    with call.bulk():
        go(call)
        call.write(stream()[: len(stream()) // 2])
    carrier.freeze()
    assert_ends(carrier, pid)
    call.close()
    home = cluster.home(0)
    (home / "clusterctl").rename(home / "root")
    assert [name for name in traces(home) if "lock" in name or not name.startswith(".clusterctl")] == []
    with asking(home) as (again, _):
        go(again)
        again.write(stream())
        assert again.result(20)["files_received"] == 1
    assert sorted(path.name for path in (home / "root").iterdir()) == [".clusterctl", JOB]


@pytest.mark.parametrize("script", ["sleep 600 & echo $! >pid; echo begun; wait", "echo $$ >pid; yes"])
def test_exec_ends_when_its_control_machine_vanishes(tmp_path: Path, script: str) -> None:
    """The command itself gets SIGPIPE when it writes, as with ssh; one that writes nothing continues."""
    cluster, transport = cluster_of(tmp_path)
    call = cluster.call(cluster.nodes[0], {"op": "exec", "script": script})
    assert call.receive()["stdout"]
    carrier, pid = the_carrier(transport)
    carrier.freeze()
    assert_ends(carrier, pid)
    call.close()
    command_pid = int((cluster.home(0) / "pid").read_text())
    assert wait_until(lambda: Path(f"/proc/{command_pid}").exists() == script.startswith("sleep"))
    if script.startswith("sleep"):
        os.kill(command_pid, 9)
    assert wait_until(lambda: not cluster.left())


def test_an_idle_agent_whose_control_machine_vanishes_ends(tmp_path: Path) -> None:
    cluster, transport = cluster_of(tmp_path)
    with cluster:
        assert cluster.ask({"op": "jobs"})[0].get() == {"jobs": []}
        carrier, pid = the_carrier(transport)
        carrier.freeze()
        assert wait_until(lambda: not Path(f"/proc/{pid}/cwd").exists())
        assert carrier.thaw() == 0  # it had nothing left to do
        assert cluster.ask({"op": "jobs"})[0].get() == {"jobs": []}  # as after a laptop has slept
        assert len(transport.carriers) == 2


def test_a_command_whose_control_machine_was_suspended_says_why_it_failed(tmp_path: Path) -> None:
    cluster, transport = cluster_of(tmp_path)
    call = cluster.call(cluster.nodes[0], {"op": "exec", "script": "echo begun; sleep 600"})
    assert call.receive()["stdout"]
    assert call.read(100) == b"begun\n"
    carrier, pid = the_carrier(transport)
    carrier.freeze()
    assert wait_until(lambda: not is_alive(pid))
    os.kill(carrier.popen.pid, signal.SIGCONT)
    with pytest.raises(NodeError, match="nothing arrived from the control machine for 1 s"):
        call.receive()
    call.close()
    for process in cluster.left():
        os.kill(process.pid, signal.SIGKILL)


def test_one_agent_serves_all_requests_to_a_node_and_a_dead_one_is_replaced(tmp_path: Path) -> None:
    cluster, transport = cluster_of(tmp_path)
    with cluster:
        for _ in range(3):
            assert cluster.ask({"op": "jobs"})[0].get() == {"jobs": []}
            assert run_command(cluster, cluster.nodes[0], command("true"), lambda *_: None) == 0
        carrier, pid = the_carrier(transport)
        os.kill(pid, 9)
        carrier.popen.wait(30)
        assert cluster.ask({"op": "jobs"})[0].get() == {"jobs": []}
        assert len(transport.carriers) == 2
    assert wait_until(lambda: not cluster.left())


def test_where_not_all_agents_can_stay_most_of_them_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked in the order of the nodes, again and again, an agent that replaced another would never be met."""
    monkeypatch.setattr(kept_agents, "_room", lambda nodes: 8)
    kept, started = KeptAgents(Heartbeats(60), 12), 0
    for _ in range(3):
        for node in range(12):
            agent_input = kept.take(node)
            started += agent_input is None
            kept.put(node, agent_input or AgentInput(_Closed()))  # type: ignore[arg-type]
    assert started == 12 + 4 + 4
    kept.close()


class _Closed:
    def close(self) -> None:
        pass


class Truncating(LocalTransport):
    """Passes on a few lines, then exits 0, as kubectl may."""

    def open(self, node: Node, command: RemoteCommand) -> Pipes:
        return Pipes(["sh", "-c", 'sh -c "$1" | sed -u 3q', "sh", quote(command)], self.home(node))


def test_an_answer_that_a_carrier_cut_off_is_a_lost_connection_even_if_it_exits_0(tmp_path: Path) -> None:
    cluster = PipeCluster(tmp_path, sys.executable, nodes=1)
    cluster.transport = Truncating(tmp_path)  # type: ignore[assignment]
    taken: list[bytes] = []
    words = command("sh", "-c", "echo a; read line <go")
    os.mkfifo(cluster.home(0) / "go")
    with pytest.raises(UnreachableError, match="lost the connection to host0"):
        run_command(cluster, cluster.nodes[0], words, lambda piece, _: taken.append(piece))
    assert taken == [b"a\n"]
    (cluster.home(0) / "go").open("w").close()
    assert wait_until(lambda: not cluster.left())


def test_an_agent_that_gets_no_request_ends(tmp_path: Path) -> None:
    """The alarm is set by the first line, which the command line carries."""
    assert "alarm(30)" in FIRST_LINE
    process = Pipes([sys.executable, "-I", "-S", "-c", FIRST_LINE.replace("alarm(30)", "setitimer(0, 0.1)")], tmp_path)
    assert process.wait() == -signal.SIGALRM
    process.close()


def test_an_agent_that_gets_half_of_its_code_ends_and_leaves_nothing(tmp_path: Path) -> None:
    process = agent(tmp_path / "home")
    source = (PACKAGE / "agent/boot.py").read_bytes()
    program = boot_program(source.replace(b"SILENCE_S = 30", b"SILENCE_S = 1"))
    process.write(program + b'{"op":"jobs"}\n')
    assert json.loads(process.readline(1000))["need"] == BUNDLE.digest
    process.write(BUNDLE.parcel[:1000])
    assert process.wait() == -signal.SIGALRM
    process.close()
    assert list((tmp_path / "home").rglob("*.py")) == []
