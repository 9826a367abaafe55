"""Progress as plain lines of text, for a callback."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from clusterctl.escape import clean
from clusterctl.inventory import Node

EVERY_S = 5.0


class ProgressLines:
    """Hands lines to `write`, one at a time; None discards them. Thread-safe. The lines have no control characters."""

    def __init__(self, write: Callable[[str], object] | None) -> None:
        self._write = write
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        if self._write is not None:
            with self._lock:
                self._write(clean(text, keep_newlines=True))

    def bytes(self, title: str) -> ByteProgress:
        return ByteProgress(self, title)


class ByteProgress:
    """Counts the bytes of an operation, and says every few seconds how far it is. Thread-safe."""

    def __init__(self, progress: ProgressLines, title: str) -> None:
        self._progress = progress
        self._title = title
        self._lock = threading.Lock()
        self._counts: dict[int | None, tuple[int, int]] = {}
        self._said = time.monotonic()

    def here(self, done: int, total: int) -> None:
        """Take the bytes done so far and in total, on this machine."""
        self._take(None, done, total)

    def on(self, node: Node, done: int, total: int) -> None:
        """Take the bytes done so far and in total, of one node."""
        self._take(node.id, done, total)

    def _take(self, key: int | None, done: int, total: int) -> None:
        with self._lock:
            self._counts[key] = (done, total)
            now = time.monotonic()
            if now - self._said < EVERY_S:
                return
            self._said = now
            done, total = (sum(counts) for counts in zip(*self._counts.values(), strict=True))
        self._progress.say(f"{self._title}: {done / max(total, 1):.0%}")
