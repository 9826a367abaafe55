"""Hostile bytes: messages that no trainer would send, against the decoder and against live pservers.

A real trainer records valid requests, so these tests contain no message bytes. Mutants of these requests, and messages
of random parts for real tables, are sent in the order of the valid ones, each before the one it resembles. So each
reaches a pserver that is waiting for a message of its kind. INPUTS is their number; to send more, set
CLUSTERCTL_HOSTILE_INPUTS.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import socket
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.runtime.errors import WireError
from clusterctl.runtime.shm import region as memory
from clusterctl.runtime.table.sharding import table_key
from clusterctl.runtime.wire import messages as wire
from unit.runtime.attack import DEADLINE_S, record, resident, under_attack
from unit.runtime.hostile import Frames, hostile

INPUTS = int(os.environ.get("CLUSTERCTL_HOSTILE_INPUTS", "1500"))
MIB = 2**20
# : How much a pserver may grow whatever it is sent: its queues, and the small tables that mutants really create.
GROWTH_BYTES = 128 * MIB
BURST = 100

# The decoder


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[Frames]:
    return record(tmp_path_factory.mktemp("recorded"))


def is_message(frames: Frames) -> bool:
    """Return True if `frames` decode; any exception but WireError is raised."""
    try:
        wire.decode(frames)
    except WireError:
        return False
    return True


def decoding_bytes(frames: Frames) -> int:
    """Return the peak memory of decoding."""
    tracemalloc.start()
    try:
        is_message(frames)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_mutants_decode_or_are_refused_by_name_in_bounded_memory(recorded: list[Frames]) -> None:
    outcomes = []
    for number, frames in enumerate(hostile(recorded, INPUTS, random.Random(20_260_101))):
        outcomes.append(is_message(frames))
        if number % 16 == 0:
            assert decoding_bytes(frames) < 8 * sum(map(len, frames)) + 65_536
    assert len(outcomes) > 0.9 * INPUTS
    assert 0.1 < sum(outcomes) / len(outcomes) < 0.9, "if all mutants are refused, or none, nothing is tested"


@given(st.lists(st.binary(max_size=400), max_size=4))
@settings(max_examples=300)
def test_bytes_of_any_kind_are_a_message_or_a_wire_error(frames: Frames) -> None:
    with contextlib.suppress(WireError):
        wire.decode(frames)


# Live pservers


@pytest.mark.parametrize(
    ("mode", "left", "carrier"),
    [("async", False, "tcp"), ("async", False, "sealed"), ("sync", True, "unix"), ("sync", False, "zmq")],
)
def test_a_pserver_survives_hostile_messages_and_serves_a_good_trainer_bit_for_bit(
    tmp_path: Path, recorded: list[Frames], mode: str, left: bool, carrier: str
) -> None:
    """Trainer 1 attacks after it has left, or while it is at work; sync steps then wait for it until it leaves."""
    inputs = hostile(recorded, INPUTS // (3 if carrier == "zmq" else 6), random.Random(mode))
    may_step = mode == "async" or left
    with under_attack(tmp_path, mode, SECURITY[carrier], left, carrier) as (server, good, attacker):
        before = resident(server)
        bursts = 0
        while burst := list(itertools.islice(inputs, BURST)):
            attacker.burst(burst)
            bursts += 1
            if may_step and bursts % 5 == 0:
                good.step()
        attacker.burst([[bytes(frame) for frame in wire.encode(wire.Message(wire.BYE, 1, 2**61))]])
        assert resident(server) - before < GROWTH_BYTES
        good.step()
        good.step()
        assert good.steps == 2 + bursts // 5 * may_step
        assert attacker.replies > 10 * bursts, "no mutant got an answer"


SECURITY = {"zmq": "curve", "unix": "curve", "tcp": "none", "sealed": "curve"}


def until_first_push(recorded: list[Frames]) -> list[Frames]:
    return list(itertools.takewhile(lambda frames: wire.decode(frames).kind != wire.PUSH, recorded))


def changed(recorded: list[Frames], kind: int = 0, **fields: Any) -> Frames:
    """Return the first push of trainer 1 with other fields; with `kind`, with a different first part of that kind."""
    push = next(m for m in map(wire.decode, recorded) if m.kind == wire.PUSH)
    part = {name: fields.pop(name) for name in ("array", "table", "offset", "position") if name in fields}
    if kind:
        pieces = (wire.IDS, wire.SAME) if kind == wire.IDS else (kind,)
        [index, *_] = [number for number, p in enumerate(push.parts) if p.kind in pieces]
        push.parts[index] = push.parts[index]._replace(kind=kind, **part)
    for name, value in fields.items():
        assert hasattr(push, name)
        setattr(push, name, value)
    return [bytes(frame) for frame in wire.encode(push)]


IDS = np.arange(40)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "ids that come twice": ({"kind": wire.IDS, "array": IDS // 2}, "do not ascend"),
    "ids that descend": ({"kind": wire.IDS, "array": IDS[::-1]}, "do not ascend"),
    "ids beyond the table": ({"kind": wire.IDS, "array": IDS + 961}, "outside 0..999"),
    "negative ids": ({"kind": wire.IDS, "array": IDS - 1}, "outside 0..999"),
    "an unknown table": ({"kind": wire.DENSE, "table": 1}, "names an unknown table"),
    "a gradient that is shorter": ({"kind": wire.DENSE, "array": np.ones(149, "f4")}, "theirs.w"),
    "a gradient that begins elsewhere": ({"kind": wire.DENSE, "offset": 3}, "theirs.w"),
    "a gradient of another table's shape": ({"kind": wire.DENSE, "table": table_key("good.w")}, "good.w"),
    "rows of another width": ({"kind": wire.ROWS, "array": np.ones((40, 5), "f4")}, "theirs.e"),
    "more samples than can be summed": ({"samples": 2**53 + 1}, "samples"),
    "a step to come": ({"step": 7}, "step 7"),
    "another epoch": ({"epoch": 9}, "epoch 9"),
    "another trainer's rank": ({"rank": 0}, "trainer 1"),
    "a rank that is not there": ({"rank": 2**32 - 1}, "trainer 1"),
    "an attempt that has not said hello": ({"attempt": 2}, "hello"),
}
UNANSWERED: dict[str, dict[str, Any]] = {
    "shared memory that is not there": {"kind": wire.DENSE, "position": 2**40},
}


@pytest.mark.parametrize("carrier", ["zmq", "sealed"])
def test_each_kind_of_hostile_push_is_refused_by_name_and_a_repeated_one_not_applied(
    tmp_path: Path, recorded: list[Frames], carrier: str
) -> None:
    with under_attack(tmp_path, "async", SECURITY[carrier], carrier=carrier) as (_, good, attacker):
        good.step()
        attacker.burst(until_first_push(recorded))
        for case, (change, message) in REFUSED.items():
            answer = attacker.ask(changed(recorded, **change))
            assert answer is not None, case
            assert answer.kind == wire.ERROR, case
            assert message in answer.json()["message"], case
        for case, change in UNANSWERED.items():
            assert attacker.ask(changed(recorded, **change)) is None, case
        flags = [attacker.ask(changed(recorded)) for _ in range(3)]
        assert [answer and answer.flags & wire.REPEATED for answer in flags] == [0, wire.REPEATED, wire.REPEATED]
        good.step()


GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
HANDSHAKE = GREETING + bytes([4, len(READY)]) + READY


ODD_PEERS = {
    "a frame of 4 EiB": HANDSHAKE + b"\x02" + struct.pack(">Q", 2**62) + bytes(1000),
    "one byte too many": HANDSHAKE + b"\x02" + struct.pack(">Q", wire.MAX_FRAME_BYTES + 1) + bytes(1000),
    "a command of ZMTP that is none": HANDSHAKE + bytes([4, 255]) + bytes(255),
    "another mechanism": GREETING[:12] + b"CURVE".ljust(20, b"\0") + bytes(32) + bytes(1000),
    "HTTP": b"GET / HTTP/1.0\r\n\r\n" + bytes(100),
}


def test_a_peer_that_violates_the_protocol_is_cut_off_and_costs_nothing(tmp_path: Path) -> None:
    with under_attack(tmp_path, "async", "none") as (server, good, attacker):
        good.step()
        before = resident(server)
        host, port = attacker.address.split(":")
        for sent in ODD_PEERS.values():
            with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as peer:
                peer.sendall(sent)
                with contextlib.suppress(ConnectionResetError):
                    while peer.recv(4096):  # until it hangs up; otherwise this times out
                        pass
            good.step()
        assert resident(server) - before < 8 * MIB
        monitor = attacker.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        attacker.socket.send(bytes(wire.MAX_FRAME_BYTES + 1))
        assert monitor.poll(DEADLINE_S * 1000), "the pserver does not hang up"
        good.step()
        assert resident(server) - before < wire.MAX_FRAME_BYTES // 2


ODD_STREAMS = {
    "a frame of 2 GiB": struct.pack("<I", 2**31 - 1) + bytes(1000),
    "one byte too many": struct.pack("<I", wire.MAX_FRAME_BYTES + 1) + bytes(1000),
    "frames without end": struct.pack("<I", 2**31) * (wire.MAX_PARTS + 2),
    "HTTP": b"GET / HTTP/1.0\r\n\r\n" + bytes(100),
}


@pytest.mark.parametrize("carrier", ["tcp", "sealed"])
def test_a_stream_that_violates_the_protocol_is_cut_off_and_costs_nothing(tmp_path: Path, carrier: str) -> None:
    with under_attack(tmp_path, "async", SECURITY[carrier], carrier=carrier) as (server, good, attacker):
        good.step()
        before = resident(server)
        for sent in ODD_STREAMS.values():
            assert attacker.stream is not None
            attacker.stream.sock.settimeout(DEADLINE_S)
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                attacker.send_bytes(sent)
                while attacker.stream.sock.recv(4096):  # until it hangs up; otherwise this times out
                    pass
            good.step()
            attacker.stream.close()
            attacker.reopen()
        claims = [attacker.stream]
        for _ in range(8):
            attacker.send_bytes(struct.pack("<I", wire.MAX_FRAME_BYTES) + bytes(1000))
            claims.append(attacker.reopen())
        good.step()
        assert resident(server) - before < 8 * MIB
        for stream in claims:
            stream.close()


def lend(greeting: dict[str, Any], size: int) -> socket.socket:
    """Offer a pserver a region of this process as trainer 1's number 3, as trainers do."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(DEADLINE_S)
    sock.connect(f"\0{greeting['name']}")
    memory.send(sock, {"token": greeting["token"], "rank": 1})
    memory.receive(sock)
    fd, _ = memory.make_region(size)
    memory.send(sock, {"region": 3, "size": size}, fd)
    memory.receive(sock)
    os.close(fd)
    return sock


