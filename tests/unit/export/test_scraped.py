"""The server of metrics: its address, what it asks the nodes and when, and a scrape."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import urllib.request
from typing import Any

import pytest

from clusterctl.cluster import NodeOutcome
from clusterctl.errors import ClusterctlError, NodeError, RefusedError, UnreachableError, UsageError
from clusterctl.export import metrics_server
from clusterctl.export.patient_cluster import RETRY_S
from clusterctl.export.scraped import Address, Reader, need_prometheus_client, serve
from clusterctl.inventory import Inventory
from contract.security import liars
from support.processes import wait_until
from unit.export.made_up import JOB, NODES


class Nodes:
    """A cluster whose nodes answer as `problems` says. A node with a problem is asked only if it is asked alone."""

    def __init__(self) -> None:
        self.inventory = Inventory(tuple(NODES))
        self.nodes = NODES
        self.problems: dict[int, ClusterctlError] = {}
        self.asked: list[list[int]] = []
        self.now = 0.0
        self.jobs = [JOB]

    def ask(self, request: Any, nodes: Any, *, answer_s: float = 0.0) -> list[NodeOutcome[Any]]:
        if nodes:
            self.asked.append([node.id for node in nodes])
        return [self._outcome(node, request["ref"]) for node in nodes]

    def _outcome(self, node: Any, ref: str | None) -> NodeOutcome[Any]:
        if node.id in self.problems:
            return NodeOutcome(node, None, self.problems[node.id], 0.0)
        ran = [{"job": job, "t": 1.7e9, "live": True} for job in self.jobs]
        return NodeOutcome(node, liars.status(node.id, job=ref or self.jobs[0], ran=ran), None, 0.0)


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


def reader(nodes: Nodes, ref: str | None = None) -> Reader:
    return Reader(nodes, ref, clock=lambda: nodes.now)  # type: ignore[arg-type]


def states(made: Reader) -> dict[str, str]:
    (status,), _ = made.read()
    return {process.label: process.state for process in status.processes}


@pytest.mark.parametrize(
    ("text", "host", "port", "loopback"),
    [
        ("127.0.0.1:9464", "127.0.0.1", 9464, True),
        ("127.8.8.8:0", "127.8.8.8", 0, True),
        ("localhost:80", "localhost", 80, True),
        ("[::1]:9464", "::1", 9464, True),
        ("0.0.0.0:9464", "0.0.0.0", 9464, False),
        ("[::]:9464", "::", 9464, False),
        ("control.example:65535", "control.example", 65535, False),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, host: str, port: int, loopback: bool) -> None:
    address = Address.parse(text)
    assert (address.host, address.port, address.is_loopback, str(address)) == (host, port, loopback, text)


@pytest.mark.parametrize(
    "text",
    ["", ":", "9464", ":9464", "localhost", "localhost:", "a:b", "::1:9464", "[::1]", "a:65536", "a:-1", "a b:1"],
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Address.parse(text)
    assert "127.0.0.1:9464" in (caught.value.hint or "")


def test_nodes_are_asked_at_most_once_a_second(nodes: Nodes) -> None:
    made = reader(nodes)
    for _ in range(5):
        made.read()
    assert len(nodes.asked) == 1
    nodes.now = 1.0
    made.read()
    assert len(nodes.asked) == 2


def test_a_silent_node_is_asked_apart_from_the_others_until_it_answers(nodes: Nodes) -> None:
    made = reader(nodes)
    nodes.problems[1] = UnreachableError("gone", node="node1")
    known = {"pserver0@node0": "running", "trainer0@node0": "running"}
    for _ in range(2):
        assert states(made) == {**known, "pserver1@node1": "unknown", "trainer1@node1": "unknown"}
        nodes.now += 2.0
    assert nodes.asked == [[0, 1], [0]]
    nodes.now += RETRY_S
    made.read()
    assert wait_until(lambda: [1] in nodes.asked)
    del nodes.problems[1]

    def is_known_again() -> bool:
        nodes.now += RETRY_S
        return states(made)["trainer1@node1"] == "running"

    assert wait_until(is_known_again)


def test_the_state_of_a_run_whose_lead_is_silent_is_unknown(nodes: Nodes) -> None:
    nodes.problems[0] = UnreachableError("gone", node="node0")
    made = reader(nodes)
    for _ in range(2):
        (status,), _ = made.read()
        assert status.state == "unknown"
        nodes.now += 2.0
    assert nodes.asked == [[0, 1], [1]]


def test_a_node_that_answers_with_an_error_is_not_silent(nodes: Nodes) -> None:
    made = reader(nodes)
    nodes.problems[1] = NodeError("no such job", node="node1", details={"reason": "no_job"})
    made.read()
    nodes.now = 2.0
    made.read()
    assert nodes.asked == [[0, 1], [0, 1]]


def test_if_no_node_answers_a_scrape_does_not_wait_for_them_and_each_change_is_reported_once(nodes: Nodes) -> None:
    made = reader(nodes)
    reported: list[str] = []
    made.on_change = lambda error: reported.append("known" if error is None else "unknown")
    made.read()
    nodes.problems = {node.id: UnreachableError("gone", node=node.label) for node in NODES}
    for second in range(1, 4):
        nodes.now = float(second)
        statuses, error = made.read()
        assert (statuses, type(error)) == ([], UnreachableError)
    assert nodes.asked == [[0, 1], [0, 1]]
    nodes.problems = {}
    nodes.now += RETRY_S

    def is_known_again() -> bool:
        nodes.now += 1.0
        return made.read()[1] is None

    assert wait_until(is_known_again)
    assert reported == ["unknown", "known"]


def test_without_a_job_all_that_run_are_read(nodes: Nodes) -> None:
    nodes.jobs = [JOB, "JOB20261122-000000"]
    statuses, error = reader(nodes).read()
    assert error is None
    assert {status.job for status in statuses} == set(nodes.jobs)
    (named,), _ = reader(nodes, JOB).read()
    assert named.job == JOB


def test_a_scrape_gets_the_state_of_the_nodes(nodes: Nodes) -> None:
    address = serve(Address("127.0.0.1", 0), reader(nodes))
    assert nodes.asked == [], "not before the first scrape"
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=180) as reply:
        assert reply.headers["Content-Type"].startswith("text/plain")
        shown = reply.read().decode()
    assert f'clusterctl_step{{job="{JOB}",node="node1",rank="1",role="trainer",run="1"}} 35.0' in shown
    with pytest.raises(RefusedError, match="in use"):
        serve(address, reader(nodes))


def test_scrapes_at_the_same_time_ask_the_nodes_once(nodes: Nodes) -> None:
    made = reader(nodes)
    threads = [threading.Thread(target=made.read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(nodes.asked) == 1


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_an_address_of_another_machine_is_refused(nodes: Nodes, host: str) -> None:
    with pytest.raises(UsageError, match="cannot listen"):
        serve(Address(host, 0), reader(nodes))


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UsageError) as caught:
        need_prometheus_client()
    assert caught.value.hint == "pip install 'clusterctl[metrics]'"


def raw(address: Address, request: bytes) -> bytes:
    with socket.create_connection((address.host, address.port), timeout=60) as sock:
        sock.sendall(request)
        return b"".join(iter(lambda: sock.recv(4096), b""))


@pytest.mark.parametrize(
    ("host", "status"),
    [
        (b"127.0.0.1:9464", 200),
        (b"localhost", 200),
        (b"[::1]:1", 200),
        (b"evil.example:9464", 403),
        (b"127.0.0.1.evil.example", 403),
        (b"localhost,evil.example", 403),
        (b"10.0.0.1", 403),
        (b"", 403),
    ],
)
def test_a_request_under_a_foreign_name_is_refused_where_only_this_machine_can_connect(
    nodes: Nodes, host: bytes, status: int
) -> None:
    address = serve(Address("127.0.0.1", 0), reader(nodes))
    answer = raw(address, b"GET /metrics HTTP/1.1\r\nHost: %s\r\n\r\n" % host)
    assert answer.startswith(b"HTTP/1.0 %d " % status)
    assert (JOB.encode() in answer) == (status == 200)


def test_a_request_whose_path_has_a_host_of_its_own_is_refused(nodes: Nodes) -> None:
    address = serve(Address("127.0.0.1", 0), reader(nodes))
    answer = raw(address, b"GET http://evil.example/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert answer.startswith(b"HTTP/1.0 403 ")


def test_any_name_is_allowed_where_other_machines_can_connect(nodes: Nodes) -> None:
    port = serve(Address("0.0.0.0", 0), reader(nodes)).port
    answer = raw(Address("127.0.0.1", port), b"GET /metrics HTTP/1.1\r\nHost: control.example\r\n\r\n")
    assert answer.startswith(b"HTTP/1.0 200 ")


def test_silent_and_endless_clients_are_left_and_those_beyond_the_limit_get_an_answer(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server, "MOST_CONNECTIONS", 2)
    monkeypatch.setattr(metrics_server, "EXCHANGE_S", 3.0)
    monkeypatch.setattr(metrics_server._Handler, "timeout", 3.0)
    address = serve(Address("127.0.0.1", 0), reader(nodes))
    request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with (
        socket.create_connection((address.host, address.port), timeout=60) as silent,
        socket.create_connection((address.host, address.port), timeout=60) as endless,
    ):
        endless.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert raw(address, b"").startswith(b"HTTP/1.0 503 ")
        assert silent.recv(1) == b""
        with contextlib.suppress(ConnectionError):
            assert endless.recv(1) == b""
    assert wait_until(lambda: raw(address, request).startswith(b"HTTP/1.0 200 "))
