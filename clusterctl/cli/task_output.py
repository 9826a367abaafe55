"""The output of Python code that runs for many nodes at once, each in a thread of its own."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Callable, Iterator
from typing import Any, TextIO

# Receives text that was printed for a node.
Take = Callable[[str], None]


class NodeStream(io.TextIOBase):
    """A text stream that passes what is written to `take`."""

    def __init__(self, take: Take) -> None:
        self._take = take

    def write(self, text: str) -> int:
        self._take(text)
        return len(text)

    def writable(self) -> bool:
        return True


class PerThread(io.TextIOBase):
    """A stand-in for sys.stdout or sys.stderr: threads with a stream of their own write to that, others to `real`."""

    def __init__(self, real: TextIO) -> None:
        self._real = real
        self._own = threading.local()

    def write(self, text: str) -> int:
        stream = self.of_this_thread()
        with self.to(None):  # taking it may print
            return int(stream.write(text))

    def flush(self) -> None:
        self.of_this_thread().flush()

    def of_this_thread(self) -> Any:
        """Return the stream that the calling thread writes to."""
        return getattr(self._own, "stream", None) or self._real

    @contextlib.contextmanager
    def to(self, stream: Any) -> Iterator[None]:
        """Let the calling thread write to a stream in this context; to `real` if it is None."""
        before = getattr(self._own, "stream", None)
        self._own.stream = stream
        try:
            yield
        finally:
            self._own.stream = before

    def isatty(self) -> bool:
        return self._real.isatty()

    def fileno(self) -> int:
        return self._real.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._real.encoding
