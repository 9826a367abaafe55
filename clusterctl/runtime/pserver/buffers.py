"""The buffers that a trainer sent for saved models, on the first lane of the run."""

from __future__ import annotations

from clusterctl.runtime.checkpoint.buffers import Buffers
from clusterctl.runtime.wire import messages as wire


class BufferBook:
    """Buffers by the step that they are of: the newest, and those before, which a save that is due may need."""

    def __init__(self) -> None:
        self._by_step: dict[int, Buffers] = {}

    def __bool__(self) -> bool:
        return bool(self._by_step)

    def take(self, message: wire.Message) -> Buffers:
        """Take buffers from a trainer, and return them. Raises ModelError if they are malformed."""
        data = b"".join(part.array.tobytes() for part in message.parts if part.kind == wire.BYTES)
        newest = Buffers(data, f"the buffers of trainer {message.rank}")
        older = [step for step in self._by_step if step < message.step]
        self._by_step = {step: self._by_step[step] for step in older[-1:]}
        self._by_step[message.step] = newest
        return newest

    def at(self, step: int) -> Buffers | None:
        """Return the newest buffers that are not of a later step, or None."""
        return self._by_step.get(max((known for known in self._by_step if known <= step), default=-1))
