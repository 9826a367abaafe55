"""Processes on one host exchange long arrays through shared memory: same bits, nothing torn, nothing left behind."""

from __future__ import annotations

import mmap
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterctl.runtime import SGD, Adagrad
from clusterctl.runtime.errors import WireError
from clusterctl.runtime.shm import client, region
from clusterctl.runtime.shm.client import ShmClient, connect_shm
from clusterctl.runtime.shm.region import REGION_SHIFT
from clusterctl.runtime.shm.server import ShmServer
from clusterctl.runtime.trainer.session import Session
from clusterctl.runtime.wire import messages as wire
from unit.runtime.cluster import DEADLINE_S, process_cluster, thread_cluster

ELEMENTS = 600_000  # three pieces
ROWS = 9_000


def shm_clients(ps: Session) -> list[ShmClient]:
    return list(ps._client.memory.clients.values())


def program(ps: Session) -> list[Any]:
    w = ps.dense("w", shape=ELEMENTS, rule=Adagrad(0.1))
    emb = ps.embedding("e", dim=8, rule=SGD(0.1), rows=ROWS)
    for number, _ in enumerate(ps.steps(lambda pass_, rng: range(3), passes=2)):
        ids = np.arange(number, ROWS, dtype=np.int64)
        rows = emb.pull(ids)
        dense = np.sin(np.arange(ELEMENTS, dtype=np.float32) + ps.rank + number) + w.value
        ps.push({w: dense, emb: (ids, rows + np.float32(ps.rank + 1))}, samples=3 + ps.rank)
    return [w.value.copy(), emb.pull(np.arange(ROWS)), len(shm_clients(ps))]


def test_values_are_the_same_with_and_without_shared_memory(tmp_path: Path) -> None:
    values = {}
    for shm in ("auto", "off"):
        with thread_cluster(tmp_path / shm, 2, 2, shm=shm, ports_num=2, ports_num_for_sparse=1) as cluster:
            values[shm] = cluster.train(program)
    for (dense, rows, shared), (far_dense, far_rows, not_shared) in zip(values["auto"], values["off"], strict=True):
        assert (shared > 0, not_shared) == (True, 0)
        assert (dense == far_dense).all()
        assert (rows == far_rows).all()


def constant(ps: Session) -> list[int]:
    """Each trainer pushes the same number everywhere, so all elements are equal unless a step is torn."""
    w = ps.dense("w", shape=ELEMENTS, rule=SGD(2.0**-10))
    torn = []
    for number, _ in enumerate(ps.steps(lambda pass_, rng: range(8), passes=1)):
        gradient = np.full(ELEMENTS, np.float32(1 + ps.rank * (number % 3)))
        ps.push({w: gradient}, samples=1)
        if (w.value != w.value[0]).any():
            torn.append(number)
    return torn


def test_a_reader_in_sync_mode_never_sees_a_torn_step(tmp_path: Path) -> None:
    with thread_cluster(tmp_path, 1, 3, shm="auto") as cluster:
        assert cluster.train(constant) == [[], [], []]


def whole(ps: Session) -> bool:
    w = ps.dense("w", shape=ELEMENTS, rule=SGD(2.0**-10))
    for _ in ps.steps(lambda pass_, rng: range(8), passes=1):
        ps.push({w: np.ones(ELEMENTS, np.float32)}, samples=1)
    w.pull()
    return bool((w.value * 2**10 == np.round(w.value * 2**10)).all())


def test_in_async_each_number_is_whole_and_all_pushes_count(tmp_path: Path) -> None:
    with thread_cluster(tmp_path, 1, 2, shm="auto", mode="async") as cluster:
        assert cluster.train(whole) == [True, True]
        [table] = cluster.cores[0].tables.values()
        assert (table.current == -16 * np.float32(2.0**-10)).all()


@pytest.fixture
def sharing() -> Any:
    made = ShmServer()
    yield made
    made.close()


def test_a_wrong_token_is_turned_away(sharing: ShmServer) -> None:
    assert connect_shm({**sharing.greeting(0), "token": "0" * 64}, rank=0) is None
    assert connect_shm(sharing.greeting(1), rank=0) is None
    assert connect_shm({**sharing.greeting(0), "name": "nobody"}, rank=0) is None


