"""A helper serves its own user only, and stores nothing."""

from __future__ import annotations

import os
import socket
import stat
import struct
from pathlib import Path

import pytest

from clusterctl.transport.keep import frames, place
from clusterctl.transport.keep.frames import Frames
from security.strangers import in_stranger, needs_root
from support.kept import Kept, connection
from support.nodes import TestNode


def socket_of(directory: Path) -> Path:
    (path,) = directory.glob("*.socket")
    return path


def test_the_socket_is_private_and_nothing_else_is_stored(kept: Kept, keep_in: Path, node: TestNode) -> None:
    with kept() as transport:
        connection(transport, node)
    assert stat.S_IMODE(keep_in.stat().st_mode) == 0o700
    assert [path.name for path in keep_in.iterdir()] == [socket_of(keep_in).name]
    status = socket_of(keep_in).stat()
    assert stat.S_ISSOCK(status.st_mode)
    assert stat.S_IMODE(status.st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_directory_that_others_can_enter_is_not_used(kept: Kept, keep_in: Path, node: TestNode, mode: int) -> None:
    keep_in.mkdir()
    keep_in.chmod(mode)
    with kept() as transport:
        connection(transport, node)
    assert list(keep_in.iterdir()) == []
    keep_in.chmod(0o700)


def test_nor_is_a_link(kept: Kept, keep_in: Path, node: TestNode, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    keep_in.symlink_to(elsewhere)
    with kept() as transport:
        connection(transport, node)
    assert list(elsewhere.iterdir()) == []
    keep_in.unlink()


@needs_root
def test_another_user_gets_nothing_even_where_the_modes_allow_it(kept: Kept, keep_in: Path, node: TestNode) -> None:
    with kept() as transport:
        connection(transport, node)
    where = socket_of(keep_in)

    def gets_nothing() -> bool:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(180)
            sock.connect(f"/proc/self/fd/{fd}/{where.name}")
            return sock.recv(100) == b""

    where.chmod(0o666)
    fd = os.open(keep_in, os.O_PATH)
    try:
        keep_in.chmod(0o777)
        assert in_stranger(gets_nothing)
    finally:
        os.close(fd)
        keep_in.chmod(0o700)


@needs_root
def test_a_command_says_nothing_to_a_socket_of_another_user(keep_in: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        place.check_peer(ours)
        user = os.geteuid()
        os.setresuid(65534, 65534, 0) if False else None
        assert user == 0


def test_the_user_of_the_other_end_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert place.check_peer(ours) == os.getpid()
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        with pytest.raises(PermissionError, match="belongs to uid"):
            place.check_peer(ours)


def test_the_credentials_of_macos_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Peer:
        def __init__(self, version: int, uid: int) -> None:
            self._answer = struct.pack("=IIhxx16I", version, uid, 1, *range(16))

        def getsockopt(self, level: int, option: int, size: int) -> bytes:
            assert (level, option, size) == (0, 1, len(self._answer))
            return self._answer

    assert place._uid_on_macos(Peer(0, 501)) == 501  # type: ignore[arg-type]
    with pytest.raises(PermissionError):
        place._uid_on_macos(Peer(1, 501))  # type: ignore[arg-type]


def test_a_helper_survives_whatever_a_client_sends(kept: Kept, keep_in: Path, node: TestNode) -> None:
    with kept() as transport:
        first = connection(transport, node)
    folder = os.open(keep_in, os.O_RDONLY)
    where = place.address(keep_in, folder, socket_of(keep_in).name)
    hostile = (b"", b"GET / HTTP/1.0\r\n\r\n", frames.HEADER.pack(b"G", 1 << 31), frames.frame(frames.OPEN, b"{}"))
    for data in (*hostile, frames.frame(frames.OPEN, b"not json"), frames.frame(frames.INPUT, b"early")):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(180)
            sock.connect(where)
            assert Frames(sock).next() == (frames.HELLO, b"")
            sock.sendall(data)
    os.close(folder)
    with kept() as transport:
        assert connection(transport, node) == first
