"""The view of an eavesdropper on the network, and the distribution of keys to nodes."""

from __future__ import annotations

import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from clusterctl.config.loader import from_values
from clusterctl.inventory import build
from clusterctl.launch import plan
from clusterctl.launch.keys import make_keys
from contract.security.strangers import needs_root
from support.site import Site

ETH_P_ALL = 3
SO_RCVBUFFORCE = 33
END = uuid.uuid4().bytes
OWN = uuid.uuid4().hex[:8]  # the interface is that of the whole machine
TABLE, WORDS = f"name-of-a-table-{OWN}", f"last-words-of-a-trainer-{OWN}"
TRAIN = f"""
import sys
from clusterctl.runtime import connect, SGD, zeros
from clusterctl.runtime.stream import client
client._connect_here = lambda name: None  # as if all pservers were on other hosts
with connect() as ps:
    w = ps.dense("{TABLE}", shape=(4,), rule=SGD(0.1), init=zeros())
    for batch in ps.steps(lambda pass_, rng: iter([1] * 3), passes=1):
        ps.push({{w: w.value}}, samples=1)
    if ps.rank == 1:
        print("{WORDS}", flush=True)
        sys.exit(3)
"""


@contextmanager
def overheard() -> Iterator[bytearray]:
    """Return everything that passes over the loopback interface inside the context."""
    captured = bytearray()
    with (
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)) as sock,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as marker,
    ):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        with suppress(PermissionError):  # beyond the limit of the machine, so that nothing is dropped
            sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        sock.bind(("lo", 0))
        marker.bind(("127.0.0.1", 0))

        def listen() -> None:
            while END not in (frame := sock.recv(1 << 17)):
                captured.extend(frame)

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield captured
        finally:
            marker.sendto(END, marker.getsockname())  # frames come in order
            thread.join()


@pytest.mark.slow
@needs_root
@pytest.mark.parametrize("security", ["curve", "none"])
def test_an_eavesdropper_sees_tables_only_without_encryption_and_never_sees_supervisor_messages(
    site: Site, security: str
) -> None:
    site.conf(HOSTS=site.hosts[:2], PS_SECURITY=security, RESTARTS=0)
    with overheard() as captured:
        result = site.run("start", "--job_dispatch_package", str(site.workspace(TRAIN)))
    assert result.code == 1
    assert WORDS in result.out + result.err  # they went from node1 to the lead, and then home
    assert (TABLE.encode() in captured) == (security == "none")
    assert WORDS.encode() not in captured
    assert b"SSH-2.0" in captured  # the capture does work


def test_a_node_gets_only_the_keys_of_its_own_processes_and_never_the_authoritys() -> None:
    settings = from_values({"HOSTS": ["a", "b", "c"]})
    keys = make_keys(plan(settings, build(settings), []))
    assert {name for files in keys.values() for name in files} == {
        "tls.pem",
        "ca.pem",
        *(f"{role}-{rank}.json" for role in ("pserver", "trainer") for rank in range(3)),
    }
    secrets = {(node, name): text for node, files in keys.items() for name, text in files.items() if name != "ca.pem"}
    assert len(set(secrets.values())) == len(secrets) == 9
    for node, files in keys.items():
        assert set(files) == {"tls.pem", "ca.pem", f"pserver-{node}.json", f"trainer-{node}.json"}
        assert "PRIVATE" not in files["ca.pem"]
    other_keys = make_keys(plan(settings, build(settings), []))
    assert not set(secrets.values()) & {text for files in other_keys.values() for text in files.values()}