def test_a_pserver_that_can_start_no_thread_shares_nothing_and_goes_on(
    sharing: ShmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a low MEMORY_LIMIT_MB, Python cannot start threads; trainers must not wait for an answer."""
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "clusterctl-share":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(client, "_ANSWER_S", None)  # without an answer this test would not end
    monkeypatch.setattr(threading.Thread, "start", refused)
    assert connect_shm(sharing.greeting(0), rank=0) is None
    monkeypatch.undo()
    again = connect_shm(sharing.greeting(0), rank=0)
    assert again is not None
    again.close()


def test_invalid_places_are_refused(sharing: ShmServer) -> None:
    connected = connect_shm(sharing.greeting(3), rank=3)
    assert connected is not None
    slot = connected.acquire(100_000)
    assert slot is not None
    view = sharing.view_of(3)
    assert len(view(1, slot.position + 8, 16)) == 16
    for position in (slot.position + 4, slot.position + len(slot.data), (9 << REGION_SHIFT), 2**63):
        with pytest.raises(WireError, match="does not exist"):
            view(1, position, 16)
    with pytest.raises(WireError, match="does not exist"):
        sharing.view_of(4)(1, slot.position, 16)
    with pytest.raises(WireError, match="does not exist"):
        connected.find(0, 1, 0, 16)
    assert sharing.room(3, slot.position, len(slot.data) + 1) is None
    connected.close()


def test_a_message_may_not_put_ids_into_shared_memory() -> None:
    ids = wire.Part(wire.IDS, np.arange(4), 1, 0, 8)
    [frame] = wire.encode(wire.Message(wire.PULL, parts=[ids]))
    index = wire.HEADER.size + wire.ENTRY.size - 3
    assert frame[index] == wire.INLINE
    hostile = frame[:index] + bytes([wire.SHARED]) + frame[index + 1 :]
    with pytest.raises(WireError, match="cannot be"):
        wire.decode([hostile], lambda table, position, size: memoryview(bytes(size)))


def test_memory_that_could_shrink_or_has_another_size_is_not_mapped() -> None:
    unsealed = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, 4_096)
    sealed, _ = region.make_region(4_096)
    for fd, size in ((unsealed, 4_096), (sealed, 8_192)):
        with pytest.raises(ValueError, match="shared memory"):
            region.map_region(fd, size, writable=True)
        os.close(fd)


def test_values_that_a_trainer_maps_cannot_be_written(sharing: ShmServer) -> None:
    values, _ = sharing.allocate(0, 7, ELEMENTS)
    values[:] = 1
    client = connect_shm(sharing.greeting(0), rank=0)
    assert client is not None
    assert client.map_table(0, 7)
    seen = np.frombuffer(client.find(0, 7, 0, 4 * ELEMENTS), np.float32)
    assert (seen == 1).all()
    with pytest.raises(ValueError, match="read-only"):
        seen[0] = 2
    [(fd, _)] = sharing._tables.values()
    with pytest.raises(PermissionError):
        mmap.mmap(fd, 4_096)
    client.close()


ENDLESS = """
import itertools
import numpy as np
from clusterctl.runtime import SGD, connect

with connect() as ps:
    w = ps.dense("w", shape=600_000, rule=SGD(0.1))
    for _ in ps.steps(lambda pass_, rng: itertools.count(), passes=1):
        ps.push({w: np.ones(600_000, np.float32)}, samples=1)
        if ps.step == 5:
            print("trains", flush=True)
"""


def regions(pid: int) -> int:
    """Return how many mappings of shared memory a process has."""
    return Path(f"/proc/{pid}/maps").read_text().count("memfd:clusterctl")


def test_nothing_is_left_behind_when_a_trainer_and_then_a_pserver_are_killed(tmp_path: Path) -> None:
    with process_cluster(tmp_path, 1, 1, ENDLESS, shm="auto") as ([server], [trainer]):
        assert trainer.process.stdout is not None
        assert "trains" in trainer.process.stdout.readline()
        before = regions(server.process.pid)
        of_others = set(Path("/dev/shm").iterdir())
        assert before > 1
        trainer.process.kill()
        trainer.process.wait()
        deadline = time.monotonic() + DEADLINE_S
        while regions(server.process.pid) > 1:  # the values remain; the trainer's memory is released
            assert time.monotonic() < deadline, "the pserver keeps a dead trainer's memory"
            time.sleep(0.02)
        name = next(line.split()[-1] for line in sockets() if f"clusterctl-{server.process.pid}-" in line)
        server.process.kill()
        server.process.wait()
        with socket.socket(socket.AF_UNIX) as probe, pytest.raises(ConnectionRefusedError):
            probe.connect("\0" + name[1:])
        assert not set(Path("/dev/shm").glob("*clusterctl*")) - of_others


def sockets() -> list[str]:
    return Path("/proc/net/unix").read_text().splitlines()
