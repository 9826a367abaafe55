"""Sealed streams: their wire format, how they fail, and when they are not used."""

from __future__ import annotations

import contextlib
import hmac
import itertools
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.runtime.errors import WireError
from clusterctl.runtime.stream import sealed as module
from clusterctl.runtime.stream.client import open_stream
from clusterctl.runtime.stream.sealed import SealedStream
from clusterctl.runtime.stream.tokens import SEALED, keys_from
from unit.runtime.stream.test_framed import MESSAGES, arrived, pair, written

TOKEN = bytes(range(32))
RANK, LANE = 3, 5
TAG = 16


def opened(sealed: bytes, token: bytes = TOKEN, *, to_lane: bool = True) -> bytes:
    """Return the plain bytes of records, opened as the format says, not as the module does."""
    plain, keys = b"", keys_from(token, RANK, LANE)
    key = hmac.digest(keys[0] if to_lane else keys[1], b"next", "sha256")
    for number in itertools.count():
        if not sealed:
            return plain
        end = 4 + struct.unpack_from("<I", sealed)[0] + TAG
        plain += AESGCM(key).decrypt(struct.pack("<4xQ", number), sealed[4:end], None)
        sealed = sealed[end:]
    raise AssertionError


@contextlib.contextmanager
def lane_end() -> Iterator[tuple[socket.socket, SealedStream]]:
    """Yield a socket on which anything can be sent to a lane, and the lane's end of the stream."""
    with pair() as (peer, sock):
        yield peer, SealedStream(sock, RANK, LANE, TOKEN, is_lane=True)


def records(*messages: list[bytes]) -> list[bytes]:
    """Return one record for each of these short messages, from a trainer."""
    sealed: list[bytes] = []
    with pair() as (peer, sock):
        trainer = SealedStream(sock, RANK, LANE, TOKEN, is_lane=False)
        for message in messages:
            assert trainer.send(message)
            sealed.append(peer.recv(1 << 16))
    return sealed


@given(MESSAGES, st.lists(st.floats(0, 1), max_size=12))
@settings(max_examples=25, deadline=None)
def test_messages_arrive_whole_however_their_records_are_split(messages: list[list[bytes]], cuts: list[float]) -> None:
    sealed = b""
    with pair() as (peer, sock):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        trainer = SealedStream(sock, RANK, LANE, TOKEN, is_lane=False)
        for message in messages:
            assert trainer.send([np.frombuffer(frame, np.uint8).data if frame else frame for frame in message])
        while trainer.is_queued:
            sealed += peer.recv(1 << 16)
            trainer.flush()
        sock.shutdown(socket.SHUT_WR)
        sealed += b"".join(iter(lambda: peer.recv(1 << 16), b""))
    assert opened(sealed) == b"".join(map(written, messages))
    places = sorted({0, len(sealed), *(int(cut * len(sealed)) for cut in cuts), *range(0, len(sealed), 100_000)})
    received: list[list[bytes]] = []
    with lane_end() as (peer, lane):
        for begin, end in itertools.pairwise(places):
            peer.sendall(sealed[begin:end])
            received += arrived(lane)
        assert not lane.is_buffered
    assert received == messages


def test_both_directions_carry_messages_of_any_length() -> None:
    lengths = (0, 1, 32_768, 32_769, module.MOST_BYTES, module.MOST_BYTES + 1, 3_000_000)
    messages = [[bytes([length % 251]) * length, b"end"] for length in lengths]
    with pair() as (one, other):
        ends = [SealedStream(sock, RANK, LANE, TOKEN, is_lane=sock is other) for sock in (one, other)]
        for sender, receiver in (ends, ends[::-1]):
            received: list[list[bytes]] = []
            for message in messages:
                assert sender.send(message)
            while len(received) < len(messages):
                sender.flush()
                received += arrived(receiver)
            assert received == messages


def test_an_eavesdropper_sees_neither_the_bytes_nor_the_same_ones_twice() -> None:
    one, other = records([b"gradient" * 8], [b"gradient" * 8])
    assert b"gradient" not in one + other
    assert one[4:] != other[4:]
    with pytest.raises(InvalidTag):
        opened(one, bytes(32))
    with pytest.raises(InvalidTag):
        opened(one, to_lane=False)


