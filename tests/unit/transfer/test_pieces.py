"""The piece server and its client, over real sockets; and peers that mean harm."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.certificates import Authority
from clusterctl.common.file_transfer import TransferError
from clusterctl.transfer import server as serving
from clusterctl.transfer.client import PieceClient
from clusterctl.transfer.protocol import PieceGoneError, is_sound
from clusterctl.transfer.tls import run_context
from support.processes import wait_until
from unit.transfer.served import CONTENT, DIGEST, PIECE, Served, make_run, serving_on, two_nodes


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with two_nodes(tmp_path) as both:
        yield both


def test_ranges_are_read_one_after_the_other_over_one_connection(served: Served) -> None:
    client = served.client()
    for start, stop in ((0, 8), (8, 8), (100, 600_000), (len(CONTENT) - 1, len(CONTENT))):
        assert client.read(PIECE, start, stop) == CONTENT[start:stop]
    client.close()


@pytest.mark.parametrize("place", ["checkpoints", "copies", "output"])
def test_a_piece_is_found_wherever_saves_are(served: Served, place: str) -> None:
    source = served.one.job.output / PIECE.tag
    target = served.one.dir / place / PIECE.tag
    target.parent.mkdir(exist_ok=True)
    source.rename(target)
    assert served.client().read(PIECE, 0, 8) == CONTENT[:8]


def test_only_those_who_know_a_size_and_a_checksum_get_a_file(served: Served) -> None:
    client = served.client()
    for other in (
        PIECE._replace(bytes=len(CONTENT) + 1),
        PIECE._replace(sha256="0" * 64),
        PIECE._replace(file="pserver-00001.safetensors"),
        PIECE._replace(tag="pass-00001"),
        PIECE._replace(job="JOB20261121-081531"),
    ):
        with pytest.raises(TransferError, match=r"node1: it (does not have|has only a damaged) pserver"):
            client.read(other, 0, 8)
        client = served.client()
    assert client.read(PIECE, 0, 8) == CONTENT[:8]


def test_without_verification_a_manifest_of_the_node_has_to_name_the_piece(served: Served) -> None:
    """A peer that guesses a size cannot read the file, and so cannot read what a manifest of another job lists."""
    path = served.one.job.output / PIECE.tag / PIECE.file
    stranger = PIECE._replace(sha256="0" * 64)
    with pytest.raises(TransferError, match="has only a damaged"):
        served.client().read(stranger, 0, 8, verify=False)
    about = {"v": 1, "files": [{"file": PIECE.file, "bytes": PIECE.bytes, "sha256": PIECE.sha256}]}
    text = json.dumps(about)
    (path.parent / "manifest.json").write_text(text)
    with pytest.raises(TransferError, match="has only a damaged"):
        served.client().read(PIECE._replace(file="manifest.json", bytes=len(text)), 0, 8, verify=False)
    with pytest.raises(TransferError, match="has only a damaged"):
        served.client().read(stranger, 0, 8, verify=False)
    path.write_bytes(CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]))
    assert served.client().read(PIECE, 0, 8, verify=False) == CONTENT[:8], "the reader verifies the whole"
    with pytest.raises(TransferError, match="has only a damaged"):
        served.client().read(PIECE, 0, 8)


def test_a_node_has_a_limited_number_of_connections(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MOST_OF_A_NODE", 2)
    clients = [served.client() for _ in range(2)]
    assert [client.read(PIECE, 0, 8) for client in clients] == [CONTENT[:8]] * 2
    with pytest.raises(TransferError):
        served.client().read(PIECE, 0, 8)
    clients[0].close()
    assert wait_until(lambda: reads(served))


def reads(served: Served) -> bool:
    try:
        return served.client().read(PIECE, 0, 8) == CONTENT[:8]
    except TransferError:
        return False


def test_a_damaged_piece_is_not_served(served: Served) -> None:
    path = served.one.job.output / PIECE.tag / PIECE.file
    path.write_bytes(CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]))
    with pytest.raises(TransferError, match="has only a damaged pserver-00000"):
        served.client().read(PIECE, 0, 8)
    path.unlink()
    with pytest.raises(PieceGoneError, match="does not have"):
        served.client().read(PIECE, 0, 8)


def test_links_are_never_followed(served: Served, tmp_path: Path) -> None:
    path = served.one.job.output / PIECE.tag / PIECE.file
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PieceGoneError):
        served.client().read(PIECE, 0, 8)
    path.unlink()
    path.parent.rmdir()
    (tmp_path / "directory").mkdir()
    (tmp_path / "elsewhere").rename(tmp_path / "directory" / PIECE.file)
    path.parent.symlink_to(tmp_path / "directory")
    with pytest.raises(PieceGoneError):
        served.client().read(PIECE, 0, 8)


ODD: list[dict[str, Any]] = [
    {"job": ".."},
    {"job": "a/b"},
    {"job": ""},
    {"job": 3},
    {"run": "../0001"},
    {"run": "\u0661"},
    {"tag": ".."},
    {"tag": "../copies"},
    {"tag": None},
    {"file": "../../keys/tls.pem"},
    {"file": "spec.json"},
    {"file": "model.safetensors"},
    {"bytes": -1},
    {"bytes": 1.5},
    {"bytes": 1 << 80},
    {"sha256": "x" * 64},
    {"sha256": DIGEST.upper()},
    {"start": -1},
    {"start": 5, "stop": 4},
    {"stop": len(CONTENT) + 1},
    {"verify": 1},
    {"extra": 1},
]


@pytest.mark.parametrize("odd", ODD, ids=str)
def test_a_request_that_no_client_sends_ends_the_connection_and_reads_nothing(
    served: Served, odd: dict[str, Any]
) -> None:
    fields = {**PIECE._asdict(), "start": 0, "stop": 8, "verify": True, **odd}
    with served.connect() as sock:
        sock.sendall(json.dumps(fields).encode() + b"\n")
        answer = sock.makefile("rb").read()
    assert json.loads(answer)["error"].startswith("malformed request"), answer
    assert served.client().read(PIECE, 0, 8) == CONTENT[:8]


@pytest.mark.parametrize(
    "line", [b"\n", b"{}\n", b"[" * 100_000 + b"\n", b"x" * 1_000_000, b"\xff\n", b"GET / HTTP/1.0\r\n\r\n"]
)
def test_garbage_ends_the_connection_only(served: Served, line: bytes) -> None:
    with served.connect() as sock, contextlib.suppress(OSError):
        sock.sendall(line)
        sock.shutdown(socket.SHUT_WR)
        sock.makefile("rb").read()
    assert served.client().read(PIECE, 0, 8) == CONTENT[:8]


def test_no_one_without_a_certificate_of_the_run_is_served(served: Served, tmp_path: Path) -> None:
    stranger = make_run(tmp_path / "stranger", Authority(), "node2")
    with pytest.raises(TransferError):
        PieceClient(1, served.place, run_context(stranger, server=False)).read(PIECE, 0, 8)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, _, port = served.place.rpartition(":")
    with socket.create_connection((host, int(port)), 10) as sock, contextlib.suppress(OSError):
        tls = context.wrap_socket(sock)
        tls.sendall(b"{}\n")
        assert tls.recv(100) == b""


def test_a_client_refuses_another_node_and_another_authority(served: Served, tmp_path: Path) -> None:
    with pytest.raises(TransferError, match="node3: node1 answered instead"):
        PieceClient(3, served.place, run_context(served.two, server=False))
    other = make_run(tmp_path / "other", Authority(), "node1")
    with serving_on(other) as place, pytest.raises(TransferError, match="node1: "):
        PieceClient(1, place, run_context(served.two, server=False)).read(PIECE, 0, 8)


def test_idle_strangers_do_not_keep_peers_away(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    host, _, port = served.place.rpartition(":")
    idle = [socket.create_connection((host, int(port)), 10) for _ in range(serving.SPARE_STRANGERS + 24)]
    assert served.client().read(PIECE, 0, 8) == CONTENT[:8]
    idle[0].settimeout(180)
    assert idle[0].recv(1) == b"", "the oldest is closed"
    for sock in idle:
        sock.close()


def test_the_threads_of_finished_connections_end(served: Served) -> None:
    before = threading.active_count()
    for _ in range(20):
        client = served.client()
        client.read(PIECE, 0, 8)
        client.close()
    assert wait_until(lambda: threading.active_count() <= before + 1)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"x" * 9000,
        b"[]\n",
        b'{"bytes": 9}\n123456789',
        b'{"bytes": -1}\n',
        b'{"bytes": 8}\n1234',
        b'{"error": 3}\n',
        b"[" * 4000 + b"\n",
        b'{"bytes":' * 400 + b"8" + b"}" * 400 + b"\n",
        b'{"bytes": ' + b"9" * 4000 + b"}\n",
        b'{"bytes": 1e999}\n',
        b"\xff\xfe\n",
        b"\n" * 5,
    ],
)
def test_a_client_survives_any_answer(tmp_path: Path, answer: bytes) -> None:
    authority = Authority()
    run, evil = make_run(tmp_path / "a", authority, "node2"), make_run(tmp_path / "b", authority, "node1")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer_once() -> None:
            sock, _ = listener.accept()
            with (
                contextlib.suppress(OSError),
                run_context(evil, server=True).wrap_socket(sock, server_side=True) as tls,
            ):
                tls.recv(4096)
                tls.sendall(answer)

        thread = threading.Thread(target=answer_once)
        thread.start()
        place = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(TransferError, match=r"^node1: "):
            PieceClient(1, place, run_context(run, server=False)).read(PIECE, 0, 8)
        thread.join()


def test_a_silent_server_is_given_up(tmp_path: Path) -> None:
    authority = Authority()
    run, evil = make_run(tmp_path / "a", authority, "node2"), make_run(tmp_path / "b", authority, "node1")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        held: list[Any] = []
        accepting = threading.Thread(
            target=lambda: held.append(
                run_context(evil, server=True).wrap_socket(listener.accept()[0], server_side=True)
            )
        )
        accepting.start()
        place = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(TransferError, match="node1: no answer in time"):
            PieceClient(1, place, run_context(run, server=False), timeout_s=3.0).read(
                PIECE, 0, 8
            )  # for the handshake, too
        accepting.join()
        held[0].close()


def test_only_names_of_saves_are_sound() -> None:
    assert is_sound(PIECE)
    assert is_sound(PIECE._replace(file="manifest.json"))
    assert not is_sound(PIECE._replace(file="job.json"))
