"""The frames of a stream: any split of the bytes, frames of any length, and bytes that no stream sends."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.runtime.errors import WireError
from clusterctl.runtime.stream.framed import Frames, Stream
from clusterctl.runtime.wire import messages as wire

DEADLINE_S = 60.0
MORE = 1 << 31
LONG = 100_000
BYTES = st.one_of(st.binary(max_size=40), st.integers(0, LONG).map(lambda size: bytes([size % 251]) * size))
MESSAGES = st.lists(st.lists(BYTES, min_size=1, max_size=4), min_size=1, max_size=5)


@contextlib.contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        for sock in (one, other):
            sock.settimeout(DEADLINE_S)
        yield one, other


def written(frames: Sequence[bytes]) -> bytes:
    """Return the bytes of a message, written as the format says, not as the module does."""
    last = len(frames) - 1
    words = [len(frame) + (MORE if number < last else 0) for number, frame in enumerate(frames)]
    return b"".join(struct.pack("<I", word) + frame for word, frame in zip(words, frames, strict=True))


def arrived(stream: Stream) -> list[list[bytes]]:
    """Return the messages that have arrived whole."""
    return [[bytes(frame) for frame in frames] for frames in iter(stream.receive, None)]


@given(MESSAGES, st.lists(st.floats(0, 1), max_size=12))
@settings(max_examples=25, deadline=None)
def test_messages_arrive_whole_however_their_bytes_are_split(messages: list[list[bytes]], cuts: list[float]) -> None:
    sent = b"".join(map(written, messages))
    places = sorted({0, len(sent), *(int(cut * len(sent)) for cut in cuts), *range(0, len(sent), 100_000)})
    received: list[list[bytes]] = []
    with pair() as (peer, sock):
        stream = Stream(sock, 0)
        for begin, end in itertools.pairwise(places):
            peer.sendall(sent[begin:end])
            received += arrived(stream)
    assert received == messages
    assert not stream.is_buffered


@given(MESSAGES)
@settings(max_examples=30, deadline=None)
def test_messages_are_sent_whole_however_little_the_socket_takes_at_a_time(messages: list[list[bytes]]) -> None:
    expected = b"".join(map(written, messages))
    received = b""
    with pair() as (peer, sock):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        stream = Stream(sock, 0)
        for message in messages:
            assert stream.send([np.frombuffer(frame, np.uint8).data if frame else frame for frame in message])
        while len(received) < len(expected):
            received += peer.recv(1 << 16)
            stream.flush()
        assert not stream.is_queued
    assert received == expected


def test_a_message_has_more_frames_than_the_kernel_takes_at_once() -> None:
    frames = [number.to_bytes(2, "little") for number in range(5_000)]
    with pair() as (one, other):
        sender, receiver = Stream(one, 0), Stream(other, 0)
        assert sender.send(frames)
        received: Frames | None = None
        while received is None:
            sender.flush()
            received = receiver.receive()
    assert received == frames


def test_frames_are_aligned_for_any_array_and_cannot_be_written() -> None:
    for size in (8, 4_096, LONG):
        with pair() as (peer, sock):
            stream = Stream(sock, 0)
            peer.sendall(written([b"odd", bytes(size)]))
            frames = next(iter(stream.receive, None))
            array = np.frombuffer(frames[1], np.int64) if size % 8 == 0 else np.frombuffer(frames[1], np.uint8)
            assert array.flags.aligned
            assert not array.flags.writeable


def test_a_queue_is_bounded_and_drops_the_newest() -> None:
    with pair() as (peer, sock):
        stream = Stream(sock, 0, most_queued=3)
        message = [bytes(LONG)]
        taken = 0
        while stream.send(message):
            taken += 1
            assert taken < 1_000
        del peer
        assert stream.is_queued
        stream.close()
        assert not stream.is_queued


@pytest.mark.parametrize("more", [0, MORE])
def test_a_frame_that_is_too_long_is_refused_before_it_comes(more: int) -> None:
    with pair() as (peer, sock):
        peer.sendall(struct.pack("<I", wire.MAX_FRAME_BYTES + 1 | more))
        with pytest.raises(WireError, match="a frame of"):
            Stream(sock, 0).receive()


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4_096


@given(st.binary(max_size=200))
@settings(max_examples=60, deadline=None)
def test_bytes_of_any_kind_are_messages_or_break_the_stream(sent: bytes) -> None:
    with pair() as (peer, sock):
        stream = Stream(sock, 0)
        peer.sendall(sent)
        peer.close()
        with pytest.raises((OSError, WireError)):
            list(iter(stream.receive, None))


def test_a_stream_that_ends_within_a_message_is_broken() -> None:
    with pair() as (peer, sock):
        peer.sendall(written([b"whole"]) + written([bytes(LONG)])[:1_000])
        peer.close()
        stream = Stream(sock, 0)
        assert stream.receive() == [b"whole"]
        with pytest.raises(ConnectionError):
            stream.receive()
