"""When a trainer sends the buffers of its model to the pservers: before they save a model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Callable, Protocol

from clusterctl.common.modes import Mode
from clusterctl.runtime.checkpoint.buffers import pack
from clusterctl.runtime.checkpoint.safetensors import TensorEntry
from clusterctl.runtime.modes import MODEL, CutSchedule

_EVERY_S = 1.0


class Sending(Protocol):
    """A trainer's client."""

    mode: Mode
    step: int
    cut: int

    @property
    def is_lowest(self) -> bool:
        """True for the lowest rank that the run still has."""
        ...

    def send_buffers(self, data: bytes, step: int) -> None:
        """Send buffers as they are after so many pushes."""
        ...


class BufferSender:
    """`take()` returns the buffers as they are now. Only the lowest rank sends its own."""

    def __init__(self, client: Sending, cuts: CutSchedule, take: Callable[[], Sequence[TensorEntry]]) -> None:
        self._client = client
        self._cuts = cuts
        self._take = take
        self._sent_s = 0.0

    def send(self, pushes: int = 0) -> None:
        """Send them before a save, or before so many more pushes with which a save may come."""
        entries = self._take() if self._client.is_lowest else ()
        if entries:
            self._client.send_buffers(pack(entries), self._client.step + pushes)
            self._sent_s = time.monotonic()

    def before_empty_pushes(self) -> None:
        """Send them if a model may be cut while this trainer waits for the others to end the pass."""
        if self._cuts.has_models:
            self.send()

    def before_push(self) -> None:
        """Send them if a model is cut after the push. Outside sync that may be at any time: send them now and then."""
        if not self._cuts.has_models:
            return
        if self._client.mode.name == "sync":
            step = self._client.step + 1
            at, purpose = self._cuts.decode(self._client.cut)
            is_due = self._cuts.models.is_step(step) or (at == step and bool(purpose & MODEL))
        else:
            is_due = time.monotonic() - self._sent_s > _EVERY_S
        if is_due:
            self.send(pushes=1)