@pytest.mark.parametrize(
    "attack",
    [
        lambda one, two, three: [one, three],
        lambda one, two, three: [one, one],
        lambda one, two, three: [two, one],
        lambda one, two, three: [one, two[:-1] + bytes([two[-1] ^ 1]), three],
        lambda one, two, three: [one, two[:-TAG], three],
        lambda one, two, three: [one, struct.pack("<I", len(two) - 4 - TAG - 1) + two[4:-1], three],
        lambda one, two, three: [one, struct.pack("<I", 0) + bytes(TAG)],
        lambda one, two, three: [one, b"\xff" * 64],
        lambda one, two, three: [one, written([b"not sealed"]) + bytes(64)],
    ],
    ids=["left_out", "repeated", "moved", "tag", "no_tag", "shorter", "empty", "garbage", "plain"],
)
def test_records_that_were_tampered_with_break_the_stream(attack: Callable[..., list[bytes]]) -> None:
    sealed = records([b"message 1"], [b"message 2"], [b"message 3"])
    with lane_end() as (peer, lane):
        peer.sendall(b"".join(attack(*sealed)))
        first = lane.receive() if attack(*sealed)[0] == sealed[0] else None
        assert first in (None, [b"message 1"])
        with pytest.raises(WireError, match="a stream with a record"):
            lane.receive()


