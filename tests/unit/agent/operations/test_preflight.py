"""A node's preflight: its facts, its ports, and how nodes prove to each other which of them is listening."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.agent.node import facts, ports
from clusterctl.agent.node.addresses import find_address, interface_of, local_addresses
from clusterctl.agent.node.jobs import is_free
from clusterctl.agent.node.locks import DispatchLock, JobLock
from clusterctl.agent.node.reachability import Answerer, ProbeTarget, try_all
from clusterctl.common.errors import AgentError
from clusterctl.common.paths import JobPaths
from clusterctl.common.wheels import WheelStore
from clusterctl.setup.transfer import send_files
from support.addresses import IPV6, needs_ipv6
from support.processes import wait_for_environment
from support.pythons import bare_python
from support.wheels import make_wheel
from unit.agent.nodes import PYTHONS, asked
from unit.agent.wires import free_ports

LOCAL = "127.0.0.1"
TOKEN = "a token"
REQUEST = {
    "op": "check",
    "python": sys.executable,
    "runtime": True,
    "address": None,
    "nic": None,
    "port": 20_000,
    "count": 2,
    "lead": True,
    "gpus": None,
}


def listening(address: str = LOCAL, backlog: int = 16) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    sock.bind((address, 0))
    sock.listen(backlog)
    return sock


def target(sock: socket.socket, token: str = TOKEN) -> ProbeTarget:
    address, port = sock.getsockname()[:2]
    return ProbeTarget(1, address, port, token)


@contextlib.contextmanager
def answering(*socks: socket.socket) -> Iterator[None]:
    answerer = Answerer(socks, TOKEN)
    try:
        yield
    finally:
        answerer.close()


def outcome(where: ProbeTarget) -> str:
    (result,) = try_all([where])
    return result.outcome


# Reachability.


@pytest.mark.parametrize("address", [LOCAL, IPV6])
def test_a_listening_probe_is_reached_on_all_its_ports_by_many_nodes(address: str) -> None:
    first, second = listening(address), listening(address)
    with answering(first, second):
        results = try_all([target(first), target(second)] * 50)
    assert [result.outcome for result in results] == ["ok"] * 100


def test_a_port_without_a_listener_refuses() -> None:
    sock = listening()
    where = target(sock)
    sock.close()
    assert outcome(where) == "refused"


def test_a_port_that_drops_packets_is_distinguished_from_one_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterctl.agent.node.reachability.CONNECT_S", 0.3)
    sock = listening(backlog=0)
    with contextlib.ExitStack() as stack:
        stack.callback(sock.close)
        for _ in range(4):  # a full queue: the kernel drops what comes next
            crowd = socket.socket()
            stack.callback(crowd.close)
            crowd.setblocking(False)
            crowd.connect_ex(sock.getsockname())
        assert outcome(target(sock)) == "silent"


def test_an_address_without_a_route_is_reported_as_such() -> None:
    assert outcome(ProbeTarget(1, "255.255.255.255", 7164, TOKEN)) == "no_route"


def test_a_port_of_another_probe_belongs_to_a_stranger() -> None:
    listener = listening()
    with answering(listener):
        assert outcome(target(listener, token="of another")) == "stranger"


def test_a_host_that_accepts_and_sends_nothing_is_mute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterctl.agent.node.reachability.REPLY_S", 0.3)
    with listening() as sock:
        assert outcome(target(sock)) == "mute"


def test_a_visitor_that_sends_too_much_or_nothing_does_no_harm() -> None:
    sock = listening()
    place = sock.getsockname()
    with answering(sock), socket.create_connection(place) as visitor, socket.create_connection(place):
        visitor.sendall(b"x" * 1000)
        visitor.settimeout(180)
        with contextlib.suppress(ConnectionResetError):
            assert visitor.recv(1) == b""
        assert outcome(target(sock)) == "ok"


# Ports.


def test_ports_in_use_are_skipped_and_their_holder_is_named() -> None:
    program = "import socket,sys; s=socket.socket(); s.bind(('127.0.0.1',0)); s.listen(); print(s.getsockname()[1])"
    command = [sys.executable, "-c", program + "; sys.stdout.flush(); sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        first = int(other.stdout.readline())
        taken, busy = ports.take(LOCAL, first, 2)
        numbers = [sock.getsockname()[1] for sock in taken]
        for sock in taken:
            sock.close()
        assert busy[0] == first
        assert first not in numbers
        assert len(set(numbers)) == 2
        (holder,) = ports.holders([first])
        assert (holder["port"], holder["pid"], holder["uid"]) == (first, other.pid, os.getuid())
        assert ports.holders([first], except_of=os.getuid()) == []
        assert holder["name"].startswith("python")


def test_a_port_held_by_a_job_is_reported_with_that_job() -> None:
    with listening() as sock:
        port = sock.getsockname()[1]
        program = "import sys; sys.stdin.read()"
        environ = {**os.environ, "CLUSTERCTL_JOB": "JOB20261121-081530"}
        with subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, env=environ, pass_fds=[sock.fileno()]
        ) as child:
            sock.close()
            wait_for_environment(child.pid)
            (holder,) = ports.holders([port])
            assert (holder["pid"], holder["name"]) == (child.pid, "JOB20261121-081530")


# Addresses.


def test_a_nic_may_be_a_subnet_or_an_address() -> None:
    assert find_address(None, "127.0.0.0/8") == LOCAL
    assert find_address(None, LOCAL) == LOCAL
    assert interface_of(LOCAL) == "lo"


@needs_ipv6
def test_ipv6_addresses_are_found_too() -> None:
    assert ("lo", "::1") in local_addresses()
    assert find_address(None, "::1/128") == "::1"


@pytest.mark.parametrize("nic", ["240.0.0.0/8", "240.1.2.3", "2001:db8:dead::/48"])
def test_an_error_about_a_subnet_this_node_is_not_in_lists_the_available_ones(nic: str) -> None:
    with pytest.raises(AgentError, match=f"there is no address.*{nic}") as raised:
        find_address(None, nic)
    assert f"lo ({LOCAL})" in str(raised.value.hint)


# Leftovers.


def test_only_processes_of_jobs_without_a_holder_are_leftovers(tmp_path: Path) -> None:
    held, dead = (JobPaths(tmp_path / name) for name in ("JOB20261121-081530", "JOB20261121-081531"))
    children = []
    for job in (held, dead):
        job.meta.mkdir(parents=True)
        job.record.write_text("{}")
        environ = {"CLUSTERCTL_JOB_DIR": str(job.dir)}
        children.append(subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE, env=environ))
    try:
        for child in children:
            wait_for_environment(child.pid)
        with JobLock(held):
            (left,) = facts.leftovers(tmp_path)
            assert (left["job"], left["pids"]) == (dead.dir.name, [children[1].pid])
            (command,) = left["commands"]
            assert f"{sys.executable} -S -c input()".startswith(command.rstrip("…"))  # a long one is cut
        assert is_free(held)
        assert len(facts.leftovers(tmp_path)) == 2
    finally:
        for child in children:
            child.kill()
            child.communicate()
    assert facts.leftovers(tmp_path) == []


def test_an_abandoned_dispatch_is_a_leftover(tmp_path: Path) -> None:
    (tmp_path / ".clusterctl/incoming/half").mkdir(parents=True)
    with DispatchLock(tmp_path, {"by": "me"}):
        assert facts.half_dispatched(tmp_path) == []
    assert facts.half_dispatched(tmp_path) == ["half"]


# The protocol.


def facts_of(call: Any) -> dict[str, Any]:
    facts: dict[str, Any] = call.receive()["facts"]
    return facts


def test_two_probes_report_their_facts_and_reach_each_other(tmp_path: Path) -> None:
    oldest = next(iter(PYTHONS[version] for version in ("3.9", "3.10") if version in PYTHONS), sys.executable)
    lead = {**REQUEST, "port": free_ports().start}  # at 20,000 another test may have some
    follower = {**lead, "lead": False}
    with asked(tmp_path / "a", lead) as a, asked(tmp_path / "b", follower, python=oldest) as b:
        of_a, of_b = facts_of(a), facts_of(b)
        assert of_a["problems"] == of_b["problems"] == []
        assert of_a["busy"] == of_b["busy"] == [], "probes are not strangers to each other"
        assert [len(of_a["listening"]), len(of_b["listening"])] == [4, 3]
        assert set(of_a["versions"]) == {"python", "numpy", "pyzmq", "cryptography"}
        assert of_a["memory"]["available"] <= of_a["memory"]["total"]
        assert of_a["disk"]["free"] <= of_a["disk"]["total"]
        for call, other in ((a, of_b), (b, of_a)):
            call.send({"targets": [[1, LOCAL, port, token] for port, token in other["listening"]]})
        for call, count in ((a, 3), (b, 4)):
            assert call.receive()["clock"] > of_a["clock"]
            assert [result[3] for result in call.receive()["reach"]] == ["ok"] * count
        for call in (a, b):  # only after both have tried
            call.send({"over": True})
            assert call.result() == {}


def test_without_a_job_the_python_of_the_latest_setup_is_checked_and_its_version_always_reported(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    bare = {**REQUEST, "python": str(bare_python(tmp_path / "bare", sys.executable))}
    minor = f"3.{sys.version_info.minor}."
    with asked(home, bare) as call:
        facts = facts_of(call)
        assert [problem["message"].endswith("has no numpy") for problem in facts["problems"]] == [True]
        assert list(facts["versions"]) == ["python"]
        assert facts["versions"]["python"].startswith(minor)
    store = WheelStore(tmp_path / "store")
    store.directory.mkdir()
    lock = [store.adopt(make_wheel(tmp_path, name, "9.9", {f"{module}.py": "__version__ = '9.9'"}))
            for name, module in (("numpy", "numpy"), ("pyzmq", "zmq"))]  # fmt: skip
    with asked(home, {"op": "setup", "requirements": ["numpy", "pyzmq"]}) as call:
        call.receive()
        send_files(call, lock, store)
        call.send({"do": "build", "lock": lock})
        assert call.result()["built"]
    with asked(home, bare) as call:
        facts = facts_of(call)
        assert (facts["problems"], facts["versions"]["numpy"]) == ([], "9.9")


def test_a_node_that_lacks_something_still_reports_the_rest(tmp_path: Path) -> None:
    wrong = {**REQUEST, "python": "/no/such/python", "nic": "nope0"}
    with asked(tmp_path / "home", wrong) as call:
        facts = facts_of(call)
        assert [(problem["check"], bool(problem["hint"])) for problem in facts["problems"]] == [
            ("python", True),
            ("address", True),
        ]
        assert facts["listening"] == []
        assert facts["cores"] >= 1