def strangers(greeting: dict[str, Any]) -> Iterator[bytes]:
    """Return messages that a process on this host might send to the unix socket."""
    for message in ({"token": "0" * 32, "rank": 1}, {"token": "\u00e9", "rank": 1}, {"rank": 1}, [], 7):
        yield framed(message)
    hello = framed({"token": greeting["token"], "rank": 1})
    yield framed({"token": greeting["token"], "rank": 1e999})
    for message in ({"lane": 9, "table": 1}, {"region": 1}, {"lane": "x"}, {"lane": 1e999, "table": 0}, {}):
        yield hello + framed(message)
    yield from (b"", b"\xff\xff" + bytes(9000), b"\x00\x00", b"\x04\x00{{{{", framed([]).replace(b"[]", b"[" * 2))


def framed(message: Any) -> bytes:
    data = json.dumps(message).encode()
    return len(data).to_bytes(2, "little") + data


def test_shared_memory_is_read_only_within_bounds_and_strangers_get_none(
    tmp_path: Path, recorded: list[Frames]
) -> None:
    with under_attack(tmp_path, "async", "curve") as (_, good, attacker):
        good.step()
        hello = attacker.ask(recorded[0])
        assert hello is not None
        greeting = hello.json()["shared"]
        for message in strangers(greeting):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
                peer.settimeout(DEADLINE_S)
                peer.connect(f"\0{greeting['name']}")
                peer.sendall(message)
                peer.shutdown(socket.SHUT_WR)
                with contextlib.suppress(ConnectionResetError):
                    while peer.recv(4096):
                        pass
        attacker.burst(until_first_push(recorded))
        size = 4 * 150
        with lend(greeting, 4096):
            for region, offset in ((3, 4096), (3, 4096 - size + 8), (3, 3), (3, 2**40 - 8), (2, 0), (0, 0), (2**23, 0)):
                change = {"kind": wire.DENSE, "array": np.empty(150, "f4"), "position": region << 40 | offset}
                assert attacker.ask(changed(recorded, **change)) is None, (region, offset)
            fits = changed(recorded, kind=wire.DENSE, array=np.empty(150, "f4"), position=3 << 40 | (4096 - size))
            answer = attacker.ask(fits)
            assert answer is not None
            assert answer.kind == wire.OK
        good.step()