def test_a_change_of_any_bit_breaks_the_stream() -> None:
    [sealed] = records([b"seven b"])
    for bit in range(8 * len(sealed)):
        changed = bytearray(sealed)
        changed[bit // 8] ^= 1 << bit % 8
        with lane_end() as (peer, lane):
            peer.sendall(changed)
            peer.shutdown(socket.SHUT_WR)
            with pytest.raises((WireError, ConnectionError)):
                lane.receive()


def test_what_a_lane_sent_is_not_taken_back() -> None:
    with pair() as (peer, sock):
        lane = SealedStream(sock, RANK, LANE, TOKEN, is_lane=True)
        lane.send([b"values"])
        sealed = peer.recv(1 << 16)
        assert opened(sealed, to_lane=False) == written([b"values"])
        peer.sendall(sealed)
        with pytest.raises(WireError):
            lane.receive()


def test_the_key_changes_after_so_many_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RECORDS_PER_KEY", 3)
    messages = [[b"message %d" % number] for number in range(10)]
    sealed = records(*messages)
    key = keys_from(TOKEN, RANK, LANE)[0]
    for number, record in enumerate(sealed):
        if number % 3 == 0:
            key = hmac.digest(key, b"next", "sha256")
        assert AESGCM(key).decrypt(struct.pack("<4xQ", number), record[4:], None) == written(messages[number])
    with lane_end() as (peer, lane):
        peer.sendall(b"".join(sealed))
        assert arrived(lane) == messages


@pytest.mark.parametrize(
    ("secure", "sealed"),
    [*((True, other) for other in (None, False, True, 1, SEALED + 1)), (False, True), (False, SEALED)],
)
def test_a_trainer_takes_only_streams_that_are_sealed_if_its_run_has_keys(secure: bool, sealed: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        offer = {"token": "00" * 32, "port": listener.getsockname()[1], "sealed": sealed}
        assert open_stream(offer, "127.0.0.1", RANK, LANE, 0.0, secure=secure) is None


@pytest.mark.parametrize(
    ("cpu_info", "has_them"),
    [
        ("processor\t: 0\nflags\t\t: fpu sse2 pclmulqdq aes avx2\n", True),
        ("processor\t: 0\nflags\t\t: fpu sse2 pclmulqdq avx2\n", False),
        ("processor\t: 0\nFeatures\t: fp asimd evtstrm aes pmull sha1\n", True),
        ("processor\t: 0\nFeatures\t: fp asimd evtstrm crc32 cpuid\n", False),
        ("model name\t: a processor with aes and pclmulqdq\n", False),
        ("", False),
    ],
)
def test_processors_without_instructions_for_it_do_not_seal(tmp_path: Path, cpu_info: str, has_them: bool) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(cpu_info)
    assert module.has_instructions(path) == has_them
    assert not module.has_instructions(tmp_path / "none")


@pytest.mark.parametrize("lacks", ["cryptography", "cffi", "encrypt_into"])
def test_a_node_whose_cryptography_is_absent_or_old_opens_no_stream(tmp_path: Path, lacks: str) -> None:
    """Debian 12 has one without `encrypt_into`, and an import without cffi raises no Exception."""
    packages = tmp_path / "cryptography/hazmat/primitives/ciphers"
    packages.mkdir(parents=True)
    calls = [f"    {name} = None" for name in ("encrypt_into", "decrypt_into") if name != lacks]
    (packages / "aead.py").write_text("\n".join(["class AESGCM:", *calls]))
    if lacks != "cffi":
        (tmp_path / "cffi.py").touch()
    if lacks == "cryptography":
        (packages / "aead.py").unlink()
    numpy, zmq = (Path(str(find_spec(name).submodule_search_locations[0])) for name in ("numpy", "zmq"))
    for package in (numpy, zmq, *numpy.parent.glob("numpy.libs"), *zmq.parent.glob("pyzmq.libs")):
        (tmp_path / package.name).symlink_to(package)
    program = """
import sys
from clusterctl.runtime.stream.client import open_stream
from clusterctl.runtime.stream.sealed import Cipher, load
print(load(), open_stream({"token": "00" * 32, "port": 9, "sealed": 2}, "127.0.0.1", 0, 0, 0.0, secure=True))
try:
    Cipher(bytes(32))
except OSError as error:
    print(error)
"""
    path = f"{tmp_path}:{Path(module.__file__).parents[3]}"
    python = [sys.executable, "-S", "-c", program]
    said = subprocess.check_output(python, text=True, env={"PYTHONPATH": path, "PYTHONNOUSERSITE": "1"})
    assert said == "None None\nthis machine has no AES-256-GCM\n"


def test_a_trainer_imports_no_cryptography_before_it_opens_a_sealed_stream() -> None:
    code = "import sys, clusterctl.runtime.connector, clusterctl.runtime.trainer.zmq_link; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert not {"cryptography", "cffi"} & set(loaded)


def vector(rank: int, lane: int, way: str, number: int, plain: bytes) -> bytes:
    """Seal one record as docs/security.md says, in a few lines that share nothing with the module."""
    key = b"CCST\2\0\0\0" + rank.to_bytes(4, "little") + lane.to_bytes(4, "little") + b"key to the " + way.encode()
    key = hmac.digest(hmac.digest(TOKEN, key, "sha256"), b"next", "sha256")
    sealed = AESGCM(key).encrypt(bytes(4) + number.to_bytes(8, "little"), plain, None)
    return len(plain).to_bytes(4, "little") + sealed


#: Rank, lane, the reader, the messages before, the message, and its record in hexadecimal.
FROZEN = [
    (0, 0, "lane", 0, b"", "04000000a1645e0216eca5f5eacb0fbe62125e2b20ae3765"),
    (3, 5, "lane", 0, b"gradient", "0c00000067024feceec63b7d5dc4c43ef0358e3851bd1f11bd254eb44c1c41c8"),
    (3, 5, "trainer", 0, b"gradient", "0c000000f4948afbe453df5aef7e92f94cf382f1686a17e93ebbccf287f0e458"),
    (3, 5, "trainer", 2, b"values", "0a0000005cbd26f20b349156a29409c7a86ed42159a263ce29cff6126388"),
    (
        1023,
        70000,
        "lane",
        1,
        bytes(20),
        "18000000b908f2fff239144e8ee59c99bb479602bcb1983bc426f40fbe305121c20b76b880ab1dc247260d43",
    ),
]


@pytest.mark.parametrize(("rank", "lane", "reader", "before", "message", "record"), FROZEN)
def test_records_are_those_of_frozen_vectors(
    rank: int, lane: int, reader: str, before: int, message: bytes, record: str
) -> None:
    assert vector(rank, lane, reader, before, written([message])).hex() == record
    with pair() as (peer, sock):
        sender = SealedStream(sock, rank, lane, TOKEN, is_lane=reader == "trainer")
        for _ in range(before):
            sender.send([b"before"])
            peer.recv(1 << 16)
        sender.send([message])
        assert peer.recv(1 << 16).hex() == record


def test_the_keys_of_a_stream_are_those_of_its_rank_and_lane_only() -> None:
    keys = [keys_from(TOKEN, rank, lane)[way] for rank in range(4) for lane in range(4) for way in range(2)]
    assert len(set(keys)) == 32
    [sealed] = records([b"of rank 3 and lane 5"])
    for rank, lane in ((RANK, LANE + 1), (RANK + 1, LANE), (LANE, RANK)):
        with pair() as (peer, sock):
            peer.sendall(sealed)
            with pytest.raises(WireError):
                SealedStream(sock, rank, lane, TOKEN, is_lane=True).receive()


@pytest.mark.parametrize("where", [4, 300_000, -1])
def test_nothing_unverified_leaves_a_stream(where: int) -> None:
    """The bytes of a long frame are opened where it will be handed out."""
    message = [b"head", bytes(700_000), b"tail"]
    sealed = b""
    with pair() as (peer, sock):
        trainer = SealedStream(sock, RANK, LANE, TOKEN, is_lane=False)
        for _ in range(2):
            trainer.send(message)
            while trainer.is_queued:
                sealed += peer.recv(1 << 20)
                trainer.flush()
        sock.shutdown(socket.SHUT_WR)
        sealed += b"".join(iter(lambda: peer.recv(1 << 20), b""))
    changed = bytearray(sealed)
    at = len(sealed) // 2 + where if where >= 0 else len(sealed) - 1
    changed[at] ^= 1
    received: list[Any] = []
    with lane_end() as (peer, lane):
        for begin in range(0, len(changed), 50_000):
            peer.sendall(changed[begin : begin + 50_000])
            try:
                for frames in iter(lane.receive, None):
                    received.append([bytes(frame) for frame in frames])
            except WireError:
                break
        assert received == [message]
        for _ in range(3):  # not even to one that asks again
            with pytest.raises(WireError):
                lane.receive()
