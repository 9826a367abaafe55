"""The initial values that a trainer sends are in flight within bounds, however large and many its tables are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from clusterctl.runtime.local import LocalLink
from clusterctl.runtime.supervisor_socket import SupervisorSocket
from clusterctl.runtime.trainer.client import Client
from clusterctl.runtime.trainer.link import OnReply
from clusterctl.runtime.trainer.progress import ProgressReporter
from clusterctl.runtime.wire import messages as wire
from unit.runtime.cluster import environment, make_job

PIECE_BYTES = 2**20


class SlowLink(LocalLink):
    """The link to a lane that answers no initial values before the trainer waits; `bytes` and `counts` of those out."""

    def __init__(self, root: Path) -> None:
        super().__init__(environment(root, "trainer", 0))
        self.counts, self.bytes = [0], [0]
        self._out: list[tuple[wire.Message, OnReply]] = []

    def post(self, lane: int, message: wire.Message, on_reply: OnReply, full: wire.Message | None = None) -> None:
        if message.kind != wire.SET:
            super().post(lane, message, on_reply, full)
            return
        self._out.append((message, on_reply))
        self.counts.append(len(self._out))
        self.bytes.append(sum(part.array.nbytes for out, _ in self._out for part in out.parts))

    def wait(self, done: Callable[[], bool], reply_bytes: int = 0) -> None:
        while not done():
            message, on_reply = self._out.pop(0)
            on_reply(message.answer(wire.OK))


@pytest.mark.parametrize(("size", "pieces"), [(PIECE_BYTES, 40), (4, 1000)])
def test_a_bounded_number_of_initial_values_is_in_flight(tmp_path: Path, size: int, pieces: int) -> None:
    link = SlowLink(make_job(tmp_path, 1, 1))
    client = Client(link._env, link, 0, ProgressReporter(SupervisorSocket(None)), lambda parts: None)
    part = wire.Part(wire.DENSE, np.zeros(size // 4, np.float32), 7)
    client.set_values({0: (number, pieces, [part])} for number in range(pieces))
    assert len(link.counts) == 1 + pieces
    assert link.counts.count(1) > 1, "it waited only at the end"
    assert (max(link.bytes) <= 4 * PIECE_BYTES, max(link.counts) <= 256) == (True, True)
    assert link._out == []
